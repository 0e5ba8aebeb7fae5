"""Clauses in both languages: verb forms, word order and negation, with the alignment they imply.

German puts the finite verb second in statements, first in yes/no questions and last in subordinate
clauses; what stays behind (participle, infinitive, separable prefix) closes the clause.
"""

from dataclasses import dataclass

from demo_grammar import Nominal, Phrase, Pronoun, Proper, Realisable, Target, Word, prepositional
from demo_verbs import VERB, Modal, Verb

BE_FORMS = {"1s": "am", "2s": "are", "3s": "is", "1p": "are", "3p": "are"}
WAS_FORMS = {"1s": "was", "2s": "were", "3s": "was", "1p": "were", "3p": "were"}


@dataclass(frozen=True)
class Given:
    """Words written out by hand: each German word is followed by the numbers of its English words.

    `Given("in the morning", "am/01 Morgen/2")` renders both "in" and "the" by "am". As a subject it
    takes the verb in `person`.
    """

    english: str
    german: str
    person: str = "3s"
    takes_kein = False

    def realise(self, case: str = "nom", negation: Word | None = None) -> Phrase:
        """Return the words, which are the same in every case."""
        assert case == "nom"
        assert negation is None
        words = [Word(text) for text in self.english.split()]
        targets = []
        for entry in self.german.split():
            text, _, numbers = entry.partition("/")
            targets.append(Target(text, tuple(words[int(number)] for number in numbers)))
        return Phrase(words, targets)


@dataclass
class Verbal:
    """The verb of a clause: English parts in order, German finite verb and clause end."""

    auxiliary: list[Word]
    negation: Word | None
    head: list[Word]
    particle: list[Word]
    fixed: list[Word]
    finite: Target
    tail: list[Target]
    final: list[Target]


@dataclass(frozen=True)
class Clause:
    """A clause to be put into words; `tense` is present, progressive, past, perfect or preterite.

    The English simple past becomes the German perfect; `preterite` is for "was" and "had" alone.
    `gladly` renders "likes to" by "gern". `fronted` says that a leading phrase already holds the
    preposition of the verb ("with whom").
    """

    subject: Nominal | Given
    verb: Verb
    tense: str = "present"
    modal: Modal | None = None
    negated: bool = False
    gladly: bool = False
    fronted: bool = False
    indirect: Nominal | None = None
    direct: Nominal | None = None
    complement: Realisable | None = None
    time: Realisable | None = None
    frequency: Realisable | None = None
    manner: Realisable | None = None
    place: Realisable | None = None

    def realise(self, order: str = "main", lead: Phrase | None = None) -> Phrase:
        """Return the clause with its verb second (`main`), first (`question`) or last (`final`).

        `lead` comes first in both languages: a fronted adverbial, a question word, a conjunction, a
        relative pronoun or a whole subordinate clause.
        """
        verbal = self._verbal(asking=order == "question")
        subject = self.subject.realise("nom")
        middle = self._middle(verbal)
        first = lead or Phrase()
        if order == "question":
            opening = verbal.auxiliary + subject.english
        else:
            opening = subject.english + verbal.auxiliary
        english = first.english + opening + self._english_rest(verbal, middle)
        if order == "final":
            german = first.german + subject.german + middle.german + verbal.final
        elif order == "question" or lead:
            german = [*first.german, verbal.finite, *subject.german, *middle.german, *verbal.tail]
        else:
            german = [*subject.german, verbal.finite, *middle.german, *verbal.tail]
        return Phrase(english, german)

    def realise_infinitive(self, lead: Phrase | None = None) -> Phrase:
        """Return the clause without its subject, as an infinitive with "to" and "zu"."""
        verb, first, to = self.verb, lead or Phrase(), Word("to")
        head, particle, fixed = [Word(verb.base)], _words(verb.particle), _words(verb.fixed)
        sources = (*head, *particle, *_meaning(verb, fixed))
        if verb.prefix:
            stem = verb.infinitive.removeprefix(verb.prefix)
            closing = [Target(f"{verb.prefix}zu{stem}", (to, *sources))]
        else:
            closing = [Target("zu", (to,)), Target(verb.infinitive, sources)]
        verbal = Verbal([to], None, head, particle, fixed, closing[0], [], closing)
        middle = self._middle(verbal)
        english = first.english + verbal.auxiliary + self._english_rest(verbal, middle)
        return Phrase(english, first.german + middle.german + closing)

    def _english_rest(self, verbal: Verbal, middle: Phrase) -> list[Word]:
        """Return what follows the subject and the auxiliary in English."""
        shown = [verbal.negation] if verbal.negation else []
        if verbal.negation in verbal.auxiliary:  # "cannot" is auxiliary and negation in one
            shown = []
        return shown + middle.english

    def _verbal(self, asking: bool) -> Verbal:
        verb, person = self.verb, self.subject.person
        auxiliary, lead, main = self._english_verb(asking)
        auxiliary_words, lead_words = _words(auxiliary), _words(lead)
        head, particle, fixed = _words(main), _words(verb.particle), _words(verb.fixed)
        fixed = [] if self.fronted else fixed
        meaning = (*head, *particle, *_meaning(verb, fixed))
        finite_words = (*auxiliary_words, *lead_words)
        tail = []
        if self.modal:
            finite = Target(self.modal.present[person], finite_words)
            tail = [Target(verb.infinitive, meaning)]
        elif self.tense in ("past", "perfect"):
            # "bought" alone stands for "hat ... gekauft", "has bought" goes word for word.
            finite = Target(
                VERB[_AUXILIARY[verb.auxiliary]].present[person], finite_words or meaning
            )
            tail = [Target(verb.german_participle, meaning)]
        else:
            forms = verb.preterite if self.tense == "preterite" else verb.present
            finite = Target(forms[person], (*auxiliary_words, *meaning))
            tail = [Target(verb.prefix, meaning)] if verb.prefix else []
        final = [*tail, finite]
        if tail and tail[0].text == verb.prefix:
            final = [Target(verb.prefix + finite.text, finite.sources)]
        negation = None
        if self.negated:
            negation = auxiliary_words[0] if auxiliary == ("cannot",) else Word("not")
        glad = lead_words if self.gladly else []
        return Verbal(
            auxiliary_words, negation, glad + (lead_words if self.modal else []) + head,
            particle, fixed, finite, tail, final,
        )  # fmt: skip

    def _english_verb(
        self, asking: bool
    ) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
        """Return the auxiliary, the words of a modal after it, and the main verb."""
        verb, person, third = self.verb, self.subject.person, self.subject.person == "3s"
        supported = asking or self.negated
        do = ("does" if third else "do",)
        if self.modal:
            modal = self.modal
            if modal.auxiliary and not (modal.supported and supported):
                cannot = modal.auxiliary == "can" and self.negated
                return ("cannot" if cannot else modal.auxiliary,), modal.after, (verb.base,)
            if supported:
                return do, modal.supported, (verb.base,)
            return (), (modal.third if third else modal.supported[0], "to"), (verb.base,)
        if self.gladly:
            if supported:
                return do, ("like", "to"), (verb.base,)
            return (), ("likes" if third else "like", "to"), (verb.base,)
        if verb.base == "be":
            return ((WAS_FORMS if self.tense == "preterite" else BE_FORMS)[person],), (), ()
        if self.tense == "progressive":
            return (BE_FORMS[person],), (), (verb.progressive,)
        if self.tense == "perfect":
            return ("has" if third else "have",), (), (verb.participle,)
        if self.tense in ("past", "preterite"):
            return (("did",), (), (verb.base,)) if supported else ((), (), (verb.past,))
        return (
            (do, (), (verb.base,)) if supported else ((), (), (verb.third if third else verb.base,))
        )

    def _middle(self, verbal: Verbal) -> Phrase:
        """Return verb and objects in English, and what stands between the German verb parts."""
        fused = bool(self.direct and self.direct.takes_kein and "+" not in self.verb.frame)
        indirect = self.indirect.realise("dat") if self.indirect else Phrase()
        direct = self._direct(verbal, verbal.negation if fused else None)
        complement, time, frequency, manner, place = (
            part.realise() if part else Phrase()
            for part in (self.complement, self.time, self.frequency, self.manner, self.place)
        )
        english = frequency.english + verbal.head
        if isinstance(self.direct, Pronoun):
            english += direct.english + verbal.particle + indirect.english
        else:
            english += verbal.particle + indirect.english + direct.english
        for part in (complement, manner, place, time):
            english = english + part.english
        glad = [Target("gern", tuple(verbal.head[:2]))] if self.gladly else []
        adverbs = time.german + frequency.german + glad
        plain = [Target("nicht", (verbal.negation,))] if verbal.negation and not fused else []
        if "+" in self.verb.frame:  # a prepositional object stays at the end
            german = adverbs + plain + manner.german + place.german + direct.german
        elif isinstance(self.direct, Pronoun):
            german = (
                direct.german + adverbs + indirect.german + plain + manner.german + place.german
            )
        else:
            objects = (
                direct.german + adverbs if plain or self._settled() else adverbs + direct.german
            )
            german = indirect.german + objects + plain + manner.german + place.german
        return Phrase(english, german + complement.german)

    def _settled(self) -> bool:
        """Tell whether the object stands ahead of the adverbs, as it does ahead of "nicht"."""
        if self.direct is None or not self.direct.definite:
            return False
        known = isinstance(self.direct, Proper) or self.verb.frame == "dat"
        return known or self.tense == "perfect"

    def _direct(self, verbal: Verbal, negation: Word | None) -> Phrase:
        """Return the object with the words that English keeps before it."""
        if self.direct is None:
            return Phrase(list(verbal.fixed))
        if "+" in self.verb.frame:
            preposition, case = self.verb.frame.split("+")
            return prepositional(verbal.fixed, preposition, case, self.direct)
        phrase = self.direct.realise("dat" if self.verb.frame == "dat" else "acc", negation)
        return Phrase(verbal.fixed + phrase.english, phrase.german)


_AUXILIARY = {"haben": "have", "sein": "be"}


def _words(texts: tuple[str, ...]) -> list[Word]:
    return [Word(text) for text in texts]


def _meaning(verb: Verb, fixed: list[Word]) -> list[Word]:
    """Return the fixed words that belong to the German verb, not to a preposition of its object."""
    return [] if "+" in verb.frame else fixed


def join_clauses(main: Phrase, subordinate: Phrase) -> Phrase:
    """Return a statement and its subordinate clause, with the comma German puts between."""
    return Phrase(
        main.english + subordinate.english, [*main.german, Target(","), *subordinate.german]
    )


def finish(phrase: Phrase, mark: str) -> tuple[str, str, list[tuple[int, int]]]:
    """Return the English text, the German text and the sorted alignment of a whole sentence."""
    end = Word(mark)
    english = [*phrase.english, end]
    german: list[Target] = []
    for target in [*phrase.german, Target(mark, (end,))]:
        if german and german[-1].text == "," and target.text in (",", ".", "?"):
            target = Target(target.text, german.pop().sources + target.sources)
        german.append(target)
    position = {id(word): index for index, word in enumerate(english)}
    links = {
        (position[id(word)], at) for at, target in enumerate(german) for word in target.sources
    }
    texts = [[word.text for word in english], [target.text for target in german]]
    for words in texts:
        words[0] = words[0][0].upper() + words[0][1:]
    return " ".join(texts[0]), " ".join(texts[1]), sorted(links)
