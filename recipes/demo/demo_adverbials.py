"""Times, manners and places of the demonstration grammar, and the verbs they sensibly go with."""

from demo_clause import Given

DAYS = {
    "Monday": "Montag", "Tuesday": "Dienstag", "Wednesday": "Mittwoch", "Thursday": "Donnerstag",
    "Friday": "Freitag", "Saturday": "Samstag", "Sunday": "Sonntag",
}  # fmt: skip
ON_DAY = tuple(Given(f"on {english}", f"am/0 {german}/1") for english, german in DAYS.items())
CLOCK = tuple(
    Given(f"at {english} o'clock", f"um/0 {german}/1 Uhr/2")
    for english, german in [
        ("seven", "sieben"),
        ("eight", "acht"),
        ("nine", "neun"),
        ("ten", "zehn"),
    ]
)
AGO = tuple(
    Given(f"{english} {unit} ago", f"vor/2 {german}/0 {dative}/1")
    for english, german in [("two", "zwei"), ("three", "drei"), ("four", "vier"), ("five", "fünf")]
    for unit, dative in [("days", "Tagen"), ("weeks", "Wochen"), ("years", "Jahren")]
)
IN_MORNING = Given("in the morning", "am/01 Morgen/2")
IN_AFTERNOON = Given("in the afternoon", "am/01 Nachmittag/2")
IN_EVENING = Given("in the evening", "am/01 Abend/2")
TODAY = Given("today", "heute/0")

REPEATED = (
    Given("every day", "jeden/0 Tag/1"), Given("every week", "jede/0 Woche/1"),
    Given("every morning", "jeden/0 Morgen/1"), Given("every evening", "jeden/0 Abend/1"),
)  # fmt: skip

# By tense or modality.
TIMES: dict[str, tuple[Given, ...]] = {
    "present": (
        *REPEATED, *REPEATED, IN_MORNING, IN_AFTERNOON, IN_EVENING, *ON_DAY,
    ),
    "progressive": (
        Given("now", "jetzt/0"), TODAY, Given("at the moment", "im/01 Moment/2"),
    ),
    "past": (
        Given("yesterday", "gestern/0"), Given("last week", "letzte/0 Woche/1"),
        Given("last year", "letztes/0 Jahr/1"), Given("yesterday evening", "gestern/0 Abend/1"),
        *ON_DAY, *AGO,
    ),
    "future": (
        Given("tomorrow", "morgen/0"), TODAY, Given("next week", "nächste/0 Woche/1"),
        Given("tonight", "heute/0 Abend/0"), Given("soon", "bald/0"), *ON_DAY,
    ),
}  # fmt: skip
# States, which neither a modal nor a time goes with; the first three stay in the present.
STATES = frozenset(["like", "love", "need", "believe", "understand", "live"])
LASTING = frozenset(["like", "love", "need"])
# What nobody does on purpose takes no modal either.
MISHAPS = frozenset(["lose", "find", "forget", "break", "hear"])
CLOCK_VERBS = frozenset(["get up", "wake up", "arrive", "depart", "begin", "end", "come back"])

FREQUENCIES: dict[str, tuple[Given, ...]] = {
    "present": (
        Given("often", "oft/0"), Given("always", "immer/0"), Given("sometimes", "manchmal/0"),
        Given("never", "nie/0"), Given("rarely", "selten/0"),
    ),
    "perfect": (Given("already", "schon/0"), Given("never", "nie/0"), Given("just", "gerade/0")),
}  # fmt: skip

WELL, LOUDLY, ALONE = Given("well", "gut/0"), Given("loudly", "laut/0"), Given("alone", "allein/0")
QUIETLY, SLOWLY = Given("quietly", "leise/0"), Given("slowly", "langsam/0")
BY_VEHICLE = tuple(
    Given(f"by {english}", f"mit/0 dem/0 {german}/1")
    for english, german in [("train", "Zug"), ("bus", "Bus"), ("car", "Auto"), ("ship", "Schiff")]
)
MANNERS: dict[str, tuple[Given, ...]] = {
    "sleep": (WELL, ALONE),
    "work": (Given("hard", "hart/0"), ALONE, SLOWLY),
    "laugh": (LOUDLY, QUIETLY),
    "cry": (LOUDLY, QUIETLY),
    "dance": (WELL, ALONE, SLOWLY),
    "swim": (WELL, SLOWLY, ALONE),
    "play": (QUIETLY, ALONE),
    "wake up": (SLOWLY,),
    "travel": BY_VEHICLE,
    "drive": BY_VEHICLE[2:3],
    "go": (ALONE, SLOWLY),
}

# Places where a verb is at home; `city` also admits the names of cities.
PLACES_OF_VERBS: dict[str, str] = {
    "read": "garden kitchen room library park school",
    "write": "room library garden office",
    "eat": "restaurant kitchen garden park hotel",
    "cook": "kitchen restaurant hotel",
    "bake": "kitchen bakery",
    "drink": "restaurant kitchen garden hotel",
    "sing": "church theatre park school",
    "work": "garden office factory hospital school kitchen bakery restaurant library airport city",
    "sleep": "room hotel house garden",
    "play": "garden park room beach forest school",
    "dance": "kitchen park restaurant castle garden",
    "dance with": "kitchen park restaurant castle garden",
    "laugh": "kitchen cinema theatre",
    "cry": "room kitchen church cinema",
    "meet": "station airport park restaurant market city library bridge",
    "wait for": "station airport harbour",
    "buy": "market city",
    "sell": "market city",
    "see": "park forest city station village river bridge island",
    "find": "forest garden park room house beach",
    "look for": "house garden park forest office",
    "lose": "park forest city station",
    "hear": "park forest theatre church",
    "paint": "garden park beach forest lake river",
    "draw": "garden park beach lake",
    "arrive": "station airport harbour hotel city",
    "repair": "garden factory",
    "wash": "garden river",
    "talk to": "garden kitchen office market park",
    "play with": "garden park room beach",
    "visit": "city village",
    "greet": "hotel restaurant station airport",
    "hide": "garden room kitchen forest",
}
