"""Imports point one way, and nothing dangerous or heavy is imported where it should not be."""

import ast
import importlib
import subprocess
import sys
import tomllib
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from support.project_scripts import load_script

import nmt

PACKAGE = Path(__file__).parents[2] / "nmt"
PROJECT = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
BASE = {"errors", "languages", "progress", "tables"}
MAY_IMPORT = {
    "errors": set[str](),
    "languages": set[str](),
    "progress": set[str](),
    "tables": set[str](),
    "storage": BASE,
    "ops": {"errors"},
    "config": BASE | {"ops"},
    "data": BASE | {"config", "storage"},
    "model": BASE | {"config", "ops"},
    "evaluation": BASE,
    "checkpoint": BASE | {"config", "storage", "data", "model"},
    "recipes": BASE | {"config", "storage", "data", "evaluation"},
}
MAY_IMPORT["exchange"] = MAY_IMPORT["checkpoint"] | {"checkpoint", "ops"}
MAY_IMPORT["decoding"] = MAY_IMPORT["checkpoint"] | {"checkpoint", "ops"}
MAY_IMPORT["analysis"] = MAY_IMPORT["decoding"] | {"decoding"}
MAY_IMPORT["training"] = MAY_IMPORT["decoding"] | {"decoding", "evaluation"}
MAY_IMPORT["bench"] = MAY_IMPORT["training"] | {"training", "analysis"}
MAY_IMPORT["doctor"] = MAY_IMPORT["bench"] | {"bench"}
MAY_IMPORT["serving"] = MAY_IMPORT["analysis"] | {"analysis"}
MAY_IMPORT["paper"] = MAY_IMPORT["bench"] | {"bench", "recipes"}
MAY_IMPORT["cli"] = MAY_IMPORT["doctor"] | {"doctor", "exchange", "paper", "recipes", "serving"}
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")
COMMANDS = sorted(
    path.stem
    for path in (PACKAGE / "cli").glob("*.py")
    if "def main(" in path.read_text(encoding="utf-8")
)


import_graph = load_script("import_graph")


def program(command: str) -> str:
    """The name of a command; the module of one that is a keyword of Python ends in `_`."""
    return f"nmt-{command.rstrip('_').replace('_', '-')}"


def part(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_one_way(path: Path) -> None:
    own = part(path)
    used = {name.split(".")[1] for name in import_graph.imports(path) if name.startswith("nmt.")}
    assert used - {own} <= MAY_IMPORT[own]


def test_no_module_imports_itself_by_way_of_others() -> None:
    """Imports inside functions and those for types count, but for the package's own lazy names."""
    graph = import_graph.module_graph()
    graph["nmt"] = set()
    list(TopologicalSorter(graph).static_order())  # raises CycleError, which names the modules


def test_every_room_has_its_place() -> None:
    assert set(import_graph.room_graph()) == set(MAY_IMPORT)
    list(TopologicalSorter(MAY_IMPORT).static_order())


def test_the_picture_on_the_page_is_the_import_graph() -> None:
    text = import_graph.PAGE.read_text(encoding="utf-8")
    assert import_graph.written_picture(text) == import_graph.picture(), (
        "run python scripts/import_graph.py --write"
    )


def test_nothing_is_unpickled_or_evaluated() -> None:
    for path in MODULES:
        names = {name.split(".")[0] for name in import_graph.imports(path)}
        assert not names & {"pickle", "marshal", "shelve", "dill"}, path
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in {"eval", "exec"}, path


@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_complete_and_does_not_import_torch(command: str) -> None:
    program = (
        "import sys\n"
        f"from nmt.cli.{command} import main\n"
        "try:\n    main(['--help'])\nfinally:\n"
        "    sys.stderr.write(str('torch' in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stderr == "False"
    assert done.stdout.startswith("usage: nmt-")
    assert len(done.stdout) > 200


def test_every_command_has_a_script() -> None:
    scripts = {program(name): f"nmt.cli.{name}:main" for name in COMMANDS}
    assert scripts == PROJECT["scripts"]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_prints_the_version_of_the_project(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main = importlib.import_module(f"nmt.cli.{command}").main
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0
    name = program(command)
    assert capsys.readouterr() == (f"{name} {PROJECT['version']}\n", "")


def test_the_package_has_the_version_of_the_project() -> None:
    assert nmt.__version__ == PROJECT["version"]
