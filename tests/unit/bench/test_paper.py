"""Table 4 against the numbers that the paper gives in its text."""

import pytest

from nmt.bench.paper import flops_crossover, rela_flops, softmax_flops

BASE = {"heads": 8, "dim": 512}


def test_flops_are_those_of_the_paper() -> None:
    assert softmax_flops(100, heads=8) == pytest.approx(239e3, rel=2e-3)
    assert rela_flops(100, **BASE) == pytest.approx(592e3, rel=2e-3)
    assert softmax_flops(1000, heads=8) == pytest.approx(23.99e6, rel=2e-3)
    assert rela_flops(1000, **BASE) == pytest.approx(13.12e6, rel=2e-3)


def test_from_the_crossover_on_rela_needs_fewer() -> None:
    crossover = flops_crossover(**BASE)
    assert crossover == pytest.approx(320.6, abs=0.1)
    before, after = int(crossover), int(crossover) + 1
    assert softmax_flops(before, heads=8) < rela_flops(before, **BASE)
    assert softmax_flops(after, heads=8) > rela_flops(after, **BASE)
