"""The files of a release: their names, what is in them, and a model trained from a wheel alone."""

import json
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import time
import zipfile
from pathlib import Path

import pytest

from nmt.ops.environment import BUILDS

PROJECT = Path(__file__).parents[2]
BUILT = sorted((PROJECT / "nmt" / "ops" / "native").glob("*.so"))
with_kernels = pytest.mark.skipif(not BUILT, reason="the kernels were not built")
NAMES = ("setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "constraints.txt")
FOLDERS = ("nmt", "configs", "recipes", "scripts", "docs", "tests/contracts")
NOT_IN_WHEEL = (".pyc", ".c", ".h")
SMALL = shlex.split(
    "model.dim=16 model.heads=2 model.encoder_layers=1 model.decoder_layers=1 "
    "model.feed_forward_dim=32 train.max_updates=3 train.schedule.warmup=2 train.batch_tokens=256 "
    "train.threads=1 validate.sentences=5 validate.beam=1 data.workers=1 data.subword.merges=50"
)


def build(source: Path, what: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run a hook of the build backend, as pip does; the files are in source/dist."""
    program = f"from setuptools import build_meta; build_meta.build_{what}('dist')"
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=source,
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source archive, made from a clone."""
    clone = tmp_path_factory.mktemp("clone")
    for name in FOLDERS:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(PROJECT / name, clone / name, ignore=ignored)
    for name in NAMES:
        shutil.copy(PROJECT / name, clone / name)
    done = build(clone, "sdist")
    assert done.returncode == 0, done.stderr
    (made,) = (clone / "dist").iterdir()
    return made


@pytest.fixture
def source(archive: Path, tmp_path: Path) -> Path:
    """The content of the source archive."""
    with tarfile.open(archive) as opened:
        opened.extractall(tmp_path, filter="data")
    (made,) = tmp_path.glob("nmt-*")
    return made


@pytest.fixture
def built_source(source: Path) -> Path:
    """The same with kernels that need not be compiled again."""
    place = f"build/lib.{sysconfig.get_platform()}-{sys.implementation.cache_tag}/nmt/ops/native"
    (source / place).mkdir(parents=True)
    for path in BUILT:
        shutil.copy(path, source / place)
        os.utime(source / place / path.name, times=(time.time() + 10,) * 2)
    return source


def wheel_of(source: Path, **settings: str) -> Path:
    done = build(source, "wheel", **settings)
    assert done.returncode == 0, done.stderr
    (made,) = (source / "dist").iterdir()
    return made


def test_the_source_archive_has_what_a_clone_has(archive: Path) -> None:
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    assert {
        "nmt/ops/native/attention.c",
        "nmt/ops/native/vectors.h",
        "recipes/wmt14_en_de/recipe.toml",
        "configs/wmt14_en_de/base.yaml",
        "scripts/test.sh",
        "docs/index.md",
        "tests/contracts/test_release.py",
        "constraints.txt",
    } <= names
    assert not [name for name in names if name.endswith((".so", ".pyc"))]


@with_kernels
def test_a_wheel_with_kernels_is_for_every_python(built_source: Path) -> None:
    wheel = wheel_of(built_source, NMT_BUILD_KERNELS="1")
    assert wheel.name.endswith("-py3-none-linux_x86_64.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {f"nmt/ops/native/{name}.so" for name in BUILDS} <= names
    assert {
        "nmt/builtin/quickstart.yaml",
        "nmt/builtin/recipes/wmt14_en_de/recipe.toml",
        "nmt/builtin/recipes/wmt14_en_de/paper.tsv",
        "nmt/builtin/configs/wmt14_en_de/07-rela-g.yaml",
    } <= names
    files = (path for path in (PROJECT / "nmt").rglob("*") if path.is_file())
    own = {str(path.relative_to(PROJECT)) for path in files if path.suffix not in NOT_IN_WHEEL}
    assert own <= names, "name them in package-data of pyproject.toml"
    assert {name.partition("/")[0] for name in names} == {"nmt", wheel.name[:9] + ".dist-info"}
    assert not [name for name in names if name.endswith((".c", ".h", ".pyc"))]


def test_without_a_compiler_the_wheel_has_another_name(source: Path) -> None:
    done = build(source, "wheel", CC=str(source / "no-compiler"))
    assert done.returncode == 0, done.stderr
    (wheel,) = (source / "dist").iterdir()
    assert wheel.name.endswith("-py3-none-any.whl")
    assert not [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".so")]
    if sys.platform == "linux":
        said = [line for line in done.stderr.splitlines() if line.startswith("nmt is built")]
        problem = f"there is no C compiler {source / 'no-compiler'}; install gcc"
        assert said == [f"nmt is built without its kernels in C: {problem}"]


def test_kernels_that_are_asked_for_and_cannot_be_built_are_an_error(source: Path) -> None:
    done = build(source, "wheel", CC="false", NMT_BUILD_KERNELS="1")
    assert done.returncode != 0
    assert done.stderr.startswith("NMT_BUILD_KERNELS=1, but the kernels in C cannot be built: ")
    assert not (source / "dist").exists() or not any((source / "dist").iterdir())


EXAMINE = """
import json
from pathlib import Path
from nmt.doctor.installation import examine_installation
from nmt.recipes.variants import find_recipe, make_run
found = examine_installation()
recipe = make_run(find_recipe(Path("multi30k_en_de")), None, settings=[])
places = [recipe.layout.directory, recipe.config.run_dir, recipe.config.data.prepared_dir]
print(json.dumps([found.kind, found.tags, found.path, found.kernels, *map(str, places)]))
"""


def run(*arguments: str, wheel: Path, text: str = "") -> str:
    """The output of Python with an installed wheel, in a directory that has nothing else."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("NMT_")}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=wheel.parent / "work",
        env={**inherited, "PYTHONPATH": str(wheel), "OMP_NUM_THREADS": "1"},
        input=text,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@with_kernels
def test_the_wheel_alone_trains_and_translates(built_source: Path, tmp_path: Path) -> None:
    wheel, work = tmp_path / "installed", tmp_path / "work"
    zipfile.ZipFile(wheel_of(built_source)).extractall(wheel)
    work.mkdir()
    recipes = run("-m", "nmt.cli.recipe", "--list", wheel=wheel)
    assert {"multi30k_en_de", "wmt14_en_de"} <= set(recipes.split())
    assert json.loads(run("-c", EXAMINE, wheel=wheel)) == [
        "wheel",
        ["py3-none-linux_x86_64"],
        str(wheel / "nmt"),
        list(BUILDS),
        str(work / "data/multi30k_en_de"),
        str(work / "runs/multi30k_en_de/rela-g"),
        str(work / "runs/multi30k_en_de/prepared"),
    ]
    run("-m", "nmt.cli.train", "--config", "quickstart", *SMALL, wheel=wheel)
    command = ("-m", "nmt.cli.translate", "--model", "runs/quickstart")
    translated = run(*command, wheel=wheel, text="The old man sees a dog.\n")
    assert translated.count("\n") == 1
