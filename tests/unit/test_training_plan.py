"""The calculated time of training on many GPUs: its limits, and what moves it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from nmt.bench.roofline import GPUS
from nmt.cli import doctor
from nmt.config.loading import load_config
from nmt.doctor.compute import Device
from nmt.doctor.plan import (
    COMPARED,
    MAX_GPUS,
    PLANNED_VOCABULARY,
    all_reduce_seconds,
    choose_gpu,
    make_plan,
    plans_for,
    tokens_per_second,
    tokens_that_fit,
    update_seconds,
    work_of,
)
from nmt.errors import ConfigError

CONFIGS = Path(__file__).parents[2] / "configs"
A100, OLD = GPUS["A100"], GPUS["1080 Ti"]
WORK = work_of(None)


def test_the_model_of_the_paper_has_the_size_of_the_paper() -> None:
    assert WORK.parameters == pytest.approx(72.31e6, rel=0.005)
    of_config = work_of(load_config(CONFIGS / "wmt14_en_de" / "01-softmax.yaml"))
    assert of_config == WORK


@pytest.mark.parametrize(
    ("subword", "vocabulary"),
    [
        ("{kind: bpe}", PLANNED_VOCABULARY),
        ("{kind: sentencepiece, vocabulary_size: 8000}", 8_000),
        ("{kind: bpe, merges: 4000}", 4_000),
    ],
)
def test_a_vocabulary_that_is_not_known_yet_is_that_of_the_paper(
    subword: str, vocabulary: int
) -> None:
    config = load_config(CONFIGS / "wmt14_en_de" / "01-softmax.yaml", [f"data.subword={subword}"])
    assert work_of(config).vocabulary == vocabulary


def test_more_gpus_are_faster_until_they_are_not() -> None:
    plan = make_plan(MAX_GPUS, A100, WORK)
    assert [step.gpus for step in plan.steps] == [1 << power for power in range(11)]
    speeds = {step.gpus: step.tokens_per_second for step in plan.steps}
    below = [speeds[n] for n in speeds if n <= plan.useful_gpus]
    assert below == sorted(below)
    assert 1 < plan.useful_gpus < MAX_GPUS
    assert speeds[2 * plan.useful_gpus] < 1.25 * speeds[plan.useful_gpus]
    assert speeds[plan.useful_gpus] >= 1.25 * speeds[plan.useful_gpus // 2]
    assert all(0 < step.efficiency <= 1 for step in plan.steps)
    assert plan.steps[0].bound_by == "computing"
    assert plan.steps[-1].bound_by in ("launches", "network")
    for step in plan.steps:
        assert step.hours == pytest.approx(300_000 * 25_000 / step.tokens_per_second / 3600)


def test_larger_updates_keep_more_gpus_busy() -> None:
    larger = replace(WORK, update_tokens=16 * WORK.update_tokens)
    few, many = (make_plan(MAX_GPUS, A100, work).useful_gpus for work in (WORK, larger))
    assert many > few


def test_a_number_that_is_no_power_of_two_is_the_last() -> None:
    assert [step.gpus for step in make_plan(6, A100, WORK).steps] == [1, 2, 4, 6]


def test_precision_follows_the_card() -> None:
    assert make_plan(1, A100, WORK).precision == "bfloat16"
    assert make_plan(1, OLD, WORK).precision == "float32"
    exact = make_plan(1, A100, replace(WORK, precision="float32"))
    assert exact.precision == "float32"
    fast = make_plan(1, A100, WORK)
    assert exact.steps[0].tokens_per_second < fast.steps[0].tokens_per_second
    assert exact.tokens_that_fit < fast.tokens_that_fit


def test_what_fits_grows_with_memory_and_shrinks_with_the_model() -> None:
    fits = tokens_that_fit(WORK, A100, "bfloat16")
    half = replace(A100, memory_bytes=A100.memory_bytes / 2)
    assert fits / 3 < tokens_that_fit(WORK, half, "bfloat16") < fits / 2
    deep = replace(WORK, model=replace(WORK.model, encoder_layers=18, decoder_layers=18))
    assert tokens_that_fit(deep, A100, "bfloat16") < fits / 2.5
    assert tokens_that_fit(WORK, replace(A100, memory_bytes=1e9), "bfloat16") == 0


def test_the_network_is_asked_only_by_several_gpus_and_is_slower_between_nodes() -> None:
    seconds = [all_reduce_seconds(A100, 72_000_000, number) for number in (1, 8, 16)]
    assert seconds[0] == 0
    assert 0 < seconds[1] < seconds[2]


def test_gradients_in_16_bits_help_where_the_network_is_slow() -> None:
    config = load_config(CONFIGS / "wmt14_en_de" / "01-softmax.yaml", ["train.all_reduce=bfloat16"])
    whole, halved = (update_seconds(work, OLD, "float32", 1024) for work in (WORK, work_of(config)))
    assert whole[1] == "network"
    assert halved[0] < whole[0]


def test_a_config_is_planned_by_its_slowest_kind() -> None:
    path = CONFIGS / "wmt14_en_de" / "01-softmax.yaml"
    learned = "{kind: entmax, alpha: learned}"
    assert work_of(load_config(path, [f"model.attention={learned}"])).kind == "entmax-learned"
    mixed = work_of(load_config(path, [f"model.attention.cross={learned}"]))
    assert mixed.kind == min(("softmax", "entmax-learned"), key=tokens_per_second)


@pytest.mark.parametrize(
    ("asked", "device", "name"),
    [
        ("a100", None, "A100 40 GB"),
        ("4090", None, "RTX 4090"),
        ("1080ti", None, "GTX 1080 Ti"),
        ("H100", None, "H100 SXM"),
        (None, "NVIDIA H100 80GB HBM3", "H100 SXM"),
        (None, "Some Card", "A100 40 GB"),
        (None, None, "A100 40 GB"),
    ],
)
def test_gpus_by_name(
    asked: str | None, device: str | None, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert choose_gpu(asked, device).name == name
    is_assumed = asked is None and name == "A100 40 GB"
    assert ("an A100 is assumed" in caplog.text) == is_assumed


def test_an_unknown_gpu_is_an_error() -> None:
    with pytest.raises(ConfigError, match="--gpu z80: expected one of B200, "):
        choose_gpu("z80", None)


def test_the_gpus_of_a_node_are_told_what_to_expect() -> None:
    card = Device("cuda:0", "NVIDIA A100-SXM4-40GB", 40 << 30)
    plans = plans_for([Device("cpu", "some", None), card, replace(card, name="cuda:1")])
    assert [plan.kind for plan in plans] == list(COMPARED)
    assert [step.gpus for step in plans[0].steps] == [1, 2]
    assert plans_for([Device("cpu", "some", None)]) == []
    assert plans_for([replace(card, model="Some Card")]) == []


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.main(["--plan", "16", "--gpu", "h100", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["gpu"], found["precision"]) == ("H100 SXM", "bfloat16")
    assert [step["gpus"] for step in found["steps"]] == [1, 2, 4, 8, 16]
    assert "not measured" in found["note"]
    config = str(CONFIGS / "wmt16_ro_en" / "rela-g.yaml")
    assert doctor.main(["--plan", "2", "--gpu", "4090", "--config", config]) == 0
    text = capsys.readouterr().out
    assert "rela-g attention" in text
    assert "Calculated, not measured on a GPU" in text
    assert "it hardly gets faster" in text
    config = str(CONFIGS / "demo" / "base.yaml")
    assert doctor.main(["--plan", "1", "--gpu", "a100", "--config", config]) == 0
    assert "take <0.01 hours each" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--plan", "2000"], "--plan 2000: expected at most 1024 GPUs"),
        (["--gpu", "a100"], "--gpu is for --plan N_GPUS"),
        (["--plan", "2", "--config", "none.yaml"], "none.yaml"),
    ],
)
def test_mistakes(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.main(arguments) == 2
    assert message in capsys.readouterr().err
