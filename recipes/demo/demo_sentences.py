"""Random sentences of the demonstration grammar around full verbs: statements and questions."""

from dataclasses import replace

from demo_choices import Choices, Located, adjectives_for
from demo_clause import Clause, Given, join_clauses
from demo_clauses import pronoun_for, random_clause, usable_tense, with_objects
from demo_copula import Quality, state_clause
from demo_grammar import NounPhrase, Phrase, Pronoun, Target, Word
from demo_lexicon import NOUN, Place
from demo_verbs import VERB

PRESENT = {"present": 2.0, "progressive": 1}
PAST = {"past": 1.0}
REASONS = {"because": "weil/0", "although": "obwohl/0"}
# Why one does it, and in spite of what.
OPINIONS = {
    "buy": {
        "because": "cheap beautiful good new fresh delicious warm modern ripe sweet fast",
        "although": "expensive old dirty broken small big heavy sour slow",
    },
    "sell": {
        "because": "old big small broken heavy expensive slow",
        "although": "new beautiful good cheap modern",
    },
    "like": {
        "because": "beautiful good friendly clever delicious sweet exciting interesting warm",
        "although": "old boring dangerous lazy sad long short sour",
    },
    "read": {
        "because": "interesting short exciting good important famous",
        "although": "boring long old sad",
    },
    "eat": {"because": "delicious fresh good ripe sweet", "although": "sour cold hot"},
    "repair": {"because": "broken old", "although": "old cheap dirty slow"},
    "carry": {"because": "heavy big empty", "although": "heavy big dirty"},
    "look at": {"because": "beautiful famous new big", "although": "old small dangerous"},
    "wear": {"because": "warm beautiful new", "although": "old dirty cheap"},
    "throw away": {"because": "old dirty empty broken boring", "although": "new beautiful"},
}
PURPOSE_GOALS = {
    "bakery": ("buy", "baked"),
    "market": ("buy", "fruit vegetable"),
    "station": ("pick up", "kin friend"),
    "airport": ("pick up", "kin friend colleague"),
    "garden": ("feed", "pet"),
    "kitchen": ("drink", "drink"),
    "library": ("read", "book newspaper novel"),
    "restaurant": ("meet", "friend colleague kin"),
    "hospital": ("visit", "kin friend neighbour"),
    "school": ("talk to", "teacher"),
    "office": ("call", "customer boss lawyer"),
    "park": ("paint", "flower tree"),
}


def with_lead(choices: Choices, clause: Clause, probability: float) -> Phrase:
    """Return the statement, its time in front of both languages with the given probability."""
    if clause.time and choices.chance(probability):
        return replace(clause, time=None).realise(lead=clause.time.realise())
    return clause.realise()


def statement(choices: Choices) -> tuple[Phrase, str]:
    """Return "The man reads a book every day"."""
    clause = random_clause(choices, negation_chance=0.17)
    return with_lead(choices, clause, 0.4), "."


def modal_statement(choices: Choices) -> tuple[Phrase, str]:
    """Return "The man wants to read a book"."""
    clause = random_clause(choices, modal_chance=1.0, negation_chance=0.2)
    return with_lead(choices, clause, 0.35), "."


def glad_statement(choices: Choices) -> tuple[Phrase, str]:
    """Return "The man likes to read books", which German says with "gern"."""
    key = choices.pick(["read", "eat", "drink", "buy", "bake", "sing", "write", "paint", "cook"])
    plain = choices.pick(
        ["dance", "swim", "sleep", "work", "laugh", "travel", "dance with", "help"]
    )
    key = key if choices.chance(0.6) else plain
    clause = Clause(choices.subject(), VERB[key], gladly=True)
    if VERB[key].frame == "acc":
        noun = choices.noun(VERB[key].objects)
        adjective = choices.adjective(noun, 0.4)
        clause = replace(clause, direct=NounPhrase(noun, "", adjective, plural=bool(noun.plural)))
    else:
        clause = with_objects(choices, clause, key)
    if choices.chance(0.4) and VERB[key].frame != "city":
        clause = replace(clause, place=choices.place(key))
    return clause.realise(), "."


def reason(choices: Choices) -> tuple[Phrase, str]:
    """Return "The man sleeps because he is tired", or with "although"."""
    tenses = choices.pick([PRESENT, PAST])
    main = random_clause(choices, tenses=tenses, short=True, negation_chance=0.15)
    pronoun = pronoun_for(main.subject)
    past = tenses is PAST
    if pronoun and choices.chance(0.6):
        side = state_clause(choices, pronoun, past=past)
    else:
        subject = pronoun if pronoun and choices.chance(0.4) else None
        side = random_clause(
            choices, subject=subject, tenses=tenses, short=choices.chance(0.6),
            modal_chance=0.0 if past else 0.4, negation_chance=0.2,
        )  # fmt: skip
    english = choices.weighted({"because": 3.0, "although": 1})
    conjunction = Given(english, REASONS[english]).realise()
    return join_clauses(main.realise(), side.realise("final", conjunction)), "."


def condition(choices: Choices) -> tuple[Phrase, str]:
    """Return "If it happens , that happens" with both German verbs side by side."""
    english, german = choices.pick(
        [("if", "wenn/0"), ("when", "wenn/0"), ("before", "bevor/0"), ("as soon as", "sobald/012")]
    )
    side = random_clause(choices, tenses={"present": 1.0}, short=True)
    subject = pronoun_for(side.subject) if choices.chance(0.5) else None
    main = random_clause(
        choices, subject=subject, tenses={"present": 1.0}, short=True, modal_chance=0.5,
        negation_chance=0.15 if english == "if" else 0.0,
    )  # fmt: skip
    conjunction = Given(english, german).realise()
    clause = side.realise("final", conjunction)
    if choices.chance(0.6):
        comma = Word(",")
        lead = Phrase([*clause.english, comma], [*clause.german, Target(",", (comma,))])
        return main.realise(lead=lead), "."
    return join_clauses(main.realise(), clause), "."


def report(choices: Choices) -> tuple[Phrase, str]:
    """Return "The man says that ..." or "The man does not know whether ..."."""
    subject = choices.subject()
    whether = choices.chance(0.35)
    key = choices.pick(["know", "ask"] if whether else ["say", "hope", "know", "hear"])
    negated = key == "know" and whether
    main = Clause(subject, VERB[key], negated=negated)
    conjunction = Given("whether", "ob/0") if whether else Given("that", "dass/0")
    own = pronoun_for(subject) if choices.chance(0.3) else None
    side = random_clause(
        choices, subject=own, short=choices.chance(0.5), modal_chance=0.35, negation_chance=0.15
    )
    return join_clauses(main.realise(), side.realise("final", conjunction.realise())), "."


def purpose(choices: Choices) -> tuple[Phrase, str]:
    """Return "The man goes to the bakery in order to buy bread"."""
    place = NOUN[choices.pick(list(PURPOSE_GOALS))]
    assert isinstance(place, Place)
    key, kinds = PURPOSE_GOALS[place.singular[0]]
    tense = choices.pick(["present", "past"])
    going = Located(*place.to, NounPhrase(place, "the"))
    subject = choices.subject()
    main = Clause(subject, VERB["go"], tense=tense, complement=going)
    if tense == "past" and choices.chance(0.4):
        main = replace(main, time=choices.time("go", tense))
    aim = Clause(subject, VERB[key], direct=_aim_object(choices, kinds))
    infinitive = aim.realise_infinitive(Given("in order", "um/01").realise())
    return join_clauses(with_lead(choices, main, 1.0), infinitive), "."


def attempt(choices: Choices) -> tuple[Phrase, str]:
    """Return "The man tries to open the door"."""
    key = choices.pick(
        ["open", "close", "repair", "help", "call", "sell", "find", "understand", "switch on",
         "turn off", "carry", "read", "bake", "draw", "follow", "tidy up"]
    )  # fmt: skip
    main = Clause(
        choices.subject(), VERB["try"], tense=choices.weighted({"present": 1.0, "past": 1})
    )
    if main.tense == "past" and choices.chance(0.4):
        main = replace(main, time=choices.time("try", "past"))
    aim = with_objects(choices, Clause(main.subject, VERB[key]), key)
    return join_clauses(with_lead(choices, main, 1.0), aim.realise_infinitive()), "."


def contrast(choices: Choices) -> tuple[Phrase, str]:
    """Return two statements joined by "and" or "but"; German puts a comma before "aber"."""
    tenses = choices.pick([PRESENT, PAST])
    left = random_clause(choices, tenses=tenses, short=True)
    right = random_clause(choices, tenses=tenses, short=True, negation_chance=0.4)
    comma = Word(",")
    if choices.chance(0.5):
        word = Word("but")
        english, german = [comma, word], [Target(",", (comma,)), Target("aber", (word,))]
    else:
        word = Word("and")
        english, german = [word], [Target("und", (word,))]
    first, second = left.realise(), right.realise()
    return Phrase(
        first.english + english + second.english, first.german + german + second.german
    ), "."


def anaphora(choices: Choices) -> tuple[Phrase, str]:
    """Return "Maria buys the lamp because it is beautiful": "it" has the gender of the lamp."""
    key = choices.pick(list(OPINIONS))
    verb = VERB[key]
    english = choices.weighted({"because": 2.0, "although": 1})
    qualities = OPINIONS[key][english].split(" ")
    while True:
        noun = choices.noun(verb.objects | {"-person", "-mass"})
        fitting = [each for each in adjectives_for(noun) if each.english in qualities]
        if fitting:
            break
    adjective = choices.pick(fitting)
    past = choices.chance(0.5) and usable_tense(key, "past") == "past"
    plural = bool(noun.plural) and ("pair" in noun.kinds or choices.chance(0.25))
    determiner = "the" if plural else choices.pick(["the", "a", "this"])
    main = Clause(
        choices.subject(), verb, tense="past" if past else "present",
        direct=NounPhrase(noun, determiner, plural=plural),
    )  # fmt: skip
    pronoun = Pronoun("they" if plural else f"it {noun.gender}")
    tense = "preterite" if past else "present"
    quality = Quality(adjective, choices.degree_of(adjective))
    side = Clause(pronoun, VERB["be"], tense=tense, complement=quality)
    conjunction = Given(english, REASONS[english]).realise()
    return join_clauses(main.realise(), side.realise("final", conjunction)), "."


def _aim_object(choices: Choices, kinds: str) -> NounPhrase:
    noun = choices.noun(frozenset(kinds.split()))
    if "mass" in noun.kinds:
        return NounPhrase(noun, "", choices.adjective(noun, 0.3))
    return choices.noun_phrase(noun, "known" if "person" in noun.kinds else "object")
