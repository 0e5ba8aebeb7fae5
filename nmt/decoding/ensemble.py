"""One model or several that translate together, as the step function that search asks.

Shapes: B sentences, K hypotheses per sentence, S source and T target positions, V vocabulary.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from nmt.data.codec import Codec
from nmt.data.vocabulary import BOS, PAD
from nmt.decoding.batching import round_up
from nmt.decoding.decoder import Decoder, make_decoder
from nmt.decoding.engine_step import EngineStep
from nmt.errors import DataError
from nmt.model.transformer import Transformer

# Sentences, and so the rows of all matrix products, are kept at a multiple of this for models that
# are not packed: products of 1 to 3 rows (with several threads also 5 to 7 and 9 to 11) take
# another path in MKL.
BATCH_MULTIPLE = 4

# Torch has yet another path for matrix products of fewer multiplications than this. With small
# heads the source is padded until the scores of a hypothesis take more of them.
SMALL_PRODUCT = 400

LOGIT_ROWS = 512  # positions whose logits are held at a time while scoring

Ids = Sequence[int]


@dataclass(frozen=True)
class Member:
    """One model of an ensemble with its codec."""

    model: Transformer
    codec: Codec
    decoder: Decoder

    @classmethod
    def of(
        cls, model: Transformer, codec: Codec, *, int8: bool = False, keep_model: bool = False
    ) -> Self:
        """The fastest member; unless it is kept, the model may be changed to translate only."""
        return cls(model, codec, make_decoder(model, int8=int8, keep_model=keep_model))


def check_same_target(members: Sequence[Member], names: Sequence[str]) -> None:
    """Raise for models that do not share one target vocabulary."""
    first = members[0].codec.target
    for member, name in zip(members, names, strict=True):
        if member.codec.target.vocabulary != first.vocabulary:
            raise DataError(
                f"{name}: expected the target vocabulary of {names[0]}, got another one; the "
                "models of an ensemble must have been trained with the same prepared data"
            )


def pad(
    sentences: Sequence[Ids], *, multiple: int, device: torch.device | str, least: int = 1
) -> tuple[Tensor, Tensor]:
    """Sentences as [B, S] filled up with PAD to a multiple of positions, and where they are."""
    length = round_up(max(least, *map(len, sentences)), multiple)
    ids = torch.full((len(sentences), length), PAD)
    for row, sentence in enumerate(sentences):
        ids[row, : len(sentence)] = torch.tensor(sentence, dtype=torch.int64)
    lengths = torch.tensor([len(sentence) for sentence in sentences])
    visible = torch.arange(length) < lengths[:, None]
    return ids.to(device), visible.to(device)


def decoder_input(target: Tensor) -> Tensor:
    """BOS and the target [B, T] without its last position: what the decoder reads to predict it."""
    start = target.new_full((len(target), 1), BOS)
    return torch.cat([start, target[:, :-1]], dim=1)


class TorchStep:
    """The step function of one model, computed by torch."""

    def __init__(
        self,
        member: Member,
        sources: Sequence[Ids],
        *,
        beam: int,
        max_length: int,
        multiple: int,
        device: torch.device | str,
    ) -> None:
        self.model, self.output = member.model, member.decoder.logits
        config = member.model.config
        head_dim = config.dim // config.heads
        least = 1 if multiple == 1 else math.ceil(SMALL_PRODUCT / head_dim)
        source, visible = pad(sources, multiple=multiple, device=device, least=least)
        memory = self.model.encode(source, visible)
        # One position more than the longest output: the start token is read, too.
        self.cache = self.model.start(memory, visible, beam=beam, max_length=max_length + 1)

    def __call__(self, tokens: Tensor) -> Tensor:
        """Logits [B, K, V] after tokens [B, K]."""
        return self.output(self.model.step(tokens, self.cache)).float()

    def reorder(self, parents: Tensor) -> None:
        """Continue the old hypotheses parents [B, K]."""
        self.cache.reorder(parents)

    def select(self, sentences: Tensor) -> None:
        """Keep these sentences [B']."""
        self.cache.select(sentences)


class EnsembleStep:
    """The step function of a batch: one model's logits, or the log of the mean probability."""

    def __init__(
        self,
        members: Sequence[Member],
        sources: Sequence[Sequence[Ids]],
        *,
        beam: int,
        max_length: int,
        multiple: int,
        device: torch.device | str,
    ) -> None:
        """`sources` has the B sentences (with EOS) as each member's codec encodes them."""
        self.steps: list[TorchStep | EngineStep] = [
            EngineStep(member.decoder.engine, sentences, beam=beam, max_length=max_length)
            if member.decoder.engine is not None
            else TorchStep(
                member,
                sentences,
                beam=beam,
                max_length=max_length,
                multiple=multiple,
                device=device,
            )
            for member, sentences in zip(members, sources, strict=True)
        ]

    def __call__(self, tokens: Tensor) -> Tensor:
        """Logits [B, K, V] after tokens [B, K]."""
        outputs = [step(tokens) for step in self.steps]
        return outputs[0] if len(outputs) == 1 else mean_probability(outputs)

    def reorder(self, parents: Tensor) -> None:
        """Continue the old hypotheses parents [B, K]."""
        for step in self.steps:
            step.reorder(parents)

    def select(self, sentences: Tensor) -> None:
        """Keep these sentences [B']."""
        for step in self.steps:
            step.select(sentences)


def mean_probability(outputs: Sequence[Tensor]) -> Tensor:
    """The log of the mean of the models' probabilities, [..., V] for logits [..., V] of each."""
    total = outputs[0].log_softmax(dim=-1)
    for logits in outputs[1:]:
        total = torch.logaddexp(total, logits.log_softmax(dim=-1))
    return total - math.log(len(outputs))


def target_log_probabilities(
    members: Sequence[Member],
    sources: Sequence[Sequence[Ids]],
    targets: Sequence[Ids],
    *,
    multiple: int,
    device: torch.device | str,
) -> Tensor:
    """The log probability [B, T] of every target token (with EOS), 0 in the padding."""
    output, target_visible = pad(targets, multiple=multiple, device=device)
    target_input = decoder_input(output)
    total: Tensor | None = None
    for member, sentences in zip(members, sources, strict=True):
        source, visible = pad(sentences, multiple=multiple, device=device)
        hidden = member.model(source, visible, target_input)
        chosen = chosen_log_probabilities(member.decoder.logits, hidden, output)
        total = chosen if total is None else torch.logaddexp(total, chosen)
    assert total is not None
    return (total - math.log(len(members))).masked_fill(~target_visible, 0.0)


def chosen_log_probabilities(
    output_layer: Callable[[Tensor], Tensor], hidden: Tensor, output: Tensor
) -> Tensor:
    """The log probability [B, T] of output [B, T]; holds the logits of few positions at a time."""
    parts = []
    for states, tokens in zip(
        torch.split(hidden.flatten(0, 1), LOGIT_ROWS),
        torch.split(output.flatten(), LOGIT_ROWS),
        strict=True,
    ):
        logits = output_layer(states).float()
        parts.append(logits.gather(1, tokens[:, None])[:, 0] - logits.logsumexp(dim=-1))
    return torch.cat(parts).view(output.shape)
