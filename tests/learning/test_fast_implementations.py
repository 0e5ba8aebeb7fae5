"""The fastest implementations train like the references: 200 updates, loss by loss."""

from pathlib import Path
from typing import Any

import pytest
import torch
from support.attention_cases import CASES
from support.runs import outcome, tiny_config, write_run

from nmt.cli import train
from nmt.config.config import AttentionConfig
from nmt.ops.backend import force_backend

UPDATES = 200
KINDS = [
    *("softmax", "entmax learned", "rela-g"),
    *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("sparsemax", "entmax15", "rela-i")),
]


def options(case: AttentionConfig) -> dict[str, Any]:
    """The keys of a configuration that are not left to the defaults."""
    return {"kind": case.kind, **case.given}


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
def test_losses_agree(kind: str, tmp_path: Path) -> None:
    fast = losses(tmp_path / "auto", CASES[kind])
    with force_backend("reference"):
        plain = losses(tmp_path / "reference", CASES[kind])
    assert len(fast) == UPDATES
    assert fast[-1] < 0.8 * fast[0]  # it learns, so there is something to compare
    torch.testing.assert_close(torch.tensor(fast), torch.tensor(plain), rtol=1e-4, atol=0.0)
