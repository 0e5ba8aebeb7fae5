"""Training, translating and scoring need no package of an extra; the rest says which it needs."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from support.runs import tiny_config, write_run

PROJECT = Path(__file__).parents[2]
METADATA = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PACKAGE = "{kind: entmax15, backend: package}"
# Hides packages, then runs commands one after the other and prints their exit codes.
PROGRAM = """
import importlib, json, sys

hidden = set(json.loads(sys.argv[1]))

class Finder:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        found = name.partition(".")[0] not in hidden
        return self.finder.find_spec(name, path, target) if found else None

    def __getattr__(self, name):
        return getattr(self.finder, name)

sys.meta_path[:] = map(Finder, sys.meta_path)
for module, *arguments in json.loads(sys.argv[2]):
    try:
        code = importlib.import_module(module).main(arguments)
    except SystemExit as ending:
        code = ending.code
    print("exit", code, module.rpartition(".")[2], file=sys.stderr)
"""


def names_of(requirements: list[str]) -> set[str]:
    """The packages of some requirements, as they are imported."""
    names = {re.split(r"[<>=;\[ ]", each)[0].lower() for each in requirements}
    return {name.replace("-", "_") for name in names}


def run_without_extras(directory: Path, commands: list[list[str]]) -> list[str]:
    """The messages of commands in a process that sees only what `pip install nmt` installs."""
    extras = METADATA["optional-dependencies"].values()
    hidden = names_of([each for extra in extras for each in extra])
    hidden -= {"nmt"} | names_of(METADATA["dependencies"])
    assert {"matplotlib", "tensorboard", "entmax", "jieba", "starlette"} <= hidden
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(sorted(hidden)), json.dumps(commands)],
        cwd=directory,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr.splitlines()


def test_a_plain_installation_trains_translates_and_scores(tmp_path: Path) -> None:
    config = str(write_run(tmp_path, tiny_config(tmp_path)))
    source, target = "data/validation.src", "data/validation.tgt"
    pairs = ["--model", "run", "--source", source, "--target", target]
    lines = run_without_extras(
        tmp_path,
        [
            ["nmt.cli.train", "--config", config],
            ["nmt.cli.translate", "--model", "run", "--input", source, "--output", "out"],
            ["nmt.cli.score", "--hypothesis", "out", "--reference", target],
            ["nmt.cli.align", *pairs, "--output", "links"],
            ["nmt.cli.analyze", *pairs, "--output", "analysis"],
            ["nmt.cli.bench", "train", "--figure", "figure.png"],
            ["nmt.cli.train", "--config", config, "model.attention=" + PACKAGE, "run_dir=other"],
        ],
    )
    codes = [line.split()[1:] for line in lines if line.startswith("exit ")]
    assert codes == [
        *(["0", name] for name in ("train", "translate", "score", "align")),
        *(["2", name] for name in ("analyze", "bench", "train")),
    ], "\n".join(lines)
    assert len((tmp_path / "out").read_text(encoding="utf-8").splitlines()) == 12
    assert not (tmp_path / "run" / "tensorboard").exists()
    (said,) = {line for line in lines if line.startswith("tensorboard is not installed")}
    assert "pip install 'nmt[tensorboard]'" in said
    errors = [line for line in lines if re.match(r"nmt-(analyze|bench|train)\S*: ", line)]
    expected = [
        ("figures: the package matplotlib is needed", "analysis"),
        ("--figure: the package matplotlib is needed", "analysis"),
        ("`backend: package`: the package entmax is needed", "entmax"),
    ]
    for line, (start, extra) in zip(errors, expected, strict=True):
        assert line.partition(": ")[2].startswith(start)
        assert line.endswith(f"install it with: pip install 'nmt[{extra}]'")


def test_workers_of_the_server_need_no_package_for_figures() -> None:
    program = "import sys; sys.modules['matplotlib'] = None; import nmt.serving.worker"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_command_explains_itself_without_extras(tmp_path: Path) -> None:
    modules = [entry.partition(":")[0] for entry in METADATA["scripts"].values()]
    lines = run_without_extras(tmp_path, [[module, "--help"] for module in modules])
    assert lines == [f"exit 0 {module.rpartition('.')[2]}" for module in modules]
