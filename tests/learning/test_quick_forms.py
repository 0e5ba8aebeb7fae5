"""The kernels and other quick forms train like plain torch: 200 updates, loss by loss."""

from pathlib import Path
from typing import Any

import pytest
import torch
from support.attention_cases import CASES
from support.runs import outcome, tiny_config, write_run
from torch import Tensor
from torch.nn import functional

from nmt.cli import train
from nmt.config.config import AttentionConfig
from nmt.model.attention import AttentionCore
from nmt.model.attention_kinds import FusedAttention
from nmt.model.norms import HeadNorm
from nmt.native import library
from nmt.training import loss

UPDATES = 200
KINDS = [
    *("softmax", "entmax learned", "rela-g"),
    *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("sparsemax", "entmax15", "rela-i")),
]


def plain_cross_entropy(
    hidden: Tensor, weight: Tensor, target: Tensor, *, smoothing: float
) -> tuple[Tensor, Tensor]:
    logits = functional.linear(hidden, weight)
    value = functional.cross_entropy(logits, target, reduction="sum", label_smoothing=smoothing)
    return value, functional.cross_entropy(logits.detach(), target, reduction="sum")


def options(case: AttentionConfig) -> dict[str, Any]:
    """What a configuration says, without what it leaves to the defaults."""
    return {name: value for name, value in vars(case).items() if value is not None}


def losses(directory: Path, case: AttentionConfig) -> list[float]:
    """The loss of every update, without dropout."""
    settings = tiny_config(directory, max_updates=UPDATES, log_every=1, save_every=UPDATES)
    settings["model"]["attention"] = options(case)
    for name in ("dropout", "attention_dropout", "feed_forward_dropout"):
        settings["model"][name] = 0.0
    settings["validate"]["every"] = UPDATES
    assert train.main(["--config", str(write_run(directory, settings))]) == 0
    records = outcome(directory / "run")["records"]
    return [record["loss"] for record in records if record["event"] == "train"]


@pytest.mark.parametrize("kind", KINDS)
def test_losses_agree(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick = losses(tmp_path / "quick", CASES[kind])
    monkeypatch.setattr(library, "load", lambda: None)
    monkeypatch.setattr(AttentionCore, "goes_blockwise", lambda _self, _x: False)
    monkeypatch.setattr(HeadNorm, "goes_by_hand", lambda _self, _z: False)
    monkeypatch.setattr(FusedAttention, "wins", lambda *_arguments, **_options: False)
    monkeypatch.setattr(loss, "cross_entropy", plain_cross_entropy)
    plain = losses(tmp_path / "plain", CASES[kind])
    assert len(quick) == UPDATES
    assert quick[-1] < 0.8 * quick[0]  # it learns, so there is something to compare
    torch.testing.assert_close(torch.tensor(quick), torch.tensor(plain), rtol=1e-4, atol=0.0)
