"""The verbs of the demonstration grammar: forms, frames and what they sensibly govern."""

from dataclasses import dataclass

from demo_lexicon import rows_of

PERSONS = ("1s", "2s", "3s", "1p", "3p")


@dataclass(frozen=True)
class Verb:
    """A verb of both languages.

    `particle` follows the English verb and yields to a pronoun ("picks him up"), `fixed` words stay
    with it ("looks for him"); `prefix` is the separable part of the German verb. `frame` says what
    follows: none, acc, dat, give (dative and accusative), to (a direction), or a German preposition
    with its case, such as `auf+acc`. Special verbs have sentences of their own.
    """

    base: str
    third: str
    past: str
    participle: str
    progressive: str
    particle: tuple[str, ...]
    fixed: tuple[str, ...]
    prefix: str
    infinitive: str
    present: dict[str, str]
    german_participle: str
    auxiliary: str
    frame: str
    subjects: frozenset[str]
    objects: frozenset[str]
    preterite: dict[str, str]

    @property
    def has_clear_past(self) -> bool:
        """Tell whether the simple past cannot be taken for the present ("read", "put" can)."""
        return self.past != self.base


@dataclass(frozen=True)
class Modal:
    """A modal verb: its English auxiliary with what follows it, or a form that takes `do`.

    `supported` ("have to", "want to") stands in for the auxiliary under negation and in questions,
    and everywhere if there is no auxiliary; `third` is its first word in the third person singular.
    """

    auxiliary: str
    after: tuple[str, ...]
    supported: tuple[str, ...]
    third: str
    present: dict[str, str]


# English base, third person, past, participle, progressive | +movable particle or =fixed words |
# prefix. infinitive, ich, du, er, participle, auxiliary | frame | subjects | objects. A leading `!`
# in the progressive marks a state, which English does not put into the progressive.
VERB_TABLE = """
see sees saw seen !seeing | | sehen sehe siehst sieht gesehen haben | acc | person animal | person animal vehicle building plant
hear hears heard heard !hearing | | hören höre hörst hört gehört haben | acc | person animal | pet song train instrument child
find finds found found !finding | | finden finde findest findet gefunden haben | acc | person | thing clothes text pet -instrument -report
lose loses lost lost !losing | | verlieren verliere verlierst verliert verloren haben | acc | person | ring key umbrella scarf bag hat camera letter ball game suitcase pencil book
look looks looked looked looking | =for | suchen suche suchst sucht gesucht haben | acc | person | thing clothes pet child doctor policeman -instrument -mirror -bottle
buy buys bought bought buying | | kaufen kaufe kaufst kauft gekauft haben | acc | person | thing clothes furniture food drink car bicycle boat house pet
sell sells sold sold selling | | verkaufen verkaufe verkaufst verkauft verkauft haben | acc | person | furniture clothes goods machine baked fruit vegetable house horse farm
need needs needed needed !needing | | brauchen brauche brauchst braucht gebraucht haben | acc | person | thing clothes furniture car bicycle doctor lawyer food water
love loves loved loved !loving | | lieben liebe liebst liebt geliebt haben | acc | person | kin person pet song city nature -customer -guest -boss -policeman -driver -judge
like likes liked liked !liking | | mögen mag magst mag gemocht haben | acc | person | person animal food drink song city film novel clothes -customer -snake
eat eats ate eaten eating | | essen esse isst isst gegessen haben | acc | person | food -butter -honey
cook cooks cooked cooked cooking | | kochen koche kochst kocht gekocht haben | acc | person | soup potato egg rice meat vegetable -tomato
bake bakes baked baked baking | | backen backe backst backt gebacken haben | acc | person | baked
drink drinks drank drunk drinking | | trinken trinke trinkst trinkt getrunken haben | acc | person | drink
read reads read read reading | | lesen lese liest liest gelesen haben | acc | person | text
write writes wrote written writing | | schreiben schreibe schreibst schreibt geschrieben haben | acc | person | text song -newspaper
sing sings sang sung singing | | singen singe singst singt gesungen haben | acc | person | song
open opens opened opened opening | | öffnen öffne öffnest öffnet geöffnet haben | acc | person | opening
close closes closed closed closing | | schließen schließe schließt schließt geschlossen haben | acc | person | door window gate drawer suitcase
carry carries carried carried carrying | | tragen trage trägst trägt getragen haben | acc | person | load chair child cup bottle
repair repairs repaired repaired repairing | | reparieren repariere reparierst repariert repariert haben | acc | person | machine chair lamp door
wash washes washed washed washing | | waschen wasche wäschst wäscht gewaschen haben | acc | person | shirt dress skirt sweater scarf dog horse car jacket blanket
paint paints painted painted painting | | malen male malst malt gemalt haben | acc | person | picture flower animal tree -mouse
break breaks broke broken !breaking | | zerbrechen zerbreche zerbrichst zerbricht zerbrochen haben | acc | person | cup plate glass bottle mirror
forget forgets forgot forgotten !forgetting | | vergessen vergesse vergisst vergisst vergessen haben | acc | person | umbrella key bag suitcase letter camera song story book meeting
visit visits visited visited visiting | | besuchen besuche besuchst besucht besucht haben | acc | person | person museum castle city village island church -customer -guest -tourist -driver -policeman -soldier -waiter -waitress
meet meets met met !meeting | | treffen treffe triffst trifft getroffen haben | acc | person | person
thank thanks thanked thanked thanking | | danken danke dankst dankt gedankt haben | dat | person | person
help helps helped helped helping | | helfen helfe hilfst hilft geholfen haben | dat | person | person
follow follows followed followed following | | folgen folge folgst folgt gefolgt sein | dat | person dog | person -driver
answer answers answered answered answering | | antworten antworte antwortest antwortet geantwortet haben | dat | person | person
believe believes believed believed !believing | | glauben glaube glaubst glaubt geglaubt haben | dat | person | person
ask asks asked asked asking | | fragen frage fragst fragt gefragt haben | acc | person | person
greet greets greeted greeted greeting | | begrüßen begrüße begrüßt begrüßt begrüßt haben | acc | person | person
understand understands understood understood !understanding | | verstehen verstehe verstehst versteht verstanden haben | acc | person | person text film -recipe
feed feeds fed fed feeding | | füttern füttere fütterst füttert gefüttert haben | acc | person | pet farm monkey elephant
draw draws drew drawn drawing | | zeichnen zeichne zeichnest zeichnet gezeichnet haben | acc | person | map house castle church bird tree cat horse
hide hides hid hidden hiding | | verstecken verstecke versteckst versteckt versteckt haben | acc | person | key letter ring chocolate ball book parcel
wear wears wore worn wearing | | tragen trage trägst trägt getragen haben | acc | person | clothes ring -dress -skirt
play plays played played playing | | spielen spiele spielst spielt gespielt haben | none | child boy girl cat dog pupil son daughter brother sister monkey |
sleep sleeps slept slept sleeping | | schlafen schlafe schläfst schläft geschlafen haben | none | person pet |
work works worked worked working | | arbeiten arbeite arbeitest arbeitet gearbeitet haben | none | person -child -king -queen -pupil |
laugh laughs laughed laughed laughing | | lachen lache lachst lacht gelacht haben | none | person |
cry cries cried cried crying | | weinen weine weinst weint geweint haben | none | person -boss -king -judge |
dance dances danced danced dancing | | tanzen tanze tanzt tanzt getanzt haben | none | person bear |
swim swims swam swum swimming | | schwimmen schwimme schwimmst schwimmt geschwommen sein | none | person duck dog frog |
get gets got got getting | +up | auf.stehen stehe stehst steht aufgestanden sein | none | person |
wake wakes woke woken waking | +up | auf.wachen wache wachst wacht aufgewacht sein | none | person pet |
fall falls fell fallen falling | =asleep | ein.schlafen schlafe schläfst schläft eingeschlafen sein | none | person pet |
come comes came come coming | +back | zurück.kommen komme kommst kommt zurückgekommen sein | none | person |
arrive arrives arrived arrived !arriving | | an.kommen komme kommst kommt angekommen sein | none | person line parcel letter |
depart departs departed departed departing | | ab.fahren fahre fährst fährt abgefahren sein | none | line -ship |
begin begins began begun !beginning | | an.fangen fange fängst fängt angefangen haben | none | event |
end ends ended ended !ending | | enden ende endest endet geendet haben | none | event |
call calls called called calling | | an.rufen rufe rufst ruft angerufen haben | acc | person | person
invite invites invited invited inviting | | ein.laden lade lädst lädt eingeladen haben | acc | person | person -policeman -soldier -driver -waiter
pick picks picked picked picking | +up | ab.holen hole holst holt abgeholt haben | acc | person | person parcel -policeman -soldier -waiter
look looks looked looked looking | =at | an.sehen sehe siehst sieht angesehen haben | acc | person | picture map house castle ring tree dress clock animal
put puts put put putting | +on | an.ziehen ziehe ziehst zieht angezogen haben | acc | person | coat shirt jacket shoe boot sweater
take takes took taken taking | +off | aus.ziehen ziehe ziehst zieht ausgezogen haben | acc | person | coat shirt jacket shoe boot sweater
switch switches switched switched switching | +on | ein.schalten schalte schaltest schaltet eingeschaltet haben | acc | person | device
turn turns turned turned turning | +off | aus.schalten schalte schaltest schaltet ausgeschaltet haben | acc | person | device
throw throws threw thrown throwing | +away | weg.werfen werfe wirfst wirft weggeworfen haben | acc | person | letter newspaper box bottle shoe shirt flower pencil candle
tidy tidies tidied tidied tidying | +up | auf.räumen räume räumst räumt aufgeräumt haben | acc | person | kitchen room office house cupboard
bring brings brought brought bringing | =along | mit.bringen bringe bringst bringt mitgebracht haben | acc | person | guitar cake wine juice salad book ball map camera friend dog
listen listens listened listened listening | =to | zu.hören höre hörst hört zugehört haben | dat | person | person
wait waits waited waited waiting | =for | warten warte wartest wartet gewartet haben | auf+acc | person | person bus train tram ship letter parcel
think thinks thought thought thinking | =of | denken denke denkst denkt gedacht haben | an+acc | person | person pet
laugh laughs laughed laughed laughing | =about | lachen lache lachst lacht gelacht haben | über+acc | person | story film person -judge
dream dreams dreamed dreamed dreaming | =of | träumen träume träumst träumt geträumt haben | von+dat | person | house car island kin boat lion horse ship
dance dances danced danced dancing | =with | tanzen tanze tanzt tanzt getanzt haben | mit+dat | person | person
talk talks talked talked talking | =to | sprechen spreche sprichst spricht gesprochen haben | mit+dat | person | person
play plays played played playing | =with | spielen spiele spielst spielt gespielt haben | mit+dat | child boy girl cat dog son daughter | ball doll child dog cat friend
write writes wrote written writing | =about | schreiben schreibe schreibst schreibt geschrieben haben | über+acc | person | city animal king queen song artist nature -mouse -frog
give gives gave given giving | | geben gebe gibst gibt gegeben haben | give | person | thing clothes drink fruit cake letter recipe -mirror
show shows showed shown showing | | zeigen zeige zeigst zeigt gezeigt haben | give | person | thing picture letter house garden kitchen room castle pet car
send sends sent sent sending | | schicken schicke schickst schickt geschickt haben | give | person | letter parcel message book picture recipe poem report flower
tell tells told told telling | | erzählen erzähle erzählst erzählt erzählt haben | give | person | story
lend lends lent lent lending | | leihen leihe leihst leiht geliehen haben | give | person | car bicycle book umbrella guitar pencil camera novel
bring brings brought brought bringing | | bringen bringe bringst bringt gebracht haben | give | person | drink soup newspaper letter key chair flower glass coat salad cake
go goes went gone going | | gehen gehe gehst geht gegangen sein | to | person | place
run runs ran run running | | rennen renne rennst rennt gerannt sein | to | person dog | place -airport -museum -theatre -restaurant -hotel
drive drives drove driven driving | | fahren fahre fährst fährt gefahren sein | to | person -child -boy -girl -pupil | place city village lake station -house -garden -room -kitchen -church -forest -office -bridge -island -city -village
travel travels travelled travelled travelling | | reisen reise reist reist gereist sein | city | person | none
fly flies flew flown flying | | fliegen fliege fliegst fliegt geflogen sein | city | person | none
live lives lived lived living | | wohnen wohne wohnst wohnt gewohnt haben | home | person | home
say says said said saying | | sagen sage sagst sagt gesagt haben | special | person | none
hope hopes hoped hoped hoping | | hoffen hoffe hoffst hofft gehofft haben | special | person | none
know knows knew known !knowing | | wissen weiß weißt weiß gewusst haben | special | person | none
try tries tried tried trying | | versuchen versuche versuchst versucht versucht haben | special | person | none
cost costs cost cost !costing | | kosten koste kostest kostet gekostet haben | special | none | none
be is was been !being | | sein bin bist ist gewesen sein | special | person | none
have has had had !having | | haben habe hast hat gehabt haben | acc | person | thing pet clothes car bicycle house brother sister son daughter -bottle -fork
"""  # noqa: E501 one verb a line reads best

# Name | auxiliary and what follows | form with `do` and its third person | ich, du, er, wir.
MODAL_TABLE = """
can | can | | kann kannst kann können
must | must | have has | muss musst muss müssen
want | | want wants | will willst will wollen
should | should | | sollte solltest sollte sollten
may | may | | darf darfst darf dürfen
will | will | | werde wirst wird werden
would | would like to | | möchte möchtest möchte möchten
"""

PRETERITES = {
    "sein": {"1s": "war", "2s": "warst", "3s": "war", "1p": "waren", "3p": "waren"},
    "haben": {"1s": "hatte", "2s": "hattest", "3s": "hatte", "1p": "hatten", "3p": "hatten"},
}


def _kinds(cell: str) -> frozenset[str]:
    return frozenset(cell.split())


def _present(forms: list[str], plural: str) -> dict[str, str]:
    first, second, third = forms
    return {"1s": first, "2s": second, "3s": third, "1p": plural, "3p": plural}


def _verb(english: str, rest: str, german: str, frame: str, subjects: str, objects: str) -> Verb:
    base, third, past, participle, progressive = english.split(" ")
    infinitive, *present, german_participle, auxiliary = german.split(" ")
    prefix, _, stem = infinitive.rpartition(".")
    words = tuple(rest[1:].split())
    plural = "sind" if stem == "sein" else stem
    return Verb(
        base=base,
        third=third,
        past=past,
        participle=participle,
        progressive="" if progressive.startswith("!") else progressive,
        particle=words if rest.startswith("+") else (),
        fixed=words if rest.startswith("=") else (),
        prefix=prefix,
        infinitive=prefix + stem,
        present=_present(present, plural),
        german_participle=german_participle,
        auxiliary=auxiliary,
        frame=frame,
        subjects=_kinds(subjects),
        objects=_kinds(objects),
        preterite=PRETERITES.get(stem, {}),
    )


def _modal(words: str, with_do: str, german: str) -> Modal:
    auxiliary, _, after = words.partition(" ")
    base, _, third = with_do.partition(" ")
    first, second, third_person, plural = german.split(" ")
    return Modal(
        auxiliary=auxiliary,
        after=tuple(after.split()),
        supported=(base, "to") if base else (),
        third=third,
        present=_present([first, second, third_person], plural),
    )


VERBS: tuple[Verb, ...] = tuple(_verb(*row) for row in rows_of(VERB_TABLE))
MODALS: dict[str, Modal] = {row[0]: _modal(*row[1:]) for row in rows_of(MODAL_TABLE)}
VERB: dict[str, Verb] = {" ".join((verb.base, *verb.particle, *verb.fixed)): verb for verb in VERBS}
