"""Choose the next tokens of a search step: the best of a beam, or a sample.

Shapes: B sentences, K hypotheses of a sentence, V vocabulary, C candidates. Scores are sums of log
probabilities in float64; -inf marks a candidate that does not exist.
"""

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

from nmt.config.search_options import Sampling
from nmt.native import search as native
from nmt.native.library import kernels_for

GROUP_SIZE = 16  # numbers of which `top_k` takes the maximum first
LEAST_GROUPS = 8  # for each number that is wanted: with fewer there is little to gain


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
    logits: Tensor, normalizer: Tensor, scores: Tensor, *, beam: int, end: int
) -> tuple[Candidates, Candidates]:
    """The candidates that end and those that live on, [B, beam] each, best first.

    Candidates among the best `beam` of a sentence that end are finished; the best `beam` that do
    not end live on. Equal scores go by hypothesis, then by token number.
    """
    kernels = kernels_for(logits)
    if kernels is not None and beam <= kernels.most_beam():
        finished, live = native.choose_beam(kernels, logits, normalizer, scores, beam, end)
        return Candidates(*finished), Candidates(*live)
    return choose_beam_by_torch(logits, normalizer, scores, beam=beam, end=end)


def choose_beam_by_torch(
    logits: Tensor, normalizer: Tensor, scores: Tensor, *, beam: int, end: int
) -> tuple[Candidates, Candidates]:
    """The same on any device."""
    _, width, vocabulary = logits.shape
    # At most one candidate of a hypothesis ends, so beam + 1 of each hold the best that do not. The
    # top k needs no log-softmax: only what is chosen is normalized.
    values, tokens = top_k(logits, min(beam + 1, vocabulary))
    tokens, order = tokens.sort(dim=-1)
    values = values.gather(2, order)
    total = (scores[:, :, None] + (values - normalizer[:, :, None])).flatten(1)
    missing = 2 * beam - total.shape[1]
    if missing > 0:  # of a tiny vocabulary
        total = functional.pad(total, (0, missing), value=-torch.inf)
    ranked, order = total.sort(dim=1, descending=True, stable=True)
    order = order[:, : 2 * beam].clamp(max=width * tokens.shape[2] - 1)
    parents = order.div(tokens.shape[2], rounding_mode="floor")
    candidates = Candidates(parents, tokens.flatten(1).gather(1, order), ranked[:, : 2 * beam])
    ends = candidates.tokens == end
    finished = Candidates(
        parents[:, :beam],
        candidates.tokens[:, :beam],
        candidates.scores[:, :beam].masked_fill(~ends[:, :beam], -torch.inf),
    )
    live = candidates.take(ends.to(torch.int8).argsort(dim=1, stable=True)[:, :beam])
    live.scores.masked_fill_(live.tokens == end, -torch.inf)
    return finished, live


def top_k(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest of logits [B, K, V] and where they are, [B, K, count] each, in any order.

    Of a large vocabulary the maxima of groups come first: the largest numbers are in the `count`
    groups whose maxima are largest. torch's own top k takes ten times as long.
    """
    vocabulary = logits.shape[-1]
    groups = vocabulary // GROUP_SIZE
    if groups < LEAST_GROUPS * count:
        return logits.topk(count, dim=-1, sorted=False)
    whole = groups * GROUP_SIZE
    # A group is every groups-th number, so that a maximum over groups is one over whole rows.
    maxima = logits[..., :whole].view(*logits.shape[:-1], GROUP_SIZE, groups).amax(dim=-2)
    best = maxima.topk(count, dim=-1, sorted=False).indices
    positions = (best[..., None] + counted(0, whole, groups, logits.device)).flatten(-2)
    if whole < vocabulary:
        rest = counted(whole, vocabulary, 1, logits.device)
        positions = torch.cat([positions, rest.expand(*best.shape[:-1], -1)], dim=-1)
    values, index = logits.gather(-1, positions).topk(count, dim=-1, sorted=False)
    return values, positions.gather(-1, index)


@cache
def counted(first: int, end: int, step: int, device: torch.device) -> Tensor:
    """`torch.arange`, made once: every step of a search takes the same."""
    return torch.arange(first, end, step, device=device)


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
