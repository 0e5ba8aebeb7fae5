"""The operations of a search step on logits: the normalizer, and the best continuations of a beam.

Shapes: B sentences, K hypotheses of a sentence, V vocabulary, C candidates, R = B K rows. Scores
are sums of log probabilities in float64; -inf marks a candidate that does not exist.
"""

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

from nmt.ops import cuda_search
from nmt.ops.backend import Call, Implementation, Operation
from nmt.ops.kernels import native_refusal
from nmt.ops.native import search
from nmt.ops.native.library import kernels

GROUP_SIZE = 16  # numbers of which `top_k` takes the maximum first
LEAST_GROUPS = 8  # for each number that is wanted: with fewer there is little to gain

# Numbers whose exponentials are held at a time while normalizing: they stay in the cache.
BLOCK_NUMBERS = 65_536
# Sums of exponentials whose logarithm is beyond this, up or down, may have lost digits.
LARGEST_LOG = 69.0


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


def normalize_reference(logits: Tensor) -> Tensor:
    """The log of the sum of exponentials [B, K] of logits [B, K, V], in which NaN becomes -inf.

    It is +inf where nothing finite is left, so that every log probability of that row is -inf.
    Rows with other numbers than finite ones are changed in place.
    """
    rows = logits.flatten(0, 1)
    rows.nan_to_num_(nan=-torch.inf, posinf=-torch.inf, neginf=-torch.inf)
    total = torch.logsumexp(rows, dim=1)
    return torch.where(total == -torch.inf, torch.inf, total).view(logits.shape[:2])


def normalize_blocks(logits: Tensor) -> Tensor:
    """The normalizer by sums that do not subtract the largest number of a row first.

    Rows whose sums cannot be trusted are computed again.
    """
    rows = logits.flatten(0, 1)
    normalizer = sum_rows(rows)
    untrusted = ~(normalizer.abs() < LARGEST_LOG)
    if untrusted.any():
        # Row by row, so that no row has other bits because of those around it.
        for row in untrusted.nonzero()[:, 0].tolist():
            rows[row].masked_fill_(~rows[row].isfinite(), -torch.inf)
            total = torch.logsumexp(rows[row], dim=0)
            normalizer[row] = torch.where(total == -torch.inf, torch.inf, total)
    return normalizer.view(logits.shape[:2])


def sum_rows(rows: Tensor) -> Tensor:
    """The logarithms [R] of the sums of the exponentials of rows [R, V].

    Blocks have one size, so that the bits of a row do not depend on its block.
    """
    size = max(2, BLOCK_NUMBERS // rows.shape[1])
    block = rows.new_empty(size, rows.shape[1])
    sums = []
    for part in torch.split(rows, size):
        torch.exp(part, out=block[: len(part)])
        sums.append(block.sum(dim=-1)[: len(part)])
    return (sums[0] if len(sums) == 1 else torch.cat(sums)).log()


def refuses_native(logits: Tensor) -> str | None:
    """Why the kernels cannot be taken, or None."""
    if not logits.is_contiguous():
        return "expected contiguous logits"
    return native_refusal(logits)


normalize = Operation(
    "normalizer of logits",
    normalize_reference,
    [
        Implementation(
            "triton", "kernel in Triton", cuda_search.normalize, accepts=cuda_search.refuses_logits
        ),
        Implementation(
            "native",
            "C kernels",
            lambda logits: search.normalize(kernels(), logits),
            accepts=refuses_native,
        ),
        Implementation(
            "torch",
            "blocks of exponentials",
            normalize_blocks,
            prefers=lambda logits: (
                "the host would wait for a GPU to count them" if logits.is_cuda else None
            ),
        ),
    ],
    example=lambda device: ((torch.ones(1, 2, 8, device=device),), {}),
    gradients=False,
)


def choose_beam_reference(
    logits: Tensor, normalizer: Tensor, scores: Tensor, *, beam: int, end: int
) -> tuple[Candidates, Candidates]:
    """The candidates that end and those that live on, [B, beam] each, best first.

    Candidates among the best `beam` of a sentence that end are finished; the best `beam` that do
    not end live on. Equal scores go by hypothesis, then by token id.

    Faster implementations rank the best few logits of each hypothesis. Of different logits that
    round to one score they take the higher ones; of equal logits, `choose_beam_torch` takes any.
    """
    tokens = torch.arange(logits.shape[2], device=logits.device).expand_as(logits)
    return rank(logits, tokens, normalizer, scores, beam=beam, end=end)


def choose_beam_torch(
    logits: Tensor, normalizer: Tensor, scores: Tensor, *, beam: int, end: int
) -> tuple[Candidates, Candidates]:
    """The candidates that end and those that live on, from the best few of each hypothesis.

    At most one candidate of a hypothesis ends, so beam + 1 of each hold the best that do not.
    """
    values, tokens = top_k(logits, min(beam + 1, logits.shape[2]))
    tokens, order = tokens.sort(dim=-1)
    return rank(values.gather(2, order), tokens, normalizer, scores, beam=beam, end=end)


def choose_beam_native(
    logits: Tensor, normalizer: Tensor, scores: Tensor, *, beam: int, end: int
) -> tuple[Candidates, Candidates]:
    """The candidates that end and those that live on, chosen by the kernel in C."""
    finished, live = search.choose_beam(kernels(), logits, normalizer, scores, beam, end)
    return Candidates(*finished), Candidates(*live)


def choose_beam_triton(
    logits: Tensor, normalizer: Tensor, scores: Tensor, *, beam: int, end: int
) -> tuple[Candidates, Candidates]:
    """The candidates that end and those that live on, chosen by the kernels in Triton."""
    finished, live = cuda_search.choose_beam(logits, normalizer, scores, beam=beam, end=end)
    return Candidates(*finished), Candidates(*live)


def rank(
    values: Tensor, tokens: Tensor, normalizer: Tensor, scores: Tensor, *, beam: int, end: int
) -> tuple[Candidates, Candidates]:
    """The choice among tokens [B, K, C] (in rising order) with logits `values` [B, K, C]."""
    _, width, count = values.shape
    # Only what can be chosen is normalized.
    total = (scores[:, :, None] + (values - normalizer[:, :, None])).flatten(1)
    missing = 2 * beam - total.shape[1]
    if missing > 0:  # of a tiny vocabulary
        total = functional.pad(total, (0, missing), value=-torch.inf)
    ranked, order = total.sort(dim=1, descending=True, stable=True)
    order = order[:, : 2 * beam].clamp(max=width * count - 1)
    parents = order.div(count, rounding_mode="floor")
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


def refuses_beam_native(logits: Tensor, *_scores: Tensor, beam: int, **_options: int) -> str | None:
    """Why the kernels cannot be taken, or None."""
    if refusal := refuses_native(logits):
        return refusal
    most = int(kernels().most_beam())
    return None if beam <= most else f"expected a beam of at most {most}, got {beam}"


def choose_beam_example(device: torch.device) -> Call:
    """Two hypotheses and a vocabulary of 8 words."""
    scores = torch.zeros(1, 2, device=device)
    logits = torch.ones(1, 2, 8, device=device)
    return (logits, scores, scores.double()), {"beam": 2, "end": 0}


choose_beam = Operation(
    "choice of a beam",
    choose_beam_reference,
    [
        Implementation(
            "triton", "kernels in Triton", choose_beam_triton, accepts=cuda_search.refuses_beam
        ),
        Implementation("native", "C kernels", choose_beam_native, accepts=refuses_beam_native),
        Implementation("torch", "top k by groups", choose_beam_torch),
    ],
    example=choose_beam_example,
    gradients=False,
)
