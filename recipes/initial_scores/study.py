"""How the scale of the first attention scores decides how fast sparse attention learns.

python recipes/initial_scores/study.py --output results.tsv [--figure PNG] [--inside PNG]

The task is to reverse 3 to 8 words and to replace each by its translation. Each run of 400 updates
takes about 15 seconds on one core. Runs that are in the output already are not repeated.
"""

import argparse
import csv
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrize

from nmt.config.config import (
    AttentionTypesConfig,
    ModelConfig,
    SublayerAttentionConfig,
)
from nmt.model.attention import SelfAttention, Site
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

# Two other ways to start near softmax, both at scale 1.
ANNEALED, TEMPERATURE = "sparsemax, alpha rises from 1", "sparsemax, learned temperature"
REMEDIES = {ANNEALED: {"kind": "entmax", "alpha": "learned"}, TEMPERATURE: {"kind": "sparsemax"}}
ANNEALING = 200  # updates until alpha is 2

# What goes on inside is measured in these runs, before these updates.
INSIDE_RUNS = [(kind, scale, "post", 1) for kind in KINDS for scale in (1.0, 0.1)]
INSIDE_UPDATES = (1, 20, 50, 100, 150, 200, 300, 400)
DEAD = 0.01  # of the gradient of the median head


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
    attention = SublayerAttentionConfig(**{**KINDS, **REMEDIES}[kind])
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
    model = Transformer(config, source_vocabulary_size=size, target_vocabulary_size=size)
    if kind == TEMPERATURE:
        for attention in model.attentions().values():
            layer = query_layer(attention)
            parametrize.register_parametrization(
                layer, "weight", Temperature(config.heads, config.dim)
            )
    return model


def query_layer(attention: nn.Module) -> nn.Module:
    """The projection whose first D outputs are the queries."""
    return attention.query_key_value if isinstance(attention, SelfAttention) else attention.query


class Temperature(nn.Module):
    """Multiplies the scores of each head by a learned positive number, which is 1 at the start."""

    def __init__(self, heads: int, dim: int) -> None:
        super().__init__()
        self.logarithm = nn.Parameter(torch.zeros(heads))
        self.dim = dim

    def forward(self, weight: Tensor) -> Tensor:
        factors = self.logarithm.exp().repeat_interleave(self.dim // len(self.logarithm))
        ones = torch.ones(len(weight) - self.dim)
        return weight * torch.cat([factors, ones])[:, None]


def anneal(model: Transformer, update: int) -> None:
    """Set alpha, which rises from 1.01 to 2 in the first updates, for all heads."""
    beta = torch.tensor(min(1.0, 0.01 + 0.99 * (update - 1) / ANNEALING))
    for attention in model.attentions().values():
        for parameter in attention.core.weights.parameters():
            parameter.requires_grad_(False).fill_(beta.logit(eps=1e-8))


def logits_of(model: Transformer, pairs: Pairs) -> Tensor:
    """[B, T, V], with the target before each position given."""
    shifted = functional.pad(pairs.target[:, :-1], (1, 0), value=BOS)
    return model.logits(model(pairs.source, pairs.source != PAD, shifted))


def supports(model: Transformer) -> dict[Site, float]:
    """The share of visible keys with a weight that is not 0, by sublayer."""
    pairs = make_pairs(100, torch.Generator().manual_seed(7))
    shares = {}

    def look(site: Site, weights: Tensor, visible: Tensor) -> None:
        seen = visible.expand_as(weights)
        shares[site] = ((weights != 0) & seen).sum().item() / seen.sum().item()

    model.eval()
    with torch.no_grad(), observe_attention(model, look):
        logits_of(model, pairs)
    model.train()
    return shares


def support(model: Transformer) -> float:
    """The share of visible source keys with a weight that is not 0, over cross-attention."""
    shares = [share for site, share in supports(model).items() if site.type == "cross"]
    return sum(shares) / len(shares)


def inside(model: Transformer) -> Iterator[tuple[str, float]]:
    """Support and gradient of the queries by sublayer, and the number of dead heads."""
    for site, share in supports(model).items():
        yield f"support/{site.type}/{site.layer}", share
    norms = {}
    for site, attention in model.attentions().items():
        gradient = query_layer(attention).weight.grad[: model.config.dim]
        norms[site] = gradient.view(model.config.heads, -1).norm(dim=1)
        yield f"gradient/{site.type}/{site.layer}", gradient.norm().item()
    heads = torch.cat(list(norms.values()))
    yield "dead heads", (heads < DEAD * heads.median()).sum().item()


def train(kind: str, scale: float, norm: str, seed: int) -> Iterator[dict[str, object]]:
    """The loss of every 20 updates, measures inside, and support and accuracy at the end."""
    model = make_model(kind, scale, norm, seed)
    about = {"kind": kind, "scale": scale, "norm": norm, "seed": seed}
    if kind == ANNEALED:
        anneal(model, 1)
    yield {**about, "update": 0, "measure": "support", "value": support(model)}
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=1.5e-3, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 60))
    losses: list[float] = []
    for update in range(1, UPDATES + 1):
        if kind == ANNEALED:
            anneal(model, update)
        pairs = make_pairs(BATCH, generator)
        logits = logits_of(model, pairs)
        loss = functional.cross_entropy(logits.mT, pairs.target, ignore_index=PAD)
        optimizer.zero_grad()
        loss.backward()
        if (kind, scale, norm, seed) in INSIDE_RUNS and update in INSIDE_UPDATES:
            for measure, value in inside(model):
                yield {**about, "update": update, "measure": measure, "value": value}
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


def draw_inside(rows: list[dict[str, str]], path: Path) -> None:
    """Support and gradient of cross-attention over updates: a column per kind."""
    from matplotlib.figure import Figure

    curves: dict[tuple[str, ...], list[tuple[int, float]]] = defaultdict(list)
    for row in rows:
        measure, *site = row["measure"].split("/")
        if site:
            key = (measure, row["kind"], f"{float(row['scale']):g}", *site)
            curves[key].append((int(row["update"]), float(row["value"])))
    figure = Figure(figsize=(12, 6), layout="constrained")
    panels = figure.subplots(2, len(KINDS), sharex=True, sharey="row")
    for line, measure in zip(panels, ("support", "gradient"), strict=True):
        for panel, kind in zip(line, KINDS, strict=True):
            for scale, colour in (("1", "#b2182b"), ("0.1", "#2166ac")):
                for layer, style in (("0", "-"), ("1", "--")):
                    curve = curves[measure, kind, scale, "cross", layer]
                    label = f"scale {scale}, layer {layer}"
                    panel.plot(*zip(*curve, strict=True), style, color=colour, label=label)
            panel.grid(alpha=0.3)
    for panel, kind in zip(panels[0], KINDS, strict=True):
        panel.set(title=kind, ylim=(0, 1.05))
    for panel in panels[1]:
        panel.set(xlabel="update", yscale="log")
    panels[0][0].set_ylabel("keys with a weight above 0")
    panels[1][0].set_ylabel("norm of the queries' gradient")
    panels[0][0].legend(frameon=False, fontsize=8)
    figure.suptitle("Cross-attention while learning to reverse and translate words, one seed")
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--output", type=Path, required=True, help="TSV file, continued if it exists"
    )
    parser.add_argument("--figure", type=Path, help="PNG file of the learning curves")
    parser.add_argument("--inside", type=Path, help="PNG file of supports and gradients")
    options = parser.parse_args()
    torch.set_num_threads(1)
    runs = [(kind, scale, "post", seed) for seed in SEEDS for kind in KINDS for scale in SCALES]
    runs += [(kind, scale, "pre", 1) for kind in KINDS for scale in (1.0, 0.1)]
    runs += [(kind, 1.0, "post", seed) for kind in REMEDIES for seed in SEEDS]
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
    if options.inside is not None:
        draw_inside(read(options.output), options.inside)


if __name__ == "__main__":
    main()
