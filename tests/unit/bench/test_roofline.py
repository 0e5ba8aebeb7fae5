"""The calculated speed of GPUs: what moves it, and that the checked-in counts give it."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest

import nmt.bench
from nmt.bench.kinds import all_kinds
from nmt.bench.roofline import (
    BANDWIDTH_SHARE,
    CACHE_RATIO,
    GPUS,
    HOST_LAUNCH,
    REFERENCE_GPU,
    SYNCHRONISATION,
    WorkCounts,
    find_counts,
    find_gpu,
    format_counts,
    predict,
    recorded_counts,
)

TABLE = Path(nmt.bench.__file__).with_name("counts.tsv")


def update(kind: str = "softmax", precision: str = "bfloat16") -> WorkCounts:
    counts = find_counts("update", kind, precision)
    assert counts is not None
    return counts


@pytest.mark.parametrize("kind", all_kinds())
def test_every_kind_is_counted(kind: str) -> None:
    for precision in ("bfloat16", "float32"):
        assert update(kind, precision).tokens == 6106
    assert find_counts("update", kind, "bfloat16", sentences=97) is not None
    step = find_counts("decoding step", kind, "float32")
    assert step is not None
    assert step.sentences == 100


def test_the_table_is_what_its_counts_format_to() -> None:
    text = TABLE.read_text(encoding="utf-8")
    assert format_counts(recorded_counts()) == text
    rows = list(csv.DictReader(text.splitlines(), delimiter="\t"))
    assert len({row.key for row in recorded_counts()}) == len(rows)


def test_a_faster_gpu_is_predicted_to_be_faster() -> None:
    speeds = [
        predict(update(), GPUS[name]).tokens_per_second
        for name in ("1080 Ti", "V100", "RTX 4090", "A100", "H100", "B200")
    ]
    assert speeds == sorted(speeds)


def test_half_precision_is_faster_where_the_gpu_has_it() -> None:
    half, single = update(), update(precision="float32")
    assert predict(half).tokens_per_second > 1.3 * predict(single).tokens_per_second
    old = GPUS["1080 Ti"]
    assert old.product_rate("float16") == old.product_rate("float32") == old.float32_flops


def test_launches_bound_the_time_of_small_work() -> None:
    small = replace(update(), product_flops=0, product_bytes=0, other_bytes=0, attention_flops=0)
    found = predict(replace(small, vector_flops=0, launches=1000))
    assert found.seconds == pytest.approx(1000 * HOST_LAUNCH)
    waiting = predict(replace(small, vector_flops=0, launches=1000, synchronisations=10))
    assert waiting.seconds == pytest.approx(1000 * HOST_LAUNCH + 10 * SYNCHRONISATION)


def test_fused_products_take_the_longer_of_their_work_and_their_way_through_the_cache() -> None:
    step = find_counts("decoding step", "softmax", "float32")
    assert step is not None
    assert step.fused_flops > 0
    base = predict(step).device_seconds
    assert predict(replace(step, cache_bytes=0)).device_seconds < base
    longer = predict(replace(step, cache_bytes=2 * step.cache_bytes)).device_seconds - base
    seconds = step.cache_bytes / (BANDWIDTH_SHARE * CACHE_RATIO * REFERENCE_GPU.bandwidth)
    assert longer == pytest.approx(seconds)


def test_a_gpu_is_found_by_the_name_that_torch_gives_it() -> None:
    assert find_gpu("NVIDIA A100-SXM4-40GB") is REFERENCE_GPU
    assert find_gpu("NVIDIA A100-SXM4-80GB") is GPUS["A100-SXM4-80GB"]
    assert find_gpu("NVIDIA GeForce RTX 4090") is GPUS["RTX 4090"]
    assert find_gpu("NVIDIA L40S") is GPUS["L40S"]
    assert find_gpu("NVIDIA GeForce GTX 1080 Ti") is GPUS["1080 Ti"]
    for other in ("Some Other Card", "NVIDIA L40", "NVIDIA T400 4GB", "NVIDIA RTX A1000", "GH200"):
        assert find_gpu(other) is None
    assert find_gpu("NVIDIA GeForce RTX 4090 Laptop GPU") is None
