"""Every attention kind of the table, and every option that changes what a kind does."""

import torch

from nmt.config.attention_kinds import ATTENTION_KINDS
from nmt.config.config import AttentionConfig
from nmt.model.attention import AttentionCore

KINDS = {kind: AttentionConfig(kind) for kind in ATTENTION_KINDS}
VARIANTS = {
    "sparsemax by package": AttentionConfig("sparsemax", backend="package"),
    "entmax15 by package": AttentionConfig("entmax15", backend="package"),
    "entmax 1.3 by package": AttentionConfig("entmax", alpha=1.3, backend="package"),
    "entmax 1.02": AttentionConfig("entmax", alpha=1.02),
    "entmax 1.3": AttentionConfig("entmax", alpha=1.3),
    "entmax 2": AttentionConfig("entmax", alpha=2.0),
    "entmax learned": AttentionConfig("entmax", alpha="learned"),
    "ReLU alone": AttentionConfig("rela-i", norm="none"),
    "ReLU and RMSNorm": AttentionConfig("rela-i", gain_init=1.0),
    "rela-g layer": AttentionConfig("rela-g", norm="layer"),
    "rela-g gelu": AttentionConfig("rela-g", activation="gelu"),
    "rela-g leaky": AttentionConfig("rela-g", activation="leaky_relu"),
    "rela-g squared": AttentionConfig("rela-g", activation="squared_relu"),
    "rela-g identity": AttentionConfig("rela-g", activation="identity"),
    "rela-g above 0.3": AttentionConfig("rela-g", threshold=0.3),
    "rela-g learned threshold": AttentionConfig("rela-g", threshold="learned"),
    "rela-i gated layer": AttentionConfig("rela-i", norm="layer", gate=True),
    "topk 2": AttentionConfig("topk", k=2),
}
CASES = KINDS | VARIANTS
NORMALISED = {name: case for name, case in CASES.items() if case.row.sums_to_one}
RECTIFIED = {
    name: case
    for name, case in CASES.items()
    if case.row.can_attend_to_nothing
    and case.given.get("activation") in (None, "relu", "squared_relu")
}
TRACEABLE = {name: case for name, case in CASES.items() if case.row.mapping(case.values).traceable}
IN_C = {
    name: case for name, case in CASES.items() if case.row.mapping(case.values).row_map is not None
}

HEADS, DIM = 4, 32


def make_core(case: AttentionConfig, *, dtype: torch.dtype = torch.float32) -> AttentionCore:
    """A core whose every parameter is away from its start, in evaluation mode."""
    torch.manual_seed(0)  # some kinds draw their start
    core = AttentionCore(DIM, HEADS, attention=case, dropout=0.1).to(dtype).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in core.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator).to(dtype))
    return core


def make_projections(
    batch: int, queries: int, keys: int, *, dtype: torch.dtype = torch.float32, seed: int = 2
) -> tuple[torch.Tensor, torch.Tensor]:
    """query [B, Q, D] and key_value [B, K, 2 D] that give scores of about unit size."""
    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(batch, queries, DIM, generator=generator, dtype=torch.float64)
    key_value = torch.randn(batch, keys, 2 * DIM, generator=generator, dtype=torch.float64)
    return query.to(dtype), key_value.to(dtype)


def weigh(core: AttentionCore, scores: torch.Tensor, visible: torch.Tensor | None) -> torch.Tensor:
    """The weights [B, H, Q, K] that a core makes of scores."""
    return core.mapping.weights(scores, visible, *core.weights.values())
