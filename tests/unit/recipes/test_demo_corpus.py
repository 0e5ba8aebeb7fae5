"""The demonstration corpus: correct German, gold alignments, disjoint splits, labelled faults."""

# ruff: noqa: E402 (the recipe is no package, so its folder has to be put on the path first)
import importlib.util
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

DEMO = Path(__file__).parents[3] / "recipes" / "demo"
sys.path.insert(0, str(DEMO))

from grammar import (
    ADJECTIVE,
    CITIES,
    MODAL,
    NOUN,
    PRONOUN,
    VERB,
    Clause,
    NounPhrase,
    Phrase,
    Simple,
    Target,
    given,
    join,
    prepositional,
    proper,
    words,
)
from sentences import relative_pronoun

# Other recipes may have a generate.py as well, so this one gets a name of its own.
specification = importlib.util.spec_from_file_location("demo_generate", DEMO / "generate.py")
assert specification
assert specification.loader
generate = importlib.util.module_from_spec(specification)
specification.loader.exec_module(generate)

SIZES = ["--train", "1000", "--validation", "60", "--test", "120", "--noisy", "200"]
LABELS = {"clean", "shuffled", "wrong_language", "copied", "inserted", "cut"}


def run(folder: Path, *arguments: str) -> dict[str, list[str]]:
    """Return the lines of every file that the command writes."""
    assert generate.main(["--output", str(folder), *(arguments or SIZES)]) == 0
    return {
        path.name: path.read_text(encoding="utf-8").split("\n")[:-1] for path in folder.iterdir()
    }


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """The files of one small run."""
    return run(tmp_path_factory.mktemp("demo"))


def test_writes_every_file_with_the_sizes_asked_for(files: dict[str, list[str]]) -> None:
    expected = {"train": 1000, "validation": 60, "test": 120}
    assert {name: len(lines) for name, lines in files.items()} == {
        **{f"{split}.{end}": n for split, n in expected.items() for end in ("en", "de", "align")},
        **{f"noisy.{end}": 200 for end in ("en", "de", "label")},
    }


def test_same_seed_same_files_and_another_seed_other_files(
    files: dict[str, list[str]], tmp_path: Path
) -> None:
    assert run(tmp_path / "again") == files
    assert run(tmp_path / "other", *SIZES, "--seed", "2")["test.en"] != files["test.en"]


def test_same_files_whatever_the_hash_seed(files: dict[str, list[str]], tmp_path: Path) -> None:
    command = [sys.executable, str(DEMO / "generate.py"), "--output", str(tmp_path), *SIZES]
    subprocess.run(command, check=True, env={"PYTHONHASHSEED": "12345"}, capture_output=True)
    for name, lines in files.items():
        assert (tmp_path / name).read_bytes() == "".join(f"{line}\n" for line in lines).encode()


def test_the_held_out_splits_do_not_depend_on_the_training_size(
    files: dict[str, list[str]], tmp_path: Path
) -> None:
    fewer = run(tmp_path, "--train", "10", *SIZES[2:])
    for name in ("test.en", "test.de", "test.align", "validation.de", "noisy.en", "noisy.label"):
        assert fewer[name] == files[name]


@pytest.mark.parametrize("side", ["en", "de"])
def test_no_sentence_occurs_twice(files: dict[str, list[str]], side: str) -> None:
    clean = [
        line
        for line, label in zip(files[f"noisy.{side}"], files["noisy.label"], strict=True)
        if label == "clean"
    ]
    lines = [*files[f"train.{side}"], *files[f"validation.{side}"], *files[f"test.{side}"], *clean]
    assert [line for line, count in Counter(lines).items() if count > 1] == []


@pytest.mark.parametrize("side", ["en", "de"])
def test_has_many_word_types(files: dict[str, list[str]], side: str) -> None:
    assert (
        len({word.rstrip(".,?") for line in files[f"train.{side}"] for word in line.split()}) > 700
    )


def test_text_is_raw(files: dict[str, list[str]]) -> None:
    for line in (line for side in ("en", "de") for line in files[f"train.{side}"]):
        tokens = line.split(" ")
        assert all(re.fullmatch(r"[\w']+[.,?]?", token) for token in tokens), line
        assert line[0] == line[0].upper()
        assert line[-1] in ".?"
        assert not any(token.endswith((".", "?")) for token in tokens[:-1])
        assert 2 <= len(tokens) <= 20


def links_of(alignment: str) -> dict[tuple[int, int], str]:
    found = [re.fullmatch(r"(\d+)([-p])(\d+)", link) for link in alignment.split(" ")]
    return {(int(link[1]), int(link[3])): link[2] for link in found if link}


def test_every_word_is_aligned(files: dict[str, list[str]]) -> None:
    rows = zip(files["train.en"], files["train.de"], files["train.align"], strict=True)
    for english, german, alignment in rows:
        sure = [link for link, kind in links_of(alignment).items() if kind == "-"]
        assert len(links_of(alignment)) == alignment.count(" ") + 1
        assert {source for source, _ in sure} == set(range(english.count(" ") + 1))
        assert {target for _, target in sure} == set(range(german.count(" ") + 1))


def test_english_determines_german(files: dict[str, list[str]]) -> None:
    """Nouns have one rendering up to inflection: each English noun aligns with its own forms."""
    forms = {
        form: {noun.german(case, plural) for case in ("nom", "acc", "dat")}
        for noun in NOUN.values()
        for plural, form in ((False, noun.singular), (True, noun.plural))
        if form and " " not in form
    }
    seen = 0
    rows = zip(files["train.en"], files["train.de"], files["train.align"], strict=True)
    for english, german, alignment in rows:
        target = [word.rstrip(".,?") for word in german.split(" ")]
        for index, word in enumerate(english.split(" ")):
            word = word.rstrip(".,?")
            if word in forms and word not in AMBIGUOUS_FORMS:
                seen += 1
                linked = {target[other] for one, other in links_of(alignment) if one == index}
                assert linked & forms[word]
    assert seen > 500


# Nouns that are verbs or parts of longer nouns as well.
AMBIGUOUS_FORMS = {"bread", "book", "answer", "ring", "park", "open", "train"}

MAN = NounPhrase(NOUN["man"], "the", ADJECTIVE["old"])
WOMAN = NounPhrase(NOUN["woman"], "the")
DOG = NounPhrase(NOUN["dog"], "a")
BOOK = NounPhrase(NOUN["book"], "the")
PETER = proper("Peter")
BERLIN, MUNICH = (
    next(proper(english, german) for english, _, german in CITIES if english == name)
    for name in ("Berlin", "Munich")
)
TODAY, BECAUSE = given("today", "heute/0"), given("because", "weil/0")


def np(determiner: str, noun: str, adjective: str = "", plural: bool = False) -> NounPhrase:
    return NounPhrase(NOUN[noun], determiner, ADJECTIVE.get(adjective), plural)


def at(name: str, determiner: str = "the") -> Phrase:
    english, german = NOUN[name].at
    return prepositional(words(english), german, "dat", NounPhrase(NOUN[name], determiner))


def to(name: str, determiner: str = "the") -> Phrase:
    english, german, case = NOUN[name].to
    return prepositional(words(english), german, case, NounPhrase(NOUN[name], determiner))


def final(clause: Clause, english: str = "because", german: str = "weil/0") -> Phrase:
    return clause.realise("final", given(english, german))


def adjective(english: str) -> Phrase:
    return given(english, f"{ADJECTIVE[english].german}/0")


def with_relative(head: NounPhrase, clause: Phrase) -> NounPhrase:
    enclosed = Phrase(clause.english, [Target(","), *clause.german, Target(",")])
    return replace(head, relative=enclosed)


def object_relative(head: NounPhrase, clause: Clause, english: str, case: str) -> NounPhrase:
    lead = given(english, f"{relative_pronoun(head, case)}/0")
    return with_relative(head, clause.realise("final", lead))


RENDERINGS = [
    # Agreement, case and the three declensions of adjectives.
    (Clause(MAN, VERB["see"], direct=DOG).realise(),
     "The old man sees a dog", "Der alte Mann sieht einen Hund"),
    (Clause(np("a", "boy", "small"), VERB["help"], direct=np("the", "boy", "tired")).realise(),
     "A small boy helps the tired boy", "Ein kleiner Junge hilft dem müden Jungen"),
    (Clause(np("this", "girl", "young"), VERB["buy"], direct=np("", "bread", "fresh")).realise(),
     "This young girl buys fresh bread", "Dieses junge Mädchen kauft frisches Brot"),
    (Clause(PRONOUN["we"], VERB["drink"], direct=np("", "coffee", "hot")).realise(),
     "We drink hot coffee", "Wir trinken heißen Kaffee"),
    (Clause(np("three", "child", "clever", True), VERB["thank"],
            direct=np("the", "teacher", "old", True)).realise(),
     "Three clever children thank the old teachers",
     "Drei kluge Kinder danken den alten Lehrern"),
    (Clause(np("many", "guest", "polite", True), VERB["listen to"],
            direct=np("my", "uncle", "rich")).realise(),
     "Many polite guests listen to my rich uncle",
     "Viele höfliche Gäste hören meinem reichen Onkel zu"),
    (Clause(np("every", "child"), VERB["love"], direct=np("our", "cat", "black")).realise(),
     "Every child loves our black cat", "Jedes Kind liebt unsere schwarze Katze"),
    (Clause(PETER, VERB["sell"],
            direct=NounPhrase(NOUN["house"], "", ADJECTIVE["expensive"], owner="Maria")).realise(),
     "Peter sells Maria's expensive house", "Peter verkauft Marias teures Haus"),
    (Clause(WOMAN, VERB["give"], indirect=np("the", "student"),
            direct=np("two", "apple", "sour", True)).realise(),
     "The woman gives the student two sour apples",
     "Die Frau gibt dem Studenten zwei saure Äpfel"),
    (Clause(PRONOUN["you"], VERB["see"], direct=np("a", "uncle")).realise(),
     "You see an uncle", "Du siehst einen Onkel"),
    # Prepositions, contractions, names and the order time, manner, place.
    (Clause(WOMAN, VERB["work"], time=TODAY, manner=given("hard", "hart/0"),
            place=at("garden")).realise(),
     "The woman works hard in the garden today", "Die Frau arbeitet heute hart im Garten"),
    (Clause(WOMAN, VERB["go"], complement=to("station")).realise(),
     "The woman goes to the station", "Die Frau geht zum Bahnhof"),
    (Clause(WOMAN, VERB["go"], complement=to("school")).realise(),
     "The woman goes to the school", "Die Frau geht zur Schule"),
    (Clause(WOMAN, VERB["run"], complement=to("house")).realise(),
     "The woman runs into the house", "Die Frau rennt ins Haus"),
    (Clause(WOMAN, VERB["run"], complement=to("house", "my")).realise(),
     "The woman runs into my house", "Die Frau rennt in mein Haus"),
    (Clause(PETER, VERB["travel"], tense="past",
            complement=prepositional(words("to"), "nach", "dat", MUNICH)).realise(),
     "Peter travelled to Munich", "Peter ist nach München gereist"),
    (Clause(PRONOUN["I"], VERB["dream of"], direct=np("the", "lion")).realise(),
     "I dream of the lion", "Ich träume vom Löwen"),
    (Clause(PRONOUN["they"], VERB["wait for"], direct=PRONOUN["he"]).realise(),
     "They wait for him", "Sie warten auf ihn"),
    # Verb second after a fronted adverbial or clause.
    (Clause(MAN, VERB["read"], tense="progressive", direct=BOOK).realise(lead=TODAY),
     "Today the old man is reading the book", "Heute liest der alte Mann das Buch"),
    (Clause(PRONOUN["she"], VERB["sleep"]).realise(
        lead=final(Clause(MAN, VERB["work"]), "when", "wenn/0") + given(",", ",/0")),
     "When the old man works, she sleeps", "Wenn der alte Mann arbeitet, schläft sie"),
    # Verb-final order.
    (join(Clause(MAN, VERB["laugh"]).realise(),
                  final(Clause(PRONOUN["he"], VERB["be"], complement=adjective("happy")))),
     "The old man laughs because he is happy", "Der alte Mann lacht, weil er glücklich ist"),
    (join(Clause(WOMAN, VERB["say"]).realise(),
                  final(Clause(MAN, VERB["buy"], tense="past", direct=DOG),
                        "that", "dass/0")),
     "The woman says that the old man bought a dog",
     "Die Frau sagt, dass der alte Mann einen Hund gekauft hat"),
    (join(Clause(PRONOUN["I"], VERB["know"], negated=True).realise(),
                  final(Clause(MAN, VERB["call"], modal=MODAL["want"], direct=PRONOUN["she"]),
                        "whether", "ob/0")),
     "I do not know whether the old man wants to call her",
     "Ich weiß nicht, ob der alte Mann sie anrufen will"),
    # Separable verbs: apart in main clauses, together elsewhere.
    (Clause(MAN, VERB["get up"], time=given("in the morning", "am/01 Morgen/2")).realise(),
     "The old man gets up in the morning", "Der alte Mann steht am Morgen auf"),
    (Clause(MAN, VERB["pick up"], direct=PRONOUN["she"]).realise(),
     "The old man picks her up", "Der alte Mann holt sie ab"),
    (final(Clause(MAN, VERB["get up"])),
     "Because the old man gets up", "Weil der alte Mann aufsteht"),
    (Clause(MAN, VERB["invite"], tense="perfect", direct=WOMAN).realise(),
     "The old man has invited the woman", "Der alte Mann hat die Frau eingeladen"),
    # Modals, the perfect and the preterite.
    (Clause(MAN, VERB["open"], modal=MODAL["must"], direct=np("the", "door")).realise(),
     "The old man must open the door", "Der alte Mann muss die Tür öffnen"),
    (Clause(PRONOUN["you"], VERB["swim"], modal=MODAL["may"]).realise(),
     "You may swim", "Du darfst schwimmen"),
    (Clause(MAN, VERB["swim"], tense="past").realise(),
     "The old man swam", "Der alte Mann ist geschwommen"),
    (Clause(PRONOUN["we"], VERB["have"], tense="preterite", direct=DOG).realise(),
     "We had a dog", "Wir hatten einen Hund"),
    # Negation: "kein" with an indefinite object, otherwise "nicht" where German puts it.
    (Clause(MAN, VERB["see"], negated=True, direct=DOG).realise(),
     "The old man does not see a dog", "Der alte Mann sieht keinen Hund"),
    (Clause(MAN, VERB["drink"], negated=True, direct=np("", "milk", "cold")).realise(),
     "The old man does not drink cold milk", "Der alte Mann trinkt keine kalte Milch"),
    (Clause(MAN, VERB["read"], negated=True, time=TODAY, direct=BOOK).realise(),
     "The old man does not read the book today", "Der alte Mann liest das Buch heute nicht"),
    (Clause(MAN, VERB["wait for"], negated=True, direct=np("the", "bus")).realise(),
     "The old man does not wait for the bus", "Der alte Mann wartet nicht auf den Bus"),
    (Clause(MAN, VERB["get up"], negated=True).realise(),
     "The old man does not get up", "Der alte Mann steht nicht auf"),
    (Clause(MAN, VERB["find"], negated=True, modal=MODAL["can"],
            direct=np("the", "key")).realise(),
     "The old man cannot find the key", "Der alte Mann kann den Schlüssel nicht finden"),
    (Clause(MAN, VERB["be"], tense="preterite", negated=True,
            complement=adjective("tired")).realise(),
     "The old man was not tired", "Der alte Mann war nicht müde"),
    # Relative clauses agree with their head and stand between commas.
    (Clause(with_relative(np("the", "woman"), Clause(
        Simple(("who", "who"), ("die",) * 3), VERB["live"],
        complement=prepositional(words("in"), "in", "dat", BERLIN)).realise("final")),
        VERB["sleep"]).realise(),
     "The woman who lives in Berlin sleeps", "Die Frau, die in Berlin wohnt, schläft"),
    (Clause(MAN, VERB["need"], direct=object_relative(
        np("the", "key"), Clause(WOMAN, VERB["find"], tense="past"), "which", "acc")).realise(),
     "The old man needs the key which the woman found",
     "Der alte Mann braucht den Schlüssel, den die Frau gefunden hat"),
    (Clause(MAN, VERB["see"], direct=object_relative(
        np("the", "child", "", True), Clause(WOMAN, VERB["help"]), "whom", "dat")).realise(),
     "The old man sees the children whom the woman helps",
     "Der alte Mann sieht die Kinder, denen die Frau hilft"),
    # Questions.
    (Clause(MAN, VERB["read"], direct=BOOK).realise("question"),
     "Does the old man read the book", "Liest der alte Mann das Buch"),
    (Clause(MAN, VERB["help"]).realise("question", np("which", "boy").realise("dat")),
     "Which boy does the old man help", "Welchem Jungen hilft der alte Mann"),
    (Clause(PRONOUN["you"], VERB["get up"], modal=MODAL["must"]).realise("question"),
     "Do you have to get up", "Musst du aufstehen"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("phrase", "english", "german"), RENDERINGS, ids=[r[1] for r in RENDERINGS]
)
def test_renders_as_a_german_would(phrase: Phrase, english: str, german: str) -> None:
    assert generate.finish(phrase, ".")[:2] == (f"{english}.", f"{german}.")


ALIGNED = [
    ("separable", Clause(MAN, VERB["get up"]), "0-0 1-1 2-2 3-3 3-4 4-3 4-4"),
    ("do-support and kein", Clause(MAN, VERB["see"], negated=True, direct=DOG),
     "0-0 1-1 2-2 3-3 4-4 5-3 6-4 7-5"),
    ("past as perfect, the stops differ", Clause(WOMAN, VERB["see"], tense="past", direct=DOG),
     "0-0 1-1 2-2 2-5 3-3 4-4 4p5"),
    ("contraction", Clause(WOMAN, VERB["sleep"], place=at("garden")),
     "0-0 1-1 2-2 3-3 4-3 5-4"),
    ("cannot", Clause(WOMAN, VERB["sleep"], modal=MODAL["can"], negated=True),
     "0-0 1-1 2-2 2-3 3-4"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("clause", "links"), [row[1:] for row in ALIGNED], ids=[r[0] for r in ALIGNED]
)
def test_alignment_follows_the_words(clause: Clause, links: str) -> None:
    assert generate.finish(clause.realise(), ".").alignment == links


def test_the_comma_of_a_subordinate_clause_links_nothing() -> None:
    phrase = join(Clause(WOMAN, VERB["sleep"]).realise(), final(Clause(MAN, VERB["work"])))
    expected = "0-0 1-1 2-2 3-3 4-4 5-5 6-6 7-7"
    assert generate.finish(phrase, ".").alignment == expected


def test_noisy_labels_tell_the_truth(files: dict[str, list[str]]) -> None:
    rows = list(zip(files["noisy.en"], files["noisy.de"], files["noisy.label"], strict=True))
    counts = Counter(label for _, _, label in rows)
    assert set(counts) == LABELS
    assert counts["clean"] == 100
    assert all(counts[label] == 20 for label in LABELS - {"clean"})
    german_words, english_words = (
        {word.rstrip(".,?") for line in files[f"train.{side}"] for word in line.split(" ")}
        for side in ("de", "en")
    )
    all_pairs = set(zip(files["train.en"], files["train.de"], strict=True))
    for english, german, label in rows:
        words_of_line = {word.rstrip(".,?") for word in german.split(" ")}
        reads_german = not (german_words - english_words).isdisjoint(words_of_line)
        if label == "copied":
            assert german == english
        elif label == "wrong_language":
            assert german != english
            assert not reads_german
        elif label == "cut":
            assert german[-1] not in ".,?"
        elif label == "inserted":
            assert ", weil " in german
        assert (english, german) not in all_pairs
        if label in ("clean", "shuffled", "inserted"):
            assert reads_german


def test_faults_are_made_from_the_right_translation() -> None:
    """Cut is a proper prefix, inserted keeps the whole, shuffled is another sentence."""
    random, source = Random(3), generate.Source()
    for sentence in source.take(150, random):
        cut = generate.spoil(sentence, "cut", source, random)
        assert sentence.german.startswith((f"{cut} ", f"{cut}, "))
        inserted = generate.spoil(sentence, "inserted", source, random)
        assert inserted.startswith(f"{sentence.german[:-1]}, weil ")
        shuffled = generate.spoil(sentence, "shuffled", source, random)
        assert shuffled != sentence.german
        assert shuffled[-1] in ".?"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--train", "5"], "--output"),
        (["--output", "x", "--train", "-1"], "expected a whole number"),
        (["--output", "x", "--noisy", "many"], "got 'many'"),
        (["--output", "x", "--seed", "one"], "--seed"),
        (["--output", "x", "--sentences", "5"], "--sentences"),
        (["--output", __file__], "expected a folder"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_info:
        generate.main(arguments)
    assert exit_info.value.code == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert said in message


def test_a_run_reports_pairs_and_types(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path, "--train", "40", "--validation", "0", "--test", "3", "--noisy", "7")
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert "40 train, 0 validation, 3 test, 7 noisy pairs" in message
    assert (tmp_path / "validation.en").read_bytes() == b""


def test_help_is_complete(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        generate.main(["--help"])
    assert exit_info.value.code == 0
    text = capsys.readouterr().out
    for option in ("--output", "--train", "--validation", "--test", "--noisy", "--seed"):
        assert option in text
    assert "20000" in text
