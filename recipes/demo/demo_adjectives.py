"""The adjectives of the demonstration grammar: stems, comparatives, and the nouns they go with."""

from dataclasses import dataclass

from demo_lexicon import Noun, matches, rows_of


@dataclass(frozen=True)
class Adjective:
    """An adjective: its predicative form, the stem that takes endings, and the comparatives."""

    english: str
    german: str
    stem: str
    english_more: tuple[str, ...]
    german_more: str
    kinds: frozenset[str]

    def fits(self, noun: Noun) -> bool:
        """Tell whether a noun can sensibly have this property."""
        return matches(self.kinds, noun.kinds)


# English | predicative German | stem if it differs | comparatives (`more` marks the analytic ones,
# `-` an adjective without one) | kinds of noun, `-kind` to leave some out.
ADJECTIVE_TABLE = """
old | alt | - | older älter | person animal vehicle building furniture picture book coat machine town -child -boy -girl -pupil -grandmother -grandfather -son -daughter -airport -frog -mouse
young | jung | - | younger jünger | person animal -child -grandmother -grandfather -boy -girl -mother -father -pupil -guest -customer -boss
big | groß | - | bigger größer | animal furniture load building area room vehicle plant island -rose -mouse -frog -duck -rabbit
small | klein | - | smaller kleiner | child boy girl brother sister animal furniture load building area room car boat ship ball lamp mirror key picture spoon ring candle tree flower -elephant -castle -airport
new | neu | - | newer neuer | thing furniture clothes vehicle building teacher neighbour colleague boss recipe song film -castle -church -candle -parcel -rose -flower -newspaper
beautiful | schön | - | more schöner | woman queen actress plant picture blanket ring clothes church castle house theatre area song island city cat horse bird -market -harbour -boot
good | gut | - | better besser | text event food drink song instrument friend teacher doctor restaurant hotel -message -meeting -party
expensive | teuer | teur | more teurer | furniture clothes machine goods wine lamp -truck
cheap | billig | - | cheaper billiger | furniture clothes machine goods wine lamp -truck
friendly | freundlich | - | friendlier freundlicher | person dog -king -queen -judge
happy | glücklich | - | happier glücklicher | person -boss -judge
sad | traurig | - | sadder trauriger | man woman child boy girl friend neighbour king queen song story film poem
hungry | hungrig | - | hungrier hungriger | man woman child boy girl guest student tourist pupil soldier animal
tired | müde | müd | more müder | person dog cat horse donkey
sick | krank | - | - | man woman child boy girl student neighbour colleague friend kin pet farm
strong | stark | - | stronger stärker | man woman boy farmer soldier policeman horse bear lion elephant donkey wolf
famous | berühmt | - | more berühmter | singer artist actress writer king queen museum theatre castle church university song picture novel poem
rich | reich | - | richer reicher | man woman king queen uncle aunt lawyer customer tourist farmer actress
poor | arm | - | poorer ärmer | man woman student farmer artist writer child
clever | klug | - | cleverer klüger | person fox dog monkey cat
lazy | faul | - | lazier fauler | pupil student son brother dog cat donkey boy colleague
brave | mutig | - | braver mutiger | man woman boy girl soldier policeman pilot child
nervous | nervös | - | more nervöser | person -king -queen
polite | höflich | - | more höflicher | person -king -queen
dangerous | gefährlich | - | more gefährlicher | wolf bear lion snake
fast | schnell | - | faster schneller | vehicle horse dog -tram
slow | langsam | - | slower langsamer | vehicle waiter
interesting | interessant | - | more interessanter | text film meeting lesson game town museum -recipe
boring | langweilig | - | more langweiliger | text event -recipe -message
long | lang | - | longer länger | text event coat dress skirt scarf -book -newspaper -recipe
short | kurz | - | shorter kürzer | text event skirt dress -book -newspaper -recipe
important | wichtig | - | more wichtiger | report message letter meeting game book
exciting | spannend | - | more spannender | story novel film game book
modern | modern | - | more moderner | building machine furniture city -castle -carpet -piano -clock
quiet | ruhig | - | quieter ruhiger | garden room office village beach island lake park hotel
dark | dunkel | dunkl | darker dunkler | room kitchen forest church house
bright | hell | - | brighter heller | room kitchen office
deep | tief | - | deeper tiefer | lake river
heavy | schwer | - | heavier schwerer | load furniture -carpet
empty | leer | - | - | load bottle cup plate glass cupboard drawer -chair -parcel
dirty | schmutzig | - | dirtier schmutziger | clothes dish vehicle room kitchen window carpet -ship -bus -train -tram
broken | kaputt | - | - | machine chair lamp window door umbrella
red | rot | - | - | clothes coloured rose apple
blue | blau | - | - | clothes coloured
green | grün | - | - | clothes coloured apple
yellow | gelb | - | - | clothes coloured rose
black | schwarz | - | - | clothes coloured dog cat horse piano -flower
white | weiß | - | - | clothes coloured dog cat horse duck goat rose
brown | braun | - | - | clothes dog horse cow bear suitcase bag
round | rund | - | - | table mirror plate carpet
warm | warm | - | warmer wärmer | coat jacket sweater scarf blanket room kitchen
cold | kalt | - | colder kälter | drink room lake river soup
hot | heiß | - | hotter heißer | coffee tea soup
fresh | frisch | - | fresher frischer | food milk juice -rice -honey -chocolate -ice_cream -soup -cheese
sweet | süß | - | sweeter süßer | fruit cake
sour | sauer | saur | - | apple cherry milk
delicious | lecker | - | - | food juice wine
ripe | reif | - | riper reifer | fruit tomato
"""  # noqa: E501 one adjective a line reads best


def _adjective(english: str, german: str, stem: str, comparative: str, kinds: str) -> Adjective:
    more, german_more = ("", "") if comparative == "-" else comparative.split(" ")
    return Adjective(
        english=english,
        german=german,
        stem=german if stem == "-" else stem,
        english_more=("more", english) if more == "more" else (more,) if more else (),
        german_more=german_more,
        kinds=frozenset(kinds.split(" ")),
    )


ADJECTIVES: tuple[Adjective, ...] = tuple(_adjective(*row) for row in rows_of(ADJECTIVE_TABLE))
ADJECTIVE: dict[str, Adjective] = {adjective.english: adjective for adjective in ADJECTIVES}
