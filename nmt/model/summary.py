"""How many parameters a model has, by part."""

from dataclasses import dataclass

from torch import nn

from nmt.model.layers import DecoderLayer, EncoderLayer
from nmt.model.transformer import Transformer


@dataclass(frozen=True)
class ModelSummary:
    """Parameters by part; a tied table counts once, where it is first named."""

    parts: dict[str, int]
    notes: dict[str, str]

    @property
    def total(self) -> int:
        """All trained parameters."""
        return sum(self.parts.values())

    def __str__(self) -> str:
        rows = [*self.parts.items(), ("total", self.total)]
        width = max(len(name) for name, _ in rows)
        lines = []
        for name, count in rows:
            note = f"  ({self.notes[name]})" if name in self.notes else ""
            lines.append(f"{name:<{width}}  {count:>12,}{note}")
        return "\n".join(lines)


def count(module: nn.Module) -> int:
    """Trained parameters of a module."""
    return sum(parameter.numel() for parameter in module.parameters())


def summarize(model: Transformer) -> ModelSummary:
    """The parameters of a model by part, in the order of the data's way through it."""
    source, output = model.own_source_embedding, model.own_output_weight
    bias = 0 if model.output_bias is None else model.output_bias.numel()
    encoder = [layer for layer in model.encoder if isinstance(layer, EncoderLayer)]
    decoder = [layer for layer in model.decoder if isinstance(layer, DecoderLayer)]
    parts = {
        "source embeddings": 0 if source is None else source.numel(),
        "target embeddings": model.target_embedding.numel(),
        "encoder self-attention": sum(count(layer.self_attention) for layer in encoder),
        "encoder feed-forward": sum(count(layer.feed_forward) for layer in encoder),
        "decoder self-attention": sum(count(layer.self_attention) for layer in decoder),
        "decoder cross-attention": sum(count(layer.cross_attention) for layer in decoder),
        "decoder feed-forward": sum(count(layer.feed_forward) for layer in decoder),
        "layer norms": sum(
            count(module) for module in model.modules() if isinstance(module, nn.LayerNorm)
        ),
        "output": bias + (0 if output is None else output.numel()),
    }
    assert sum(parts.values()) == count(model), "a part of the model is missing in the summary"
    notes = {}
    if source is None:
        notes["source embeddings"] = "tied to the target embeddings"
    if output is None:
        notes["output"] = "tied to the target embeddings"
    return ModelSummary(parts, notes)
