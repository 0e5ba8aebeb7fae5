"""Train fairseq and Marian on the subwords and settings of this recipe, and score them.

python recipes/multi30k_en_de/peers.py fairseq|marian [--updates N] [section.key=value ...]

reads what `nmt-recipe multi30k_en_de softmax --stage prepare` has made, and writes the
translation of the test set to runs/multi30k_en_de/peers/NAME. All toolkits see the same pieces, as
words that are their ids. The result is the average of the last five checkpoints, as in the recipe.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import IO

from nmt.config.loading import load_config
from nmt.data.codec import Codec
from nmt.data.prepare import prepare

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TEXT = ROOT / "data" / "multi30k_en_de"
WORK = ROOT / "runs" / "multi30k_en_de" / "peers"
ENVIRONMENTS = ROOT / "runs" / "speed" / "environments"  # recipes/speed has the same
LANGUAGES = {"source": "en", "target": "de"}
TEST = "test_2016_flickr"
AVERAGED = 5  # checkpoints
FIRST_PIECE, UNKNOWN = 4, 3  # ids
WORD = "{:06d}"

# In fairseq's environment, whose classes are in its checkpoints.
AVERAGE_FAIRSEQ = """
import sys
import torch
*paths, output = sys.argv[1:]
states = [torch.load(path, weights_only=False) for path in paths]
model = states[-1]["model"]
for name, value in model.items():
    if value.is_floating_point():
        model[name] = sum(state["model"][name] for state in states) / len(states)
torch.save(states[-1], output)
"""


def write_words(directory: Path, codec: Codec) -> None:
    """All text as words that are ids."""
    directory.mkdir(parents=True, exist_ok=True)
    for side, language in LANGUAGES.items():
        coder = codec.source if side == "source" else codec.target
        for name in ("train", "val", TEST):
            text = (TEXT / f"{name}.{language}").read_text(encoding="utf-8")
            lines = text.removesuffix("\n").split("\n")
            write_lines(
                directory / f"{name}.{language}",
                (" ".join(map(WORD.format, pieces(coder.encode(line)))) for line in lines),
            )
    words = [WORD.format(number) for number in range(FIRST_PIECE, len(codec.target.vocabulary))]
    write_lines(directory / "dict.txt", (f"{word} 1" for word in words))
    yaml = (f'"{word}": {number}' for number, word in enumerate(["</s>", "<unk>", *words]))
    write_lines(directory / "vocabulary.yml", yaml)


def pieces(ids: Iterable[int]) -> Iterable[int]:
    """The ids without the control symbols but for that of unknown pieces."""
    return (number for number in ids if number >= UNKNOWN)


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write a file of lines."""
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def run(*command: object, stdin: IO[str] | None = None, capture: bool = False) -> str:
    """Run a command, whose errors end this one; its output if that is captured, else nothing."""
    print("+", *command, file=sys.stderr)
    stdout = subprocess.PIPE if capture else None
    line = [*map(str, command)]
    return subprocess.run(line, check=True, text=True, stdin=stdin, stdout=stdout).stdout or ""


def save_every(updates: int) -> int:
    """Updates between two checkpoints: as in the recipe, or less in a short trial."""
    return max(1, min(100, updates // AVERAGED))


def options_of(settings: dict[str, object]) -> list[str]:
    """`--name value` for each setting."""
    return [word for name, value in settings.items() for word in (f"--{name}", str(value))]


def fairseq(interpreter: Path, words: Path, output: Path, updates: int) -> list[str]:
    """The translation by fairseq, as lines of words."""
    os.environ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] = "1"  # it loads checkpoints of its own
    tools = interpreter.parent
    languages = ("--source-lang", "en", "--target-lang", "de")
    data = output / "data"
    if not data.is_dir():
        run(
            tools / "fairseq-preprocess", *languages, "--trainpref", words / "train",
            "--validpref", words / "val", "--testpref", words / TEST, "--destdir", data,
            "--srcdict", words / "dict.txt", "--joined-dictionary",
        )  # fmt: skip
    settings: dict[str, object] = {
        "arch": "transformer", "encoder-embed-dim": 128, "decoder-embed-dim": 128,
        "encoder-ffn-embed-dim": 512, "decoder-ffn-embed-dim": 512, "encoder-layers": 3,
        "decoder-layers": 3, "encoder-attention-heads": 4, "decoder-attention-heads": 4,
        "dropout": 0.1, "attention-dropout": 0.1, "activation-dropout": 0.0,
        "optimizer": "adam", "adam-betas": "(0.9, 0.98)", "adam-eps": 1e-8, "lr": 2e-3,
        "lr-scheduler": "inverse_sqrt", "warmup-updates": 800, "label-smoothing": 0.1,
        "criterion": "label_smoothed_cross_entropy", "max-tokens": 2048, "max-update": updates,
        "save-interval-updates": save_every(updates), "keep-interval-updates": AVERAGED, "seed": 1,
        "save-dir": output / "checkpoints", "log-interval": 100, "num-workers": 0,
    }  # fmt: skip
    run(
        tools / "fairseq-train", data, *languages, *options_of(settings), "--share-all-embeddings",
        "--cpu", "--disable-validation", "--no-epoch-checkpoints", "--no-progress-bar",
    )  # fmt: skip
    saved = (output / "checkpoints").glob("checkpoint_*_*.pt")
    last = sorted(saved, key=lambda path: int(path.stem.rpartition("_")[2]))[-AVERAGED:]
    run(interpreter, "-c", AVERAGE_FAIRSEQ, *last, output / "average.pt")
    found = run(
        tools / "fairseq-generate", data, *languages, "--path", output / "average.pt", "--beam", 4,
        "--lenpen", 0.6, "--max-tokens", 4096, "--cpu", capture=True,
    )  # fmt: skip
    hypotheses = {}
    for line in found.split("\n"):
        if line.startswith("H-"):
            number, _score, text = line.split("\t")
            hypotheses[int(number.removeprefix("H-"))] = text
    return [hypotheses[number] for number in range(len(hypotheses))]


def marian(interpreter: Path, words: Path, output: Path, updates: int) -> list[str]:
    """The translation by Marian, as lines of words."""
    import numpy as np

    model = output / "model.npz"
    output.mkdir(parents=True, exist_ok=True)
    settings: dict[str, object] = {
        "type": "transformer", "model": model, "dim-emb": 128, "enc-depth": 3, "dec-depth": 3,
        "transformer-heads": 4, "transformer-dim-ffn": 512, "transformer-ffn-activation": "relu",
        "transformer-dropout": 0.1, "transformer-dropout-attention": 0.1, "label-smoothing": 0.1,
        "learn-rate": 2e-3, "lr-warmup": 800, "lr-decay-inv-sqrt": 800, "clip-norm": 0,
        "cpu-threads": 1, "mini-batch-words": 2048, "mini-batch": 2048, "maxi-batch": 1000,
        "disp-freq": 100, "save-freq": save_every(updates), "after-batches": updates,
        "max-length": 256, "seed": 1,
    }  # fmt: skip
    vocabulary = words / "vocabulary.yml"
    run(
        interpreter, "-m", "pymarian", "train", *options_of(settings), "--tied-embeddings-all",
        "--train-sets", words / "train.en", words / "train.de", "--vocabs", vocabulary, vocabulary,
        "--optimizer-params", 0.9, 0.98, 1e-8,
    )  # fmt: skip
    saved = sorted(output.glob("model.iter*.npz"), key=lambda path: int(path.stem[10:]))
    states = [dict(np.load(path)) for path in saved[-AVERAGED:]]
    average = {
        name: np.mean([state[name] for state in states], axis=0, dtype=np.float32)
        if value.dtype == np.float32
        else value
        for name, value in states[-1].items()
    }
    np.savez(output / "average.npz", **average)
    with (words / f"{TEST}.en").open(encoding="utf-8") as source:
        found = run(
            interpreter, "-m", "pymarian", "decode", "--models", output / "average.npz",
            "--vocabs", vocabulary, vocabulary, "--beam-size", 4, "--normalize", 0.6,
            "--cpu-threads", 1, "--mini-batch", 64, "--quiet",
            stdin=source, capture=True,
        )  # fmt: skip
    return found.removesuffix("\n").split("\n")


def main() -> None:
    """Train, translate and score."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("toolkit", choices=["fairseq", "marian"])
    parser.add_argument("settings", nargs="*", metavar="section.key=value")
    parser.add_argument("--updates", type=int, default=6500)
    arguments = parser.parse_args()
    sys.path.insert(0, str(HERE.parent / "speed"))
    from environments import make_environment

    config = ROOT / "configs" / "multi30k_en_de" / "softmax.yaml"
    interpreter = make_environment(arguments.toolkit, ENVIRONMENTS)
    words, output = WORK / "words", WORK / arguments.toolkit
    codec = prepare(load_config(config, arguments.settings)).codec
    write_words(words, codec)
    train = fairseq if arguments.toolkit == "fairseq" else marian
    lines = train(interpreter, words, output, arguments.updates)
    ids = [[int(word) if word.isdigit() else UNKNOWN for word in line.split()] for line in lines]
    translation = output / f"{TEST}.de"
    write_lines(translation, (codec.target.decode(one) for one in ids))
    reference = TEXT / f"{TEST}.de"
    run("nmt-score", "--hypothesis", translation, "--reference", reference)


if __name__ == "__main__":
    main()
