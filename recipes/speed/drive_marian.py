"""Marian itself (pymarian): its own trainer, decoder and 8-bit products, with our weights.

Its threads are workers: in training each has half of a batch, and in decoding each translates
batches of its own, so several batches are given to it at once. One batch alone is the work of one
thread, whatever their number.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pymarian
from driver import Trainer, serve
from task import (
    BATCH_TOKENS,
    BEAM,
    DROPOUT,
    EOS,
    FIRST_PIECE,
    LABEL_SMOOTHING,
    LEARNING_RATE,
    LENGTH_PENALTY,
    PIECES,
    SHAPES,
    STEPS,
    WARMUP,
    WORD,
    DecodingData,
    TrainingData,
)

# `Ep. 1 : Up. 2 : Sen. 130 : Cost 9.1 * 2,345 @ 1,200 after 5,000 : ...`: the labels of an update
UPDATE = re.compile(r" : Up\. [0-9,]+ : .* : Cost [^ ]+ \* ([0-9,]+) ")


def write_data(directory: Path, data: TrainingData) -> None:
    """The training data as words, and a vocabulary."""
    directory.mkdir(parents=True, exist_ok=True)
    words = ["</s>", "<unk>", *map(WORD.format, range(FIRST_PIECE, data.vocabulary))]
    lines = "".join(f'"{word}": {number}\n' for number, word in enumerate(words))
    (directory / "vocabulary.yml").write_text(lines, encoding="ascii")
    data.write_text(directory)


class MarianTrainer(Trainer):
    """`pymarian train` in a process that is stopped while others have their turn."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        directory = arguments.task / "marian"
        write_data(directory, TrainingData(arguments.task))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pymarian", "train", *training_options(directory, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.pid = self.process.pid
        self.update()
        self.pause()

    def update(self) -> int:
        """Wait until it says that it has made an update."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            found = UPDATE.search(line)
            if found:
                return int(found[1].replace(",", ""))
            sys.stderr.write(line)
        raise SystemExit("pymarian train has ended")

    def resume(self) -> None:
        """Go on, to the end of the update in which it was stopped."""
        os.kill(self.pid, signal.SIGCONT)
        self.update()

    def pause(self) -> None:
        """Stop, in whatever it does."""
        os.kill(self.pid, signal.SIGSTOP)

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()


def training_options(directory: Path, arguments: argparse.Namespace) -> list[str]:
    """The options that make its model, batches and updates those of the others."""
    shape = SHAPES[arguments.size]
    settings = {
        "type": "transformer",
        "model": directory / f"model-{os.getpid()}.npz",
        "dim-emb": shape.dim,
        "enc-depth": shape.layers,
        "dec-depth": shape.layers,
        "transformer-heads": shape.heads,
        "transformer-dim-ffn": shape.feed_forward_dim,
        "transformer-ffn-activation": "relu",
        "transformer-dropout": DROPOUT,
        "transformer-dropout-attention": DROPOUT,
        "label-smoothing": LABEL_SMOOTHING,
        "learn-rate": LEARNING_RATE,
        "lr-warmup": WARMUP,
        "lr-decay-inv-sqrt": WARMUP,
        "clip-norm": 0,
        "cpu-threads": arguments.threads,
        "mini-batch-words": BATCH_TOKENS,
        "mini-batch": BATCH_TOKENS,  # sentences: no limit
        "maxi-batch": 1000,
        "disp-freq": 1,
        "save-freq": 1_000_000,
        "max-length": 256,
        "seed": 1,
    }
    words = [f"{directory}/train.source", f"{directory}/train.target"]
    options = ["--train-sets", *words, "--vocabs", *2 * [f"{directory}/vocabulary.yml"]]
    options += ["--optimizer-params", "0.9", "0.98", "1e-09"]
    for name, value in settings.items():
        options += [f"--{name}", str(value)]
    return [*options, "--tied-embeddings-all", "--sync-sgd", "--disp-label-counts"]


class MarianDecoder:
    """Its Translator; --option is the type of the weights."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        data = DecodingData(arguments.task, arguments.size)
        directory = data.directory / "marian"
        model = directory / "model.npz"
        if arguments.option == "int8":
            model = convert(model)
        vocabulary = directory / "vocabulary.yml"
        # The end of the source counts as a piece; the limit is reached a step later than it says.
        factor = (STEPS - 0.5) / (PIECES + 1)
        self.translator = pymarian.Translator(
            f"--models {model} --vocabs {vocabulary} {vocabulary} "
            f"--cpu-threads {arguments.threads} --beam-size {BEAM} --normalize {LENGTH_PENALTY} "
            f"--max-length-factor {factor} --mini-batch {arguments.batch} --maxi-batch 1 --quiet"
        )
        self.lines = [" ".join(map(WORD.format, x[:-1])) for x in data.sentences]

    def translate(self, batches: list[list[int]]) -> list[list[int]]:
        """Outputs of the batches; single sentences come one after the other, as from a user."""
        single = all(len(batch) == 1 for batch in batches)
        requests = batches if single else [[number for batch in batches for number in batch]]
        outputs: list[list[int]] = []
        for request in requests:
            found = self.translator.translate([self.lines[number] for number in request])
            outputs += [[int(word) for word in line.split()] for line in found]
        return outputs


def convert(model: Path) -> Path:
    """The model with weights of 8 bits, made once."""
    output = model.with_name("model.intgemm8.bin")
    if not output.exists() or output.stat().st_mtime < model.stat().st_mtime:
        command = [sys.executable, "-m", "pymarian", "convert", "--gemm-type", "intgemm8"]
        subprocess.run([*command, "--from", str(model), "--to", str(output)], check=True)
    return output


if __name__ == "__main__":
    assert EOS == FIRST_PIECE - 2, "the rows of its embeddings are ours from the end on"
    serve(MarianTrainer, MarianDecoder)
