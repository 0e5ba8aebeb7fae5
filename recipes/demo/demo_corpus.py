"""The mixture of sentence kinds that makes the demonstration corpus."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import demo_copula as copula
import demo_questions as questions
import demo_sentences as sentences
from demo_choices import Choices
from demo_clause import finish
from demo_grammar import Phrase

Maker = Callable[[Choices], tuple[Phrase, str]]

LONGEST = 22

# How often each kind of sentence comes up.
MIXTURE: dict[Maker, float] = {
    sentences.statement: 26,
    sentences.modal_statement: 10,
    sentences.glad_statement: 4,
    sentences.reason: 8,
    sentences.condition: 6,
    sentences.report: 7,
    sentences.purpose: 3,
    sentences.attempt: 2.5,
    sentences.contrast: 4,
    sentences.anaphora: 4,
    questions.yes_no_question: 5,
    questions.where_when_why: 3,
    questions.object_question: 4,
    questions.subject_question: 1.5,
    questions.relative_on_subject: 5,
    questions.relative_on_object: 5,
    copula.quality: 4,
    copula.comparison: 3,
    copula.job: 1,
    copula.age: 1.5,
    copula.price: 1.5,
    copula.location: 3,
    copula.possession: 3,
    copula.existence: 2,
}


@dataclass(frozen=True)
class Sentence:
    """One pair: raw text with blanks around punctuation, and the sorted links between words."""

    english: str
    german: str
    links: tuple[tuple[int, int], ...]

    @property
    def alignment(self) -> str:
        """The links in the form `0-0 1-2`, English before German."""
        return " ".join(f"{source}-{target}" for source, target in self.links)


class SentenceSource:
    """An endless source of sentences that never gives an English or a German sentence twice."""

    def __init__(self) -> None:
        self._english: set[str] = set()
        self._german: set[str] = set()

    def take(self, count: int, random: Random) -> list[Sentence]:
        """Return `count` new sentences."""
        choices = Choices(random)
        taken: list[Sentence] = []
        while len(taken) < count:
            choices.start_sentence()
            phrase, mark = choices.weighted(MIXTURE)(choices)
            english, german, links = finish(phrase, mark)
            is_new = english not in self._english and german not in self._german
            if is_new and max(english.count(" "), german.count(" ")) < LONGEST:
                self._english.add(english)
                self._german.add(german)
                taken.append(Sentence(english, german, tuple(links)))
        return taken
