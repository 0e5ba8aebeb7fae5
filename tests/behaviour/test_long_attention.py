"""Attention over long sentences keeps no weights, and is the same function for all that."""

import os
import subprocess
import sys

import pytest
import torch
from support.attention_cases import CASES, DIM, HEADS, make_core, make_projections, weigh
from torch import Tensor

from nmt.config.config import AttentionConfig
from nmt.model.attention import AttentionCore
from nmt.ops import blockwise
from nmt.ops.attention_call import split_heads
from nmt.ops.backend import force_backend
from nmt.ops.dropout import dropout_factors

QUERIES, KEYS = 37, 21
BLOCKWISE = {name: case for name, case in CASES.items() if case.row.mapping(case.values).in_place}
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
every_blockwise_case = pytest.mark.parametrize("case", BLOCKWISE.values(), ids=BLOCKWISE)


@pytest.fixture
def long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every sentence counts as long, and has several blocks."""
    monkeypatch.setattr(blockwise, "MOST_KEYS_KEPT", 0)
    monkeypatch.setattr(blockwise, "BLOCK_ELEMENTS", 350)


def every_mask() -> dict[str, Tensor | None]:
    """Masks of every shape that models make, and one that differs by head and has empty rows."""
    keys = torch.arange(KEYS)
    any_mask = torch.rand(2, HEADS, QUERIES, KEYS, generator=torch.Generator().manual_seed(1)) < 0.6
    any_mask[0, 1, 3] = False
    any_mask[1, :, 20:] = False
    return {
        "none": None,
        "padding": (keys < torch.tensor([[KEYS], [5]]))[:, None, None, :],
        "causal": torch.ones(QUERIES, KEYS, dtype=torch.bool).tril_(),
        "any": any_mask,
    }


def run(core: AttentionCore, visible: Tensor | None) -> list[Tensor]:
    """The output, and the gradients of everything."""
    inputs = [x.requires_grad_() for x in make_projections(2, QUERIES, KEYS, dtype=torch.float64)]
    output = core(tuple(inputs), visible)
    outward = torch.linspace(-1.0, 1.0, output.numel(), dtype=torch.float64).view_as(output)
    return [output, *torch.autograd.grad(output, [*inputs, *core.parameters()], outward)]


def assert_equal(found: list[Tensor], wanted: list[Tensor]) -> None:
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, atol=1e-10, rtol=1e-10)


@every_case
@pytest.mark.parametrize("mask", every_mask())
@pytest.mark.usefixtures("long")
def test_long_sentences_are_computed_as_the_reference(case: AttentionConfig, mask: str) -> None:
    core = make_core(case, dtype=torch.float64)
    found = run(core, every_mask()[mask])
    with force_backend("reference"):
        assert_equal(found, run(core, every_mask()[mask]))


def factors_drawn_by_blocks(core: AttentionCore) -> Tensor:
    """[2, H, Q, K]: what the blocks draw, one after the other."""
    whole = torch.empty(2, HEADS, QUERIES, KEYS, dtype=torch.float64)
    for group in blockwise.groups(whole.shape, DIM // HEADS, core.mapping.block_factor):
        for part in group.queries:
            place = whole[group.sentences, group.heads, part]
            place.copy_(dropout_factors(place.flatten(0, 1), core.dropout.rate).view_as(place))
    return whole


@every_blockwise_case
@pytest.mark.usefixtures("long")
def test_dropout_has_the_same_factors_backward(case: AttentionConfig) -> None:
    core = make_core(case, dtype=torch.float64).train()
    visible = every_mask()["any"]
    torch.manual_seed(5)
    found = run(core, visible)
    torch.manual_seed(5)
    factors = factors_drawn_by_blocks(core)

    def plainly(projections: tuple[Tensor, ...], visible: Tensor | None) -> Tensor:
        query, key, value = split_heads(projections, HEADS)
        weights = weigh(core, (query * core.scale) @ key.transpose(2, 3), visible) * factors
        return core.finish((weights @ value).transpose(1, 2).flatten(2))

    inputs = [x.requires_grad_() for x in make_projections(2, QUERIES, KEYS, dtype=torch.float64)]
    output = plainly(tuple(inputs), visible)
    outward = torch.linspace(-1.0, 1.0, output.numel(), dtype=torch.float64).view_as(output)
    wanted = [output, *torch.autograd.grad(output, [*inputs, *core.parameters()], outward)]
    assert_equal(found, wanted)


@every_case
@pytest.mark.usefixtures("long")
def test_a_seed_gives_the_same_bits_and_the_derivative_draws_nothing(case: AttentionConfig) -> None:
    core = make_core(case, dtype=torch.float64).train()
    inputs = [x.requires_grad_() for x in make_projections(2, QUERIES, KEYS, dtype=torch.float64)]
    runs = []
    for _ in range(2):
        torch.manual_seed(7)
        output = core(tuple(inputs), None)
        state = torch.get_rng_state()
        runs.append([output, *torch.autograd.grad(output.square().sum(), inputs)])
        assert torch.equal(torch.get_rng_state(), state)
    for one, other in zip(*runs, strict=True):
        assert torch.equal(one, other)


@every_case
@pytest.mark.usefixtures("long")
def test_an_observer_sees_all_weights_of_a_long_sentence(case: AttentionConfig) -> None:
    core = make_core(case, dtype=torch.float64)
    visible = every_mask()["any"]
    unseen = run(core, visible)
    seen: list[Tensor] = []
    core.observer = lambda weights, _visible: seen.append(weights.clone())
    watched = run(core, visible)
    for one, other in zip(watched, unseen, strict=True):
        assert torch.equal(one, other)
    query, key_value = make_projections(2, QUERIES, KEYS, dtype=torch.float64)
    query, key, _ = split_heads((query, key_value), HEADS)
    expected = weigh(core, (query * core.scale) @ key.transpose(2, 3), visible)
    torch.testing.assert_close(seen[0], expected, atol=1e-10, rtol=0.0)


MEASURE = """
import resource
import torch
from nmt.config.config import AttentionConfig
from nmt.model.attention import AttentionCore

def attend(kind, length, training):
    core = AttentionCore(512, 8, attention=AttentionConfig(kind), dropout=0.1).train(training)
    projection = torch.randn(1, length, 3 * 512, requires_grad=training)
    visible = torch.ones(length, length, dtype=torch.bool).tril_()
    with torch.set_grad_enabled(training):
        output = core((projection,), visible)
    if training:
        output.sum().backward()

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

attend("rela-g", 16, True)
before = peak()
attend("rela-g", 4096, False)
after_inference = peak()
attend("rela-g", 4096, True)
print(after_inference - before, peak() - before)
"""


def test_4096_tokens_need_little_memory() -> None:
    """The weights of 8 heads alone would take 537 MB, their gradients as much again."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        [sys.executable, "-c", MEASURE], env=environment, capture_output=True, text=True, check=True
    )
    inference, training = (int(field) for field in result.stdout.split())
    assert inference < 150e6
    assert training < 250e6
