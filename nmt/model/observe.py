"""Observe attention weights from outside the model, at no cost while no observer is attached."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from torch import Tensor

from nmt.model.attention import Site
from nmt.model.transformer import Transformer

__all__ = ["Observer", "Site", "learned_parameters", "observe_attention"]

Observer = Callable[[Site, Tensor, Tensor], None]


@contextmanager
def observe_attention(model: Transformer, observer: Observer) -> Iterator[None]:
    """Call `observer(site, weights, visible)` for every attention while the context lasts.

    weights are [B, H, Q, K] as used, before dropout; visible is a boolean broadcastable to them.
    While decoding step by step the queries are the hypotheses of a sentence: [B, H, beam, K]. In
    self-attention they share the K slots of their past, a multiple of 16, and each sees its own.
    """
    cores = {site: attention.core for site, attention in model.attentions().items()}
    before = {site: core.observer for site, core in cores.items()}
    for site, core in cores.items():
        core.observer = partial(observer, site)
    try:
        yield
    finally:
        for site, core in cores.items():
            core.observer = before[site]


def learned_parameters(model: Transformer) -> dict[Site, dict[str, Tensor]]:
    """The learned parameters of each sublayer's heads, [H] by reported name, detached."""
    reports = {site: one.core.weights.report() for site, one in model.attentions().items()}
    return {site: report for site, report in reports.items() if report}
