"""Phrases and clauses in English and German, with agreement, word order and word alignment.

An English word is an object, and every German word carries the English words that it renders, so
that the alignment of a sentence falls out of building it. German has the finite verb second in
statements, first in yes/no questions and last in subordinate clauses; participles, infinitives and
separable prefixes close the clause.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

CASES = ("nom", "acc", "dat")
PERSONS = ("1s", "2s", "3s", "1p", "3p")


class Word(str):
    """An English word; two words with the same text are told apart by identity."""


class Target(NamedTuple):
    """A German word and the English words that it renders (none for a comma of its own)."""

    text: str
    sources: tuple[Word, ...] = ()


@dataclass
class Phrase:
    """The words of a constituent in both languages."""

    english: list[Word] = field(default_factory=list)
    german: list[Target] = field(default_factory=list)

    def __add__(self, other: "Phrase") -> "Phrase":
        return Phrase(self.english + other.english, self.german + other.german)


def words(text: str) -> list[Word]:
    """The English words of a text."""
    return [Word(each) for each in text.split()]


def given(english: str, german: str) -> Phrase:
    """Words written out, such as `given("in the morning", "am/01 Morgen/2")`."""
    source = words(english)
    pairs = (entry.partition("/") for entry in german.split())
    return Phrase(
        source, [Target(text, tuple(source[int(n)] for n in numbers)) for text, _, numbers in pairs]
    )


# ---------------------------------------------------------------- the lexicon


class Noun(NamedTuple):
    """A noun of both languages; the plural of mass nouns is empty. Places have prepositions."""

    singular: str
    plural: str
    gender: str
    german_singular: str
    german_plural: str
    weak: bool
    kinds: frozenset[str]
    group: str  # nouns of one group can be compared
    at: tuple[str, ...] = ()  # English and German preposition
    to: tuple[str, ...] = ()  # the same and the German case

    def german(self, case: str, plural: bool) -> str:
        """The German form."""
        if not plural:
            return self.german_plural if self.weak and case != "nom" else self.german_singular
        ending = "n" if case == "dat" and not self.german_plural.endswith(("n", "s")) else ""
        return self.german_plural + ending


class Adjective(NamedTuple):
    """An adjective: its predicative form, the stem that takes endings, its comparatives."""

    english: str
    german: str
    stem: str
    english_more: str
    german_more: str
    kinds: frozenset[str]


class Verb(NamedTuple):
    """A verb of both languages; lexicon.txt says what its columns mean."""

    key: str
    base: str
    third: str
    past: str
    participle: str
    progressive: str  # empty for states
    particle: str  # follows the verb and yields to a pronoun: "picks him up"
    fixed: str  # stays with the object: "looks for him"
    prefix: str
    infinitive: str
    present: dict[str, str]
    preterite: dict[str, str]
    german_participle: str
    auxiliary: str
    frame: str
    subjects: frozenset[str]
    objects: frozenset[str]
    places: tuple[str, ...]
    manners: tuple[str, ...]


class Modal(NamedTuple):
    """A modal verb: an English auxiliary with what follows it, or a form that takes `do`."""

    auxiliary: str
    after: str
    supported: str
    third: str
    present: dict[str, str]


def sections(path: Path) -> dict[str, list[list[str]]]:
    """The rows of each section of a lexicon; `-` stands for an empty cell."""
    found: dict[str, list[list[str]]] = {}
    for line in path.read_text(encoding="utf-8").split("\n"):
        if line.startswith("["):
            rows = found.setdefault(line.strip("[]"), [])
        elif line and not line.startswith("#"):
            cells = (cell.strip() for cell in line.split("|"))
            rows.append(["" if cell == "-" else cell for cell in cells])
    return found


def noun_of(entry: str, kinds: str, at: str = "", to: str = "") -> Noun:
    """A noun of the lexicon."""
    singular, plural, article, german, german_plural = (
        "" if form == "-" else form.replace("_", " ") for form in entry.split()
    )
    return Noun(
        singular, plural, {"der": "m", "die": "f", "das": "n"}[article], german.rstrip("*"),
        german_plural, german.endswith("*"), frozenset([*kinds.split(), entry.split()[0]]),
        kinds.split()[0], tuple(at.split()), tuple(to.split()),
    )  # fmt: skip


def adjective_of(english: str, german: str, stem: str, more: str, kinds: str) -> Adjective:
    """An adjective of the lexicon."""
    english_more, _, german_more = more.partition(" ")
    if english_more == "more":
        english_more = f"more {english}"
    return Adjective(
        english, german, stem or german, english_more, german_more, frozenset(kinds.split())
    )


def persons(forms: str, plural: str) -> dict[str, str]:
    """Forms by person: ich, du, er, then the plural twice."""
    return dict(zip(PERSONS, [*forms.split(), plural, plural], strict=True))


def verb_of(row: list[str]) -> Verb:
    """A verb of the lexicon."""
    english, rest, german, frame, subjects, objects, places, manners = row
    base, third, past, participle, progressive = english.split()
    infinitive, *present, german_participle, auxiliary = german.split()
    prefix, _, stem = infinitive.rpartition(".")
    past_forms = {"sein": ("war warst war", "waren"), "haben": ("hatte hattest hatte", "hatten")}
    return Verb(
        f"{base} {rest[1:]}".strip(), base, third, past, participle,
        "" if progressive.startswith("!") else progressive,
        rest[1:] if rest.startswith("+") else "", rest[1:] if rest.startswith("=") else "",
        prefix, prefix + stem, persons(" ".join(present), "sind" if stem == "sein" else stem),
        persons(*past_forms[stem]) if stem in past_forms else {},
        german_participle, auxiliary, frame, frozenset(subjects.split()),
        frozenset(objects.split()), tuple(places.split()), tuple(filter(None, manners.split(", "))),
    )  # fmt: skip


def modal_of(english: str, supported: str, german: str) -> Modal:
    """A modal verb of the lexicon."""
    auxiliary, _, after = english.partition(" ")
    base, _, third = supported.partition(" ")
    singular, _, plural = german.rpartition(" ")
    return Modal(auxiliary, after, f"{base} to" if base else "", third, persons(singular, plural))


LEXICON = sections(Path(__file__).with_name("lexicon.txt"))
NOUNS = [noun_of(each, kinds) for kinds, nouns in LEXICON["nouns"] for each in nouns.split(", ")]
PLACES = [noun_of(row[1], f"{row[0]} place", *row[2:]) for row in LEXICON["places"]]
NOUN = {noun.singular: noun for noun in NOUNS + PLACES}
ADJECTIVES = [adjective_of(*row) for row in LEXICON["adjectives"]]
ADJECTIVE = {adjective.english: adjective for adjective in ADJECTIVES}
VERB = {verb.key: verb for verb in (verb_of(row) for row in LEXICON["verbs"])}
MODAL = {row[0]: modal_of(*row[1:]) for row in LEXICON["modals"]}
NAMES = {name: gender for gender, names in LEXICON["names"] for name in names.split()}
CITIES = [city.partition("=") for (line,) in LEXICON["cities"] for city in line.split()]
SETS = {name: keys.split(", ") for name, keys in LEXICON["sets"]}
ADVERBIALS: dict[str, list[list[str]]] = {}
for kind, entries in LEXICON["adverbials"]:
    pairs = [entry.split(" = ") for entry in entries.split(", ")]
    ADVERBIALS.setdefault(kind, []).extend(pairs)


def matches(wanted: frozenset[str], kinds: frozenset[str]) -> bool:
    """Whether the kinds have one of the wanted and none of those written as `-kind`."""
    return bool(wanted & kinds) and not any(f"-{kind}" in wanted for kind in kinds)


# ---------------------------------------------------------------- noun phrases


def endings(*rows: str) -> dict[str, dict[str, str]]:
    """A table of endings: a row for each case with masculine, feminine, neuter and plural."""
    values = [["" if cell == "-" else cell for cell in row.split()] for row in rows]
    return {c: dict(zip("mfnp", row, strict=True)) for c, row in zip(CASES, values, strict=True)}


ARTICLE = endings("der die das die", "den die das die", "dem der dem den")
STRONG = endings("er e es e", "en e es e", "em er em en")
MIXED = endings("er e es en", "en e es en", "en en en en")
WEAK = endings("e e e en", "en e e en", "en en en en")
EIN_ENDING = endings("- e - e", "en e - e", "em er em en")
DER_WORDS, EIN_WORDS, QUANTITIES, NUMBERS, CONTRACTIONS = (
    dict(pair.split("=") for pair in line.split(", ")) for _, line in LEXICON["words"]
)
POSSESSIVES = tuple(EIN_WORDS)[2:]


def determiner_form(
    determiner: str, case: str, gender: str
) -> tuple[str, dict[str, dict[str, str]]]:
    """The German determiner, and the endings of the adjective after it."""
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
class Simple:
    """A pronoun, a name or a question word."""

    english: tuple[str, str]  # as subject and otherwise
    german: tuple[str, ...]  # by case
    person: str = "3s"
    is_pronoun: bool = False
    taken_up_by: str = ""  # the pronoun that refers to it
    takes_kein = False
    definite = True

    def realise(self, case: str, negation: Word | None = None) -> Phrase:
        """The word in a case."""
        assert negation is None
        word = Word(self.english[case != "nom"])
        return Phrase([word], [Target(self.german[CASES.index(case)], (word,))])


def pronoun_of(english: str, german: str, person: str) -> Simple:
    """A pronoun of the lexicon."""
    subject, other = english.split()
    return Simple((subject, other), tuple(german.split()), person, True, subject)


PRONOUN = {row[0]: pronoun_of(*row[1:]) for row in LEXICON["pronouns"]}


def proper(english: str, german: str = "") -> Simple:
    """The name of a person or a city."""
    referring = {"m": "he", "f": "she", "": ""}[NAMES.get(english, "")]
    return Simple((english, english), (german or english,) * 3, taken_up_by=referring)


@dataclass(frozen=True)
class NounPhrase:
    """A noun with an optional determiner or owner, adjective and relative clause."""

    noun: Noun
    determiner: str = ""
    adjective: Adjective | None = None
    plural: bool = False
    owner: str = ""
    relative: Phrase | None = None
    is_pronoun = False

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
        return self.determiner in ("", "a") and not self.owner

    @property
    def definite(self) -> bool:
        """Whether the phrase names something known, which German moves ahead of some adverbs."""
        return self.determiner in ("the", "this", "these", *POSSESSIVES) or bool(self.owner)

    @property
    def taken_up_by(self) -> str:
        """The pronoun for people where both languages agree on it."""
        if "person" not in self.noun.kinds:
            return ""
        return "they" if self.plural else {"m": "he", "f": "she", "n": ""}[self.noun.gender]

    def realise(self, case: str, negation: Word | None = None) -> Phrase:
        """The phrase in a case; `negation` is the English "not" that turns into "kein"."""
        head = words(self.noun.plural if self.plural else self.noun.singular)
        adjective = words(self.adjective.english) if self.adjective else []
        following = (adjective + head)[0]
        article = "an" if following[0] in "aeiou" and not following.startswith("uni") else "a"
        determiner = words(article if self.determiner == "a" else self.determiner)
        german: list[Target] = []
        table = STRONG
        if self.owner:
            determiner = words(f"{self.owner}'s")
            german = [Target(f"{self.owner}s", tuple(determiner))]
        elif negation is not None or self.determiner:
            wanted = self.determiner if negation is None else "no"
            text, table = determiner_form(wanted, case, self.agreement)
            sources = (*determiner,) if negation is None else (negation, *determiner)
            german = [Target(text, sources)]
        if self.adjective:
            ending = table[case][self.agreement]
            german.append(Target(self.adjective.stem + ending, tuple(adjective)))
        german.append(Target(self.noun.german(case, self.plural), tuple(head)))
        return Phrase(determiner + adjective + head, german) + (self.relative or Phrase())


Nominal = Simple | NounPhrase


def prepositional(english: list[Word], preposition: str, case: str, nominal: Nominal) -> Phrase:
    """A prepositional phrase, contracted with the definite article where German does so."""
    phrase = nominal.realise(case)
    first, *others = phrase.german
    contracted = CONTRACTIONS.get(f"{preposition} {first.text}")
    plain = isinstance(nominal, NounPhrase) and nominal.determiner == "the"
    if contracted and plain and nominal.relative is None:
        german = [Target(contracted, (*english, *first.sources)), *others]
    else:
        german = [Target(preposition, tuple(english)), *phrase.german]
    return Phrase(english + phrase.english, german)


# ---------------------------------------------------------------- clauses

BE = persons("am are is", "are")
WAS = persons("was were was", "were")


@dataclass
class Verbal:
    """The verb of a clause: English parts in order, the German finite verb and clause end."""

    auxiliary: list[Word]
    negation: Word | None  # of its own, or the auxiliary "cannot"
    head: list[Word]
    particle: list[Word]
    fixed: list[Word]
    finite: Target
    tail: list[Target]
    final: list[Target]  # how a subordinate clause ends


@dataclass(frozen=True)
class Clause:
    """A clause; `tense` is present, progressive, past, perfect or preterite.

    The English simple past becomes the German perfect; `preterite` is for "was" and "had" alone.
    """

    subject: Nominal
    verb: Verb
    tense: str = "present"
    modal: Modal | None = None
    negated: bool = False
    indirect: Nominal | None = None
    direct: Nominal | None = None
    complement: Phrase | None = None
    time: Phrase | None = None
    frequency: Phrase | None = None
    manner: Phrase | None = None
    place: Phrase | None = None

    def realise(self, order: str = "main", lead: Phrase | None = None) -> Phrase:
        """The clause with its German verb second (`main`), first (`question`) or last (`final`).

        `lead` comes first in both languages: an adverbial, a question word, a conjunction, a
        relative pronoun or a subordinate clause.
        """
        verbal, first = self._verbal(order == "question"), lead or Phrase()
        subject = self.subject.realise("nom")
        middle = self._middle(verbal)
        opening = subject.english + verbal.auxiliary
        if order == "question":
            opening = verbal.auxiliary + subject.english
        english = first.english + opening
        if verbal.negation is not None and all(verbal.negation is not w for w in verbal.auxiliary):
            english = [*english, verbal.negation]
        if order == "final":
            german = [*first.german, *subject.german, *middle.german, *verbal.final]
        elif order == "question" or lead:
            german = [*first.german, verbal.finite, *subject.german, *middle.german, *verbal.tail]
        else:
            german = [*subject.german, verbal.finite, *middle.german, *verbal.tail]
        return Phrase(english + middle.english, german)

    def _verbal(self, asking: bool) -> Verbal:
        verb, person = self.verb, self.subject.person
        auxiliary, lead, main = map(words, self._english_verb(asking))
        head, particle = main, words(verb.particle)
        fixed = words(verb.fixed)
        meaning = (*head, *particle, *([] if "+" in verb.frame else fixed))
        tail: list[Target] = []
        if self.modal:
            finite = Target(self.modal.present[person], (*auxiliary, *lead))
            tail = [Target(verb.infinitive, meaning)]
        elif self.tense in ("past", "perfect"):
            # "bought" alone stands for "hat ... gekauft", "has bought" goes word for word.
            helper = VERB["be" if verb.auxiliary == "sein" else "have"].present[person]
            finite = Target(helper, tuple(auxiliary) or meaning)
            tail = [Target(verb.german_participle, meaning)]
        else:
            forms = verb.preterite if self.tense == "preterite" else verb.present
            finite = Target(forms[person], (*auxiliary, *meaning))
            tail = [Target(verb.prefix, meaning)] if verb.prefix else []
        final = [*tail, finite]
        if verb.prefix and tail[0].text == verb.prefix:
            final = [Target(verb.prefix + finite.text, finite.sources)]
        negation = None
        if self.negated:
            negation = auxiliary[0] if auxiliary == ["cannot"] else Word("not")
        return Verbal(auxiliary, negation, lead + head, particle, fixed, finite, tail, final)

    def _english_verb(self, asking: bool) -> tuple[str, str, str]:
        """The auxiliary, what follows it, and the main verb."""
        verb, person, third = self.verb, self.subject.person, self.subject.person == "3s"
        supported = asking or self.negated
        do = "does" if third else "do"
        if self.modal:
            modal = self.modal
            if modal.auxiliary and not (modal.supported and supported):
                cannot = modal.auxiliary == "can" and self.negated
                return "cannot" if cannot else modal.auxiliary, modal.after, verb.base
            if supported:
                return do, modal.supported, verb.base
            return "", f"{modal.third} to" if third else modal.supported, verb.base
        if verb.base == "be":
            return (WAS if self.tense == "preterite" else BE)[person], "", ""
        if self.tense == "progressive":
            return BE[person], "", verb.progressive
        if self.tense == "perfect":
            return "has" if third else "have", "", verb.participle
        if self.tense in ("past", "preterite"):
            return ("did", "", verb.base) if supported else ("", "", verb.past)
        return (do, "", verb.base) if supported else ("", "", verb.third if third else verb.base)

    def _middle(self, verbal: Verbal) -> Phrase:
        """Verb and objects in English, and what stands between the German verb parts."""
        governs = "+" in self.verb.frame  # a preposition, whose object stays at the end
        fused = self.direct is not None and self.direct.takes_kein and not governs
        direct = self._direct(verbal, verbal.negation if fused else None)
        indirect = self.indirect.realise("dat") if self.indirect else Phrase()
        complement, time, frequency, manner, place = (
            part or Phrase()
            for part in (self.complement, self.time, self.frequency, self.manner, self.place)
        )
        by_pronoun = self.direct is not None and self.direct.is_pronoun
        objects = [verbal.particle, indirect.english, direct.english]
        if by_pronoun:
            objects = [direct.english, verbal.particle, indirect.english]
        after = [part.english for part in (complement, manner, place, time)]
        parts = [frequency.english, verbal.head, *objects, *after]
        english = [word for part in parts for word in part]
        adverbs = time.german + frequency.german
        plain = [Target("nicht", (verbal.negation,))] if verbal.negation and not fused else []
        setting = plain + manner.german + place.german
        if governs:
            german = adverbs + setting + direct.german
        elif by_pronoun:
            german = direct.german + adverbs + indirect.german + setting
        else:
            ahead = bool(plain) or self._is_settled()
            middle = direct.german + adverbs if ahead else adverbs + direct.german
            german = indirect.german + middle + setting
        return Phrase(english, german + complement.german)

    def _is_settled(self) -> bool:
        """Whether the object stands ahead of the adverbs, as it does ahead of "nicht"."""
        if self.direct is None or not self.direct.definite:
            return False
        return (
            isinstance(self.direct, Simple) or self.verb.frame == "dat" or self.tense == "perfect"
        )

    def _direct(self, verbal: Verbal, negation: Word | None) -> Phrase:
        """The object with the words that English keeps before it."""
        if self.direct is None:
            return Phrase(list(verbal.fixed))
        if "+" in self.verb.frame:
            return prepositional(verbal.fixed, *self.verb.frame.split("+"), self.direct)
        phrase = self.direct.realise("dat" if self.verb.frame == "dat" else "acc", negation)
        return Phrase(list(verbal.fixed)) + phrase


def join(main: Phrase, subordinate: Phrase) -> Phrase:
    """A statement and its subordinate clause, with the comma that German puts between."""
    return main + Phrase([], [Target(",")]) + subordinate
