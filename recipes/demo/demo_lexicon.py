"""The nouns and names of the demonstration grammar, with the forms both languages need."""

from dataclasses import dataclass

GENDERS = {"der": "m", "die": "f", "das": "n"}


@dataclass(frozen=True)
class Noun:
    """A noun of both languages; `plural` is empty for mass nouns, `weak` marks the n-declension.

    `group` is the first of its kinds: nouns of one group can be compared.
    """

    singular: tuple[str, ...]
    plural: tuple[str, ...]
    gender: str
    german_singular: str
    german_plural: str
    weak: bool
    kinds: frozenset[str]
    group: str

    @property
    def kind(self) -> str:
        """The kind that only this noun has."""
        return "_".join(self.singular)

    def german(self, case: str, plural: bool) -> str:
        """Return the German form in `case` ("nom", "acc" or "dat")."""
        if not plural:
            return self.german_plural if self.weak and case != "nom" else self.german_singular
        if case == "dat" and not self.german_plural.endswith(("n", "s")):
            return self.german_plural + "n"
        return self.german_plural


@dataclass(frozen=True)
class Place(Noun):
    """A noun that people are at or go to, with the prepositions it takes in each language."""

    at: tuple[str, str] = ("in", "in")
    to: tuple[str, str, str] = ("to", "zu", "dat")


@dataclass(frozen=True)
class Name:
    """The name of a person, whose gender (m or f) decides the pronoun."""

    text: str
    gender: str


@dataclass(frozen=True)
class City:
    """The name of a city in both languages."""

    english: str
    german: str


# English singular and plural | article, singular and plural | kinds. `*` marks weak nouns, `-` a
# missing plural, `_` a blank inside an English word. Every noun is also a kind of its own.
NOUN_TABLE = """
man men | der Mann Männer | person
woman women | die Frau Frauen | person
child children | das Kind Kinder | person
boy boys | der Junge* Jungen | person
girl girls | das Mädchen Mädchen | person
teacher teachers | der Lehrer Lehrer | person job
student students | der Student* Studenten | person job
pupil pupils | der Schüler Schüler | person
doctor doctors | der Arzt Ärzte | person job
nurse nurses | die Krankenschwester Krankenschwestern | person job
neighbour neighbours | der Nachbar* Nachbarn | person
friend friends | der Freund Freunde | person
guest guests | der Gast Gäste | person
customer customers | der Kunde* Kunden | person
colleague colleagues | der Kollege* Kollegen | person
boss bosses | der Chef Chefs | person
baker bakers | der Bäcker Bäcker | person job
farmer farmers | der Bauer* Bauern | person job
gardener gardeners | der Gärtner Gärtner | person job
singer singers | der Sänger Sänger | person job
policeman policemen | der Polizist* Polizisten | person job
driver drivers | der Fahrer Fahrer | person
waiter waiters | der Kellner Kellner | person job
waitress waitresses | die Kellnerin Kellnerinnen | person job
lawyer lawyers | der Anwalt Anwälte | person job
artist artists | der Künstler Künstler | person job
actress actresses | die Schauspielerin Schauspielerinnen | person job
king kings | der König Könige | person
queen queens | die Königin Königinnen | person
tourist tourists | der Tourist* Touristen | person
soldier soldiers | der Soldat* Soldaten | person job
pilot pilots | der Pilot* Piloten | person job
judge judges | der Richter Richter | person job
writer writers | der Schriftsteller Schriftsteller | person job
engineer engineers | der Ingenieur Ingenieure | person job
brother brothers | der Bruder Brüder | person kin
sister sisters | die Schwester Schwestern | person kin
mother - | die Mutter - | person kin
father - | der Vater - | person kin
grandmother - | die Großmutter - | person kin
grandfather - | der Großvater - | person kin
uncle uncles | der Onkel Onkel | person kin
aunt aunts | die Tante Tanten | person kin
son sons | der Sohn Söhne | person kin
daughter daughters | die Tochter Töchter | person kin
dog dogs | der Hund Hunde | animal pet
cat cats | die Katze Katzen | animal pet
horse horses | das Pferd Pferde | animal pet
bird birds | der Vogel Vögel | animal pet
rabbit rabbits | das Kaninchen Kaninchen | animal pet
mouse mice | die Maus Mäuse | animal
cow cows | die Kuh Kühe | animal farm
pig pigs | das Schwein Schweine | animal farm
goat goats | die Ziege Ziegen | animal farm
duck ducks | die Ente Enten | animal farm
donkey donkeys | der Esel Esel | animal farm
fox foxes | der Fuchs Füchse | animal
wolf wolves | der Wolf Wölfe | animal
bear bears | der Bär* Bären | animal
lion lions | der Löwe* Löwen | animal
monkey monkeys | der Affe* Affen | animal
elephant elephants | der Elefant* Elefanten | animal
snake snakes | die Schlange Schlangen | animal
frog frogs | der Frosch Frösche | animal
apple apples | der Apfel Äpfel | food fruit
pear pears | die Birne Birnen | food fruit
banana bananas | die Banane Bananen | food fruit
strawberry strawberries | die Erdbeere Erdbeeren | food fruit
cherry cherries | die Kirsche Kirschen | food fruit
tomato tomatoes | die Tomate Tomaten | food vegetable
carrot carrots | die Karotte Karotten | food vegetable
potato potatoes | die Kartoffel Kartoffeln | food vegetable
egg eggs | das Ei Eier | food
cake cakes | der Kuchen Kuchen | food baked
bread_roll bread_rolls | das Brötchen Brötchen | food baked
sausage sausages | die Wurst Würste | food
soup soups | die Suppe Suppen | food
salad salads | der Salat Salate | food
bread - | das Brot - | food baked mass
cheese - | der Käse - | food mass
meat - | das Fleisch - | food mass
rice - | der Reis - | food mass
butter - | die Butter - | food mass
honey - | der Honig - | food mass
chocolate - | die Schokolade - | food mass
ice_cream - | das Eis - | food mass
water - | das Wasser - | drink mass
milk - | die Milch - | drink mass
coffee - | der Kaffee - | drink mass
tea - | der Tee - | drink mass
juice - | der Saft - | drink mass
beer - | das Bier - | drink mass
wine - | der Wein - | drink mass
book books | das Buch Bücher | text thing coloured goods
newspaper newspapers | die Zeitung Zeitungen | text thing
letter letters | der Brief Briefe | text written
story stories | die Geschichte Geschichten | text written told
poem poems | das Gedicht Gedichte | text written
report reports | der Bericht Berichte | text written
message messages | die Nachricht Nachrichten | text written
novel novels | der Roman Romane | text thing
recipe recipes | das Rezept Rezepte | text written
song songs | das Lied Lieder | song
door doors | die Tür Türen | opening coloured
window windows | das Fenster Fenster | opening
gate gates | das Tor Tore | opening coloured
box boxes | die Kiste Kisten | opening thing load coloured
suitcase suitcases | der Koffer Koffer | opening thing load coloured goods
bottle bottles | die Flasche Flaschen | opening thing dish
bag bags | die Tasche Taschen | opening thing load coloured goods
parcel parcels | das Paket Pakete | opening thing load
cupboard cupboards | der Schrank Schränke | opening furniture
drawer drawers | die Schublade Schubladen | opening
umbrella umbrellas | der Regenschirm Regenschirme | opening thing coloured goods
table tables | der Tisch Tische | furniture
chair chairs | der Stuhl Stühle | furniture load coloured
bed beds | das Bett Betten | furniture
sofa sofas | das Sofa Sofas | furniture coloured
carpet carpets | der Teppich Teppiche | furniture
mirror mirrors | der Spiegel Spiegel | furniture thing
lamp lamps | die Lampe Lampen | thing device coloured
computer computers | der Computer Computer | thing device machine
radio radios | das Radio Radios | thing device machine
camera cameras | die Kamera Kameras | thing device machine goods
telephone telephones | das Telefon Telefone | thing machine coloured
clock clocks | die Uhr Uhren | thing machine
key keys | der Schlüssel Schlüssel | thing
picture pictures | das Bild Bilder | thing image goods
map maps | die Landkarte Landkarten | thing image
cup cups | die Tasse Tassen | thing dish coloured
plate plates | der Teller Teller | thing dish coloured
glass glasses | das Glas Gläser | thing dish
knife knives | das Messer Messer | thing
fork forks | die Gabel Gabeln | thing
spoon spoons | der Löffel Löffel | thing
pencil pencils | der Bleistift Bleistifte | thing coloured
ball balls | der Ball Bälle | thing coloured
ring rings | der Ring Ringe | thing goods
doll dolls | die Puppe Puppen | thing goods
candle candles | die Kerze Kerzen | thing coloured
blanket blankets | die Decke Decken | thing coloured
flower flowers | die Blume Blumen | plant thing coloured
rose roses | die Rose Rosen | plant thing
tree trees | der Baum Bäume | plant
guitar guitars | die Gitarre Gitarren | thing instrument goods
violin violins | die Geige Geigen | thing instrument goods
piano pianos | das Klavier Klaviere | furniture instrument
coat coats | der Mantel Mäntel | clothes
hat hats | der Hut Hüte | clothes
shirt shirts | das Hemd Hemden | clothes
dress dresses | das Kleid Kleider | clothes
skirt skirts | der Rock Röcke | clothes
jacket jackets | die Jacke Jacken | clothes
shoe shoes | der Schuh Schuhe | clothes pair
boot boots | der Stiefel Stiefel | clothes pair
sweater sweaters | der Pullover Pullover | clothes
scarf scarves | der Schal Schals | clothes
car cars | das Auto Autos | vehicle machine coloured goods
bicycle bicycles | das Fahrrad Fahrräder | vehicle machine coloured goods
truck trucks | der Lastwagen Lastwagen | vehicle machine
boat boats | das Boot Boote | vehicle coloured goods
bus buses | der Bus Busse | vehicle line coloured
train trains | der Zug Züge | vehicle line
tram trams | die Straßenbahn Straßenbahnen | vehicle line
ship ships | das Schiff Schiffe | vehicle line
concert concerts | das Konzert Konzerte | event
film films | der Film Filme | event
party parties | die Feier Feiern | event
meeting meetings | die Besprechung Besprechungen | event
lesson lessons | die Unterrichtsstunde Unterrichtsstunden | event
game games | das Spiel Spiele | event
"""

# As above, then where one is (English, German with the dative) and where one goes (English, German,
# case).
PLACE_TABLE = """
house houses | das Haus Häuser | building home owned | in in | into in acc
garden gardens | der Garten Gärten | area owned | in in | into in acc
kitchen kitchens | die Küche Küchen | room owned | in in | into in acc
room rooms | das Zimmer Zimmer | room owned | in in | into in acc
office offices | das Büro Büros | room owned | in in | into in acc
school schools | die Schule Schulen | building | at in | to zu dat
church churches | die Kirche Kirchen | building | in in | into in acc
hospital hospitals | das Krankenhaus Krankenhäuser | building | in in | to in acc
museum museums | das Museum Museen | building | in in | to in acc
theatre theatres | das Theater Theater | building | in in | to in acc
cinema cinemas | das Kino Kinos | building | in in | to in acc
restaurant restaurants | das Restaurant Restaurants | building | in in | to in acc
hotel hotels | das Hotel Hotels | building home | in in | to zu dat
library libraries | die Bibliothek Bibliotheken | building | in in | to in acc
factory factories | die Fabrik Fabriken | building | in in | to zu dat
bakery bakeries | die Bäckerei Bäckereien | building | in in | to zu dat
pharmacy pharmacies | die Apotheke Apotheken | building | in in | to zu dat
castle castles | das Schloss Schlösser | building | in in | to zu dat
station stations | der Bahnhof Bahnhöfe | building | at an | to zu dat
airport airports | der Flughafen Flughäfen | building | at an | to zu dat
harbour harbours | der Hafen Häfen | area | at an | to zu dat
university universities | die Universität Universitäten | building | at an | to zu dat
market markets | der Markt Märkte | area | at auf | to zu dat
park parks | der Park Parks | area | in in | to in acc
forest forests | der Wald Wälder | area nature | in in | into in acc
village villages | das Dorf Dörfer | area home town | in in | to in acc
city cities | die Stadt Städte | area home town | in in | to in acc
lake lakes | der See Seen | waters nature | at an | to zu dat
river rivers | der Fluss Flüsse | waters nature | at an | to zu dat
beach beaches | der Strand Strände | area nature | on an | to zu dat
island islands | die Insel Inseln | area nature home | on auf | to auf acc
bridge bridges | die Brücke Brücken | road | on auf | to zu dat
"""

MALE_NAMES = "Peter Paul Martin David Michael Daniel Oliver Simon Robert Karl Erik Jakob Anton Ben"
FEMALE_NAMES = "Maria Anna Julia Laura Sophie Lena Emma Sarah Eva Clara Nina Katharina Lisa Hanna"
CITY_TABLE = """Berlin Hamburg Dresden Leipzig Bremen Frankfurt Paris London Madrid Potsdam
Munich=München Cologne=Köln Vienna=Wien Zurich=Zürich Rome=Rom Prague=Prag Geneva=Genf
Nuremberg=Nürnberg Hanover=Hannover Lisbon=Lissabon Moscow=Moskau Brussels=Brüssel"""


def rows_of(table: str) -> list[list[str]]:
    """Return the cells of a table written with one row a line and `|` between cells."""
    return [[cell.strip() for cell in row.split("|")] for row in table.strip().split("\n")]


def matches(wanted: frozenset[str], kinds: frozenset[str]) -> bool:
    """Tell whether `kinds` has one of the wanted kinds and none of those written as `-kind`."""
    return bool(wanted & kinds) and not any("-" + kind in wanted for kind in kinds)


def _english(form: str) -> tuple[str, ...]:
    return () if form == "-" else tuple(form.split("_"))


def _noun(english: str, german: str, kinds: str) -> Noun:
    singular, plural = english.split(" ")
    article, german_singular, german_plural = german.split(" ")
    return Noun(
        singular=_english(singular),
        plural=_english(plural),
        gender=GENDERS[article],
        german_singular=german_singular.rstrip("*"),
        german_plural="" if german_plural == "-" else german_plural,
        weak=german_singular.endswith("*"),
        kinds=frozenset([*kinds.split(" "), singular]),
        group=kinds.split(" ")[0],
    )


def _place(english: str, german: str, kinds: str, at: str, to: str) -> Place:
    noun = _noun(english, german, kinds + " place")
    at_english, at_german = at.split(" ")
    to_english, to_german, case = to.split(" ")
    return Place(**vars(noun), at=(at_english, at_german), to=(to_english, to_german, case))


NOUNS: tuple[Noun, ...] = tuple(_noun(*row) for row in rows_of(NOUN_TABLE))
PLACES: tuple[Place, ...] = tuple(_place(*row) for row in rows_of(PLACE_TABLE))
NAMES: tuple[Name, ...] = tuple(
    [Name(text, "m") for text in MALE_NAMES.split()]
    + [Name(text, "f") for text in FEMALE_NAMES.split()]
)
CITIES: tuple[City, ...] = tuple(
    City(entry.partition("=")[0], entry.partition("=")[2] or entry) for entry in CITY_TABLE.split()
)
NOUN: dict[str, Noun] = {" ".join(noun.singular): noun for noun in NOUNS + PLACES}
