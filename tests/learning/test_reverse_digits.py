"""Every attention kind really learns: to reverse six digits, exactly, in a few hundred updates."""

import pytest
from support.attention_cases import CASES, KINDS
from support.transformers import MIXED, everywhere

from nmt.config.config import AttentionTypesConfig
from nmt.doctor.reversal import ENOUGH, learn_reversal
from nmt.model.observe import learned_parameters

LEARNERS = {name: everywhere(case) for name, case in KINDS.items()} | {
    "entmax learned": everywhere(CASES["entmax learned"]),
    "rela-g learned threshold": everywhere(CASES["rela-g learned threshold"]),
    "rela-g layer": everywhere(CASES["rela-g layer"]),
    "rela-g gelu": everywhere(CASES["rela-g gelu"]),
    "mixed": MIXED,
}


@pytest.mark.parametrize("attention", LEARNERS.values(), ids=LEARNERS)
def test_every_kind_learns_to_reverse_digits(attention: AttentionTypesConfig) -> None:
    learned = learn_reversal(attention, most_updates=500)
    assert learned.match >= ENOUGH
    for parameters in learned_parameters(learned.model).values():
        if "alpha" in parameters:
            assert ((parameters["alpha"] > 1.0) & (parameters["alpha"] <= 2.0)).all()
        assert all(values.isfinite().all() for values in parameters.values())


def test_relu_alone_learns_in_one_layer_but_late() -> None:
    """The paper's ReLU without a norm fails on WMT14; here, in one layer per side, it gets there.

    Measured over four starts: 98 % after 400 updates twice, 88 % and 93 % after 500; ReLA-g took
    200 to 300 updates to 98 %.
    """
    learned = learn_reversal(everywhere(CASES["ReLU alone"]), most_updates=500, seed=2)
    assert learned.match >= 0.8
    assert learned.updates >= 300


@pytest.mark.slow
def test_relu_alone_does_not_learn_in_three_layers() -> None:
    """Measured over three starts, after 200 updates: nothing right, ReLA-g 75 % to 99.6 %."""
    alone = learn_reversal(everywhere(CASES["ReLU alone"]), most_updates=200, layers=3)
    gated = learn_reversal(everywhere(CASES["rela-g"]), most_updates=200, layers=3)
    assert alone.match < 0.05
    assert gated.match > 0.7
