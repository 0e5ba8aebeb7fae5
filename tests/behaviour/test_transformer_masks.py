"""A position depends neither on padding, nor on the future, nor on other sentences."""

import pytest
import torch
from support.attention_cases import CASES
from support.transformers import (
    MODELS,
    OUR_MODELS,
    everywhere,
    make_model,
    make_source,
    make_target,
)

from nmt.config.config import AttentionTypesConfig

every_model = pytest.mark.parametrize("attention", MODELS.values(), ids=MODELS)


@pytest.mark.parametrize("attention", OUR_MODELS.values(), ids=OUR_MODELS)
def test_padding_changes_no_bit_between_multiples_of_16(attention: AttentionTypesConfig) -> None:
    """Rows and lengths in multiples of 16 are what makes matrix products repeat their bits."""
    model = make_model(attention)
    source, visible = make_source(16, 11, 5, width=48)
    target = make_target(3, 16)
    with torch.no_grad():
        for width in (32, 48):
            hidden = model(source[:, :width], visible[:, :width], target)
            assert torch.equal(hidden, model(source[:, :16], visible[:, :16], target))


@every_model
def test_content_of_padding_changes_no_bit(attention: AttentionTypesConfig) -> None:
    model = make_model(attention)
    source, visible = make_source(9, 4, 7, width=9)
    target = make_target(3, 6)
    with torch.no_grad():
        expected = model(source, visible, target)
        changed = source.masked_fill(~visible, 17)
        assert torch.equal(model(changed, visible, target), expected)


@every_model
def test_padding_of_any_width_is_invisible(attention: AttentionTypesConfig) -> None:
    model = make_model(attention)
    source, visible = make_source(7, 4, width=13)
    target = make_target(2, 5)
    with torch.no_grad():
        short = model(source[:, :7], visible[:, :7], target)
        torch.testing.assert_close(model(source, visible, target), short, atol=2e-5, rtol=1e-4)


@every_model
def test_sentences_do_not_see_each_other(attention: AttentionTypesConfig) -> None:
    model = make_model(attention)
    source, visible = make_source(16, 11, 3, 9, 14, width=16)
    target = make_target(5, 16)
    with torch.no_grad():
        together = model(source, visible, target)
        for row in range(5):
            one = slice(row, row + 1)
            assert torch.equal(model(source[one], visible[one], target[one])[0], together[row])


@every_model
def test_the_future_is_invisible(attention: AttentionTypesConfig) -> None:
    model = make_model(attention)
    source, visible = make_source(6, 4, width=6)
    target = make_target(2, 9)
    with torch.no_grad():
        expected = model(source, visible, target)
        for cut in (1, 4, 8):
            changed = target.clone()
            changed[:, cut:] = 5
            hidden = model(source, visible, changed)
            torch.testing.assert_close(hidden[:, :cut], expected[:, :cut], atol=1e-6, rtol=1e-5)
            assert not torch.allclose(hidden[:, cut:], expected[:, cut:], atol=1e-4)


@every_model
def test_a_sentence_of_nothing_but_padding_is_harmless(attention: AttentionTypesConfig) -> None:
    model = make_model(attention)
    source, visible = make_source(6, 1, 0, width=6)
    model.train()
    hidden = model(source, visible, make_target(3, 4))
    hidden.square().sum().backward()
    assert hidden.isfinite().all()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_every_parameter_is_used(norm: str) -> None:
    for case in (CASES["rela-g"], CASES["entmax learned"], CASES["rela-g learned threshold"]):
        model = make_model(everywhere(case), norm=norm).train()
        source, visible = make_source(8, 5, width=8)
        model.logits(model(source, visible, make_target(2, 7))).logsumexp(-1).sum().backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None, name
            assert (parameter.grad != 0.0).any(), name
