"""Every block of code on the pages of docs/ runs, or says why it cannot.

Each page has a folder of its own with a small corpus, `mine.yaml` of the README, and two trained
models. Its blocks are run in order, as a reader would run them.
"""

import gzip
import json
import re
import shlex
import shutil
import sys
import tomllib
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.pages import SMALLER, Block, blocks, command_lines, run
from support.serving import serving

PROJECT = Path(__file__).parents[2]
README = PROJECT / "README.md"
PAGES = sorted((PROJECT / "docs").glob("*.md"))
RUN = ("bash", "python", "yaml", "toml", "json")
SIZES = ("--train", "400", "--validation", "10", "--test", "4", "--noisy", "4")


def runnable(page: Path) -> list[Block]:
    return [each for each in blocks(page) if each.language in RUN and not each.not_run]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with texts, mine.yaml, a model with softmax and one with ReLA-g."""
    folder = tmp_path_factory.mktemp("pages") / "trained"
    folder.mkdir()
    script = PROJECT / "recipes" / "demo" / "generate.py"
    run([sys.executable, str(script), "--output", ".", *SIZES], folder)
    (mine,) = [each for each in blocks(README) if each.text.startswith("run_dir:")]
    (folder / "mine.yaml").write_text(mine.text, encoding="utf-8")
    for more in ("", "model.attention=rela-g run_dir=runs/mine-rela-g"):
        run(["nmt-train", "--config", "mine.yaml", *f"{SMALLER} {more}".split()], folder)
    # Other names that pages give to text and to models of others.
    exchange = PROJECT / "tests" / "unit" / "exchange"
    shutil.copytree(exchange / "huggingface", folder / "opus-mt-en-de")
    shutil.copy(exchange / "marian" / "pieces.npz", folder / "model.npz")
    shutil.copy(exchange / "marian" / "both.spm", folder / "vocab.spm")
    for name in ("crawl", "web"):
        for language in ("en", "de"):
            shutil.copy(folder / f"noisy.{language}", folder / f"{name}.{language}")
    corpus = PROJECT / "nmt" / "builtin" / "corpus"
    texts = [gzip.decompress((corpus / f"train.{side}.gz").read_bytes()) for side in ("en", "de")]
    pairs = zip(*(text.decode().split("\n")[:2600] for text in texts), strict=True)
    download = "".join(f"{source}\t{target}\tattribution\n" for source, target in pairs)
    (folder / "deu.txt").write_text(download, encoding="utf-8")
    return folder


def load_yaml(block: Block, folder: Path) -> None:
    """Let nmt-train read a config; a part of one is taken as a change to mine.yaml."""
    whole = block.text.startswith(("run_dir:", "extends:"))
    text = block.text if whole else f"extends: mine.yaml\n{block.text}"
    (folder / "example.yaml").write_text(text, encoding="utf-8")
    run(["nmt-train", "--config", "example.yaml", "--print-config"], folder, PYTHONPATH=".")


def run_commands(block: Block, folder: Path, servers: ExitStack, port: int | None) -> int | None:
    """Run command lines; a server goes on until the end of the page, at a free port."""
    script: list[str] = []
    for line in [*command_lines(block), ""]:
        if line.startswith("nmt-serve ") or not line:
            text = "\n".join(script).replace("127.0.0.1:8080", f"127.0.0.1:{port}")
            run(["bash", "-euo", "pipefail", "-c", text], folder, PYTHONPATH=".")
            script = []
        if line.startswith("nmt-serve "):
            options = shlex.split(re.sub(r"--port \d+", "", line), comments=True)[1:]
            port = servers.enter_context(serving(folder, *options, "--workers", "1")).port
        else:
            script.append(f"{line} {SMALLER}" if line.startswith("nmt-train ") else line)
    return port


def run_block(block: Block, folder: Path, servers: ExitStack, port: int | None) -> int | None:
    """Run a block; the port of the server that was started by it or by one before it."""
    if block.file:
        (folder / block.file).write_text(block.text, encoding="utf-8")
    if block.language == "yaml":
        load_yaml(block, folder)
    elif block.language == "toml":
        tomllib.loads(block.text)
    elif block.language == "json":
        json.loads(block.text)
    elif block.language == "python":
        program = [block.file] if block.file else ["-c", block.text]
        run([sys.executable, *program], folder)
    else:
        port = run_commands(block, folder, servers, port)
    return port


@pytest.mark.timeout(900)  # the tutorial has some twenty commands
@pytest.mark.parametrize(
    "page", [each for each in PAGES if runnable(each)], ids=lambda page: page.name
)
def test_the_blocks_of_a_page_run_in_order(
    page: Path, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "folder"
    shutil.copytree(trained, folder)
    monkeypatch.chdir(folder)
    port = None
    with ExitStack() as servers:
        for block in runnable(page):
            try:
                port = run_block(block, folder, servers, port)
            except Exception as error:
                raise AssertionError(f"the block at {block} does not run: {error}") from error
