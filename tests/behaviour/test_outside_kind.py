"""A kind that is added from outside the package: one mapping and one row, and everything works.

Its weights are (score - threshold)_+ ^ power, so a query can attend to nothing; every head learns
its threshold, and the joined heads are normed. Nothing of it is known to the package.
"""

import json
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest
import torch
from support.runs import die_at_call, outcome, tiny_config, train_in_child, write_run
from torch import Tensor
from torch.nn import functional

from nmt.analysis.measures import nullable_sites, unnormalised_sites
from nmt.checkpoint.model_directory import load_model
from nmt.cli import analyze, bench, train, translate
from nmt.config.attention_kinds import (
    ATTENTION_KINDS,
    AttentionKind,
    HeadParameter,
    JoinedHeadsNorm,
    Option,
)
from nmt.config.scalars import Range
from nmt.ops import backend
from nmt.ops.score_mappings import LARGEST_WEIGHT, ScoreMapping
from nmt.training.update import Updater

KIND = "rectified-power"
UPDATES = 12


@dataclass(frozen=True)
class RectifiedPower(ScoreMapping):
    """(score - threshold)_+ ^ power."""

    power: float

    def weights(self, scores: Tensor, visible: Tensor | None, *parameters: Tensor) -> Tensor:
        (threshold,) = parameters
        scores = scores - threshold.to(scores.dtype)[:, None, None]
        if visible is not None:
            scores = scores.masked_fill(~visible, 0.0)
        return scores.clamp(0.0, LARGEST_WEIGHT ** (1.0 / self.power)) ** self.power


ROW = AttentionKind(
    mapping=lambda options: RectifiedPower(options["power"]),
    options={
        "power": Option(Annotated[float, Range(1.0, 4.0)], 2.0, required="a number from 1 to 4")
    },
    norm=lambda _options: JoinedHeadsNorm("rms", gate=False, gain_init=1.0),
    sums_to_one=False,
    can_attend_to_nothing=True,
    parameters=lambda _options: (
        HeadParameter(
            name="raw_threshold",
            initialize=lambda raw: raw.fill_(-1.0),
            reported_as="softplus_threshold",
            value=functional.softplus,
            report=functional.softplus,
        ),
    ),
)


@pytest.fixture(autouse=True)
def kind(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kind is in the table for the time of a test."""
    monkeypatch.setitem(ATTENTION_KINDS, KIND, ROW)


def settings(directory: Path, attention: Any) -> dict[str, Any]:
    """A run of a few updates with the kind everywhere."""
    config = tiny_config(directory, max_updates=UPDATES, save_every=4)
    config["model"]["attention"] = attention
    return config


def trained(directory: Path, *, kill_at: int | None = None) -> Path:
    """The run directory of a run, which may have been killed and resumed."""
    config = settings(directory, {"kind": KIND, "power": 1.5})
    path = write_run(directory, config)
    if kill_at is not None:
        killed = train_in_child(path, lambda: die_at_call(Updater, "run", kill_at))
        assert killed == -signal.SIGKILL
    assert train.main(["--config", str(path)]) == 0
    return directory / "run"


def test_it_trains_and_resumes_bit_for_bit(tmp_path: Path) -> None:
    run = outcome(trained(tmp_path / "once"))
    resumed = outcome(trained(tmp_path / "twice", kill_at=8))
    assert resumed["model"] == run["model"]
    assert resumed["optimizer"] == run["optimizer"]
    losses = [record["loss"] for record in run["records"] if record["event"] == "train"]
    assert losses[-1] < losses[0]
    last = [record for record in run["records"] if record["event"] == "validation"][-1]
    layer = last["attention"]["cross"]["layer_0"]
    assert layer["null_rate"] > 0.0
    assert layer["softplus_threshold_0"] != layer["softplus_threshold_1"]


def test_it_translates_by_torch_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = trained(tmp_path)
    monkeypatch.setattr(backend, "_logged", set())
    source = tmp_path / "data" / "validation.src"
    capsys.readouterr()
    arguments = ["--model", str(run), "--input", str(source), "--max-length", "6"]
    assert translate.main(arguments) == 0
    output = capsys.readouterr()
    assert output.out.count("\n") == 12
    assert output.err.count("warning: ") == 1
    assert f"{RectifiedPower(1.5)} (encoder_self of layer 0) has no mapping in C" in output.err


def test_it_is_analysed_as_its_row_says(tmp_path: Path) -> None:
    run = trained(tmp_path)
    model = load_model(max((run / "checkpoints").glob("step-*"))).model
    assert unnormalised_sites(model) == nullable_sites(model) == set(model.attentions())
    data = tmp_path / "data"
    files = ["--source", str(data / "validation.src"), "--target", str(data / "validation.tgt")]
    assert analyze.main(["--model", str(run), *files, "--output", str(tmp_path / "report")]) == 0
    (found,) = json.loads((tmp_path / "report" / "analysis.json").read_text("utf-8"))["models"]
    assert "## Learned softplus_threshold" in (tmp_path / "report" / "tables.md").read_text("utf-8")
    assert (tmp_path / "report" / "softplus_threshold.png").is_file()
    assert found["nullable"] == dict.fromkeys(("encoder_self", "decoder_self", "cross"), True)
    heads = found["statistics"]["cross"]["layer_0"]["heads"]
    assert len(heads["softplus_threshold"]) == 2
    assert "shuffled_null_rate" in heads
    assert f"{KIND}, power 1.5" in json.dumps(found)


def test_it_is_measured(tmp_path: Path) -> None:
    tiny = ["--dim", "16", "--heads", "2", "--layers", "1", "--feed-forward-dim", "32"]
    path = tmp_path / "numbers.json"
    arguments = [*tiny, "--vocabulary", "40", "--length", "3", "--repeats", "1"]
    arguments += ["--batch-tokens", "60", "--updates", "1", "--kinds", "softmax", KIND]
    assert bench.main(["train", *arguments, "--json", str(path)]) == 0
    rows = json.loads(path.read_text(encoding="utf-8"))["kinds"]
    assert [row["kind"] for row in rows] == ["softmax", KIND]


@pytest.mark.parametrize(
    ("attention", "message"),
    [
        (KIND, f"{KIND} needs power: a number from 1 to 4"),
        ({"kind": KIND, "power": 5.0}, "expected a number (at least 1 and at most 4), got '5.0'"),
        ({"kind": KIND, "power": 2.0, "k": 3}, "has no option 'k' (its own: power)"),
        ({"kind": "softmax", "power": 2.0}, f"it belongs to {KIND}"),
        ("rectified", "expected one of softmax"),
    ],
)
def test_its_options_are_checked(
    attention: Any, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_run(tmp_path, settings(tmp_path, attention))
    assert train.main(["--config", str(path)]) == 2
    assert message in capsys.readouterr().err


def test_its_gradients_are_right() -> None:
    scores = torch.randn(2, 3, 4, 5, dtype=torch.float64, requires_grad=True)
    threshold = torch.tensor([-0.5, 0.0, 0.5], dtype=torch.float64, requires_grad=True)
    visible = torch.arange(5) < 4
    assert torch.autograd.gradcheck(
        lambda scores, threshold: RectifiedPower(2.0).weights(scores, visible, threshold),
        (scores, threshold),
    )
