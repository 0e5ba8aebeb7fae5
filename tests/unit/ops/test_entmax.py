"""The entmax solver against the `entmax` package, its limits, and its gradients."""

import entmax as package
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.attention_cases import weigh
from torch import Tensor

from nmt.config.config import AttentionConfig
from nmt.model.attention import AttentionCore
from nmt.ops.entmax import entmax, solve_


def some_scores(*shape: int, spread: float = 2.0, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return spread * torch.randn(*shape, generator=generator, dtype=torch.float64)


def by_package(scores: Tensor, beta: float) -> Tensor:
    """The package's exact algorithms where it has them, else its bisection."""
    result: Tensor
    if beta == 1.0:
        result = package.sparsemax(scores, dim=-1)
    elif beta == 0.5:
        result = package.entmax15(scores, dim=-1)
    else:
        result = package.entmax_bisect(scores, 1.0 + beta, dim=-1, n_iter=60)
    return result


@pytest.mark.parametrize("spread", [0.01, 0.5, 3.0, 50.0])
@pytest.mark.parametrize("keys", [1, 2, 16, 65, 512])
@pytest.mark.parametrize("beta", [1.0, 0.5, 0.8, 0.3, 0.1])
def test_weights_agree_with_the_package(beta: float, keys: int, spread: float) -> None:
    scores = some_scores(2, 3, 7, keys, spread=spread)
    torch.testing.assert_close(
        entmax(scores, None, beta), by_package(scores, beta), atol=1e-12, rtol=0.0
    )


@pytest.mark.parametrize("beta", [1.0, 0.5, 0.8, 0.3])
def test_gradients_agree_with_the_package(beta: float) -> None:
    scores = some_scores(2, 3, 7, 33).requires_grad_()
    outward = some_scores(2, 3, 7, 33, seed=2)
    (ours,) = torch.autograd.grad(entmax(scores, None, beta), scores, outward)
    (theirs,) = torch.autograd.grad(by_package(scores, beta), scores, outward)
    torch.testing.assert_close(ours, theirs, atol=1e-9, rtol=0.0)


def test_the_gradient_of_alpha_agrees_with_the_package() -> None:
    scores = some_scores(2, 4, 7, 33)
    outward = some_scores(2, 4, 7, 33, seed=2)
    beta = torch.tensor([0.05, 0.3, 0.5, 0.95], dtype=torch.float64)[:, None, None]
    beta.requires_grad_()
    (ours,) = torch.autograd.grad(entmax(scores, None, beta), beta, outward)
    theirs = package.entmax_bisect(scores, 1.0 + beta, dim=-1, n_iter=60)
    (wanted,) = torch.autograd.grad(theirs, beta, outward)
    torch.testing.assert_close(ours, wanted, atol=1e-8, rtol=1e-8)


@pytest.mark.parametrize("beta", [1.0, 0.5, 0.7])
def test_float32_is_as_good_as_float32_can_be(beta: float) -> None:
    exact = some_scores(2, 4, 100, 257)
    weights = entmax(exact.float(), None, beta)
    torch.testing.assert_close(weights.double(), entmax(exact, None, beta), atol=2e-6, rtol=0.0)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 4, 100), atol=3e-6, rtol=0.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_alpha_near_1_is_softmax(dtype: torch.dtype) -> None:
    scores = some_scores(2, 4, 50, 40).to(dtype)
    expected = torch.softmax(scores, dim=-1)
    for beta in (1e-3, 1e-4, 1e-5, 1e-6):
        gap = (entmax(scores, None, beta) - expected).abs().max().item()
        assert gap <= 4.0 * beta + 2e-6


def test_the_gradient_of_alpha_is_smooth_near_1() -> None:
    """Its limit is that of the series: -p (l^2 / 2 - sum p l^2 / 2), l = log p."""
    scores = some_scores(3, 1, 9, 20)
    outward = some_scores(3, 1, 9, 20, seed=2)
    p = torch.softmax(scores, dim=-1)
    bend = p * p.log().square() / 2.0
    limit = ((p * bend.sum(-1, keepdim=True) - bend) * outward).sum()
    for dtype, tolerance in ((torch.float64, 1e-3), (torch.float32, 5e-3)):
        for raw in (1e-2, 1.9e-2, 2.1e-2, 1e-3, 1e-4, 1e-6):
            beta = torch.full((1, 1, 1), raw, dtype=dtype, requires_grad=True)
            weights = entmax(scores.to(dtype), None, beta)
            (found,) = torch.autograd.grad(weights, beta, outward.to(dtype))
            assert abs(found.item() - limit.item()) <= (tolerance + 60.0 * raw) * abs(limit.item())


def learned_core(heads: int) -> AttentionCore:
    """Attention whose heads learn their alphas."""
    config = AttentionConfig("entmax", alpha="learned")
    return AttentionCore(4 * heads, heads, attention=config, dropout=0.0)


def test_learned_alpha_stays_between_1_and_2_and_keeps_a_gradient() -> None:
    core = learned_core(7)
    raw_alpha = core.get_parameter("weights.raw_alpha")
    with torch.no_grad():
        raw_alpha.copy_(torch.tensor([-200.0, -30.0, -10.0, 0.0, 10.0, 30.0, 200.0]))
    alpha = core.weights.report()["alpha"]
    assert (alpha > 1.0).all()
    assert (alpha <= 2.0).all()
    weights = weigh(core, some_scores(2, 7, 5, 9).float(), None)
    assert weights.isfinite().all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 7, 5), atol=3e-6, rtol=0.0)
    weights.square().sum().backward()
    assert raw_alpha.grad is not None
    assert raw_alpha.grad.isfinite().all()
    assert raw_alpha.grad[3] != 0.0


def test_learned_alpha_moves_to_the_sparsity_that_is_wanted() -> None:
    torch.manual_seed(1)
    core = learned_core(2)
    scores = some_scores(4, 2, 8, 12, spread=1.0).float()
    wanted = torch.cat(
        [entmax(scores[:, :1], None, 0.15), entmax(scores[:, 1:], None, 0.85)], dim=1
    )
    optimizer = torch.optim.Adam(core.parameters(), lr=0.1)
    for _ in range(200):
        optimizer.zero_grad()
        (weigh(core, scores, None) - wanted).square().sum().backward()
        optimizer.step()
    torch.testing.assert_close(
        core.weights.report()["alpha"], torch.tensor([1.15, 1.85]), atol=0.01, rtol=0.0
    )


@pytest.mark.parametrize("beta", [1.0, 0.5, 0.3])
def test_a_row_does_not_depend_on_the_rows_beside_it(beta: float) -> None:
    scores = torch.cat([some_scores(20, 48, spread=spread).float() for spread in (0.1, 1.0, 8.0)])
    together = solve_(scores.clone(), beta)
    for row, weights in zip(scores, together, strict=True):
        assert torch.equal(solve_(row[None].clone(), beta)[0], weights)


@pytest.mark.parametrize("keys", [16, 32, 48, 80, 112])
@pytest.mark.parametrize("beta", [1.0, 0.5, 0.3])
def test_hidden_padding_changes_no_bit(beta: float, keys: int) -> None:
    scores = some_scores(40, keys, spread=1.0).float()
    alone = solve_(scores.clone(), beta)
    for more in (16, 48, 64, 144):
        hidden = torch.full((40, more), -torch.inf)
        assert torch.equal(solve_(torch.cat([scores, hidden], dim=1), beta)[:, :keys], alone)


@given(
    st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1, max_size=40),
    st.sampled_from([1.0, 0.5, 0.9, 0.25, 1e-3, 1e-6]),
)
def test_any_scores_give_a_distribution(values: list[float], beta: float) -> None:
    scores = torch.tensor(values)
    weights = solve_(scores[None].clone(), beta)[0]
    assert (weights >= 0.0).all()
    assert abs(weights.sum().item() - 1.0) <= 1e-5
    assert weights[scores.argmax()] == weights.max()
    order = scores.argsort(descending=True)
    assert (weights[order].diff() <= 0.0).all()


def test_kinds_meet_where_they_should() -> None:
    scores = some_scores(2, 4, 9, 12)

    def weights(**options: object) -> Tensor:
        config = AttentionConfig(**options)  # type: ignore[arg-type]
        return config.row.mapping(config.values).weights(scores, None)

    close = {"atol": 1e-12, "rtol": 0.0}
    torch.testing.assert_close(
        weights(kind="entmax", alpha=2.0), weights(kind="sparsemax"), **close
    )
    torch.testing.assert_close(weights(kind="entmax", alpha=1.5), weights(kind="entmax15"), **close)
    nearly = {"atol": 1e-4, "rtol": 0.0}
    torch.testing.assert_close(
        weights(kind="entmax", alpha=1.00001), weights(kind="softmax"), **nearly
    )
    torch.testing.assert_close(weights(kind="topk", k=12), weights(kind="softmax"), **close)
