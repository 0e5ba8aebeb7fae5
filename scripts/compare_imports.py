"""Compares the translations of another toolkit with those of its model after nmt-import.

    python scripts/compare_imports.py marian test.en model.npz vocab.spm vocab.spm [--lines 1000]
    python scripts/compare_imports.py huggingface test.en FOLDER [--lines 1000]

Prints, for several searches, how many lines have the same translation, and on which side the others
have the higher score; and by how much log probabilities of the same translations differ. A model of
transformers is also exported again, and the folder that comes out translates the lines once more.

It needs the package pymarian or transformers, and sentencepiece.
"""

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from record_imports import pymarian

from nmt import Translator
from nmt.cli.export import main as nmt_export
from nmt.cli.import_ import main as nmt_import

MARIAN_RATIO = 3  # most target pieces per source piece
GENERATED = 100  # most pieces of a translation by transformers


@dataclass(frozen=True)
class Found:
    """A translation, its log probability, and the score that search compares."""

    text: str
    log_probability: float
    score: float


def compare(name: str, theirs: Sequence[Found], ours: Sequence[Found]) -> None:
    """Print how far the translations of two programs agree."""
    pairs = list(zip(theirs, ours, strict=True))
    same = [pair for pair in pairs if pair[0].text == pair[1].text]
    apart = max((abs(a.log_probability - b.log_probability) for a, b in same), default=0.0)
    others = Counter(
        "ours" if b.score > a.score else "theirs" for a, b in pairs if a.text != b.text
    )
    print(
        f"{name}: {len(same):,} of {len(pairs):,} the same, their log probabilities within "
        f"{apart:.1e}; higher score among the others: ours {others['ours']}, theirs "
        f"{others['theirs']}",
        flush=True,
    )


def translate(translator: Translator, lines: Sequence[str], **options: Any) -> list[Found]:
    """Our translations."""
    found = translator.translate(lines, normalization="length", **options)
    return [Found(one.text, one.log_probability, one.score) for one in found]


def compare_marian(files: Sequence[Path], lines: Sequence[str], work: Path) -> None:
    """Compare with marian-decoder."""
    model, *vocabularies = files
    imported = work / "imported"
    arguments = ["--format", "marian", model, "--vocabs", *vocabularies, "--output", imported]
    if nmt_import(list(map(str, arguments))) != 0:
        sys.exit(1)
    translator = Translator.load(imported, device="cpu")
    for beam, power in ((1, 0.0), (4, 0.0), (4, 1.0), (6, 0.6)):
        printed = pymarian(
            *("decode", "-m", model, "-v", *vocabularies, "-b", beam, "-n", power, "--n-best"),
            *("--max-length-factor", MARIAN_RATIO, "--quiet", "--quiet-translation"),
            *("--mini-batch", 16, "--maxi-batch", 10, "--workspace", 200),
            text=lines,
        )
        best: dict[int, Found] = {}
        for line in printed.splitlines():
            number, text, log_probability, score = (part.strip() for part in line.split("|||"))
            one = Found(text, float(log_probability.partition("=")[2]), float(score))
            best.setdefault(int(number), one)
        ours = translate(
            translator, lines, beam=beam, length_penalty=power, early_stop="narrow",
            max_length_ratio=float(MARIAN_RATIO), max_length_extra=0,
        )  # fmt: skip
        compare(f"beam {beam}, --normalize {power:g}", [best[n] for n in range(len(lines))], ours)


def generate(
    folder: Path, lines: Sequence[str], beam: int, early_stopping: bool | str
) -> list[Found]:
    """The translations of a folder by transformers, in batches of sources of one length."""
    import torch
    from transformers import MarianMTModel, MarianTokenizer

    model = MarianMTModel.from_pretrained(folder).eval()
    tokenizer = MarianTokenizer.from_pretrained(folder)
    rows: dict[int, list[int]] = {}
    sources = [tokenizer(line)["input_ids"] for line in lines]
    for row, source in enumerate(sources):
        rows.setdefault(len(source), []).append(row)
    found: dict[int, Found] = {}
    for chosen in rows.values():
        source = torch.tensor([sources[row] for row in chosen])
        with torch.inference_mode():
            output = model.generate(
                source, num_beams=beam, length_penalty=1.0, max_length=GENERATED,
                early_stopping=early_stopping,
            )  # fmt: skip
            target = output[:, 1:]
            logits = model(source, decoder_input_ids=output[:, :-1]).logits.log_softmax(-1)
        scores = logits.gather(2, target[:, :, None])[:, :, 0]
        for row, ids, each in zip(chosen, target.tolist(), scores, strict=True):
            length = ids.index(model.config.eos_token_id) + 1
            total = float(each[: length - (length == GENERATED - 1)].sum())  # a forced end is free
            text = tokenizer.decode(ids, skip_special_tokens=True)
            found[row] = Found(text, total, total / length)
    return [found[row] for row in range(len(lines))]


def compare_huggingface(files: Sequence[Path], lines: Sequence[str], work: Path) -> None:
    """Compare with `generate`, also after the way back."""
    (folder,) = files
    imported, exported = work / "imported", work / "exported"
    commands: list[tuple[Callable[..., int], list[object]]] = [
        (nmt_import, ["--format", "huggingface", folder, "--output", imported]),
        (nmt_export, ["--format", "huggingface", "--model", imported, "--output", exported]),
    ]
    for command, arguments in commands:
        if command(list(map(str, arguments))) != 0:
            sys.exit(1)
    translator = Translator.load(imported, device="cpu")
    searches = ((1, False, "current"), (4, False, "current"), (4, True, "full"))
    for beam, early, stop in (*searches, (4, "never", "exact")):
        ours = translate(
            translator, lines, beam=beam, length_penalty=1.0, early_stop=stop,
            max_length_ratio=0.001, max_length_extra=GENERATED - 2,
        )  # fmt: skip
        for name, place in (("transformers", folder), ("the way back", exported)):
            theirs = generate(place, lines, beam, early)
            compare(f"{name}, beam {beam}, early_stopping={early}", theirs, ours)


def main() -> None:
    """Import a model and compare it with the toolkit that it comes from."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("format", choices=("marian", "huggingface"))
    parser.add_argument("source", type=Path, help="text, one sentence per line")
    parser.add_argument("files", type=Path, nargs="+", help="model.npz and vocabularies, or FOLDER")
    parser.add_argument("--lines", type=int, default=1000)
    given = parser.parse_args()
    lines = given.source.read_text(encoding="utf-8").split("\n")[:-1][: given.lines]
    compared = {"marian": compare_marian, "huggingface": compare_huggingface}[given.format]
    with tempfile.TemporaryDirectory() as name:
        compared(given.files, lines, Path(name))


if __name__ == "__main__":
    main()
