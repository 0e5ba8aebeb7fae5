"""Noun phrases, pronouns and prepositional phrases in both languages, with agreement and alignment.

English words are objects with an identity; every German word carries the English words it renders,
so that the alignment of a sentence falls out of building it.
"""

from dataclasses import dataclass, field
from typing import Protocol

from demo_adjectives import Adjective
from demo_lexicon import City, Name, Noun


@dataclass(eq=False)
class Word:
    """One English word; two words with the same text stay distinct."""

    text: str


@dataclass(frozen=True)
class Target:
    """One German word and the English words it renders (none for a comma that only German has)."""

    text: str
    sources: tuple[Word, ...] = ()


@dataclass
class Phrase:
    """The words of one constituent in both languages."""

    english: list[Word] = field(default_factory=list)
    german: list[Target] = field(default_factory=list)


class Realisable(Protocol):
    """What can be put into words without further information, such as a relative clause."""

    def realise(self) -> Phrase:
        """Return the words in both languages."""


# Endings by case, for masculine, feminine, neuter and plural.
ARTICLE = {
    "nom": {"m": "der", "f": "die", "n": "das", "p": "die"},
    "acc": {"m": "den", "f": "die", "n": "das", "p": "die"},
    "dat": {"m": "dem", "f": "der", "n": "dem", "p": "den"},
}
STRONG = {
    "nom": {"m": "er", "f": "e", "n": "es", "p": "e"},
    "acc": {"m": "en", "f": "e", "n": "es", "p": "e"},
    "dat": {"m": "em", "f": "er", "n": "em", "p": "en"},
}
MIXED = {
    "nom": {"m": "er", "f": "e", "n": "es", "p": "en"},
    "acc": {"m": "en", "f": "e", "n": "es", "p": "en"},
    "dat": {"m": "en", "f": "en", "n": "en", "p": "en"},
}
WEAK = {
    "nom": {"m": "e", "f": "e", "n": "e", "p": "en"},
    "acc": {"m": "en", "f": "e", "n": "e", "p": "en"},
    "dat": {"m": "en", "f": "en", "n": "en", "p": "en"},
}
EIN_ENDING = {
    "nom": {"m": "", "f": "e", "n": "", "p": "e"},
    "acc": {"m": "en", "f": "e", "n": "", "p": "e"},
    "dat": {"m": "em", "f": "er", "n": "em", "p": "en"},
}
DER_WORDS = {"this": "dies", "these": "dies", "every": "jed", "which": "welch", "all": "all"}
EIN_WORDS = {
    "a": "ein", "no": "kein", "my": "mein", "your": "dein", "his": "sein", "her": "ihr",
    "our": "unser", "their": "ihr",
}  # fmt: skip
QUANTITIES = {"many": "viel", "some": "einig", "several": "mehrer"}
NUMBERS = {
    "two": "zwei", "three": "drei", "four": "vier", "five": "fünf", "six": "sechs",
    "seven": "sieben", "eight": "acht", "nine": "neun", "ten": "zehn", "eleven": "elf",
    "twelve": "zwölf",
}  # fmt: skip
CONTRACTIONS = {
    ("in", "dem"): "im", ("an", "dem"): "am", ("zu", "dem"): "zum", ("zu", "der"): "zur",
    ("von", "dem"): "vom", ("in", "das"): "ins",
}  # fmt: skip

# English subject and object form | person | German nominative, accusative, dative.
PRONOUNS = {
    "I": ("I", "me", "1s", "ich", "mich", "mir"),
    "you": ("you", "you", "2s", "du", "dich", "dir"),
    "he": ("he", "him", "3s", "er", "ihn", "ihm"),
    "she": ("she", "her", "3s", "sie", "sie", "ihr"),
    "we": ("we", "us", "1p", "wir", "uns", "uns"),
    "they": ("they", "them", "3p", "sie", "sie", "ihnen"),
    "it m": ("it", "it", "3s", "er", "ihn", "ihm"),
    "it f": ("it", "it", "3s", "sie", "sie", "ihr"),
    "it n": ("it", "it", "3s", "es", "es", "ihm"),
}


def indefinite_article(next_word: str) -> str:
    """Return "a" or "an" as the sound of the next word asks."""
    return "an" if next_word[0] in "aeiou" and not next_word.startswith("uni") else "a"


def determiner_form(
    determiner: str, case: str, gender: str
) -> tuple[str, dict[str, dict[str, str]]]:
    """Return the German determiner and the table of endings for the adjective after it."""
    if determiner == "the":
        return ARTICLE[case][gender], WEAK
    if determiner in DER_WORDS:
        return DER_WORDS[determiner] + STRONG[case][gender], WEAK
    if determiner in EIN_WORDS:
        return EIN_WORDS[determiner] + EIN_ENDING[case][gender], MIXED
    if determiner in QUANTITIES:
        return QUANTITIES[determiner] + STRONG[case]["p"], STRONG
    return NUMBERS.get(determiner, determiner), STRONG


@dataclass(frozen=True)
class NounPhrase:
    """A noun with an optional determiner or owner, adjective and relative clause."""

    noun: Noun
    determiner: str = ""
    adjective: Adjective | None = None
    plural: bool = False
    owner: Name | None = None
    relative: Realisable | None = None

    @property
    def person(self) -> str:
        """The person and number that the verb agrees with."""
        return "3p" if self.plural else "3s"

    @property
    def agreement(self) -> str:
        """The gender, or `p` for any plural."""
        return "p" if self.plural else self.noun.gender

    @property
    def takes_kein(self) -> bool:
        """Whether negation fuses with the determiner."""
        return self.determiner in ("", "a") and self.owner is None

    @property
    def counts(self) -> bool:
        """Whether the phrase says how many there are."""
        return self.determiner in QUANTITIES or self.determiner in NUMBERS

    @property
    def definite(self) -> bool:
        """Whether the phrase names something known, which German moves ahead of some adverbs."""
        known = ("the", "this", "these", "my", "your", "his", "her", "our", "their")
        return self.determiner in known or self.owner is not None

    def realise(self, case: str, negation: Word | None = None) -> Phrase:
        """Return the phrase in `case`; `negation` is the English "not" that turns into "kein"."""
        noun_words = [
            Word(text) for text in (self.noun.plural if self.plural else self.noun.singular)
        ]
        adjective = [Word(self.adjective.english)] if self.adjective else []
        determiner = self._determiner_words((adjective + noun_words)[0].text)
        german, endings = self._german_determiner(case, determiner, negation)
        if self.adjective:
            ending = endings[case][self.agreement]
            german.append(Target(self.adjective.stem + ending, tuple(adjective)))
        german.append(Target(self.noun.german(case, self.plural), tuple(noun_words)))
        relative = self.relative.realise() if self.relative else Phrase()
        return Phrase(
            determiner + adjective + noun_words + relative.english, german + relative.german
        )

    def _determiner_words(self, next_word: str) -> list[Word]:
        if self.owner:
            return [Word(self.owner.text + "'s")]
        if self.determiner == "a":
            return [Word(indefinite_article(next_word))]
        return [Word(self.determiner)] if self.determiner else []

    def _german_determiner(
        self, case: str, words: list[Word], negation: Word | None
    ) -> tuple[list[Target], dict[str, dict[str, str]]]:
        if self.owner:
            return [Target(self.owner.text + "s", tuple(words))], STRONG
        if negation is not None:
            assert self.takes_kein
            text, endings = determiner_form("no", case, self.agreement)
            return [Target(text, (negation, *words))], endings
        if not self.determiner:
            return [], STRONG
        text, endings = determiner_form(self.determiner, case, self.agreement)
        return [Target(text, tuple(words))], endings


@dataclass(frozen=True)
class Pronoun:
    """A personal pronoun, by its key in PRONOUNS."""

    key: str
    takes_kein = False
    definite = True

    @property
    def person(self) -> str:
        """The person and number that the verb agrees with."""
        return PRONOUNS[self.key][2]

    def realise(self, case: str, negation: Word | None = None) -> Phrase:
        """Return the pronoun in `case`."""
        assert negation is None
        subject, other, _, *german = PRONOUNS[self.key]
        word = Word(subject if case == "nom" else other)
        return Phrase([word], [Target(german[("nom", "acc", "dat").index(case)], (word,))])


@dataclass(frozen=True)
class Proper:
    """The name of a person or a city."""

    name: Name | City
    person = "3s"
    takes_kein = False
    definite = True

    def realise(self, case: str, negation: Word | None = None) -> Phrase:
        """Return the name, which has the same form in every case."""
        assert case in ARTICLE
        assert negation is None
        english = self.name.text if isinstance(self.name, Name) else self.name.english
        word = Word(english)
        german = english if isinstance(self.name, Name) else self.name.german
        return Phrase([word], [Target(german, (word,))])


@dataclass(frozen=True)
class Both:
    """Two noun phrases joined by "and"."""

    left: "Nominal"
    right: "Nominal"
    person = "3p"
    takes_kein = False
    definite = True

    def realise(self, case: str, negation: Word | None = None) -> Phrase:
        """Return both phrases in `case`."""
        assert negation is None
        left, right, conjunction = self.left.realise(case), self.right.realise(case), Word("and")
        return Phrase(
            [*left.english, conjunction, *right.english],
            [*left.german, Target("und", (conjunction,)), *right.german],
        )


Nominal = NounPhrase | Pronoun | Proper | Both


def prepositional(english: list[Word], preposition: str, case: str, nominal: Nominal) -> Phrase:
    """Return a prepositional phrase, contracted with the definite article where German does so."""
    phrase = nominal.realise(case)
    german = phrase.german
    contracted = None
    if isinstance(nominal, NounPhrase) and nominal.determiner == "the" and not nominal.relative:
        contracted = CONTRACTIONS.get((preposition, german[0].text))
    if contracted:
        first = Target(contracted, (*english, *german[0].sources))
        return Phrase(english + phrase.english, [first, *german[1:]])
    return Phrase(english + phrase.english, [Target(preposition, tuple(english)), *german])
