"""The recipe for word alignments: its scripts, and all of it on a small corpus."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.small_task import ROOT

RECIPE = ROOT / "recipes" / "alignment_en_fr"
SMALL = (
    *(
        "train.max_updates=4",
        "train.schedule.warmup=2",
        "train.save_every=2",
        "train.batch_tokens=500",
    ),
    *("validate.every=4", "validate.sentences=10", "data.subword.merges=100", "model.dim=16"),
)


def run_script(name: str, *arguments: object) -> str:
    line = [sys.executable, str(RECIPE / name), *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, check=True).stdout


def test_planted_errors_are_labelled(tmp_path: Path) -> None:
    pairs = [(f"a{n} b{n} c{n} d{n}", f"w{n} x{n} y{n} z{n}") for n in range(40)]
    for place, name in enumerate(("source", "target")):
        (tmp_path / name).write_text("".join(f"{pair[place]}\n" for pair in pairs))
    planted = tmp_path / "planted"
    run_script("planted_errors.py", tmp_path / "source", tmp_path / "target", planted)
    sources, targets, labels = (
        Path(f"{planted}.{ending}").read_text().split("\n")[:-1]
        for ending in ("source", "target", "label")
    )
    assert sources == [pair[0] for pair in pairs]
    clean = [label == "clean" for label in labels]
    assert clean == [number % 2 == 0 for number in range(40)]
    assert [target == pair[1] for target, pair in zip(targets, pairs, strict=True)] == clean


def test_error_rates_of_checkpoints_make_a_table(tmp_path: Path) -> None:
    means = {"AoL": 0.6, "AoH": 0.5}
    direction = {"layer": 1, "head": None, "step": "shifted"}
    direction["aer"] = {"normal": means, "shifted": {"AoL": 0.4, "AoH": 0.3}}
    for update, rate in ((500, 0.45), (1000, 0.25)):
        document = {"directions": [direction], "aer": rate}
        path = tmp_path / f"align-rela-g-step-{update:08}.json"
        path.write_text(json.dumps(document))
    run_script("error_rates.py", tmp_path)
    lines = (tmp_path / "error_rates.tsv").read_text().split("\n")
    assert lines[1] == "rela-g\t500\t45.00\t1\t\tshifted\t60.00\t50.00\t40.00\t30.00"
    assert lines[2].startswith("rela-g\t1000\t25.00")
    assert (tmp_path / "error_rates.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_the_whole_recipe_on_a_small_corpus(tmp_path: Path) -> None:
    """All files are there at the end, and a second run trains nothing."""
    data, clone = tmp_path / "data", tmp_path / "clone"
    data.mkdir()
    line = "A small dog sees the cat near the old house number {}.\n"
    for name, count in (("train", 200), ("dev", 20), ("test", 20)):
        for language in ("en", "fr"):
            text = "".join(line.format(number) for number in range(count))
            (data / f"{name}.{language}.gz").write_bytes(gzip.compress(text.encode()))
    for language in ("en", "fr"):
        (data / f"gold.{language}").write_text("the dog sees the cat\n" * 60)
    (data / "gold.links").write_text("1-1 2-2 3-3 4p4 5-5\n" * 60)
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    (clone / ".venv").symlink_to(Path(sys.prefix))
    command = ["bash", "recipes/alignment_en_fr/run.sh", str(data), *SMALL]
    for _ in range(2):
        done = subprocess.run(command, cwd=clone, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert "nothing to do" in done.stderr
    results = clone / "runs" / "alignment" / "results"
    assert len((results / "error_rates.tsv").read_text().split("\n")) == 1 + 3 * 2 + 1
    assert (results / "analysis" / "report.html").is_file()
    assert done.stdout.count('"combined": {') == 3
