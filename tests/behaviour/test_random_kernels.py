"""The kernels on random cases: equal to torch where numbers are finite, never undefined.

A case is given by its number: `random.Random(number)` draws all of it. The slow tests run many
more; `NMT_FUZZ_CASES` sets how many.
"""

import math
import os
import random
from collections.abc import Callable
from typing import get_args

import pytest
import torch
from support.attention_cases import IN_C
from support.attention_cases import weigh as weigh_rows
from support.kernels import NAMES, every_build, load
from support.random_cases import SIZES, EngineCase, engine_case, random_tensor
from torch import Tensor

from nmt.config.search_options import EarlyStop, Normalization, SearchOptions
from nmt.decoding.decoder import Decoder
from nmt.decoding.engine import Engine
from nmt.decoding.engine_search import search_by_engine
from nmt.decoding.engine_step import EngineStep
from nmt.decoding.ensemble import Member, TorchStep
from nmt.decoding.pack_transformer import pack_transformer
from nmt.decoding.search import Symbols, search
from nmt.model.attention import AttentionCore
from nmt.ops.attention import attention_blockwise, attention_native, refuses_native
from nmt.ops.beam import choose_beam_torch, normalize_reference
from nmt.ops.native import library
from nmt.ops.native import search as native
from nmt.ops.native.tensors import address

MANY = int(os.environ.get("NMT_FUZZ_CASES", "3000"))
START, END = 1, 2


def torch_step(case: EngineCase, max_length: int) -> TorchStep:
    member = Member(case.model, None, Decoder(case.model.logits))  # type: ignore[arg-type]
    return TorchStep(
        member, case.sources, beam=case.beam, max_length=max_length, multiple=1, device="cpu"
    )


def walk(
    steps: list[EngineStep | TorchStep], case: EngineCase, chance: random.Random
) -> list[list[Tensor]]:
    """The logits of several step functions on one walk that reorders and lets sentences leave."""
    tokens = torch.full((len(case.sources), 1), START)
    found: list[list[Tensor]] = []
    for _ in range(case.steps):
        found.append([step(tokens).clone() for step in steps])
        batch, width = tokens.shape
        parents = torch.tensor(
            [[chance.randrange(width) for _ in range(case.beam)] for _ in range(batch)]
        )
        for step in steps:
            step.reorder(parents)
        if batch > 1 and chance.random() < 0.1:
            kept = torch.tensor(chance.sample(range(batch), chance.randint(1, batch)))
            for step in steps:
                step.select(kept)
            batch = len(kept)
        drawn = [
            [chance.randrange(case.vocabulary) for _ in range(case.beam)] for _ in range(batch)
        ]
        tokens = torch.tensor(drawn)
    return found


@torch.inference_mode()
def check_engine(number: int) -> None:
    """A random walk by every build in float32 and 8 bits, and by torch."""
    chance = random.Random(number)
    case = engine_case(chance)
    steps: list[EngineStep | TorchStep] = [
        EngineStep(Engine(load(build), pack_transformer(case.model, int8=int8)), case.sources,
                   beam=case.beam, max_length=case.steps)
        for int8 in (False, True)
        for build in NAMES
    ]  # fmt: skip
    for logits in walk([torch_step(case, case.steps), *steps], case, chance):
        expected = logits[0]
        assert all(one.shape == expected.shape for one in logits)
        if case.poisoned:
            continue
        for one in logits[1 : 1 + len(NAMES)]:
            scale = 1.0 + float(expected.abs().max())
            torch.testing.assert_close(one, expected, atol=2e-3 * scale, rtol=0.0)
        assert all(one.isfinite().all() for one in logits)


@torch.inference_mode()
def check_search(number: int) -> None:
    """Prefixes of any length and beams beyond the vocabulary, by the engine and by torch."""
    chance = random.Random(number)
    case = engine_case(chance)
    limits = [chance.choice((0, 1, 5, 20)) for _ in case.sources]
    prefixes = [
        [chance.randrange(3, case.vocabulary) for _ in range(chance.choice((0, 0, 1, 3, 40)))]
        for _ in case.sources
    ]
    limits = [max(limit, len(prefix)) for limit, prefix in zip(limits, prefixes, strict=True)]
    options = SearchOptions(beam=case.beam, nbest=chance.randint(1, case.beam))
    engine = Engine(load(NAMES[number % len(NAMES)]), pack_transformer(case.model, int8=False))
    found = []
    for step in (
        EngineStep(engine, case.sources, beam=case.beam, max_length=max(limits)),
        torch_step(case, max(limits)),
    ):
        found.append(
            search(step, options, Symbols(START, END), max_lengths=limits, prefixes=prefixes)
        )
    for by_engine, by_torch, prefix, limit in zip(*found, prefixes, limits, strict=True):
        for hypothesis in by_engine:
            assert list(hypothesis.tokens[: len(prefix)]) == prefix
            assert len(hypothesis.tokens) <= limit
            assert all(0 <= token < case.vocabulary for token in hypothesis.tokens)
        if not case.poisoned:
            assert by_engine
            assert by_engine[0].score == pytest.approx(by_torch[0].score, abs=1e-2, rel=1e-2)


def random_options(chance: random.Random, beam: int) -> SearchOptions:
    """Any options of search but sampling."""
    return SearchOptions(
        beam=beam,
        nbest=chance.randint(1, beam),
        early_stop=chance.choice(get_args(EarlyStop)),
        normalization=chance.choice(get_args(Normalization)),
        length_penalty=chance.choice((0.6, 0.6, 0.0, 1.0, -0.7, 2.5)),
        min_length=chance.choice((0, 0, 1, 4, 25)),
    )


@torch.inference_mode()
def check_whole_search(number: int) -> None:
    """The search in C finds what the search in Python finds over the same engine, to the bit."""
    chance = random.Random(number)
    case = engine_case(chance)
    limits = [chance.choice((0, 1, 5, 20, 40)) for _ in case.sources]
    prefixes = [
        [chance.randrange(case.vocabulary) for _ in range(min(limit, chance.choice((0, 0, 1, 3))))]
        for limit in limits
    ]
    options = random_options(chance, case.beam)
    symbols = Symbols(START, END, never=chance.choice(((), (0, START), (3,))))
    engine = Engine(
        library.kernels(), pack_transformer(case.model, int8=chance.choice((False, True)))
    )
    step = EngineStep(engine, case.sources, beam=case.beam, max_length=max(limits))
    expected = search(step, options, symbols, max_lengths=limits, prefixes=prefixes)
    for threads in (1, 2):
        found = search_by_engine(
            *(engine, case.sources, options, symbols),
            max_lengths=limits,
            prefixes=prefixes,
            threads=threads,
        )
        assert found == expected, options
    alone = search_by_engine(
        *(engine, case.sources[-1:], options, symbols),
        max_lengths=limits[-1:],
        prefixes=prefixes[-1:],
        threads=1,
    )
    assert alone == expected[-1:]


def check_choice(number: int) -> None:
    """The best of a beam, and the normalizers, for any numbers."""
    chance = random.Random(number)
    vocabulary, beam = chance.choice(SIZES), chance.choice((1, 2, 5, 16, 100))
    batch, width = chance.choice((0, 1, 2, 5)), chance.choice((1, 3, beam))
    odd = chance.choice((0.0, 0.0, 0.2, 1.0))
    logits = random_tensor(chance, batch, width, vocabulary, odd=odd)
    scores = random_tensor(chance, batch, width).double()
    normalizer = random_tensor(chance, batch, width, odd=odd)
    for build in NAMES:
        kernels = load(build)
        cleaned = logits.clone()
        made = native.normalize(kernels, cleaned)
        torch.testing.assert_close(made, normalize_reference(logits.clone()))
        finite = logits.isfinite()
        assert torch.equal(cleaned[finite], logits[finite])
        assert (cleaned[~finite] == -math.inf).all()
        found = native.choose_beam(kernels, logits, normalizer, scores, beam, END)
        expected = choose_beam_torch(logits, normalizer, scores, beam=beam, end=END)
        for (parents, tokens, totals), other in zip(found, expected, strict=True):
            assert ((parents >= 0) & (parents < width)).all()
            assert ((tokens >= 0) & (tokens < vocabulary)).all()
            if odd == 0.0:
                assert torch.equal(totals, other.scores)


def check_row(number: int) -> None:
    """One row of scores by every map, with memory behind it that must stay as it is."""
    chance = random.Random(number)
    core = AttentionCore(4, 2, attention=chance.choice(list(IN_C.values())), dropout=0.0)
    mapping, learned = core.mapping, core.weights.values()
    assert mapping.row_map is not None
    parameter = float(learned[0][0].detach()) if learned else mapping.row_parameter
    odd = chance.choice((0.0, 0.0, 0.1, 1.0))
    scores = random_tensor(chance, chance.choice((0, *SIZES, 1000)), odd=odd)
    for build in NAMES:
        kernels, count = load(build), len(scores)
        row = torch.full((count + 32,), 7.0)
        row[:count] = scores
        scratch = torch.empty(kernels.scores_scratch(count))
        kernels.weigh_scores(mapping.row_map, parameter, address(row), count, address(scratch))
        assert (row[count + 16 :] == 7.0).all()
        if odd == 0.0 and count > 0:
            with torch.no_grad():
                expected = weigh_rows(core, scores.expand(1, 2, 1, -1), None)[0, 0, 0]
            torch.testing.assert_close(row[:count], expected, atol=1e-5, rtol=1e-4)


def check_attention(number: int) -> None:
    """Attention and its derivative for any mask, with no queries, keys or sentences, too."""
    chance = random.Random(number)
    case = chance.choice([case for case in IN_C.values() if case.kind != "topk"])
    heads, width = chance.choice((1, 2, 3)), chance.choice((1, 2, 7, 8, 17, 33))
    torch.manual_seed(number)
    core = AttentionCore(heads * width, heads, attention=case, dropout=chance.choice((0.0, 0.3)))
    batch = chance.choice((1, 2, 3))
    queries, keys = chance.choice((0, *SIZES, 97)), chance.choice((0, *SIZES, 97))
    odd = chance.choice((0.0, 0.0, 0.0, 0.05))
    inputs = [
        random_tensor(chance, batch, queries, heads * width, odd=odd).requires_grad_(),
        random_tensor(chance, batch, keys, 2 * heads * width, odd=odd).requires_grad_(),
    ]
    shape = [chance.choice((1, size)) for size in (batch, heads, queries)]
    visible = None if chance.random() < 0.3 else random_tensor(chance, *shape, keys) > 0.0
    call = core.train().call(None)
    parameters = tuple(value.detach().requires_grad_() for value in core.weights.values())
    if refuses_native(call, tuple(inputs), visible, parameters) is not None:
        return
    outcomes = []
    for implementation in (attention_native, attention_blockwise):
        torch.manual_seed(number)
        output = implementation(call, tuple(inputs), visible, parameters)
        outcomes.append([output, *torch.autograd.grad(output.sum(), [*inputs, *parameters])])
        if odd or queries == 0 or keys == 0:
            return  # an outcome is all that is asked for
    for one, other in zip(*outcomes, strict=True):
        scale = 1.0 + float(other.detach().abs().max())
        assert math.isfinite(scale)
        torch.testing.assert_close(one, other, atol=2e-3 * scale, rtol=0.0)


CHECKS: dict[str, tuple[Callable[[int], None], int]] = {  # and cases in the fast suite
    "engine": (check_engine, 12),
    "search": (check_search, 16),
    "whole search": (check_whole_search, 60),
    "choice": (check_choice, 60),
    "row": (check_row, 200),
    "attention": (check_attention, 80),
}
needs_kernels = pytest.mark.skipif(not NAMES, reason="no kernels were built for this processor")


@needs_kernels
@pytest.mark.parametrize("name", CHECKS)
def test_random_cases(name: str) -> None:
    check, count = CHECKS[name]
    for number in range(count):
        try:
            check(number)
        except Exception as error:
            raise AssertionError(f"case {number} of {name}") from error


@pytest.mark.slow
@pytest.mark.timeout(0)
@needs_kernels
@pytest.mark.parametrize("name", CHECKS)
def test_many_random_cases(name: str) -> None:
    for number in range(1_000_000, 1_000_000 + MANY):
        try:
            CHECKS[name][0](number)
        except Exception as error:
            raise AssertionError(f"case {number} of {name}") from error


@every_build
def test_sources_and_batches_of_nothing(build: str) -> None:
    """No sentence at all, and a sentence without a token: defined, and no memory is touched."""
    case = engine_case(random.Random(3))
    engine = Engine(load(build), pack_transformer(case.model, int8=False))
    with torch.inference_mode():
        nothing = EngineStep(engine, [], beam=2, max_length=2)
        assert nothing(torch.empty(0, 1, dtype=torch.int64)).shape == (0, 1, case.vocabulary)
        empty = EngineStep(engine, [[], [2, 1]], beam=2, max_length=2)
        found = empty(torch.ones(2, 1, dtype=torch.int64))
        alone = EngineStep(engine, [[2, 1]], beam=2, max_length=2)
        assert torch.equal(found[1:], alone(torch.ones(1, 1, dtype=torch.int64)))
