"""Search over hand-written tables and against exhaustive search."""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from nmt.config.search_options import EarlyStop, Sampling, SearchOptions
from nmt.decoding import search as searching
from nmt.decoding.search import Hypothesis, StepFunction, Symbols
from nmt.ops.backend import force_backend
from nmt.ops.beam import GROUP_SIZE, LEAST_GROUPS, normalize, top_k

START, END = 0, 1


@pytest.fixture(params=["auto", "torch", "reference"], autouse=True)
def every_backend(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every test runs with the kernels, if there are any, and without."""
    with force_backend(request.param):
        yield


NAN = float("nan")
INF = float("inf")


class Table:
    """A step function whose logits depend on the sentence and on all tokens read so far.

    `tables` maps, per sentence, a history of tokens to logits.
    """

    def __init__(self, tables: Sequence[dict[tuple[int, ...], list[float]]], default: list[float]):
        self.tables = list(tables)
        self.default = default
        self.histories: list[list[tuple[int, ...]]] = []
        self.calls = 0
        self.rows = 0

    def __call__(self, tokens: Tensor) -> Tensor:
        batch, beam = tokens.shape
        assert batch == len(self.tables)
        if not self.histories:
            self.histories = [[()] * beam for _ in range(batch)]
            assert (tokens == START).all()
        else:
            self.histories = [
                [(*history, token) for history, token in zip(row, new, strict=True)]
                for row, new in zip(self.histories, tokens.tolist(), strict=True)
            ]
        self.calls += 1
        self.rows += batch
        return torch.tensor(
            [
                [table.get(history, self.default) for history in row]
                for table, row in zip(self.tables, self.histories, strict=True)
            ]
        )

    def reorder(self, parents: Tensor) -> None:
        self.histories = [
            [row[parent] for parent in chosen]
            for row, chosen in zip(self.histories, parents.tolist(), strict=True)
        ]

    def select(self, sentences: Tensor) -> None:
        self.histories = [self.histories[row] for row in sentences.tolist()]
        self.tables = [self.tables[row] for row in sentences.tolist()]


def logs(*probabilities: float) -> list[float]:
    return [math.log(p) if p else -INF for p in probabilities]


def options(**changes: object) -> SearchOptions:
    return SearchOptions(**{"early_stop": "exact", **changes})  # type: ignore[arg-type]


def search(
    step: StepFunction, chosen: SearchOptions, never: tuple[int, ...] = (START,), **rest: Any
) -> list[list[Hypothesis]]:
    return searching.search(step, chosen, Symbols(START, END, never), **rest)


def random_table(seed: int, vocabulary: int, depth: int, *, zeros: float = 0.0) -> dict:
    """Random logits for every history up to `depth` tokens, some of them -inf."""
    generator = torch.Generator().manual_seed(seed)
    table = {}
    for length in range(depth + 1):
        for history in itertools.product(range(2, vocabulary), repeat=length):
            logits = torch.randn(vocabulary, generator=generator) * 2
            drop = torch.rand(vocabulary, generator=generator) < zeros
            drop[END] = False
            table[history] = logits.masked_fill(drop, -INF).tolist()
    return table


def exhaustive(
    table: dict, vocabulary: int, *, max_length: int, min_length: int, divide: Any
) -> list[Hypothesis]:
    """All outputs of positive probability, best first."""
    found = []
    for length in range(min_length, max_length + 1):
        for tokens in itertools.product(range(2, vocabulary), repeat=length):
            total = 0.0
            for position, token in enumerate([*tokens, END]):
                scores = torch.tensor(table[tokens[:position]]).log_softmax(0)
                total += scores[token].item()
            if total > -INF:
                score = total / divide(length + 1)
                found.append(Hypothesis(tokens, total, score))
    return sorted(found, key=lambda hypothesis: -hypothesis.score)


def test_length_penalties_of_any_size_divide() -> None:
    large = SearchOptions(length_penalty=100.0, normalization="length")
    assert large.divisor(3000) == INF
    assert SearchOptions(length_penalty=-100.0, normalization="length").divisor(3000) > 0.0


def test_greedy_follows_the_best_token_although_another_path_is_better() -> None:
    table = {
        (): logs(0, 0, 0.6, 0.4),
        (2,): logs(0, 0.4, 0.3, 0.3),
        (3,): logs(0, 0.9, 0.05, 0.05),
    }
    [[greedy]] = search(Table([table], logs(0, 1, 0, 0)), options(beam=1), max_lengths=[5])
    assert greedy.tokens == (2,)
    assert greedy.log_probability == pytest.approx(math.log(0.6 * 0.4))
    [[best]] = search(
        Table([table], logs(0, 1, 0, 0)), options(beam=2, length_penalty=0.0), max_lengths=[5]
    )
    assert best.tokens == (3,)
    assert best.log_probability == pytest.approx(math.log(0.4 * 0.9))


def test_length_penalty_counts_the_end_token() -> None:
    table = {(): logs(0, 0.5, 0.5, 0)}
    [[short, long]] = search(
        Table([table], logs(0, 1, 0, 0)),
        options(beam=2, nbest=2, length_penalty=1.0),
        max_lengths=[3],
    )
    # Equal probability: dividing by (5 + n) / 6 makes the longer one better.
    assert short.tokens == (2,)
    assert short.score == pytest.approx(math.log(0.5) / (7 / 6))
    assert long.tokens == ()
    assert long.score == pytest.approx(math.log(0.5) / (6 / 6))


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10_000),
    power=st.sampled_from([-0.5, 0.0, 0.6, 1.0, 2.0]),
    min_length=st.integers(0, 2),
    zeros=st.sampled_from([0.0, 0.4]),
    normalization=st.sampled_from(["gnmt", "length"]),
)
def test_wide_beam_is_exhaustive_search(
    seed: int, power: float, min_length: int, zeros: float, normalization: str
) -> None:
    vocabulary, max_length = 5, 3
    table = random_table(seed, vocabulary, max_length, zeros=zeros)
    divide = {
        "gnmt": lambda length: ((5 + length) / 6) ** power,
        "length": lambda length: length**power,
    }[normalization]
    expected = exhaustive(
        table, vocabulary, max_length=max_length, min_length=min_length, divide=divide
    )
    wide = options(
        beam=60,
        nbest=3,
        length_penalty=power,
        min_length=min_length,
        normalization=normalization,
    )
    [found] = search(Table([table], [0.0] * vocabulary), wide, max_lengths=[max_length])
    assert [hypothesis.tokens for hypothesis in found] == [
        hypothesis.tokens for hypothesis in expected[:3]
    ]
    for one, other in zip(found, expected, strict=False):
        assert one.score == pytest.approx(other.score, abs=1e-5)


def marian_search(
    table: dict, vocabulary: int, *, beam: int, max_length: int, power: float
) -> tuple[tuple[int, ...], float]:
    """The best output of Marian's search: the beam is narrower by each hypothesis that ended."""
    live, finished = [((), 0.0)], []
    for length in range(max_length + 1):
        candidates = []
        for tokens, total in live:
            scores = torch.tensor(table[tokens]).log_softmax(0)
            allowed = [END] if length == max_length else range(1, vocabulary)
            candidates += [((*tokens, token), total + scores[token].item()) for token in allowed]
        candidates.sort(key=lambda candidate: -candidate[1])
        best = candidates[: beam - len(finished)]
        finished += [
            (tokens[:-1], total / (length + 1) ** power)
            for tokens, total in best
            if tokens[-1] == END
        ]
        live = [candidate for candidate in best if candidate[0][-1] != END]
    return max(finished, key=lambda one: one[1])


@settings(max_examples=60)
@given(
    seeds=st.lists(st.integers(0, 10_000), min_size=1, max_size=4),
    power=st.sampled_from([0.0, 0.6, 1.0]),
    beam=st.integers(1, 4),
)
def test_narrow_search_is_that_of_marian(seeds: list[int], power: float, beam: int) -> None:
    vocabulary, max_length = 5, 4
    tables = [random_table(seed, vocabulary, max_length) for seed in seeds]
    chosen = options(beam=beam, length_penalty=power, normalization="length", early_stop="narrow")
    found = search(Table(tables, [0.0] * 5), chosen, max_lengths=[max_length] * len(tables))
    for table, (hypothesis,) in zip(tables, found, strict=True):
        tokens, score = marian_search(
            table, vocabulary, beam=beam, max_length=max_length, power=power
        )
        assert hypothesis.tokens == tokens
        assert hypothesis.score == pytest.approx(score, abs=1e-5)


def huggingface_search(
    table: dict, vocabulary: int, *, beam: int, max_length: int, power: float, early: bool
) -> tuple[tuple[int, ...], float]:
    """The best output of `generate` of transformers 4.57, with forced_eos_token_id."""
    live, finished = [((), 0.0)], []
    for length in range(max_length + 1):
        candidates = []
        for tokens, total in live:
            scores = torch.tensor(table[tokens]).log_softmax(0)
            if length == max_length:
                candidates.append(((*tokens, END), total))
                continue
            allowed = range(1, vocabulary)
            candidates += [((*tokens, token), total + scores[token].item()) for token in allowed]
        candidates.sort(key=lambda candidate: -candidate[1])
        finished += [
            (tokens[:-1], total / (length + 1) ** power)
            for tokens, total in candidates[:beam]
            if tokens[-1] == END
        ]
        finished = sorted(finished, key=lambda one: -one[1])[:beam]
        live = [candidate for candidate in candidates if candidate[0][-1] != END][:beam]
        if len(finished) == beam and (
            early or not live or live[0][1] / (length + 1) ** power <= finished[-1][1]
        ):
            break
    return finished[0]


@settings(max_examples=60)
@given(
    seeds=st.lists(st.integers(0, 10_000), min_size=1, max_size=4),
    power=st.sampled_from([-0.5, 0.0, 0.6, 1.0, 2.0]),
    beam=st.integers(2, 4),
    stop=st.sampled_from(["current", "full"]),
)
def test_current_and_full_are_the_search_of_huggingface(
    seeds: list[int], power: float, beam: int, stop: str
) -> None:
    vocabulary, max_length = 5, 4
    tables = [random_table(seed, vocabulary, max_length) for seed in seeds]
    chosen = options(beam=beam, length_penalty=power, normalization="length", early_stop=stop)
    found = search(Table(tables, [0.0] * 5), chosen, max_lengths=[max_length] * len(tables))
    for table, (hypothesis,) in zip(tables, found, strict=True):
        tokens, score = huggingface_search(
            table, vocabulary, beam=beam, max_length=max_length, power=power, early=stop == "full"
        )
        assert hypothesis.tokens == tokens
        assert hypothesis.score == pytest.approx(score, abs=1e-5)


@settings(max_examples=100)
@given(seed=st.integers(0, 10_000), power=st.sampled_from([-0.5, 0.0, 0.6, 1.0, 2.0]))
def test_early_stop_is_exact(seed: int, power: float) -> None:
    """Asking for as many results as the beam holds delays the stop; the best stays the best."""
    table = random_table(seed, 5, 4)
    beam = 4
    [[early]] = search(
        Table([table], [0.0] * 5), options(beam=beam, length_penalty=power), max_lengths=[4]
    )
    [late] = search(
        Table([table], [0.0] * 5),
        options(beam=beam, nbest=beam, length_penalty=power),
        max_lengths=[4],
    )
    assert early == late[0]
    assert [x.score for x in late] == sorted((x.score for x in late), reverse=True)


def test_early_stop_saves_steps() -> None:
    table = {(): logs(0, 0.9, 0.05, 0.05)}
    step = Table([table], logs(0, 0.1, 0.5, 0.4))
    [[best]] = search(step, options(beam=2, length_penalty=0.0), max_lengths=[50])
    assert best.tokens == ()
    assert step.calls == 1  # no continuation of probability 0.05 can beat 0.9
    step = Table([table], logs(0, 0.1, 0.5, 0.4))
    search(step, options(beam=2, length_penalty=2.0), max_lengths=[50])
    assert step.calls > 1  # with a length penalty one could


def test_likely_stop_looks_a_quarter_ahead() -> None:
    """Long outputs are free after the first token; ending at once is better than to a quarter."""
    table = {(): logs(0, 0.5, 0.45, 0.05)}
    chain = {(2,) * length: logs(0, 0, 1, 0) for length in range(1, 30)}
    best = {}
    calls = {}
    for stop in ("exact", "likely"):
        step = Table([{**table, **chain}], logs(0, 1, 0, 0))
        chosen = options(beam=2, length_penalty=0.2, early_stop=stop)
        [[best[stop]]] = search(step, chosen, max_lengths=[40])
        calls[stop] = step.calls
    assert best["exact"].tokens == (2,) * 30
    assert best["likely"].tokens == ()
    assert calls == {"exact": 31, "likely": 1}
    # With a stronger penalty already the two tokens ahead are enough to win.
    step = Table([{**table, **chain}], logs(0, 1, 0, 0))
    [[found]] = search(step, options(beam=2, early_stop="likely"), max_lengths=[40])
    assert found.tokens == (2,) * 30


@settings(max_examples=60)
@given(seed=st.integers(0, 10_000), power=st.sampled_from([-0.5, 0.0, 0.6, 1.0]))
def test_likely_stop_never_takes_more_steps_nor_finds_better(seed: int, power: float) -> None:
    table = random_table(seed, 5, 4)
    scores, calls = {}, {}
    for stop in ("exact", "likely"):
        step = Table([table], logs(0, 0.4, 0.3, 0.2, 0.1))
        chosen = options(beam=3, length_penalty=power, early_stop=stop)
        [[found]] = search(step, chosen, max_lengths=[30])
        scores[stop], calls[stop] = found.score, step.calls
    assert scores["likely"] <= scores["exact"]
    assert calls["likely"] <= calls["exact"]


def test_a_later_hypothesis_can_still_win() -> None:
    table = {(): logs(0, 0.52, 0.48, 0), (2,): logs(0, 0.0, 1.0, 0), (2, 2): logs(0, 1.0, 0, 0)}
    [[best]] = search(
        Table([table], logs(0, 1, 0, 0)), options(beam=2, length_penalty=1.0), max_lengths=[10]
    )
    assert best.tokens == (2, 2)


@settings(max_examples=60)
@given(
    seeds=st.lists(st.integers(0, 10_000), min_size=1, max_size=6),
    beam=st.integers(1, 5),
    multiple=st.sampled_from([1, 4]),
    data=st.data(),
)
def test_a_sentence_is_searched_as_if_it_were_alone(
    seeds: list[int], beam: int, multiple: int, data: st.DataObject
) -> None:
    tables = [random_table(seed, 5, 4) for seed in seeds]
    limits = [data.draw(st.integers(0, 4)) for _ in seeds]
    chosen = options(beam=beam, nbest=beam)
    step = Table(tables, [0.0] * 5)
    together = search(step, chosen, max_lengths=limits, batch_multiple=multiple)
    alone = [
        search(Table([table], [0.0] * 5), chosen, max_lengths=[limit])[0]
        for table, limit in zip(tables, limits, strict=True)
    ]
    assert together == alone


@given(
    seed=st.integers(0, 1000),
    beam=st.integers(1, 4),
    nbest=st.integers(1, 4),
    power=st.sampled_from([-0.5, 0.0, 0.6, 1.0]),
    early_stop=st.sampled_from(get_args(EarlyStop)),
    min_length=st.integers(0, 3),
    batch_multiple=st.sampled_from([1, 2, 3]),
    sampling=st.booleans(),
)
@settings(max_examples=60)
def test_following_one_step_behind_changes_no_result(
    seed: int,
    beam: int,
    nbest: int,
    power: float,
    early_stop: str,
    min_length: int,
    batch_multiple: int,
    sampling: bool,
) -> None:
    generator = torch.Generator().manual_seed(seed)
    tables = [random_table(seed + row, 4, 4, zeros=0.2) for row in range(6)]
    for row, table in enumerate(tables):  # so that sentences are over at different times
        for logits in table.values():
            logits[END] += row - 2
    prefixes = [[2, 3][: int(torch.randint(3, (), generator=generator))] for _ in tables]
    limits = [int(torch.randint(2, 5, (), generator=generator)) for _ in tables]
    chosen = options(
        beam=max(beam, 1 if sampling else nbest),
        nbest=nbest,
        length_penalty=power,
        early_stop=early_stop,
        min_length=min_length,
        sampling=Sampling(seed=seed) if sampling else None,
    )
    found, calls = [], []
    for lagging in (False, True):
        table = Table(tables, logs(0, 1, 0, 0))
        rest = {"num_padding": 1, "batch_multiple": batch_multiple, "lagging": lagging}
        found.append(search(table, chosen, max_lengths=limits, prefixes=prefixes, **rest))
        calls.append(table.calls)
    assert found[0] == found[1]
    assert calls[0] <= calls[1] <= calls[0] + 1


def test_sentences_that_are_over_leave_the_batch() -> None:
    short = {(): logs(0, 1, 0, 0)}
    slow = {(2,) * length: logs(0, 0, 1, 0) for length in range(20)}
    step = Table([short, short, short, slow], logs(0, 1, 0, 0))
    found = search(step, options(beam=1), max_lengths=[30] * 4)
    assert [len(hypotheses[0].tokens) for hypotheses in found] == [0, 0, 0, 20]
    assert step.rows == 4 + 20
    step = Table([short, short, short, slow], logs(0, 1, 0, 0))
    search(step, options(beam=1), max_lengths=[30] * 4, batch_multiple=2)
    assert step.rows == 4 + 2 * 20


def test_padding_sentences_have_no_result() -> None:
    tables = [random_table(seed, 5, 4) for seed in (1, 2)]
    [expected] = search(Table(tables[:1], [0.0] * 5), options(), max_lengths=[4])
    [found] = search(Table(tables, [0.0] * 5), options(), max_lengths=[4, 4], num_padding=1)
    assert found == expected


def test_a_model_that_never_ends_is_ended_at_the_maximum() -> None:
    step = Table([{}, {}], logs(0, 0, 0.5, 0.5))
    found = search(step, options(beam=3), max_lengths=[7, 0])
    assert [len(hypotheses[0].tokens) for hypotheses in found] == [7, 0]
    assert all(math.isfinite(hypotheses[0].score) for hypotheses in found)


def test_minimum_length() -> None:
    [[found]] = search(
        Table([{}], logs(0, 0.9, 0.1, 0)), options(beam=2, min_length=3), max_lengths=[9]
    )
    assert found.tokens == (2, 2, 2)


def test_never_tokens_are_never_chosen() -> None:
    table = Table([{}], logs(0, 0.05, 0.9, 0.05))
    [[found]] = search(table, options(beam=2), (START, 2), max_lengths=[3])
    assert 2 not in found.tokens


def test_forced_prefix() -> None:
    table = {
        (): logs(0, 0.1, 0.8, 0.1),
        (3,): logs(0, 0.25, 0.25, 0.5),
        (3, 3): logs(0, 0.1, 0.9, 0),
    }
    found = search(
        Table([table, table], logs(0, 1, 0, 0)),
        options(beam=2, length_penalty=0.0),
        max_lengths=[5, 5],
        prefixes=[(3, 3), ()],
    )
    assert found[0][0].tokens == (3, 3, 2)
    assert found[0][0].log_probability == pytest.approx(math.log(0.1 * 0.5 * 0.9))
    assert found[1][0].tokens == (2,)
    # A prefix may be as long as the maximum, unlikely, and hold what is never chosen.
    [[forced]] = search(
        Table([table], logs(0, 1, 0, 0)), options(), max_lengths=[3], prefixes=[(START, 2, 2)]
    )
    assert forced.tokens == (START, 2, 2)
    assert math.isfinite(forced.score)
    with pytest.raises(ValueError, match="prefix of at most 2 tokens, got 3"):
        search(
            Table([table], logs(0, 1, 0, 0)), options(), max_lengths=[2], prefixes=[(START, 2, 2)]
        )


def test_nan_is_never_chosen() -> None:
    table = {(): [NAN, math.log(0.2), NAN, math.log(0.8)], (3,): [NAN, 0.0, NAN, INF]}
    for beam in (1, 3):
        [[found]] = search(Table([table], logs(0, 1, 0, 0)), options(beam=beam), max_lengths=[4])
        assert found.tokens == (3,)
        assert found.log_probability == pytest.approx(math.log(0.8))


def test_all_nan_fails_only_that_sentence() -> None:
    good = random_table(1, 5, 4)
    bad = {history: [NAN] * 5 for history in good}
    late = {**good, **{history: [NAN] * 5 for history in good if len(history) == 2}}
    [expected] = search(Table([good], [NAN] * 5), options(min_length=3), max_lengths=[4])
    found = search(
        Table([bad, good, late], [NAN] * 5), options(min_length=3), max_lengths=[4, 4, 4]
    )
    assert found == [[], expected, []]


@given(seed=st.integers(0, 10_000), share=st.sampled_from([0.1, 0.5, 0.9]), beam=st.integers(1, 4))
def test_a_token_with_nan_is_not_in_the_output(seed: int, share: float, beam: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    table = random_table(seed, 6, 3)
    for logits in table.values():
        for token in range(6):
            if token != END and torch.rand((), generator=generator) < share:
                logits[token] = NAN
    [found] = search(Table([table], [NAN] * 6), options(beam=beam, nbest=beam), max_lengths=[3])
    assert found
    for hypothesis in found:
        for position, token in enumerate(hypothesis.tokens):
            assert not math.isnan(table[hypothesis.tokens[:position]][token])
        assert math.isfinite(hypothesis.score)


def test_ties_go_to_the_lower_token() -> None:
    step = Table([{(): [-INF, -INF, 0.0, 0.0, 0.0]}], [-INF, 0.0, -INF, -INF, -INF])
    [found] = search(step, options(beam=4, nbest=3), max_lengths=[3])
    assert [hypothesis.tokens for hypothesis in found] == [(2,), (3,), (4,)]


def draw(table: dict, count: int, sampling: Sampling, *, first: int = 0) -> list[tuple[int, ...]]:
    found = search(
        Table([table] * count, logs(0, 1, 0, 0)),
        options(beam=1, sampling=sampling),
        max_lengths=[1] * count,
        seeds=range(first, first + count),
    )
    return [hypotheses[0].tokens for hypotheses in found]


def test_samples_follow_the_probabilities() -> None:
    table = {(): logs(0, 0.2, 0.5, 0.3)}
    drawn = draw(table, 4000, Sampling(seed=3))
    assert drawn.count((2,)) / 4000 == pytest.approx(0.5, abs=0.03)
    assert drawn.count((3,)) / 4000 == pytest.approx(0.3, abs=0.03)
    cold = draw(table, 1000, Sampling(temperature=0.5, seed=3))
    assert cold.count((2,)) / 1000 == pytest.approx(0.25 / 0.38, abs=0.05)
    assert set(draw(table, 500, Sampling(top_k=2, seed=3))) == {(2,), (3,)}
    assert set(draw(table, 500, Sampling(top_p=0.5, seed=3))) == {(2,)}
    assert set(draw(table, 500, Sampling(top_p=0.51, seed=3))) == {(2,), (3,)}


def test_samples_depend_on_seed_and_sentence_only() -> None:
    table = {(): logs(0, 0.2, 0.5, 0.3)}
    drawn = draw(table, 50, Sampling(seed=3))
    assert drawn == draw(table, 50, Sampling(seed=3))
    assert drawn[20:] == draw(table, 30, Sampling(seed=3), first=20)
    assert drawn != draw(table, 50, Sampling(seed=4))


def test_samples_are_scored_by_the_model_and_survive_nan() -> None:
    table = {(): [NAN, math.log(0.2), math.log(0.8), NAN]}
    sampling = Sampling(temperature=2.0, top_k=1, seed=1)
    [[found]] = search(
        Table([table], logs(0, 1, 0, 0)), options(beam=1, sampling=sampling), max_lengths=[3]
    )
    assert found.tokens == (2,)
    assert found.log_probability == pytest.approx(math.log(0.8))
    assert search(Table([{}], [NAN] * 4), options(beam=2, sampling=sampling), max_lengths=[3]) == [
        []
    ]


def test_several_samples_of_a_sentence() -> None:
    table = random_table(5, 6, 4)
    [found] = search(
        Table([table], [0.0] * 6),
        options(beam=8, nbest=8, sampling=Sampling(seed=2)),
        max_lengths=[4],
    )
    assert len(found) == 8
    assert len({hypothesis.tokens for hypothesis in found}) > 3


@given(
    seed=st.integers(0, 10_000),
    count=st.integers(1, 6),
    rest=st.integers(0, GROUP_SIZE - 1),
    levels=st.sampled_from([5, 10_000]),
)
def test_top_k_by_groups_is_top_k(seed: int, count: int, rest: int, levels: int) -> None:
    """The same values, ties or not; and they are where it says."""
    generator = torch.Generator().manual_seed(seed)
    vocabulary = LEAST_GROUPS * count * GROUP_SIZE + rest
    logits = torch.randint(levels, (2, 3, vocabulary), generator=generator).float()
    logits[0, 0, 10:] = -INF
    values, tokens = top_k(logits, count)
    assert torch.equal(values.sort(dim=-1, descending=True).values, logits.topk(count).values)
    assert torch.equal(logits.gather(2, tokens), values)
    assert all(len(set(row)) == count for row in tokens.flatten(0, 1).tolist())


def test_normalizer_of_ordinary_and_extreme_rows() -> None:
    torch.manual_seed(1)
    logits = torch.randn(5, 2, 700) * 3.0
    alone = normalize(logits[:1].clone())
    logits[1] += 200.0
    logits[2] -= 200.0
    logits[3, 0, 5] = NAN
    logits[3, 1, 5] = INF
    logits[4, 0] = NAN
    logits[4, 1] = -INF
    kept = logits.double().masked_fill(~logits.isfinite(), -INF)
    expected = kept.logsumexp(dim=-1)
    found = normalize(logits)
    torch.testing.assert_close(found[:4].double(), expected[:4], atol=0.0, rtol=1e-6)
    assert (found[4] == INF).all()
    assert torch.equal(logits[3:].isfinite(), kept[3:].isfinite())
    assert torch.equal(found[:1], alone)  # whatever the rows around it
