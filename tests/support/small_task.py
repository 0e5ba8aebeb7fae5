"""A copy of the Multi30k recipe with a few generated lines, for grids of tiny runs."""

import gzip
import random
import shutil
from pathlib import Path

from nmt.cli.table import main

ROOT = Path(__file__).resolve().parents[2]
TASK = "multi30k_en_de"
WORDS = [("a", "ein"), ("old", "altes"), ("house", "Haus"), ("sees", "sieht"), ("tree", "Baum")]
TINY = [
    "data.subword.merges=20",
    "data.workers=1",
    "model.dim=16",
    "model.heads=2",
    "model.encoder_layers=1",
    "model.decoder_layers=1",
    "model.feed_forward_dim=32",
    "train.max_updates=12",
    "train.schedule.warmup=1",
    "train.batch_tokens=200",
    "train.save_every=6",
    "train.log_every=3",
    "train.device=cpu",
    "train.threads=1",
    "validate.every=12",
    "validate.beam=0",
    "validate.metric=loss",
    "validate.sentences=0",
    "decode.beam=1",
]
# A gain so large that no update is finite; training gives up after ten.
BROKEN = f"""\
extends: base.yaml
run_dir: ../../runs/{TASK}/broken
model: {{attention: {{kind: rela-i, gain_init: 3e+38}}}}
"""


class Task:
    """A copy of the recipe with a few generated lines and a variant that cannot be trained."""

    def __init__(self, root: Path) -> None:
        self.recipe = root / "recipes" / TASK
        self.runs = root / "runs" / TASK
        self.data = root / "own"
        for folder in ("recipes", "configs"):
            shutil.copytree(ROOT / folder / TASK, root / folder / TASK)
        (root / "configs" / TASK / "broken.yaml").write_text(BROKEN, encoding="utf-8")
        (self.recipe / "paper.tsv").write_text("variant\tbleu\nsoftmax\t40.5\nbroken\t-\n")
        self.data.mkdir()
        generator = random.Random(3)
        for name, count in (("train", 120), ("val", 8), ("test_2016_flickr", 8)):
            chosen = [generator.choices(WORDS, k=generator.randint(2, 8)) for _ in range(count)]
            for side, language in enumerate(("en", "de")):
                lines = "".join(" ".join(pair[side] for pair in line) + "\n" for line in chosen)
                path = self.data / f"{name}.{language}.gz"
                path.write_bytes(gzip.compress(lines.encode()))

    def table(self, *arguments: str) -> int:
        return main([str(self.recipe), "--data", str(self.data), *arguments, *TINY])


def row_of(table: str, variant: str) -> dict[str, str]:
    lines = table.split("\n")
    header = [cell.strip() for cell in lines[0].split("|")[1:-1]]
    (line,) = [line for line in lines if line.startswith(f"| {variant} |")]
    return dict(zip(header, (cell.strip() for cell in line.split("|")[1:-1]), strict=True))
