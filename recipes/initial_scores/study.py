"""How the scale of the first attention scores decides how fast sparse attention learns.

python recipes/initial_scores/study.py --output results.tsv [--figure curves.png]

The task is to reverse 3 to 8 words and to replace each by its translation. Each run of 400 updates
takes about 15 seconds on one core. Runs that are in the output already are not repeated.
"""

import argparse
import csv
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from nmt.config.config import (
    AttentionTypesConfig,
    ModelConfig,
    SublayerAttentionConfig,
)
from nmt.model.observe import observe_attention
from nmt.model.transformer import Transformer

PAD, BOS, EOS, FIRST_WORD, NUM_WORDS = 0, 1, 2, 3, 20
SHORTEST, LONGEST, BATCH, UPDATES, WINDOW = 3, 8, 64, 400, 20
KINDS = {
    "softmax": {"kind": "softmax"},
    "1.5-entmax": {"kind": "entmax15"},
    "learned alpha": {"kind": "entmax", "alpha": "learned"},
    "sparsemax": {"kind": "sparsemax"},
    "ReLA-g": {"kind": "rela-g"},
}
SCALES, SEEDS = (1.0, 0.3, 0.1), (1, 2, 3)


class Pairs(NamedTuple):
    """Source and target [B, T], padded."""

    source: Tensor
    target: Tensor


def make_pairs(count: int, generator: torch.Generator) -> Pairs:
    """Words in random order, and their translations in reverse order."""
    translation = torch.randperm(NUM_WORDS, generator=torch.Generator().manual_seed(5))
    lengths = torch.randint(SHORTEST, LONGEST + 1, (count, 1), generator=generator)
    words = torch.randint(NUM_WORDS, (count, LONGEST), generator=generator)
    place = torch.arange(LONGEST + 1)
    reverse = (lengths - 1 - place).clamp(min=0)
    padded = functional.pad(words, (0, 1))
    backwards = translation[padded.gather(1, reverse)]

    def end(ids: Tensor) -> Tensor:
        ids = (ids + FIRST_WORD).where(place < lengths, torch.tensor(PAD))
        return ids.where(place != lengths, torch.tensor(EOS))

    return Pairs(end(padded), end(backwards))


def make_model(kind: str, scale: float, norm: str, seed: int) -> Transformer:
    """Two layers per side, 64 wide, with one attention kind everywhere."""
    attention = SublayerAttentionConfig(**KINDS[kind])
    config = ModelConfig(
        dim=64,
        heads=4,
        encoder_layers=2,
        decoder_layers=2,
        feed_forward_dim=128,
        attention_dropout=0.0,
        norm=norm,
        initial_score_scale=scale,
        attention=AttentionTypesConfig(attention, attention, attention),
    )
    torch.manual_seed(seed)
    size = FIRST_WORD + NUM_WORDS
    return Transformer(config, source_vocabulary_size=size, target_vocabulary_size=size)


def logits_of(model: Transformer, pairs: Pairs) -> Tensor:
    """[B, T, V], with the target before each position given."""
    shifted = functional.pad(pairs.target[:, :-1], (1, 0), value=BOS)
    return model.logits(model(pairs.source, pairs.source != PAD, shifted))


def support(model: Transformer) -> float:
    """The share of visible source keys with a weight that is not 0, over cross-attention."""
    pairs = make_pairs(100, torch.Generator().manual_seed(7))
    shares = []

    def look(site: object, weights: Tensor, visible: Tensor) -> None:
        if getattr(site, "type", "") == "cross":
            seen = visible.expand_as(weights)
            shares.append(((weights != 0) & seen).sum().item() / seen.sum().item())

    model.eval()
    with torch.no_grad(), observe_attention(model, look):
        logits_of(model, pairs)
    model.train()
    return sum(shares) / len(shares)


def train(kind: str, scale: float, norm: str, seed: int) -> Iterator[dict[str, object]]:
    """The mean loss of every 20 updates, the support at start and end, and the final accuracy."""
    model = make_model(kind, scale, norm, seed)
    about = {"kind": kind, "scale": scale, "norm": norm, "seed": seed}
    yield {**about, "update": 0, "measure": "support", "value": support(model)}
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=1.5e-3, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 60))
    losses: list[float] = []
    for update in range(1, UPDATES + 1):
        pairs = make_pairs(BATCH, generator)
        logits = logits_of(model, pairs)
        loss = functional.cross_entropy(logits.mT, pairs.target, ignore_index=PAD)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        if update % WINDOW == 0:
            mean = sum(losses[-WINDOW:]) / WINDOW
            yield {**about, "update": update, "measure": "loss", "value": mean}
    model.eval()
    pairs = make_pairs(500, torch.Generator().manual_seed(99))
    with torch.no_grad():
        right = logits_of(model, pairs).argmax(-1) == pairs.target
    accuracy = right[pairs.target != PAD].float().mean().item()
    yield {**about, "update": UPDATES, "measure": "accuracy", "value": accuracy}
    yield {**about, "update": UPDATES, "measure": "support", "value": support(model)}


def read(path: Path) -> list[dict[str, str]]:
    """The rows of the runs so far."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def draw(rows: list[dict[str, str]], path: Path) -> None:
    """The losses of post-norm models over updates: a panel per kind, a colour per scale."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 3.4), layout="constrained")
    panels = figure.subplots(1, len(KINDS), sharey=True)
    colours = dict(zip(SCALES, ("#b2182b", "#ef8a62", "#2166ac"), strict=True))
    for panel, kind in zip(panels, KINDS, strict=True):
        for scale, colour in colours.items():
            for seed in SEEDS:
                curve = [
                    (int(row["update"]), float(row["value"]))
                    for row in rows
                    if (row["kind"], row["norm"], row["measure"]) == (kind, "post", "loss")
                    and (float(row["scale"]), int(row["seed"])) == (scale, seed)
                ]
                label = f"scale {scale:g}" if seed == SEEDS[0] else None
                panel.plot(*zip(*curve, strict=True), color=colour, linewidth=1.2, label=label)
        panel.set(title=kind, xlabel="update")
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("training loss")
    panels[0].legend(frameon=False)
    figure.suptitle(
        "Reverse and translate 3 to 8 words: the scale of the first scores, three seeds each"
    )
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--output", type=Path, required=True, help="TSV file, continued if it exists"
    )
    parser.add_argument("--figure", type=Path, help="PNG file of the learning curves")
    options = parser.parse_args()
    torch.set_num_threads(1)
    runs = [(kind, scale, "post", seed) for seed in SEEDS for kind in KINDS for scale in SCALES]
    runs += [(kind, scale, "pre", 1) for kind in KINDS for scale in (1.0, 0.1)]
    done = {
        (row["kind"], float(row["scale"]), row["norm"], int(row["seed"]))
        for row in read(options.output)
        if row["measure"] == "accuracy"
    }
    for run in runs:
        if run in done:
            continue
        rows = list(train(*run))
        is_new = not options.output.exists()
        with options.output.open("a", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, rows[0], delimiter="\t", lineterminator="\n")
            if is_new:
                writer.writeheader()
            writer.writerows({**row, "value": f"{row['value']:.4f}"} for row in rows)
        print(
            *run, f"loss {rows[-3]['value']:.3f}", f"accuracy {rows[-2]['value']:.3f}", flush=True
        )
    if options.figure is not None:
        draw(read(options.output), options.figure)


if __name__ == "__main__":
    main()
