"""Random sentences about being and having: qualities, comparisons, jobs, ages, prices, places."""

from dataclasses import dataclass, replace

from demo_adjectives import ADJECTIVE, ADJECTIVES, Adjective
from demo_adverbials import TIMES
from demo_choices import PERSON, Choices
from demo_clause import Clause, Given
from demo_clauses import plain_subject
from demo_grammar import NUMBERS, Nominal, NounPhrase, Phrase, Pronoun, Proper, Target, Word
from demo_lexicon import NOUNS, PLACES, Noun
from demo_verbs import VERB

MOODS = [ADJECTIVE[english] for english in ("tired", "hungry", "happy", "sad", "sick", "nervous")]
QUALITIES = [adjective for adjective in ADJECTIVES if "person" in adjective.kinds]
JOB_QUALITIES = [ADJECTIVE[english] for english in ("young", "clever", "polite", "good")]
AGES = [str(age) for age in (18, 20, 21, 25, 30, 33, 35, 40, 42, 48, 50, 55, 60, 64, 70, 75, 80)]
PRICES = [str(price) for price in (15, 20, 25, 30, 40, 50, 60, 75, 80, 90, 100)]
YEARS = [str(year) for year in range(1990, 2025, 3)]
HIGH_PRICES = [str(price) for price in (150, 200, 250, 300, 400, 500, 800, 900)]
CHEAP = frozenset(
    ["clothes", "lamp", "plate", "blanket", "ball", "doll", "umbrella", "book", "-pair"]
)
DEAR = frozenset(["furniture", "bicycle", "instrument", "camera", "computer", "ring", "picture"])


@dataclass(frozen=True)
class Quality:
    """A predicative adjective, with a degree ("very tired") or alone."""

    adjective: Adjective
    degree: Given | None = None

    def realise(self) -> Phrase:
        """Return the adjective, which has no ending in German here."""
        degree = self.degree.realise() if self.degree else Phrase()
        word = Word(self.adjective.english)
        return Phrase(
            [*degree.english, word], [*degree.german, Target(self.adjective.german, (word,))]
        )


@dataclass(frozen=True)
class Comparison:
    """A comparison with something else: "older than the dog" or "as old as the dog"."""

    adjective: Adjective
    other: Nominal
    equal: bool

    def realise(self) -> Phrase:
        """Return the comparison; what is compared stands in the nominative."""
        other = self.other.realise("nom")
        if self.equal:
            so, quality, like = Word("as"), Word(self.adjective.english), Word("as")
            words = [so, quality, like]
            german = [Target("so", (so,)), Target(self.adjective.german, (quality,))]
            german.append(Target("wie", (like,)))
        else:
            more, than = [Word(text) for text in self.adjective.english_more], Word("than")
            words = [*more, than]
            german = [Target(self.adjective.german_more, tuple(more)), Target("als", (than,))]
        return Phrase(words + other.english, german + other.german)


@dataclass(frozen=True)
class Predicate:
    """A predicative noun phrase, in the nominative."""

    nominal: NounPhrase

    def realise(self) -> Phrase:
        """Return the phrase; German names a mere job without an article."""
        phrase = self.nominal.realise("nom")
        if self.nominal.determiner == "a" and not self.nominal.adjective:
            return Phrase(phrase.english, [Target(phrase.german[-1].text, tuple(phrase.english))])
        return phrase


def state_clause(choices: Choices, subject: Nominal | Given, *, past: bool) -> Clause:
    """Return "he is very tired" or "he was very tired" about a person."""
    mood = choices.pick(MOODS)
    quality = Quality(mood, choices.degree_of(mood))
    return Clause(
        subject, VERB["be"], tense="preterite" if past else "present", complement=quality,
        negated=choices.chance(0.12) and quality.degree is None,
    )  # fmt: skip


def quality(choices: Choices) -> tuple[Phrase, str]:
    """Return "The house is very old" or "Was the house old ?"."""
    subject, adjective = described(choices)
    past = choices.chance(0.4)
    clause = Clause(
        subject, VERB["be"], tense="preterite" if past else "present",
        complement=Quality(adjective, choices.degree_of(adjective)),
    )  # fmt: skip
    if choices.chance(0.15):
        clause = replace(clause, complement=Quality(adjective), negated=True)
    if choices.chance(0.12):
        return clause.realise("question"), "?"
    if past and choices.chance(0.3):
        return clause.realise(lead=choices.pick(TIMES["past"][:4]).realise()), "."
    return clause.realise(), "."


def described(choices: Choices) -> tuple[Nominal, Adjective]:
    """Return something definite and an adjective that it can have."""
    if choices.chance(0.3):
        return choices.subject_pronoun_or_name(), choices.pick(QUALITIES)
    noun, adjective = describable(choices)
    return replace(choices.noun_phrase(noun, "known"), adjective=None), adjective


def describable(choices: Choices) -> tuple[Noun, Adjective]:
    """Return a noun and an adjective that suits it."""
    while True:
        noun = choices.pick(NOUNS + PLACES)
        adjective = choices.adjective(noun, 1.0)
        if adjective:
            return choices.noun(frozenset([noun.kind])), adjective


def comparison(choices: Choices) -> tuple[Phrase, str]:
    """Return "The house is older than the church"."""
    if choices.chance(0.3):
        adjective = choices.pick([quality for quality in QUALITIES if quality.german_more])
        left: Nominal = Proper(choices.name())
        right: Nominal = Proper(choices.name())
    else:
        adjective = choices.pick([each for each in ADJECTIVES if each.german_more])
        fitting = [
            noun for noun in NOUNS + PLACES if adjective.fits(noun) and "kin" not in noun.kinds
        ]
        group = choices.pick([noun.group for noun in fitting])
        alike = [noun for noun in fitting if noun.group == group]
        fitting = alike if len(alike) > 1 else fitting
        countable = [noun for noun in fitting if noun.plural]
        plural = len(countable) > 1 and choices.chance(0.15)
        pair = choices.random.sample(countable if plural else fitting, 2)
        left, right = (NounPhrase(noun, "the", plural=plural) for noun in pair)
    tense = choices.pick(["present", "present", "preterite"])
    compared = Comparison(adjective, right, choices.chance(0.3))
    return Clause(left, VERB["be"], tense=tense, complement=compared).realise(), "."


def job(choices: Choices) -> tuple[Phrase, str]:
    """Return "Peter is a teacher" or "My uncle is a famous singer"."""
    noun = choices.noun(frozenset(["job"]))
    subject: Nominal = Proper(choices.name_of(noun.gender))
    if choices.chance(0.3):
        subject = Pronoun("she" if noun.gender == "f" else "he")
    tense = choices.pick(["present", "preterite"])
    adjective = choices.pick([None, None, *JOB_QUALITIES])
    predicate = Predicate(NounPhrase(noun, "a", adjective))
    return Clause(subject, VERB["be"], tense=tense, complement=predicate).realise(), "."


def age(choices: Choices) -> tuple[Phrase, str]:
    """Return "My brother is 35 years old"; small numbers are written as words."""
    subject = choices.subject_pronoun_or_name()
    if choices.chance(0.4):
        subject = NounPhrase(
            choices.noun(PERSON | {"-kin", "-child", "-boy", "-girl", "-pupil"}), "the"
        )
    number = choices.pick(AGES)
    if choices.chance(0.3):
        subject = NounPhrase(choices.noun(frozenset(["child", "boy", "girl", "dog"])), "the")
        number = choices.pick(list(NUMBERS))
    german = NUMBERS.get(number, number)
    old = Given(f"{number} years old", f"{german}/0 Jahre/1 alt/2")
    tense = choices.pick(["present", "present", "preterite"])
    return Clause(subject, VERB["be"], tense=tense, complement=old).realise(), "."


def price(choices: Choices) -> tuple[Phrase, str]:
    """Return "The lamp costs 50 euros" or the question about it."""
    dear = choices.chance(0.5)
    subject = choices.noun_phrase(choices.noun(DEAR if dear else CHEAP), "known")
    if choices.chance(0.25):
        lead = Given("how much", "wie/0 viel/1").realise()
        return Clause(subject, VERB["cost"]).realise("question", lead), "?"
    number = choices.pick(HIGH_PRICES if dear else PRICES)
    amount = Given(f"{number} euros", f"{number}/0 Euro/1")
    return Clause(subject, VERB["cost"], complement=amount).realise(), "."


def location(choices: Choices) -> tuple[Phrase, str]:
    """Return "Maria was in the garden yesterday", also as a question or with a year."""
    where = choices.any_place()
    subject = plain_subject(choices.subject())
    past = choices.chance(0.6)
    clause = Clause(
        subject, VERB["be"], tense="preterite" if past else "present", complement=where,
        negated=choices.chance(0.15),
    )  # fmt: skip
    if past and choices.chance(0.3):
        year = choices.pick(YEARS)
        return clause.realise(lead=Given(f"in {year}", f"im/0 Jahr/0 {year}/1").realise()), "."
    if choices.chance(0.5):
        times = TIMES["past"] if past else TIMES["progressive"]
        clause = replace(clause, time=choices.pick(times))
    return (clause.realise("question"), "?") if choices.chance(0.15) else (clause.realise(), ".")


def possession(choices: Choices) -> tuple[Phrase, str]:
    """Return "The man has three dogs" or "I had no umbrella" with "kein"."""
    past = choices.chance(0.45)
    negated = choices.chance(0.25)
    verb = VERB["have"]
    subject = choices.subject()
    noun = choices.noun(verb.objects)
    if noun.plural and choices.chance(0.4):
        determiner = "" if negated else choices.pick([*NUMBERS, "many", "several"])
        owned = NounPhrase(noun, determiner, choices.adjective(noun, 0.3), plural=True)
    else:
        owned = NounPhrase(noun, "a", choices.adjective(noun, 0.4))
    tense = "preterite" if past else "present"
    clause = Clause(subject, verb, tense=tense, direct=owned, negated=negated)
    if choices.chance(0.12):
        return clause.realise("question"), "?"
    return clause.realise(), "."


def existence(choices: Choices) -> tuple[Phrase, str]:
    """Return "In the village there are two churches", which German says with "es gibt"."""
    lead = choices.town().realise()
    noun = choices.noun(
        frozenset(["building", "park", "market", "bridge", "lake", "-house", "-airport"]), PLACES
    )
    plural = choices.chance(0.4)
    determiner = (
        choices.pick([*NUMBERS, "many", "some", "no"]) if plural else choices.pick(["a", "no"])
    )
    found = NounPhrase(noun, determiner, choices.adjective(noun, 0.4), plural)
    there, verb = Word("there"), Word("are" if plural else "is")
    thing = found.realise("acc")
    german = [*lead.german, Target("gibt", (verb,)), Target("es", (there,)), *thing.german]
    return Phrase([*lead.english, there, verb, *thing.english], german), "."
