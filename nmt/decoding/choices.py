"""Choose the next tokens of a search step by sampling.

Shapes: B sentences, K hypotheses per sentence, V vocabulary, C candidates. Scores are sums of log
probabilities in float64; -inf marks a candidate that does not exist.
"""

import torch
from torch import Tensor

from nmt.config.search_options import Sampling
from nmt.ops.beam import Candidates


def choose_samples(
    logits: Tensor,
    normalizer: Tensor,
    scores: Tensor,
    *,
    end: int,
    sampling: Sampling,
    uniform: Tensor,
) -> tuple[Candidates, Candidates]:
    """A sampled continuation of each hypothesis: those that end and those that go on, [B, K] each.

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
