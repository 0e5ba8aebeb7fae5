"""Every recipe from its addresses to prepared data, one to its scores, against a local server."""

import gzip
import hashlib
import io
import json
import random
import re
import shutil
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from support.web_server import Served, serve

from nmt.cli.recipe import main
from nmt.recipes.recipe import Recipe, TextSet, load_recipe, parse_place

ROOT = Path(__file__).resolve().parents[2]
RECIPES = sorted(path.parent.name for path in (ROOT / "recipes").glob("*/recipe.toml"))
WORDS = {
    "en": ["the", "old", "house", "sees", "a", "river", "and", "no", "tree", "in", "it"],
    "de": ["das", "alte", "Haus", "sieht", "einen", "Fluss", "über", "keinem", "Baum", "darin"],
    "fr": ["la", "maison", "voit", "une", "rivière", "et", "l’arbre", "n’est", "pas", "là"],
    "fi": ["vanha", "talo", "näkee", "joen", "ja", "puuta", "siinä", "ei", "ole", "yhtään"],
    "ro": ["casa", "veche", "vede", "râul", "şi", "niciun", "copac", "nu", "este", "înăuntru"],
    "zh": ["老", "房子", "看见", "一", "条", "河", "里", "没有", "树", "木"],
}
TINY = [
    "data.subword.merges=60",
    "data.subword.vocabulary_threshold=0",
    "data.workers=1",
    "model.dim=16",
    "model.heads=2",
    "model.encoder_layers=1",
    "model.decoder_layers=1",
    "model.feed_forward_dim=32",
    "train.max_updates=6",
    "train.schedule.warmup=3",
    "train.batch_tokens=300",
    "train.accumulate=1",
    "train.save_every=2",
    "train.device=cpu",
    "train.threads=1",
    "validate.every=6",
    "validate.beam=1",
    "validate.sentences=4",
    "decode.beam=2",
]


class World:
    """A copy of one recipe and its configs, with the files that its publishers would have."""

    def __init__(self, root: Path, name: str, served: Served, *, toml: str = "recipe") -> None:
        self.root, self.name, self.served = root, name, served
        shutil.copytree(ROOT / "recipes" / name, root / "recipes" / name)
        shutil.copytree(ROOT / "configs" / name, root / "configs" / name)
        self.path = root / "recipes" / name / f"{toml}.toml"
        # The sums are those of the real files.
        text = re.sub(r"(?m)^(sha256|md5|size|pairs|lines) = .*\n", "", self.path.read_text())
        self.path.write_text(text)
        self.recipe = load_recipe(self.path)
        self.content = publish(self.recipe)
        self.by_hand = root / "by-hand"
        self.by_hand.mkdir()
        for file in self.recipe.files:
            if file.urls:
                served.files[address(file.urls[0])] = self.content[file.name]
            else:
                (self.by_hand / file.name).write_bytes(self.content[file.name])
        self.task = name if toml == "recipe" else f"{name}-{toml}"
        self.data = root / "data" / self.task

    def run(self, *arguments: str) -> int:
        return main([str(self.root / "recipes" / self.name), *arguments, *TINY])

    def serve_archive(self, name: str, content: bytes) -> None:
        file = next(file for file in self.recipe.files if file.name == name)
        self.served.files[address(file.urls[0])] = content
        self.served.version += "x"


def address(url: str) -> str:
    parts = urlsplit(url)
    return f"/{parts.netloc}{parts.path}"


def sentences(language: str, count: int, seed: int) -> list[str]:
    """Lines that are word for word translations of those of other languages with this seed."""
    generator = random.Random(seed)
    between = "" if language == "zh" else " "
    return [
        between.join(WORDS[language][n] for n in generator.choices(range(10), k=size)) + "."
        for size in generator.choices(range(2, 9), k=count)
    ]


def wrapped(lines: list[str], tag: str) -> str:
    body = "".join(f'<seg id="{n}">{line}</seg>\n' for n, line in enumerate(lines, start=1))
    return f'<{tag} setid="x">\n<doc docid="news.1">\n{body}</doc>\n</{tag}>\n'


def publish(recipe: Recipe) -> dict[str, bytes]:
    """The content of every file of a recipe, with the names and members it expects."""
    texts: dict[str, str] = {}
    count = 300 // len(recipe.train) + 20
    for seed, corpus in enumerate(recipe.train):
        sides = [sentences(language, count, seed) for language in recipe.languages]
        if corpus.both:
            ordered = sides if corpus.first == "source" else sides[::-1]
            pairs = zip(*ordered, strict=True)
            texts[corpus.both] = "".join(corpus.separator.join(pair) + "\n" for pair in pairs)
        else:
            for place, lines in zip((corpus.source, corpus.target), sides, strict=True):
                texts[place] = "".join(f"{line}\n" for line in lines)
    for seed, text_set in enumerate((recipe.validation, recipe.test), start=100):
        texts |= set_texts(text_set, recipe.languages, seed)
    return pack(texts)


def set_texts(text_set: TextSet, languages: tuple[str, str], seed: int) -> dict[str, str]:
    texts = {}
    for tag, places, language in zip(
        ("srcset", "refset"), (text_set.source, text_set.target), languages, strict=True
    ):
        for number, place in enumerate(places):
            lines = sentences(language, 12, seed + 1000 * number)
            plain = "".join(f"{line}\n" for line in lines)
            texts[place] = wrapped(lines, tag) if place.endswith(".sgm") else plain
    if text_set.tokenized_target:
        tokenized = [line.replace(".", " .") for line in sentences(languages[1], 12, seed)]
        texts[text_set.tokenized_target] = "".join(f"{line}\n" for line in tokenized)
    return texts


def pack(texts: dict[str, str]) -> dict[str, bytes]:
    """Files from the texts of places: plain, compressed, or archives with members."""
    files: dict[str, bytes] = {}
    archives: dict[tuple[str, ...], dict[str, bytes]] = {}
    for text, content in texts.items():
        place = parse_place(text)
        name = place.member or place.files[0]
        data = gzip.compress(content.encode()) if name.endswith(".gz") else content.encode()
        if place.member is None:
            files[name] = data
        else:
            archives.setdefault(place.files, {})[name] = data
    for names, members in archives.items():
        whole = archive(names[0], members)
        size = -(-len(whole) // len(names))
        for number, name in enumerate(names):
            files[name] = whole[number * size : (number + 1) * size]
    return files


def archive(name: str, members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    if name.endswith(".zip"):
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as zipped:
            for path, data in members.items():
                zipped.writestr(path, data)
        return buffer.getvalue()
    mode = "w" if name.endswith(".tar") else "w:gz"
    with tarfile.open(fileobj=buffer, mode=mode) as tar:  # type: ignore[call-overload]
        for path, data in {"README": b"of others", **members}.items():
            info = tarfile.TarInfo(path)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Served]:
    with serve(Served()) as server:
        monkeypatch.setenv("NMT_MIRROR", server.url)
        monkeypatch.setenv("SACREBLEU", str(tmp_path / "no-cache"))
        yield server


def lines_of(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").split("\n")[:-1]


def test_all_tasks_have_a_recipe():
    assert set(RECIPES) == {
        "multi30k_en_de",
        "wmt14_en_de",
        "wmt14_en_fr",
        "wmt16_ro_en",
        "wmt18_en_fi",
        "wmt18_zh_en",
    }


@pytest.mark.parametrize(
    ("name", "toml"), [*((name, "recipe") for name in RECIPES), ("wmt14_en_de", "stanford")]
)
def test_data_from_the_server_to_prepared(served, tmp_path, capfd, name, toml):
    world = World(tmp_path, name, served, toml=toml)
    options = ["--data", str(world.by_hand)] if any(world.by_hand.iterdir()) else []
    options += ["--recipe", toml] if toml != "recipe" else []
    assert world.run("rela-g", "--stage", "prepare", *options) == 0
    recipe, (source, target) = world.recipe, world.recipe.languages
    train = [lines_of(world.data / f"train.{language}") for language in (source, target)]
    expected = sum(300 // len(recipe.train) + 20 for _ in recipe.train)
    assert len(train[0]) == len(train[1])
    assert expected * 0.7 < len(train[0]) <= expected
    for text_set, seed in ((recipe.validation, 100), (recipe.test, 101)):
        reference = lines_of(world.data / f"{text_set.name}.{target}")
        seeds = [seed + 1000 * number for number in range(len(text_set.source))]
        assert reference == [line for each in seeds for line in sentences(target, 12, each)]
        assert len(lines_of(world.data / f"{text_set.name}.{source}")) == len(reference)
    prepared = tmp_path / "runs" / world.task / "prepared" / "MANIFEST.json"
    assert json.loads(prepared.read_bytes())["about"]["corpora"]["train"]["pairs"] == len(train[0])
    assert not (world.data / "unpacked").exists()
    printed = capfd.readouterr().err
    assert "estimate: " in printed
    assert "published are " in printed
    # Run again: nothing is fetched, nothing is made.
    served.requests.clear()
    before = (world.data / f"train.{source}").stat().st_mtime_ns
    assert world.run("rela-g", "--stage", "prepare", *options) == 0
    assert served.requests == []
    assert (world.data / f"train.{source}").stat().st_mtime_ns == before
    assert f"{world.task} is up to date" in capfd.readouterr().err


def test_all_stages_and_each_only_once(served, tmp_path, capfd):
    world = World(tmp_path, "wmt16_ro_en", served)
    assert world.run("softmax") == 0
    run = tmp_path / "runs" / "wmt16_ro_en" / "softmax"
    hypothesis = run / "results" / "newstest2016.en"
    assert len(lines_of(hypothesis)) == 12
    scores = json.loads((run / "results" / "scores.json").read_bytes())["scores"]
    metrics = [entry["metric"] for entry in scores]
    assert (metrics[0], metrics[-1]) == ("BLEU", "tokenized BLEU (multi-bleu.perl)")
    assert (run / "average" / "MANIFEST.json").is_file()
    assert "ş" not in (world.data / "train.ro").read_text(encoding="utf-8")
    assert "ș" in (world.data / "newstest2016.ro").read_text(encoding="utf-8")
    capfd.readouterr()

    times = {path: path.stat().st_mtime_ns for path in (hypothesis, run / "average/MANIFEST.json")}
    for stage in ("average", "translate", "score"):
        assert world.run("softmax", "--stage", stage) == 0
        assert f"{stage}: done before" in capfd.readouterr().err
    assert {path: path.stat().st_mtime_ns for path in times} == times

    # Other settings or inputs: that stage is done again.
    assert world.run("softmax", "--stage", "translate", "decode.length_penalty=0.1") == 0
    assert "done before" not in capfd.readouterr().err
    hypothesis.write_text("x.\n" * 12, encoding="utf-8")
    assert world.run("softmax", "--stage", "score") == 0
    output = capfd.readouterr()
    assert "done before" not in output.err
    assert output.out.startswith("BLEU")


def test_tokenised_text_is_scored_against_the_tokenised_reference(served, tmp_path):
    """As the authors do; no stage of training is needed to see it."""
    world = World(tmp_path, "wmt14_en_de", served, toml="stanford")
    assert world.run("softmax", "--recipe", "stanford", "--stage", "prepare") == 0
    assert len(lines_of(world.data / "newstest2012-2013.en")) == 24
    tokenized = lines_of(world.data / "newstest2014.tokenized.de")
    assert tokenized[0].endswith(" .")
    results = tmp_path / "runs/wmt14_en_de-stanford/01-softmax/results"
    results.mkdir(parents=True)
    raw = lines_of(world.data / "newstest2014.de")
    (results / "newstest2014.de").write_text("".join(f"{line}\n" for line in raw))
    (results / "newstest2014.de.tokenized").write_text("".join(f"{line}\n" for line in tokenized))

    def score() -> dict[str, float]:
        assert world.run("softmax", "--recipe", "stanford", "--stage", "score") == 0
        entries = json.loads((results / "scores.json").read_bytes())["scores"]
        return {entry["metric"]: entry["value"] for entry in entries}

    name = "tokenized BLEU (multi-bleu.perl)"
    assert score() == pytest.approx({"BLEU": 100, "chrF2": 100, "TER": 0, name: 100})
    (results / "newstest2014.de.tokenized").write_text("das Haus .\n" * len(tokenized))
    (results / "newstest2014.de").write_text("".join(f"{line}\n" for line in raw[::-1]))
    assert score()[name] < 50


def test_a_wrong_sum_is_exit_code_7(served, tmp_path, capfd):
    world = World(tmp_path, "multi30k_en_de", served)
    right = hashlib.sha256(world.content["multi30k/train.en.gz"]).hexdigest()
    text = world.path.read_text()
    name = 'name = "multi30k/train.en.gz"'
    pinned = text.replace(name, f'{name}\nsha256 = "{right}"', 1)
    world.path.write_text(pinned.replace(right, "0" * 64))
    assert world.run("--stage", "prepare") == 7
    captured = capfd.readouterr().err.split("\n")
    errors = [line for line in captured if line.startswith("nmt-recipe: ")]
    assert len(errors) == 1
    assert "expected sha256 000" in errors[0]
    assert not (tmp_path / "data/downloads/multi30k/train.en.gz").exists()
    assert not (tmp_path / "data/downloads/multi30k/train.en.gz.part").exists()
    world.path.write_text(pinned)
    assert world.run("--stage", "prepare") == 0


def test_a_wrong_file_of_the_users_is_refused_and_kept(served, tmp_path, capfd):
    world = World(tmp_path, "multi30k_en_de", served)
    own = tmp_path / "by-hand" / "train.en.gz"
    own.write_bytes(world.content["multi30k/train.en.gz"])
    name = 'name = "multi30k/train.en.gz"'
    world.path.write_text(world.path.read_text().replace(name, f'{name}\nmd5 = "{"0" * 32}"', 1))
    assert world.run("--stage", "prepare", "--data", str(world.by_hand)) == 7
    assert "expected md5" in capfd.readouterr().err
    assert own.exists()


def test_connections_that_are_cut(served, tmp_path):
    world = World(tmp_path, "multi30k_en_de", served)
    served.cuts = [100, 200, 300, 1, 2, 3]
    assert world.run("--stage", "prepare") == 0
    downloads = tmp_path / "data" / "downloads"
    assert {name: (downloads / name).read_bytes() for name in world.content} == world.content


def test_a_hostile_archive(served, tmp_path, capfd):
    world = World(tmp_path, "wmt16_ro_en", served)
    good = world.content["wmt16/dev.tgz"]
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        info = tarfile.TarInfo("../../../../evil")
        info.size = 4
        tar.addfile(info, io.BytesIO(b"evil"))
    world.serve_archive("wmt16/dev.tgz", buffer.getvalue())
    assert world.run("--stage", "prepare") == 2
    assert "is not safe; refused" in capfd.readouterr().err
    assert not list(tmp_path.rglob("evil"))
    # The sum of the first download holds until its record is removed.
    (tmp_path / "data/downloads/wmt16/dev.tgz").unlink()
    world.serve_archive("wmt16/dev.tgz", good)
    assert world.run("--stage", "prepare") == 7
    assert "remove 'wmt16/dev.tgz' from" in capfd.readouterr().err
    checksums = tmp_path / "data/downloads/checksums.json"
    records = json.loads(checksums.read_bytes())
    del records["wmt16/dev.tgz"]
    checksums.write_text(json.dumps(records))
    assert world.run("--stage", "prepare") == 0


def test_changed_inputs_and_rules_make_the_text_anew(served, tmp_path, capfd):
    world = World(tmp_path, "multi30k_en_de", served)
    for name in ("train.en.gz", "train.de.gz"):
        (world.by_hand / name).write_bytes(world.content[f"multi30k/{name}"])
    options = ["--stage", "prepare", "--data", str(world.by_hand)]
    assert world.run(*options) == 0
    all_lines = lines_of(world.data / "train.en")
    assert len(all_lines) == 320
    assert world.run(*options, "clean.max_words=4") == 0
    assert len(lines_of(world.data / "train.en")) < 320
    for name in ("train.en", "train.de"):
        lines = gzip.decompress(world.content[f"multi30k/{name}.gz"]).split(b"\n")[:100]
        (world.by_hand / f"{name}.gz").write_bytes(gzip.compress(b"\n".join(lines) + b"\n"))
    assert world.run(*options) == 0
    assert lines_of(world.data / "train.en") == all_lines[:100]
    assert "up to date" not in capfd.readouterr().err.replace("prepared is up to date", "")


def test_licensed_files_are_asked_for_all_at_once(served, tmp_path, capfd):
    world = World(tmp_path, "wmt18_zh_en", served)
    (world.by_hand / "casia2015.zip").unlink()
    (world.by_hand / "neu2017.zip").unlink()
    assert world.run("--stage", "prepare", "--data", str(world.by_hand)) == 2
    message = capfd.readouterr().err
    assert "2 file(s) have to be fetched by hand; put them into" in message
    assert "  casia2015.zip: register at " in message
    assert "  neu2017.zip: register at " in message
    assert served.requests == []
    # Unpacked files do as well, and a corpus can be left out.
    (world.by_hand / "casia2015").mkdir()
    for language, suffix in (("zh", "ch"), ("en", "en")):
        text = "".join(f"{line}\n" for line in sentences(language, 5, 1))
        path = world.by_hand / "casia2015" / f"casia2015_{suffix}.txt"
        path.write_text(text, encoding="utf-8")
    options = ["--data", str(world.by_hand), "--without", "neu2017"]
    assert world.run("--stage", "prepare", *options) == 0
    assert re.search(r"casia2015 +5 ", capfd.readouterr().err)


def test_a_copy_of_the_test_set_in_the_cache_of_sacrebleu(served, tmp_path, monkeypatch):
    world = World(tmp_path, "wmt16_ro_en", served)
    cache = tmp_path / "sacrebleu" / "wmt16"
    cache.mkdir(parents=True)
    (cache / "wmt16.ro-en.src").write_text("unu\ndoi\n", encoding="utf-8")
    (cache / "wmt16.ro-en.ref").write_text("one\ntwo\n", encoding="utf-8")
    monkeypatch.setenv("SACREBLEU", str(tmp_path / "sacrebleu"))
    assert world.run("--stage", "prepare") == 0
    assert lines_of(world.data / "newstest2016.en") == ["one", "two"]
    assert not any("test.tgz" in path for path, _ in served.requests)
    # What the user brought unpacked is preferred, also after the corpus was built.
    own = tmp_path / "own" / "test"
    own.mkdir(parents=True)
    for name, tag in (
        ("newstest2016-roen-src.ro.sgm", "srcset"),
        ("newstest2016-roen-ref.en.sgm", "refset"),
    ):
        (own / name).write_text(wrapped(["mine"], tag), encoding="utf-8")
    for _ in range(2):
        assert world.run("--stage", "prepare", "--data", str(own.parent)) == 0
        assert lines_of(world.data / "newstest2016.en") == ["mine"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no-such-variant"], "expected one of the variants entmax-learned, entmax15"),
        (["softmax", "sparsemax"], "expected one variant"),
        (["--without", "nothing"], "--without nothing: expected one of multi30k"),
        (["--data", "nowhere"], "--data nowhere: expected a directory"),
        (["clean.max_wrods=3"], "unknown key 'max_wrods'"),
        (["clean.duplicates=maybe"], "expected one of keep, drop, got 'maybe'"),
        (["data.train.source=other.en"], "expected data.train and data.validation to be"),
        (["train.max_update=3"], "max_updates"),
    ],
)
def test_mistakes_are_one_line(served, tmp_path, capfd, arguments, message):
    world = World(tmp_path, "multi30k_en_de", served)
    assert world.run(*arguments) == 2
    assert message in capfd.readouterr().err
    assert served.requests == []


@pytest.mark.parametrize(
    ("stage", "earlier"),
    [
        ("average", "train"),
        ("translate", "average"),
        ("score", "translate"),
        ("analyze", "average"),
    ],
)
def test_a_stage_names_the_one_that_has_to_be_run_first(served, tmp_path, capfd, stage, earlier):
    world = World(tmp_path, "multi30k_en_de", served)
    before = sorted(tmp_path.rglob("*"))
    assert world.run("softmax", "--stage", stage) == 2
    assert f": not found; run the stage {earlier} first" in capfd.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before


def test_variants_are_listed_and_found_without_their_number(served, tmp_path, capfd):
    world = World(tmp_path, "wmt14_en_de", served)
    assert main([str(world.root / "recipes" / world.name), "--list"]) == 0
    assert capfd.readouterr().out.split("\n")[:2] == ["01-softmax", "02-sparsemax"]
    assert world.run("7", "--data", "nowhere") == 2
    assert world.run("07", "--data", "nowhere") == 2
    assert "07-rela-g" in capfd.readouterr().err


def test_recipes_and_variants_are_listed_outside_the_project(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    assert main(["--list"]) == 0
    assert capfd.readouterr().out.split() == RECIPES
    assert main(["multi30k_en_de", "--list"]) == 0
    assert "rela-g" in capfd.readouterr().out.split()
    for arguments in (["no_such", "--list"], ["recipes/multi30k_en_de", "--list"], ["no_such"]):
        assert main(arguments) == 2
        captured = capfd.readouterr()
        assert captured.out == ""
        assert captured.err.count("\n") == 1
        assert f"looked for {tmp_path / arguments[0]}" in captured.err
    assert main([]) == 2
    assert "expected a RECIPE" in capfd.readouterr().err


def test_an_installation_without_recipes_says_where_it_looked(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("nmt.__file__", str(tmp_path / "site-packages/nmt/__init__.py"))
    assert main(["--list"]) == 2
    captured = capfd.readouterr().err
    assert f"no recipes in {tmp_path}/recipes and {tmp_path}/site-packages/recipes" in captured
