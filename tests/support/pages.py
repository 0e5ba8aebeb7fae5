"""The blocks of code in the Markdown pages of the project.

A comment before a block says what becomes of it: `<!-- not run: REASON -->` that it cannot be run
in a test, `<!-- file: NAME -->` that the reader is to write it to a file.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

BLOCK = re.compile(
    r"(?:^<!-- (?P<key>not run|file): (?P<value>[^\n]+?) -->\n\n?)?"
    r"^(?P<fence>```+)(?P<language>[^\n]*)\n(?P<text>.*?)^(?P=fence)$",
    flags=re.MULTILINE | re.DOTALL,
)

# The settings of the pages take minutes; these reach the same code in seconds.
SMALLER = (
    "train.max_updates=20 train.schedule.warmup=10 train.save_every=5 train.batch_tokens=512 "
    "model.dim=32 model.encoder_layers=1 model.decoder_layers=1 model.feed_forward_dim=64 "
    "data.subword.merges=200 data.workers=1 validate.sentences=10"
)


@dataclass(frozen=True)
class Block:
    """A block of code of a page."""

    page: str
    line: int  # where its fence is, from 1
    language: str
    text: str
    not_run: str = ""  # the reason why no test runs it
    file: str = ""  # the file that it is the content of

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(page: Path) -> Iterator[Block]:
    """The blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    for found in BLOCK.finditer(text):
        yield Block(
            page=page.name,
            line=text.count("\n", 0, found.start("fence")) + 1,
            language=found["language"],
            text=found["text"],
            not_run=found["value"] if found["key"] == "not run" else "",
            file=found["value"] if found["key"] == "file" else "",
        )


def command_lines(block: Block) -> list[str]:
    """The command lines of a block for bash; continued lines are joined."""
    lines = block.text.replace("\\\n", " ").split("\n")
    return [line for line in lines if line.strip() and not line.startswith("#")]


def run(command: list[str], folder: Path, **variables: str) -> str:
    """The standard output of a command that succeeds in a folder, with the tools of this Python."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    environment["PATH"] = f"{Path(sys.prefix) / 'bin'}{os.pathsep}{environment['PATH']}"
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout
