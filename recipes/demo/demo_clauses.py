"""Random clauses around one verb, from which the sentences are made."""

from dataclasses import replace

from demo_adverbials import CLOCK_VERBS, LASTING, MISHAPS, STATES
from demo_choices import PERSON, Choices
from demo_clause import Clause, Given
from demo_grammar import Both, Nominal, NounPhrase, Pronoun, Proper
from demo_lexicon import Name, matches
from demo_verbs import MODALS, VERB, Verb

PLAIN_VERBS = [key for key, verb in VERB.items() if verb.frame != "special" and key != "have"]
MODAL_WEIGHTS = {"can": 3.0, "must": 3, "want": 3, "should": 2, "may": 1.5, "will": 4, "would": 2}
TENSES = {"present": 4.0, "progressive": 2, "past": 4, "perfect": 1.5}
KNOWN_OBJECTS = frozenset(
    ["switch on", "turn off", "tidy up", "put on", "take off", "close", "pick up", "repair", "feed"]
)
NATURAL_GENDER = {"m": "he", "f": "she"}


def verb_for(choices: Choices, subject: Nominal | Given | None) -> str:
    """Return the key of a verb whose subject the given one can be, or of any verb."""
    while True:
        key = choices.pick(PLAIN_VERBS)
        if subject is None or suits(VERB[key], subject):
            return key


def suits(verb: Verb, subject: Nominal | Given) -> bool:
    """Tell whether the subject can do what the verb says."""
    if isinstance(subject, NounPhrase):
        return matches(verb.subjects, subject.noun.kinds)
    return "person" in verb.subjects


def pronoun_for(nominal: Nominal | Given) -> Pronoun | None:
    """Return the pronoun that takes up a nominal for people, where both languages agree on it."""
    if isinstance(nominal, Pronoun):
        return nominal
    if isinstance(nominal, Proper) and isinstance(nominal.name, Name):
        return Pronoun(NATURAL_GENDER[nominal.name.gender])
    if isinstance(nominal, Both):
        return Pronoun("they")
    if isinstance(nominal, NounPhrase) and "person" in nominal.noun.kinds:
        if nominal.plural:
            return Pronoun("they")
        return Pronoun(NATURAL_GENDER[nominal.noun.gender]) if nominal.noun.gender != "n" else None
    return None


def usable_tense(key: str, tense: str) -> str:
    """Return the tense, or the nearest one in which the verb is natural and unambiguous."""
    verb = VERB[key]
    if key in LASTING or (tense == "progressive" and not verb.progressive):
        return "present"
    return "perfect" if tense == "past" and not verb.has_clear_past else tense


def takes_modal(key: str) -> bool:
    """Tell whether one can want to, have to or be allowed to do it."""
    return bool(VERB[key].subjects & PERSON) and key not in STATES | MISHAPS


def plain_subject(subject: Nominal | Given) -> Nominal | Given:
    """Return the subject, a noun phrase with "the" in the place of "every", "all", "a" or none."""
    if not isinstance(subject, NounPhrase) or subject.owner:
        return subject
    vague = subject.determiner in ("every", "all", "a", "")
    return replace(subject, determiner="the") if vague else subject


def random_clause(
    choices: Choices,
    *,
    subject: Nominal | Given | None = None,
    tenses: dict[str, float] | None = None,
    modal_chance: float = 0.0,
    negation_chance: float = 0.0,
    short: bool = False,
) -> Clause:
    """Return a clause about the subject, or about a random one; `short` leaves out adverbials."""
    key = verb_for(choices, subject)
    verb = VERB[key]
    tense = choices.weighted(tenses or TENSES)
    modal = None
    if choices.chance(modal_chance) and takes_modal(key):
        modal, tense = MODALS[choices.weighted(MODAL_WEIGHTS)], "present"
    tense = usable_tense(key, tense)
    negated = choices.chance(negation_chance) and modal is not MODALS["would"]
    if subject is None:
        subject = choices.subject(verb.subjects)
        subject = plain_subject(subject) if negated else subject
    clause = Clause(subject, verb, tense=tense, modal=modal, negated=negated)
    clause = with_objects(choices, clause, key)
    return clause if short else with_adverbials(choices, clause, key)


def with_objects(choices: Choices, clause: Clause, key: str) -> Clause:
    """Return the clause with what its verb needs."""
    verb, role = clause.verb, "negated" if clause.negated else "object"
    frame = verb.frame
    if frame == "give":
        recipient = choices.recipient(clause.subject)
        direct = choices.noun_phrase(choices.noun(verb.objects), role)
        return replace(clause, indirect=recipient, direct=direct)
    if frame == "to":
        return replace(clause, complement=choices.direction(verb))
    if frame == "city":
        return replace(clause, complement=choices.city("to", "nach"))
    if frame == "home":
        if choices.chance(0.6):
            return replace(clause, complement=choices.city("in", "in"))
        return replace(clause, complement=choices.home())
    if frame == "none":
        return clause
    if frame == "dat" or "+" in frame or key in KNOWN_OBJECTS:  # bare plurals would sound odd
        role = "known"
    return replace(clause, direct=choices.object(verb, clause.subject, role))


def with_adverbials(choices: Choices, clause: Clause, key: str) -> Clause:
    """Return the clause with a random choice of time, frequency, manner and place."""
    tense = "future" if clause.modal else clause.tense
    subject = clause.subject
    is_every = isinstance(subject, NounPhrase) and subject.determiner in ("every", "all")
    counted = isinstance(clause.direct, NounPhrase) and clause.direct.counts
    may_repeat = not (clause.negated or is_every or counted)
    if tense == "perfect":
        if may_repeat and choices.chance(0.5):
            return replace(clause, frequency=choices.frequency("perfect"))
        return clause
    is_once = key in STATES or (key in MISHAPS and tense == "present")
    if choices.chance(0.5) and not is_once:
        clause = replace(clause, time=choices.time(key, tense, negated=clause.negated))
    elif (
        tense == "present"
        and may_repeat
        and key not in CLOCK_VERBS | STATES
        and choices.chance(0.3)
    ):
        clause = replace(clause, frequency=choices.frequency("present"))
    if clause.direct is None and not clause.negated and choices.chance(0.35):
        clause = replace(clause, manner=choices.manner(key))
    if not clause.negated and clause.complement is None and choices.chance(0.35):
        clause = replace(clause, place=choices.place(key))
    return clause
