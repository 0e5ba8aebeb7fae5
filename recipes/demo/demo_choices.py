"""Random but sensible phrases: who does it, to whom or what, when and where."""

from collections.abc import Sequence
from functools import cache
from random import Random
from typing import TypeVar

from demo_adjectives import ADJECTIVES, Adjective
from demo_adverbials import (
    AGO,
    CLOCK,
    CLOCK_VERBS,
    FREQUENCIES,
    MANNERS,
    PLACES_OF_VERBS,
    REPEATED,
    TIMES,
)
from demo_clause import Given
from demo_grammar import (
    NUMBERS,
    QUANTITIES,
    Both,
    Nominal,
    NounPhrase,
    Phrase,
    Pronoun,
    Proper,
    Realisable,
    Word,
    prepositional,
)
from demo_lexicon import CITIES, NAMES, NOUN, NOUNS, PLACES, Name, Noun, Place, matches
from demo_verbs import Verb

Item = TypeVar("Item")

POSSESSIVES = ("my", "your", "his", "her", "our", "their")
DEGREES = (Given("very", "sehr/0"), Given("quite", "ziemlich/0"))
TOO = Given("too", "zu/0")
EXCESSES = frozenset(
    ("old", "young", "big", "small", "expensive", "tired", "nervous", "heavy", "long", "short",
     "slow", "cold", "hot", "dark", "boring", "dirty", "lazy", "dangerous", "poor")
)  # fmt: skip
PERSON = frozenset(["person"])
OWNED = frozenset(
    ("thing", "pet", "clothes", "owned", "furniture", "text", "car", "bicycle", "boat", "friend",
     "neighbour", "teacher", "doctor", "boss", "colleague", "guest", "lawyer", "driver",
     "-newspaper")
)  # fmt: skip


@cache
def nouns_of(wanted: frozenset[str], nouns: tuple[Noun, ...]) -> list[Noun]:
    """Return the nouns of the wanted kinds."""
    return [noun for noun in nouns if matches(wanted, noun.kinds)]


@cache
def adjectives_for(noun: Noun) -> list[Adjective]:
    """Return the adjectives that suit the noun."""
    return [adjective for adjective in ADJECTIVES if adjective.fits(noun)]


class Located:
    """A prepositional phrase that is put into words when the clause is."""

    def __init__(self, english: str, german: str, case: str, nominal: Nominal) -> None:
        self.english, self.german, self.case, self.nominal = english, german, case, nominal

    def realise(self) -> Phrase:
        """Return the phrase in both languages."""
        return prepositional([Word(self.english)], self.german, self.case, self.nominal)


class Choices:
    """A source of random phrases that uses no noun and no name twice in a sentence."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self._used: set[str] = set()

    def start_sentence(self) -> None:
        """Forget what the last sentence used."""
        self._used.clear()

    def chance(self, probability: float) -> bool:
        """Return True with the given probability."""
        return self.random.random() < probability

    def pick(self, items: Sequence[Item]) -> Item:
        """Return one of the items."""
        return self.random.choice(items)

    def weighted(self, items: dict[Item, float]) -> Item:
        """Return one of the keys, in proportion to its value."""
        return self.random.choices(list(items), list(items.values()))[0]

    def noun(self, wanted: frozenset[str], nouns: tuple[Noun, ...] = NOUNS + PLACES) -> Noun:
        """Return a noun of a wanted kind that the sentence does not have yet."""
        fitting = nouns_of(wanted, nouns)
        fresh = [noun for noun in fitting if noun.german_singular not in self._used]
        noun = self.pick(fresh or fitting)
        self._used.add(noun.german_singular)
        return noun

    def name(self) -> Name:
        """Return a person's name that the sentence does not have yet."""
        name = self.pick([name for name in NAMES if name.text not in self._used])
        self._used.add(name.text)
        return name

    def adjective(self, noun: Noun, probability: float) -> Adjective | None:
        """Return, with the given probability, an adjective that suits the noun."""
        fitting = adjectives_for(noun)
        return self.pick(fitting) if fitting and self.chance(probability) else None

    def degree_of(self, adjective: Adjective) -> Given | None:
        """Return, half of the time, a word that strengthens or weakens a gradable quality."""
        if not adjective.german_more or self.chance(0.5):
            return None
        return TOO if adjective.english in EXCESSES and self.chance(0.4) else self.pick(DEGREES)

    def noun_phrase(self, noun: Noun, role: str) -> NounPhrase:
        """Return a phrase around the noun; `role` is subject, object, negated or known.

        A negated object is plainly definite or indefinite, so that "nicht" or "kein" fits; a known
        one has a definite determiner.
        """
        adjective = self.adjective(noun, 0.3)
        if "kin" in noun.kinds:
            return self._owned(noun, adjective)
        if "mass" in noun.kinds:
            determiner = self.weighted({"": 0 if role in ("subject", "known") else 6, "the": 4})
            return NounPhrase(noun, determiner, adjective)
        if "pair" in noun.kinds or (noun.plural and self.chance(0.25)):
            return NounPhrase(noun, self._plural_determiner(role), adjective, plural=True)
        if matches(OWNED, noun.kinds) and self.chance(0.3):
            return self._owned(noun, adjective)
        weights = {"the": 6.0, "a": {"subject": 2, "known": 0}.get(role, 5), "this": 1}
        if role == "subject":
            weights["every"] = 0.4
        return NounPhrase(noun, self.weighted(weights), adjective)

    def _owned(self, noun: Noun, adjective: Adjective | None) -> NounPhrase:
        if self.chance(0.25):
            return NounPhrase(noun, "", adjective, owner=self.name())
        plural = bool(noun.plural) and self.chance(0.2)
        return NounPhrase(noun, self.pick(POSSESSIVES), adjective, plural)

    def _plural_determiner(self, role: str) -> str:
        if role == "known":
            return self.pick(["the", "these"])
        if role == "negated":
            return self.pick(["the", "these", ""])
        number = self.pick(list(NUMBERS))
        quantity = self.pick(list(QUANTITIES))
        weights = {
            "the": 4.0,
            "these": 1,
            number: 3,
            quantity: 2,
            "": 1 if role == "subject" else 3,
        }
        if role == "subject":
            weights["all"] = 0.5
        return self.weighted(weights)

    def subject(self, wanted: frozenset[str] = PERSON) -> Nominal:
        """Return who does it: a pronoun, a name, a noun phrase or two of them."""
        if "person" not in wanted:
            return self.noun_phrase(self.noun(wanted), "subject")
        draw = self.random.random()
        if draw < 0.30:
            return Pronoun(self.pick(["I", "I", "you", "you", "he", "she", "we", "they"]))
        if draw < 0.44:
            return Proper(self.name())
        if draw < 0.46:
            return Both(Proper(self.name()), Proper(self.name()))
        if draw < 0.49:
            pair = [NounPhrase(self.noun(frozenset(["person", "-kin"])), "the") for _ in range(2)]
            return Both(*pair)
        return self.noun_phrase(self.noun(wanted), "subject")

    def subject_pronoun_or_name(self) -> Nominal:
        """Return a person by pronoun or name."""
        if self.chance(0.5):
            return Pronoun(self.pick(["I", "you", "he", "she", "we", "they"]))
        return Proper(self.name())

    def name_of(self, gender: str) -> Name:
        """Return the name of a man (m) or a woman (f)."""
        name = self.pick([name for name in NAMES if name.gender == gender])
        self._used.add(name.text)
        return name

    def object(self, verb: Verb, subject: Nominal | Given, role: str = "object") -> Nominal:
        """Return what or whom the verb is about."""
        if "person" in verb.objects:
            draw = self.random.random()
            if draw < 0.2:
                return self.other_pronoun(subject)
            if draw < 0.35:
                return Proper(self.name())
        return self.noun_phrase(self.noun(verb.objects), role)

    def other_pronoun(self, subject: Nominal | Given) -> Pronoun:
        """Return a pronoun for somebody else than the subject."""
        keys = {"1s": "I we", "1p": "I we", "2s": "you"}.get(subject.person, "")
        candidates = ["I", "you", "he", "she", "we", "they"]
        return Pronoun(self.pick([key for key in candidates if key not in keys.split()]))

    def recipient(self, subject: Nominal | Given) -> Nominal:
        """Return who gets something."""
        draw = self.random.random()
        if draw < 0.25:
            return self.other_pronoun(subject)
        if draw < 0.45:
            return Proper(self.name())
        return self.noun_phrase(self.noun(PERSON), "known")

    def time(self, key: str, tense: str, *, negated: bool = False) -> Given:
        """Return when it happens, for a verb by its key in VERB, or when it does not."""
        if negated:  # "not every day" and "not at ten" would negate the time
            return self.pick([time for time in TIMES[tense] if time not in REPEATED + AGO])
        if key in CLOCK_VERBS and tense != "progressive" and self.chance(0.5):
            return self.pick(CLOCK)
        return self.pick(TIMES[tense])

    def frequency(self, tense: str) -> Given:
        """Return how often it happens."""
        return self.pick(FREQUENCIES[tense])

    def manner(self, key: str) -> Given | None:
        """Return how it is done, if the verb allows for that."""
        return self.pick(MANNERS[key]) if key in MANNERS else None

    def place(self, key: str) -> Realisable | None:
        """Return where it is done, if the verb has its places."""
        names = PLACES_OF_VERBS.get(key, "").split()
        if "city" in names and self.chance(0.4):
            return self.city("in", "in")
        fresh = [name for name in names if NOUN[name].german_singular not in self._used]
        if not fresh:
            return None
        place = NOUN[self.pick(fresh)]
        assert isinstance(place, Place)
        return self.located(place)

    def located(self, place: Place) -> Located:
        """Return the phrase for being at the place."""
        return Located(*place.at, "dat", self._place_phrase(place))

    def any_place(self) -> Located:
        """Return the phrase for being somewhere."""
        if self.chance(0.35):
            return self.city("in", "in")
        return self.located(self.pick([place for place in PLACES if "road" not in place.kinds]))

    def town(self) -> Located:
        """Return the phrase for being in a city or a village."""
        if self.chance(0.5):
            return self.city("in", "in")
        place = self.pick([place for place in PLACES if "town" in place.kinds])
        return Located(*place.at, "dat", NounPhrase(place, self.pick(["the", "this", "our"])))

    def home(self) -> Located:
        """Return the phrase for living somewhere."""
        place = self.pick([place for place in PLACES if "home" in place.kinds])
        adjective = self.adjective(place, 0.4)
        determiner = self.pick(
            ["a", "this", *POSSESSIVES] if "owned" in place.kinds else ["a", "this"]
        )
        return Located(*place.at, "dat", NounPhrase(place, determiner, adjective))

    def direction(self, verb: Verb) -> Located:
        """Return the phrase for going to a place that suits the verb."""
        place = self.noun(verb.objects, PLACES)
        assert isinstance(place, Place)
        return Located(*place.to, self._place_phrase(place))

    def city(self, english: str, german: str) -> Located:
        """Return a preposition with the name of a city."""
        return Located(english, german, "dat", Proper(self.pick(CITIES)))

    def _place_phrase(self, place: Place) -> NounPhrase:
        adjective = self.adjective(place, 0.15)
        if "owned" in place.kinds and self.chance(0.3):
            return NounPhrase(place, self.pick(POSSESSIVES), adjective)
        return NounPhrase(place, "a" if adjective and self.chance(0.4) else "the", adjective)
