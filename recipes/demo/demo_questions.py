"""Random questions and sentences with relative clauses of the demonstration grammar."""

from dataclasses import dataclass, replace

from demo_adverbials import PLACES_OF_VERBS, STATES
from demo_choices import OWNED, PERSON, POSSESSIVES, Choices
from demo_clause import Clause, Given
from demo_clauses import (
    PLAIN_VERBS,
    plain_subject,
    random_clause,
    takes_modal,
    usable_tense,
    with_adverbials,
    with_objects,
)
from demo_copula import Quality, state_clause
from demo_grammar import ARTICLE, NounPhrase, Phrase, Target
from demo_lexicon import NOUNS, Noun, matches
from demo_verbs import MODALS, VERB, Verb

ASKED_MODALS = ("can", "must", "want", "should", "may", "will")
TIMELESS = [VERB[key] for key in STATES]
PLURAL_DATIVE = "denen"
THINGS = frozenset(
    ["thing", "text", "clothes", "furniture", "vehicle", "food", "building", "-mass"]
)


def yes_no_question(choices: Choices) -> tuple[Phrase, str]:
    """Return "Does the man read the book ?"."""
    clause = random_clause(choices, modal_chance=0.3)
    if clause.modal is MODALS["would"]:
        clause = replace(clause, modal=MODALS[choices.pick(ASKED_MODALS)])
    clause = replace(clause, subject=plain_subject(clause.subject))
    return replace(clause, frequency=None).realise("question"), "?"


def where_when_why(choices: Choices) -> tuple[Phrase, str]:
    """Return "Where does the man work ?"."""
    english, german = choices.pick([("where", "wo/0"), ("when", "wann/0"), ("why", "warum/0")])
    lead = Given(english, german).realise()
    if english == "where":
        key = choices.pick([*PLACES_OF_VERBS, "live", "live"])
        tense = usable_tense(key, choices.pick(["present", "past", "past"]))
        subject = plain_subject(choices.subject(VERB[key].subjects))
        clause = Clause(subject, VERB[key], tense=tense)
        if key != "live":
            clause = with_objects(choices, clause, key)
        return clause.realise("question", lead), "?"
    clause = random_clause(choices, short=True, modal_chance=0.3)
    while english == "when" and clause.verb in TIMELESS:
        clause = random_clause(choices, short=True, modal_chance=0.3)
    if english == "when" and clause.tense == "perfect":  # "did" is clear even with "read"
        clause = replace(clause, tense="past")
    clause = replace(clause, subject=plain_subject(clause.subject))
    if clause.modal is MODALS["would"]:
        clause = replace(clause, modal=MODALS["want"])
    return clause.realise("question", lead), "?"


def object_question(choices: Choices) -> tuple[Phrase, str]:
    """Return "What does the man buy ?", "Whom does he help ?" or "Which book does he read ?"."""
    key = choices.pick([key for key in PLAIN_VERBS if VERB[key].frame in ("acc", "dat")])
    verb = VERB[key]
    subject = plain_subject(choices.subject(verb.subjects))
    tense = usable_tense(key, choices.pick(["present", "progressive", "past", "perfect"]))
    clause = Clause(subject, verb, tense=tense)
    if choices.chance(0.25) and takes_modal(key):
        clause = replace(clause, tense="present", modal=MODALS[choices.pick(ASKED_MODALS)])
    if choices.chance(0.3):
        clause = replace(clause, place=choices.place(key))
    return clause.realise("question", asked_object(choices, verb)), "?"


def asked_object(choices: Choices, verb: Verb) -> Phrase:
    """Return the question word or phrase that asks for the object of the verb."""
    noun = choices.noun(verb.objects | {"-kin"})
    draw = choices.random.random()
    if draw < 0.3 and verb.frame == "acc" and noun.plural:
        english = " ".join(noun.plural)
        numbers = "".join(str(2 + index) for index in range(len(noun.plural)))
        counted = f"wie/0 viele/1 {noun.german('acc', True)}/{numbers}"
        return Given(f"how many {english}", counted).realise()
    if draw < 0.55:
        case = verb.frame
        return NounPhrase(noun, "which", choices.adjective(noun, 0.2)).realise(case)
    if "person" in verb.objects:
        return Given("whom", "wen/0" if verb.frame == "acc" else "wem/0").realise()
    return Given("what", "was/0").realise()


def subject_question(choices: Choices) -> tuple[Phrase, str]:
    """Return "Who has repaired the car ?"."""
    clause = random_clause(choices, subject=Given("who", "wer/0"), modal_chance=0.3)
    if clause.modal is MODALS["would"]:
        clause = replace(clause, modal=MODALS["want"])
    return replace(clause, frequency=None).realise(), "?"


@dataclass(frozen=True)
class Relative:
    """A relative clause; its pronoun is the subject or leads the clause."""

    clause: Clause
    lead: Given | None = None

    def realise(self) -> Phrase:
        """Return the clause with its verb last in German."""
        phrase = self.clause.realise("final", self.lead.realise() if self.lead else None)
        return Phrase(phrase.english, [Target(","), *phrase.german, Target(",")])


def relative_pronoun(head: NounPhrase, case: str) -> str:
    """Return the German relative pronoun that agrees with the head."""
    if head.plural and case == "dat":
        return PLURAL_DATIVE
    return ARTICLE[case][head.agreement]


def with_relative(choices: Choices, head: NounPhrase) -> NounPhrase:
    """Return the noun phrase with a relative clause that says something sensible about it."""
    if choices.chance(0.5):
        governing = _governing_verbs(head.noun)
        if governing:
            return replace(head, relative=_object_relative(choices, head, choices.pick(governing)))
    return replace(head, relative=_subject_relative(choices, head))


def _subject_relative(choices: Choices, head: NounPhrase) -> Relative:
    is_person = "person" in head.noun.kinds
    pronoun = relative_pronoun(head, "nom")
    subject = Given("who" if is_person else "which", f"{pronoun}/0", person=head.person)
    if is_person and choices.chance(0.7):
        clause = random_clause(
            choices, subject=head, tenses={"present": 3.0, "past": 2}, short=choices.chance(0.6),
            modal_chance=0.2, negation_chance=0.1,
        )  # fmt: skip
        return Relative(replace(clause, subject=subject, frequency=None))
    if is_person:
        return Relative(state_clause(choices, subject, past=False))
    adjective = choices.adjective(head.noun, 1.0)
    assert adjective
    quality = Quality(adjective, choices.degree_of(adjective))
    return Relative(Clause(subject, VERB["be"], complement=quality))


def _governing_verbs(noun: Noun) -> list[str]:
    """Return the verbs that can have the noun as their object."""
    is_person = "person" in noun.kinds
    return [
        key
        for key in PLAIN_VERBS
        if matches(VERB[key].objects, noun.kinds)
        and (VERB[key].frame in ("acc", "dat") or (is_person and "+" in VERB[key].frame))
    ]


def _object_relative(choices: Choices, head: NounPhrase, key: str) -> Relative:
    verb = VERB[key]
    who = "whom" if "person" in head.noun.kinds else "which"
    tense = usable_tense(key, choices.pick(["present", "past", "perfect"]))
    subject = plain_subject(choices.subject(verb.subjects))
    clause = Clause(subject, verb, tense=tense)
    if "+" in verb.frame:
        preposition, case = verb.frame.split("+")
        pronoun = relative_pronoun(head, case)
        lead = Given(f"{verb.fixed[0]} {who}", f"{preposition}/0 {pronoun}/1")
        return Relative(replace(clause, fronted=True), lead)
    if choices.chance(0.3) and tense != "perfect":
        clause = replace(with_adverbials(choices, clause, key), frequency=None, place=None)
    return Relative(clause, Given(who, f"{relative_pronoun(head, verb.frame)}/0"))


def _head(choices: Choices, noun: Noun) -> NounPhrase:
    plural = bool(noun.plural) and choices.chance(0.2)
    if plural:
        return NounPhrase(noun, choices.pick(["the", "these", "two", "three"]), None, plural=True)
    if "kin" in noun.kinds or (matches(OWNED, noun.kinds) and choices.chance(0.15)):
        return NounPhrase(noun, choices.pick(POSSESSIVES))
    return NounPhrase(noun, choices.pick(["the", "the", "the", "a", "this"]))


def relative_on_subject(choices: Choices) -> tuple[Phrase, str]:
    """Return "The man who lives in Berlin buys a book"."""
    if choices.chance(0.65):
        subject = with_relative(choices, _head(choices, choices.noun(PERSON | {"-kin"})))
        clause = random_clause(
            choices, subject=subject, short=choices.chance(0.7), modal_chance=0.2
        )
        return replace(clause, frequency=None).realise(), "."
    things = [
        noun for noun in NOUNS if matches(THINGS, noun.kinds) and choices.adjective(noun, 1.0)
    ]
    noun = choices.pick(things)
    governing = choices.pick(_governing_verbs(noun))
    head = _head(choices, noun)
    relative = _object_relative(choices, head, governing)
    subject = replace(head, relative=relative)
    adjective = choices.adjective(noun, 1.0)
    assert adjective
    quality = Quality(adjective, choices.degree_of(adjective))
    past = relative.clause.tense != "present" and choices.chance(0.5)
    tense = "preterite" if past else "present"
    return Clause(subject, VERB["be"], tense=tense, complement=quality).realise(), "."


def relative_on_object(choices: Choices) -> tuple[Phrase, str]:
    """Return "The man sees a dog which is hungry"; nothing follows the relative clause."""
    fitting = [
        key
        for key in PLAIN_VERBS
        if (VERB[key].frame in ("acc", "dat") or "+" in VERB[key].frame)
        and not VERB[key].prefix
        and key != "drink"  # all drinks are mass nouns, which take no relative clause here
    ]
    key = choices.pick(fitting)
    verb = VERB[key]
    subject = choices.subject(verb.subjects)
    while True:
        noun = choices.noun(verb.objects | {"-mass", "-kin"})
        if choices.adjective(noun, 1.0):
            break
    direct = with_relative(choices, _head(choices, noun))
    return Clause(subject, verb, direct=direct).realise(), "."
