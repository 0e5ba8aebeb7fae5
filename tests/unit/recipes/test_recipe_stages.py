"""The driver of recipes: files read strictly, signals passed on, sensible batches and estimates."""

import os
import signal
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import sacrebleu

from nmt.config.loading import dump_config, load_config
from nmt.errors import ConfigError
from nmt.recipes.corpus import Builder, RecipeFiles
from nmt.recipes.estimates import flops_per_token, training_hours
from nmt.recipes.recipe import File, Place, load_recipe, parse_place
from nmt.recipes.stages import FailedError, Run, batch_overrides, detokenize_file, execute

ROOT = Path(__file__).resolve().parents[3]
RECIPES = sorted((ROOT / "recipes").glob("*/*.toml"))
BASE = ROOT / "configs" / "wmt14_en_de" / "07-rela-g.yaml"


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_shipped_recipes(path):
    recipe = load_recipe(path)
    assert (path.parent / "run.sh").is_file()
    assert (path.parent / "README.md").is_file()
    for file in recipe.files:
        assert all(url.startswith("https://") for url in file.urls)


def test_text_that_earlier_versions_made_is_not_made_again():
    """The digest of the settings is that of a version in which a set had one place per side."""
    recipe = load_recipe(ROOT / "recipes/multi30k_en_de/recipe.toml")
    builder = Builder(recipe, RecipeFiles(ROOT, ROOT, recipe.languages), None)
    expected = "c92f1e7aca8cebe1f0de90aa1eeebfde30b87b3b74ee2c80619426c8291377de"
    assert builder._settings() == expected


def test_a_file_has_one_address_and_one_checksum_in_all_recipes():
    seen: dict[str, File] = {}
    for path in RECIPES:
        recipe = load_recipe(path)
        names = [file.name for file in recipe.files]
        assert len(set(names)) == len(names), path
        used = {name for each in recipe.train for text in each.places for name in files_of(text)}
        for text_set in (recipe.validation, recipe.test):
            used |= {name for text in text_set.places for name in files_of(text)}
        assert used == set(names), path  # nothing is fetched for nothing
        for file in recipe.files:
            assert seen.setdefault(file.name, file) == file, path
    addresses = [url for file in seen.values() for url in file.urls]
    assert len(set(addresses)) == len(addresses)
    for known in ("sha256", "md5"):
        sums = [value for file in seen.values() if (value := getattr(file, known))]
        assert len(set(sums)) == len(sums)


def test_checksums_agree_with_those_that_sacrebleu_records():
    recorded: dict[str, set[str]] = {}
    for dataset in sacrebleu.DATASETS.values():
        for url, md5 in zip(dataset.data or [], dataset.md5 or [], strict=False):
            recorded.setdefault(bare(url), set()).add(md5)
    compared = 0
    for path in RECIPES:
        for file in load_recipe(path).files:
            for url in file.urls:
                if bare(url) in recorded:
                    assert file.md5 in recorded[bare(url)], f"{path}: {url}"
                    compared += 1
    assert compared >= 10


def bare(url: str) -> str:
    return url.partition("://")[2].removeprefix("www.")


def files_of(place: str) -> tuple[str, ...]:
    return parse_place(place).files


def test_as_many_targets_as_sources(tmp_path):
    text = (ROOT / "recipes/multi30k_en_de/recipe.toml").read_text(encoding="utf-8")
    old = 'source = "multi30k/val.en.gz"'
    assert old in text
    new = 'source = ["multi30k/val.en.gz", "multi30k/val.en.gz"]'
    (tmp_path / "recipe.toml").write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(ConfigError, match="'val': expected as many targets as sources"):
        load_recipe(tmp_path / "recipe.toml")


def test_places():
    assert parse_place("a/train.en") == Place(("a/train.en",), None)
    assert parse_place("a.tgz -> x/y.en") == Place(("a.tgz",), "x/y.en")
    assert parse_place("a.00 + a.01 -> y") == Place(("a.00", "a.01"), "y")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("paper_pairs", "paper_pears", "unknown key 'paper_pears'"),
        ("paper_pairs = 29_000", 'paper_pairs = "29"', "paper_pairs: expected int, got '29'"),
        ('source_language = "en"', "", "the key 'source_language' is missing"),
        ('source = "multi30k/train.en.gz"', 'source = "x.gz"', "no file 'x.gz' is listed"),
        ('target = "multi30k/train.de.gz"', "", "expected source and target, or both"),
        ("[clean]", "[clean", "line 70"),
        ("max_words = 250", "duplicates = 1", "expected one of keep, drop"),
    ],
)
def test_mistakes_in_a_recipe_are_named(tmp_path, old, new, message):
    text = (ROOT / "recipes/multi30k_en_de/recipe.toml").read_text(encoding="utf-8")
    assert old in text
    (tmp_path / "recipe.toml").write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        load_recipe(tmp_path / "recipe.toml")


TRAIN = 'name = "multi30k/train.en.gz"'


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("multi30k/train.en.gz", "../../train.en.gz", "expected a relative path without"),
        ("multi30k/train.en.gz", "/tmp/train.en.gz", "expected a relative path without"),
        ("multi30k/train.en.gz", "a/./train.en.gz", "expected a relative path without"),
        ("multi30k/train.en.gz", "a\\\\train.en.gz", "expected a relative path without"),
        ('"multi30k/val.en.gz"\ntarget', '"multi30k/val.en.gz -> ../x"\ntarget', "got '../x'"),
        ('name = "val"', 'name = "../val"', "'../val': expected a name of letters"),
        ('source_language = "en"', 'source_language = "en/.."', "expected a name of letters"),
        ("https://raw", "http://raw", "expected an https address, or http and a sha256"),
        ("https://raw", "ftp://raw", "expected an https address, or http and a sha256"),
        (TRAIN, f'{TRAIN}\nsha256 = "abc"', "sha256: expected 64 hexadecimal digits"),
        (TRAIN, f'{TRAIN}\nmd5 = "{"X" * 32}"', "md5: expected 32 hexadecimal digits"),
    ],
)
def test_names_and_addresses_of_a_recipe_are_checked(tmp_path, old, new, message):
    text = (ROOT / "recipes/multi30k_en_de/recipe.toml").read_text(encoding="utf-8")
    assert old in text
    (tmp_path / "recipe.toml").write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        load_recipe(tmp_path / "recipe.toml")


def test_http_is_enough_where_the_sum_is_known(tmp_path):
    text = (ROOT / "recipes/wmt18_en_fi/recipe.toml").read_text(encoding="utf-8")
    old = "https://s3.amazonaws.com"
    assert old in text
    (tmp_path / "recipe.toml").write_text(text.replace(old, "http://x.org"), encoding="utf-8")
    assert load_recipe(tmp_path / "recipe.toml").files[1].urls[0].startswith("http://x.org/")


def test_the_estimate_is_that_of_the_arithmetic():
    config = load_config(BASE)
    assert flops_per_token(config.model) == pytest.approx(0.37e9, rel=0.03)
    least, most = training_hours(config, 1, 0)
    assert (round(least), round(most)) == (5, 11)
    least, most = training_hours(config, 8, 0)
    assert (round(least, 1), round(most, 1)) == (0.7, 1.6)


def a_run(tmp_path: Path, *overrides: str) -> Run:
    config = load_config(BASE, [f"run_dir={tmp_path}", *overrides])
    recipe = load_recipe(ROOT / "recipes/wmt14_en_de/recipe.toml")
    layout = RecipeFiles(tmp_path / "data", tmp_path / "downloads", ("en", "de"))
    return Run(recipe, layout, BASE, (f"run_dir={tmp_path}",), config, None)


def test_a_run_that_has_begun_keeps_its_batches(tmp_path):
    run = a_run(tmp_path)
    assert batch_overrides(run) == []
    train = replace(run.config.train, batch_tokens=3125, accumulate=8)
    text = dump_config(replace(run.config, train=train))
    (tmp_path / "config.yaml").write_text(text, encoding="utf-8")
    assert batch_overrides(run) == ["train.batch_tokens=3125", "train.accumulate=8"]


CHILD = """
import signal, sys, time
signal.signal(signal.{name}, lambda *_: sys.exit({code}))
print("ready", flush=True)
time.sleep(30)
"""


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGUSR1", 9), ("SIGUSR1", 0)])
def test_signals_reach_the_command_and_its_exit_code_comes_back(name, code, capfd):
    before = signal.getsignal(getattr(signal, name))
    ready = threading.Event()

    def send() -> None:
        while "ready" not in capfd.readouterr().out:
            ready.wait(0.02)
        os.kill(os.getpid(), getattr(signal, name))

    thread = threading.Thread(target=send)
    thread.start()
    with pytest.raises(FailedError) as caught:
        execute([sys.executable, "-c", CHILD.format(name=name, code=code)])
    thread.join()
    assert caught.value.exit_code == code
    assert signal.getsignal(getattr(signal, name)) == before


def test_a_command_killed_by_a_signal_counts_as_such():
    with pytest.raises(FailedError) as caught:
        execute([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"])
    assert caught.value.exit_code == 137


def test_text_in_the_form_of_stanford_is_put_together(tmp_path):
    (tmp_path / "in").write_text(
        "das E ##AT##-##AT## Mail @-@ Konto ist &quot; neu &quot; , sagt er .\n", encoding="utf-8"
    )
    detokenize_file(tmp_path / "in", tmp_path / "out", "de")
    expected = 'das E-Mail-Konto ist "neu", sagt er.\n'
    assert (tmp_path / "out").read_text(encoding="utf-8") == expected
