"""Times, spreads and memory are what they say."""

import time

import numpy as np
import pytest
import torch

from nmt.bench.decoding import Sentences, group_seconds
from nmt.bench.machine import MatrixProduct, describe_machine, peak_memory
from nmt.bench.result import speed_fields
from nmt.bench.synthetic import Shapes, synthetic_codec, synthetic_config, synthetic_lines
from nmt.bench.timing import Spread, measure_rounds, seconds
from nmt.bench.training import synthetic_task
from nmt.errors import DataError

CPU = torch.device("cpu")


def test_time_is_that_of_one_call() -> None:
    total = seconds(lambda: time.sleep(0.02), CPU)
    assert total >= 0.02
    assert 0.005 <= seconds(lambda: time.sleep(0.005), CPU, calls=4) < 0.02 + total


def test_every_round_runs_all_cases_in_turn() -> None:
    called: list[str] = []
    turns: list[int] = []
    cases = [lambda: called.append("a"), lambda: time.sleep(0.002) or called.append("b")]
    times = measure_rounds(cases, repeats=3, device=CPU, calls=[2, 1], advance=turns.append)
    assert "".join(called) == "aabaabaab"
    assert times.shape == (2, 3)
    assert (times[1] >= 0.002).all()
    assert turns == [1] * 6


def test_ratios_are_taken_within_a_round() -> None:
    assert Spread.of([3.0, 1.0, 2.0]) == Spread(2.0, 1.0, 3.0)
    # A round in which the machine was ten times slower leaves the ratios alone.
    reference, own, rate = np.array([[1.0, 10.0, 1.0], [2.0, 20.0, 2.0], [64.0, 6.4, 64.0]])
    fields = speed_fields(own, reference, rate, tokens=8, operations=16)
    assert fields["tokens_per_second"] == Spread(4.0, 0.4, 4.0)
    assert fields["relative_speed"] == Spread(0.5, 0.5, 0.5)
    assert fields["share_of_matrix_rate"] == Spread(0.125, 0.125, 0.125)


def test_peak_memory_sees_what_is_freed_again() -> None:
    size = 64_000_000
    with peak_memory(CPU) as peak:
        kept = torch.ones(size // 8)  # half of it
        torch.ones(size // 8).sum()
    if peak.bytes is None:
        pytest.skip("this system does not tell")
    assert 0.8 * size < peak.bytes < 1.5 * size
    del kept
    with peak_memory(CPU) as nothing:
        pass
    assert nothing.bytes is not None
    assert nothing.bytes < 0.1 * size


def test_the_machine_is_named() -> None:
    machine = describe_machine(CPU)
    assert machine.processor
    assert machine.torch == torch.__version__
    assert machine.threads == torch.get_num_threads()
    for part in (machine.processor, machine.torch):
        assert part in str(machine)
    product = MatrixProduct(CPU)
    assert product.rates(np.array([seconds(product.case, CPU)])) > 1e8


def test_time_of_a_batch_goes_to_the_groups_of_its_sentences() -> None:
    times = np.array([[4.0, 8.0], [8.0, 16.0], [2.0, 4.0]])
    found = group_seconds(times, [4, 4, 2], [5, 5])
    assert found.tolist() == [[6.0, 12.0], [8.0, 16.0]]
    assert group_seconds(times, [4, 4, 2], [10]).tolist() == [[14.0, 28.0]]


def test_sentences_are_sorted_and_blank_ones_left_out() -> None:
    shapes = Shapes(vocabulary=20)
    codec = synthetic_codec(synthetic_config(shapes), shapes)
    assert len(codec.source.vocabulary) == len(codec.target.vocabulary) == 20
    sentences = Sentences.of(["5 6 7", "", "8", "  ", "9 10"], codec)
    assert list(sentences.lines) == ["8", "9 10", "5 6 7"]
    assert list(sentences.lengths) == [2, 3, 4]
    assert sentences.batches(2) == [slice(0, 2), slice(2, 3)]
    with pytest.raises(DataError, match="got none"):
        Sentences.of([" "], codec)


def test_random_tasks_have_the_shapes_asked_for() -> None:
    shapes = Shapes(vocabulary=30, length=10, batch_tokens=300)
    task = synthetic_task(shapes, 3, precision="float32")
    again = synthetic_task(shapes, 3, precision="float32")
    assert len(task.updates) == 3
    for update, same in zip(task.updates, again.updates, strict=True):
        (batch,) = update.batches
        assert torch.equal(batch.source, same.batches[0].source)
        assert batch.source.numel() <= 300
        assert batch.target_visible.sum() == update.tokens
        assert batch.target_visible.float().mean() > 0.8, "like lengths go together"
        assert int(batch.target_output.max()) < 30
    lengths = [len(line.split()) for line in synthetic_lines(shapes, 400)]
    assert 8 < sum(lengths) / 400 < 12
    assert len(set(lengths)) > 10
