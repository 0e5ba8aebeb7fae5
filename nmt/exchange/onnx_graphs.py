"""A model as two graphs that the ONNX exporter of torch can trace: encoder and decoder step.

The graphs run the reference of every operation. Score mappings whose reference decides by the data
are replaced by one with a fixed number of operations, for any number of keys.

Shapes: B sentences or hypotheses, L decoder layers, H heads, S source positions, T positions so
far, Dh width of a head, V target vocabulary, K keys.
"""

import copy
from typing import Literal

import torch
from torch import Tensor, nn

from nmt.model.attention import AttentionCore, KeyValue
from nmt.model.layers import DecoderLayer
from nmt.model.norms import HeadNorm
from nmt.model.transformer import Transformer
from nmt.ops.half_linear import SublayerOutput
from nmt.ops.head_norm import EPSILON
from nmt.ops.masking import InPlaceMask, hide
from nmt.ops.residual import ResidualStream
from nmt.ops.score_mappings import Entmax, ScoreMapping, Softmax, TopK

BISECTIONS = 26  # halvings of an interval of length 1, until float32 has no more bits
LOWEST_SCORE = -1e4  # scores this far below the highest of their row have weight 0 in every mapping


def below_highest(scores: Tensor, visible: Tensor | None) -> Tensor:
    """Scores minus the highest visible one of their row; hidden ones are LOWEST_SCORE."""
    hidden = hide(scores, visible)
    return (hidden - hidden.amax(-1, keepdim=True)).clamp(min=LOWEST_SCORE)


def counts(x: Tensor) -> Tensor:
    """1 to K, in the type of x [..., K]."""
    return torch.ones_like(x).cumsum(-1)


def sparsemax(scores: Tensor, visible: Tensor | None) -> Tensor:
    """Sparsemax by sorting (Martins and Astudillo 2016, algorithm 1)."""
    x = below_highest(scores, visible)
    falling = x.sort(dim=-1, descending=True).values
    sums, number = falling.cumsum(-1) - 1.0, counts(falling)
    support = (number * falling > sums).sum(-1, keepdim=True)
    return (x - sums.gather(-1, support - 1) / support).clamp(min=0.0)


def entmax15(scores: Tensor, visible: Tensor | None) -> Tensor:
    """1.5-entmax by sorting (Peters et al. 2019, algorithm 2)."""
    x = below_highest(scores, visible) / 2.0
    falling = x.sort(dim=-1, descending=True).values
    number = counts(falling)
    mean = falling.cumsum(-1) / number
    spread = falling.square().cumsum(-1) - number * mean.square()
    thresholds = mean - ((1.0 - spread) / number).clamp(min=0.0).sqrt()
    support = (thresholds <= falling).sum(-1, keepdim=True)
    return (x - thresholds.gather(-1, support - 1)).clamp(min=0.0).square()


def entmax_by_halves(scores: Tensor, visible: Tensor | None, beta: Tensor | float) -> Tensor:
    """alpha-entmax for beta = alpha - 1, by bisection of the threshold."""
    x = below_highest(scores, visible) * beta
    power = 1.0 / beta
    low = torch.full_like(x[..., :1], -1.0)
    for step in range(1, BISECTIONS + 1):
        middle = low + 0.5**step
        total = (x - middle).clamp(min=0.0).pow(power).sum(-1, keepdim=True)
        low = torch.where(total >= 1.0, middle, low)
    weights = (x - low).clamp(min=0.0).pow(power)
    return weights / weights.sum(-1, keepdim=True)


class TracedMapping(ScoreMapping):
    """A mapping whose operations do not depend on the data, nor on the number of keys."""

    def __init__(self, mapping: ScoreMapping) -> None:
        self.mapping = mapping

    def weights(self, scores: Tensor, visible: Tensor | None, *parameters: Tensor) -> Tensor:
        mapping = self.mapping  # of one that extends ours, `weights` is the definition
        if type(mapping) is Softmax:
            return hide(scores, visible).softmax(-1)
        if type(mapping) is Entmax:
            if mapping.alpha == 2.0:
                return sparsemax(scores, visible)
            if mapping.alpha == 1.5:
                return entmax15(scores, visible)
            beta = mapping.beta(parameters[0] if parameters else None, scores.dtype)
            return entmax_by_halves(scores, visible, beta)
        if type(mapping) is TopK:
            falling = hide(scores, visible).sort(dim=-1, descending=True).values
            # The k-th score, or -inf where there are fewer keys.
            later = falling.masked_fill(counts(falling) < mapping.k, -torch.inf)
            scores = hide(scores, scores >= later.amax(-1, keepdim=True))
            return hide(scores, visible).softmax(-1)
        return mapping.weights(scores, visible, *parameters)


class TracedHeadNorm(nn.Module):
    """The norm of concatenated heads in operations that every exporter has."""

    def __init__(self, norm: HeadNorm) -> None:
        super().__init__()
        self.gain, self.gate = norm.gain, norm.gate
        self.norm: Literal["rms", "layer", "none"] = norm.norm

    def forward(self, z: Tensor) -> Tensor:
        """[..., D] for z [..., D]."""
        y = z - z.mean(-1, keepdim=True) if self.norm == "layer" else z
        if self.norm != "none":
            y = y / (y.square().mean(-1, keepdim=True) + EPSILON).sqrt()
        if self.gain is not None:
            y = y * self.gain
        return y if self.gate is None else torch.sigmoid(self.gate * z) * y


def traceable(model: Transformer, *, positions: int) -> Transformer:
    """A copy of a model that can be traced, with a table of `positions` positions."""
    model = copy.deepcopy(model).eval()
    for module in model.modules():
        if isinstance(module, AttentionCore):
            module.mapping = TracedMapping(module.mapping)
            if module.norm is not None:
                module.norm = TracedHeadNorm(module.norm)  # type: ignore[assignment]
    for side in (model.source_input, model.target_input):
        side.positions(positions)
    return model


class EncoderGraph(nn.Module):
    """From source tokens to the keys and values that the decoder attends to."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, source: Tensor, source_visible: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values, [L, B, H, S, Dh] each, for source [B, S] and what is no padding."""
        memory = self.model.encode(source, source_visible)
        cross = []
        for layer in self.model.decoder:
            assert isinstance(layer, DecoderLayer)
            cross.append(layer.cross_attention.project(memory))
        return torch.stack([one.key for one in cross]), torch.stack([one.value for one in cross])


class DecoderGraph(nn.Module):
    """One step of the decoder: the next token of each hypothesis, and a longer cache."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        tokens: Tensor,
        past_keys: Tensor,
        past_values: Tensor,
        cross_keys: Tensor,
        cross_values: Tensor,
        source_visible: Tensor,
    ) -> tuple[Tensor, ...]:
        """Logits [B, V], keys and values with one position more, and cross-attention [L, B, H, S].

        Tokens are [B], the past [L, B, H, T, Dh] each, source_visible is [B, S].
        """
        model = self.model
        position = model.target_input.positions(past_keys.shape[3] + 1)[-1]
        x = ResidualStream.of(
            model.target_input.at(tokens[:, None], model.target_embedding, position)
        )
        visible = source_visible[:, None, None, :]
        mask = InPlaceMask(visible, x.exact.dtype, has_empty_rows=False)
        keys, values, observed = [], [], []
        for index, layer in enumerate(model.decoder):
            assert isinstance(layer, DecoderLayer)
            past = KeyValue(past_keys[index], past_values[index])
            cross = KeyValue(cross_keys[index], cross_values[index])
            attend = AppendingAttention(layer, past)
            layer.cross_attention.core.observer = lambda weights, _: observed.append(weights)
            x = layer(
                x, attend, lambda y, at=layer.cross_attention, kv=cross: at.attend(y, kv, mask)
            )
            keys.append(attend.memory.key)
            values.append(attend.memory.value)
        logits = model.logits(model.decoder_norm(x.rounded))[:, 0]
        weights = torch.stack(observed)[:, :, :, 0]
        return logits, torch.stack(keys), torch.stack(values), weights


class AppendingAttention:
    """Self-attention of a new position to a past, which it appends its key and value to."""

    def __init__(self, layer: DecoderLayer, past: KeyValue) -> None:
        self.attention = layer.self_attention
        self.memory = past

    def __call__(self, x: Tensor) -> SublayerOutput:
        """[B, 1, D] for x [B, 1, D]."""
        query, new = self.attention.project(x)
        self.memory = KeyValue(
            torch.cat([self.memory.key, new[0]], dim=2),
            torch.cat([self.memory.value, new[1]], dim=2),
        )
        return self.attention.attend(query, self.memory, None)
