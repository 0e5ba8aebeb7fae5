"""Decoding step by step gives what the whole forward pass gives, whatever happens to the beams."""

import pytest
import torch
from support.transformers import MODELS, OUR_MODELS, make_model, make_source, make_target

from nmt.config.config import AttentionTypesConfig
from nmt.model.transformer import Transformer

every_model = pytest.mark.parametrize("attention", MODELS.values(), ids=MODELS)


@every_model
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_step_by_step_equals_the_full_forward(attention: AttentionTypesConfig, norm: str) -> None:
    model = make_model(attention, norm=norm)
    source, visible = make_source(9, 4, 7, width=9)
    target = make_target(3, 37)
    with torch.no_grad():
        full = model(source, visible, target)
        memory = model.encode(source, visible)
        cache = model.start(memory, visible, beam=2, max_length=37)
        for position in range(37):
            tokens = target[:, position, None].expand(3, 2)
            step = model.step(tokens, cache)
            for beam in range(2):
                torch.testing.assert_close(step[:, beam], full[:, position], atol=1e-5, rtol=1e-5)


def forced(model: Transformer, target: torch.Tensor, *lengths: int) -> torch.Tensor:
    """The last hidden state of the full forward pass."""
    source, visible = make_source(*lengths, width=max(lengths))
    result: torch.Tensor = model(source, visible, target)[:, -1]
    return result


@pytest.mark.parametrize("name", ["softmax", "rela-g", "mixed"])
def test_beams_follow_their_parents(name: str) -> None:
    model = make_model(MODELS[name])
    lengths = (5, 8)
    source, visible = make_source(*lengths, width=8)
    generator = torch.Generator().manual_seed(3)
    beam, steps = 3, 20
    with torch.no_grad():
        cache = model.start(model.encode(source, visible), visible, beam=beam, max_length=steps)
        texts = torch.empty(2, beam, 0, dtype=torch.int64)
        for number in range(steps):
            tokens = torch.randint(4, 31, (2, beam), generator=generator)
            texts = torch.cat([texts, tokens[..., None]], dim=-1)
            hidden = model.step(tokens, cache)
            parents = torch.randint(0, beam, (2, beam), generator=generator)
            if number % 3 == 0:
                parents = torch.arange(beam).expand(2, beam)  # nothing moves
            if number == steps - 1:
                break
            cache.reorder(parents)
            texts = texts.gather(1, parents[..., None].expand_as(texts))
        for index in range(beam):
            expected = forced(model, texts[:, index], *lengths)
            torch.testing.assert_close(hidden[:, index], expected, atol=1e-5, rtol=1e-5)


@every_model
def test_beams_follow_their_parents_but_for_rounding(attention: AttentionTypesConfig) -> None:
    """In float64, where what is left is not rounding but a mistake."""
    model = make_model(attention).double()
    lengths = (5, 8)
    source, visible = make_source(*lengths, width=8)
    generator = torch.Generator().manual_seed(3)
    with torch.inference_mode():
        cache = model.start(model.encode(source, visible), visible, beam=4, max_length=20)
        texts = torch.randint(4, 31, (2, 1, 1), generator=generator)
        model.step(texts[:, :, -1], cache)
        for _ in range(18):
            parents = torch.randint(0, texts.shape[1], (2, 4), generator=generator)
            cache.reorder(parents)
            texts = texts.gather(1, parents[..., None].expand(-1, -1, texts.shape[2]))
            tokens = torch.randint(4, 31, (2, 4, 1), generator=generator)
            texts = torch.cat([texts, tokens], dim=2)
            hidden = model.step(texts[:, :, -1], cache)
        for index in range(4):
            expected = forced(model, texts[:, index], *lengths)
            torch.testing.assert_close(hidden[:, index], expected, atol=1e-10, rtol=1e-10)


def test_no_order_copies_keys_or_values() -> None:
    model = make_model(MODELS["softmax"])
    source, visible = make_source(5, 8, width=8)
    with torch.no_grad():
        cache = model.start(model.encode(source, visible), visible, beam=2, max_length=9)
        model.step(torch.full((2, 2), 4), cache)
        before = cache.past.data_ptr()
        cache.reorder(torch.tensor([[0, 0], [1, 0]]))
        model.step(torch.full((2, 2), 5), cache)
    assert cache.past.data_ptr() == before


@pytest.mark.parametrize("name", ["softmax", "rela-g"])
def test_a_beam_may_start_narrow(name: str) -> None:
    model = make_model(MODELS[name])
    source, visible = make_source(5, 8, width=8)
    target = make_target(2, 12)
    with torch.inference_mode():
        full = model(source, visible, target)
        cache = model.start(model.encode(source, visible), visible, beam=3, max_length=12)
        model.step(target[:, :1], cache)
        cache.reorder(torch.zeros(2, 3, dtype=torch.int64))
        for position in range(1, 12):
            hidden = model.step(target[:, position, None].expand(2, 3), cache)
            for beam in range(3):
                torch.testing.assert_close(hidden[:, beam], full[:, position], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["softmax", "rela-g", "entmax learned", "mixed"])
def test_nan_of_a_hypothesis_does_not_reach_its_siblings(name: str) -> None:
    model = make_model(MODELS[name])
    source, visible = make_source(5, 8, width=8)
    target = make_target(2, 6)
    bad = 30
    assert not bool((target == bad).any())
    with torch.inference_mode():
        full = model(source, visible, target)
        model.target_embedding[bad] = float("nan")
        memory = model.encode(source, visible)
        cache = model.start(memory, visible, beam=2, max_length=6)
        for position in range(6):
            tokens = target[:, position, None].repeat(1, 2)
            if position == 2:
                tokens[:, 1] = bad
            hidden = model.step(tokens, cache)
            torch.testing.assert_close(hidden[:, 0], full[:, position], atol=1e-5, rtol=1e-5)
            if position == 2:
                assert hidden[:, 1].isnan().all()
                cache.reorder(torch.zeros(2, 2, dtype=torch.int64))
        torch.testing.assert_close(hidden[:, 1], full[:, 5], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["softmax", "entmax learned", "mixed"])
def test_finished_sentences_can_leave(name: str) -> None:
    model = make_model(MODELS[name])
    source, visible = make_source(5, 8, 2, 6, width=8)
    target = make_target(4, 20)
    rows = torch.tensor([3, 1])
    with torch.no_grad():
        full = model(source, visible, target)
        cache = model.start(model.encode(source, visible), visible, beam=2, max_length=20)
        for position in range(20):
            if position == 7:
                cache.select(rows)
                target, full = target[rows], full[rows]
                assert cache.batch == 2
            hidden = model.step(target[:, position, None].expand(-1, 2), cache)
            torch.testing.assert_close(hidden[:, 1], full[:, position], atol=1e-5, rtol=1e-5)


def test_the_source_is_kept_once_a_sentence() -> None:
    model = make_model(MODELS["softmax"])
    source, visible = make_source(5, 8, width=8)
    with torch.no_grad():
        cache = model.start(model.encode(source, visible), visible, beam=7, max_length=20)
        model.step(torch.full((2, 7), 4), cache)
    for memory in cache.cross:
        assert memory.key.untyped_storage().nbytes() == 4 * 2 * 8 * 32
        assert memory.value.untyped_storage().nbytes() == 4 * 2 * 8 * 32


@pytest.mark.parametrize("attention", OUR_MODELS.values(), ids=OUR_MODELS)
def test_steps_repeat_their_bits_whatever_the_batch(attention: AttentionTypesConfig) -> None:
    """16 rows or more of queries, source lengths in multiples of 16: as the translator pads."""
    model = make_model(attention, dim=64)
    lengths = (16, 11, 3, 30, 14, 9, 31, 2)
    source, visible = make_source(*lengths, width=48)
    target = make_target(8, 20)

    def run(rows: list[int], width: int) -> torch.Tensor:
        memory = model.encode(source[rows, :width], visible[rows, :width])
        cache = model.start(memory, visible[rows, :width], beam=4, max_length=20)
        steps = [model.step(target[rows, t, None].expand(-1, 4), cache) for t in range(20)]
        return torch.stack(steps)

    with torch.no_grad():
        together = run(list(range(8)), 48)
        assert torch.equal(run(list(range(8)), 32), together)
        assert torch.equal(run([7, 5, 2, 0], 32), together[:, [7, 5, 2, 0]])
        assert torch.equal(run([6, 1, 3, 4, 0], 48), together[:, [6, 1, 3, 4, 0]])
