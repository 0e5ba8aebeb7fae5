"""Pairs with known faults, for measuring how well a filter tells them from good ones."""

from dataclasses import dataclass
from random import Random

from demo_choices import Choices
from demo_clause import Given, finish
from demo_clauses import random_clause
from demo_corpus import Sentence, SentenceSource

BAD_LABELS = ("shuffled", "wrong_language", "copied", "inserted", "cut")

# French sentences are made of one part each: enough to be another language that is not the source.
FRENCH_SUBJECTS = (
    "le garçon", "la fille", "mon frère", "ma sœur", "le vieux boulanger", "la jeune femme",
    "notre voisin", "Marie", "Pierre", "le médecin", "la reine", "son oncle", "un élève",
)  # fmt: skip
FRENCH_ACTIONS = (
    "mange une pomme", "lit un long roman", "cherche la clé", "achète un livre", "boit de l'eau",
    "écrit une lettre", "ouvre la fenêtre", "chante une belle chanson", "répare la voiture",
    "regarde le ciel", "attend le train", "ne dort pas", "porte une valise", "vend des fleurs",
)  # fmt: skip
FRENCH_SETTINGS = (
    "dans le jardin", "à la gare", "chaque jour", "dans la cuisine", "avec son ami", "le lundi",
    "à Paris", "au marché", "près de la gare", "le matin", "sur la plage", "avant le concert",
)  # fmt: skip


@dataclass(frozen=True)
class LabelledPair:
    """A pair and what is wrong with it: `clean` or one of BAD_LABELS."""

    english: str
    german: str
    label: str


def labelled_pairs(source: SentenceSource, count: int, random: Random) -> list[LabelledPair]:
    """Return `count` new pairs in random order: half clean, the rest evenly bad in every way."""
    sentences = source.take(count, random)
    clean = (count + 1) // 2
    pairs = [LabelledPair(each.english, each.german, "clean") for each in sentences[:clean]]
    for index, sentence in enumerate(sentences[clean:]):
        label = BAD_LABELS[index % len(BAD_LABELS)]
        bad = spoil(sentence, label, source=source, random=random)
        pairs.append(LabelledPair(sentence.english, bad, label))
    random.shuffle(pairs)
    return pairs


def spoil(sentence: Sentence, label: str, *, source: SentenceSource, random: Random) -> str:
    """Return a German side with the fault that `label` names."""
    if label == "copied":
        return sentence.english
    if label == "cut":
        words = sentence.german.split(" ")
        return " ".join(words[: max(1, random.randint(len(words) // 4, len(words) * 3 // 5))])
    if label == "inserted":
        return insert_clause(sentence.german, random)
    other = source.take(1, random)[0]
    if label == "shuffled":
        return other.german
    assert label == "wrong_language"
    return french(random) if random.random() < 0.5 else other.english


def insert_clause(german: str, random: Random) -> str:
    """Return the sentence with a reason that its source does not give."""
    clause = random_clause(Choices(random), tenses={"present": 1.0, "past": 1})
    reason = clause.realise("final", Given("because", "weil/0").realise())
    words = finish(reason, ".")[1].split(" ")[:-1]
    words[0] = words[0].lower()
    body, _, mark = german.rpartition(" ")
    return " ".join([body, ",", *words, mark])


def french(random: Random) -> str:
    """Return a simple French sentence."""
    parts = [random.choice(each) for each in (FRENCH_SUBJECTS, FRENCH_ACTIONS, FRENCH_SETTINGS)]
    text = " ".join(parts)
    return f"{text[0].upper()}{text[1:]} ."
