"""Choose the next tokens of a search step: the best of a beam, or a sample.

Shapes: B sentences, K hypotheses of a sentence, V vocabulary, C candidates. Scores are sums of log
probabilities in float64; -inf marks a candidate that does not exist.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Sampling:
    """Draw tokens instead of taking the best."""

    temperature: float = 1.0  # below 1 sharpens, above 1 flattens
    top_k: int = 0  # only the k most probable tokens; 0: all
    top_p: float = 1.0  # only the most probable tokens that together reach this probability
    seed: int = 1

    def __post_init__(self) -> None:
        assert self.temperature > 0.0, "expected a temperature above 0"
        assert 0.0 < self.top_p <= 1.0, "expected 0 < top_p <= 1"
        assert self.top_k >= 0, "expected top_k >= 0"


@dataclass(frozen=True)
class Candidates:
    """Continuations of hypotheses, [B, C] each."""

    parents: Tensor  # which hypothesis is continued
    tokens: Tensor  # with which token
    scores: Tensor  # log probability up to and with this token

    def take(self, index: Tensor) -> "Candidates":
        """The candidates at these positions [B, C'] of each sentence."""
        return Candidates(
            self.parents.gather(1, index),
            self.tokens.gather(1, index),
            self.scores.gather(1, index),
        )


def choose_beam(
    logits: Tensor, normalizer: Tensor, scores: Tensor, *, end: int
) -> tuple[Candidates, Candidates]:
    """The candidates that end and those that live on, [B, K] each, best first.

    Candidates among the best K of a sentence that end are finished; the best K that do not end live
    on. Equal scores go by hypothesis, then by token number.
    """
    size, beam, vocabulary = logits.shape
    # At most one candidate of a hypothesis ends, so K + 1 of each hold the best K that do not. The
    # top k needs no log-softmax: only what is chosen is normalized.
    values, tokens = logits.topk(min(beam + 1, vocabulary), dim=-1, sorted=False)
    tokens, order = tokens.sort(dim=-1)
    values = values.gather(2, order)
    total = scores[:, :, None] + (values - normalizer[:, :, None])
    parents = torch.arange(beam, device=logits.device)[:, None].expand_as(tokens)
    candidates = Candidates(parents.flatten(1), tokens.flatten(1), total.flatten(1))
    candidates = candidates.take(
        candidates.scores.argsort(dim=1, descending=True, stable=True)[:, : 2 * beam]
    )
    ends = candidates.tokens == end
    finished = candidates.take(torch.arange(beam, device=logits.device).expand(size, beam))
    finished.scores.masked_fill_(~ends[:, :beam], -torch.inf)
    live = candidates.take(ends.to(torch.int8).argsort(dim=1, stable=True)[:, :beam])
    live.scores.masked_fill_(live.tokens == end, -torch.inf)
    return finished, live


def choose_samples(
    logits: Tensor,
    normalizer: Tensor,
    scores: Tensor,
    *,
    end: int,
    sampling: Sampling,
    uniform: Tensor,
) -> tuple[Candidates, Candidates]:
    """A drawn continuation of each hypothesis: those that end, those that live on, [B, K] each.

    `uniform` [B, K] holds the random numbers. Scores are those of the model, whatever the
    temperature and the filters.
    """
    vocabulary = logits.shape[-1]
    count = min(sampling.top_k or vocabulary, vocabulary)
    values, tokens = logits.topk(count, dim=-1)
    weights = torch.softmax(values.double() / sampling.temperature, dim=-1)
    before = weights.cumsum(dim=-1) - weights
    weights = weights.masked_fill(before >= sampling.top_p, 0.0)
    cumulative = weights.cumsum(dim=-1)
    place = (cumulative <= uniform[:, :, None] * cumulative[:, :, -1:]).sum(dim=-1, keepdim=True)
    # Never past the last token with a positive weight, however the sums were rounded.
    place = place.minimum((weights > 0.0).sum(dim=-1, keepdim=True) - 1).clamp(min=0)
    token = tokens.gather(2, place)
    total = scores + (values.gather(2, place)[:, :, 0] - normalizer)
    parents = torch.arange(logits.shape[1], device=logits.device).expand_as(scores)
    ends = token[:, :, 0] == end
    finished = Candidates(parents, token[:, :, 0], total.masked_fill(~ends, -torch.inf))
    live = Candidates(parents, token[:, :, 0], total.masked_fill(ends, -torch.inf))
    return finished, live
