"""The choice of an implementation: by the call, by the environment, said once, with its reasons."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import nmt.decoding.decoder  # noqa: F401  (it has an operation of the table)
from nmt.config.config import AttentionConfig
from nmt.errors import UserError
from nmt.model.attention import AttentionCore
from nmt.ops import backend
from nmt.ops.backend import Costly, Implementation, Operation, force_backend, verdicts
from nmt.ops.environment import read_backend, requested_build

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("backend", "native", "expected"),
    [
        (None, None, "auto"),
        ("", "", "auto"),
        ("auto", "1", "auto"),
        ("auto", "x86_64_v3", "auto"),
        ("reference", "1", "reference"),
        ("native", "1", "native"),
        (None, "0", "torch"),
        ("reference", "0", "reference"),
    ],
)
def test_what_the_environment_asks_for(
    backend: str | None, native: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_environment(monkeypatch, backend, native)
    assert read_backend() == expected
    assert requested_build() == (native if native == "x86_64_v3" else None)


@pytest.mark.parametrize(
    ("backend", "native", "message"),
    [
        ("cuda", None, "NMT_BACKEND: expected one of auto, .*got 'cuda'"),
        (None, "2", "NMT_NATIVE: expected 0 .*got '2'"),
        (None, "x86_64_v5", "NMT_NATIVE: expected 0 .*got 'x86_64_v5'"),
        ("native", "0", "contradict each other"),
    ],
)
def test_what_it_cannot_ask_for(
    backend: str | None, native: str | None, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_environment(monkeypatch, backend, native)
    with pytest.raises(UserError, match=message):
        read_backend()


def set_environment(
    monkeypatch: pytest.MonkeyPatch, backend: str | None, native: str | None
) -> None:
    for name, value in (("NMT_BACKEND", backend), ("NMT_NATIVE", native)):
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)


@pytest.fixture
def halve(monkeypatch: pytest.MonkeyPatch) -> Operation[[float], tuple[str, float]]:
    """An operation with two implementations besides the reference, in a table of its own."""
    monkeypatch.setattr(backend, "TABLE", {})
    monkeypatch.setattr(backend, "_logged", set())
    return Operation(
        "halving",
        lambda x: ("reference", x / 2),
        [
            Implementation(
                "native",
                "shift",
                lambda x: ("native", x / 2),
                accepts=lambda x: None if x > 0 else Costly("shift needs numbers above 0"),
                prefers=lambda x: None if x > 10 else "it is slow for small numbers",
            ),
            Implementation(
                "torch",
                "product",
                lambda x: ("torch", x * 0.5),
                accepts=lambda x: None if x > -10 else "product needs numbers above -10",
            ),
        ],
        example=lambda _device: ((4.0,), {}),
    )


@pytest.mark.parametrize(
    ("forced", "x", "expected"),
    [
        ("auto", 12.0, "native"),
        ("auto", 4.0, "torch"),
        ("auto", -20.0, "reference"),
        ("native", 4.0, "native"),
        ("torch", 12.0, "torch"),
        ("torch", -20.0, "reference"),
        ("reference", 12.0, "reference"),
    ],
)
def test_the_choice(
    halve: Operation[[float], tuple[str, float]], forced: str, x: float, expected: str
) -> None:
    with force_backend(forced):
        assert halve(x) == (expected, x / 2)


def test_a_forced_backend_that_cannot_run_says_why(
    halve: Operation[[float], tuple[str, float]],
) -> None:
    with force_backend("native"), pytest.raises(UserError) as error:
        halve(-1.0)
    assert str(error.value) == (
        "NMT_BACKEND=native cannot compute halving here (shift: shift needs numbers above 0); use "
        "NMT_BACKEND=auto"
    )


def test_the_choice_is_logged_once_and_a_costly_one_is_a_warning(
    halve: Operation[[float], tuple[str, float]], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="nmt")
    for x in (12.0, 14.0, -1.0, -2.0, -20.0):
        halve(x)
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("INFO", "halving: shift"),
        ("INFO", "halving: product"),
        ("WARNING", "shift needs numbers above 0"),
        ("INFO", "halving: reference"),
    ]


def test_what_was_asked_for_is_no_warning(
    halve: Operation[[float], tuple[str, float]], caplog: pytest.LogCaptureFixture
) -> None:
    with force_backend("torch"):
        halve(-1.0)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_the_table_has_a_reason_for_each_implementation_that_is_not_taken() -> None:
    for forced in ("auto", "torch", "reference"):
        with force_backend(forced):
            rows = verdicts(CPU)
        assert len({row.operation for row in rows}) >= 10
        for operation in backend.TABLE.values():
            own = [row for row in rows if row.operation == operation.name]
            assert [row.implementation for row in own] == [
                one.name for one in operation.implementations
            ]
            (chosen,) = (row for row in own if row.reason is None)
            assert forced == "auto" or chosen.backend in (forced, "reference")
            with force_backend(forced), torch.set_grad_enabled(operation.gradients):
                arguments, options = operation.example(CPU)
                assert operation.choose(*arguments, **options).name == chosen.implementation


def test_the_table_says_what_a_forced_backend_runs_against_its_advice(
    halve: Operation[[float], tuple[str, float]],
) -> None:
    with force_backend("native"):
        assert halve(4.0)[0] == "native"
        reasons = {row.implementation: row.reason for row in halve.verdicts(4.0)}
    assert reasons == {
        "shift": None,
        "product": "NMT_BACKEND is native",
        "reference": "NMT_BACKEND is native",
    }


def test_attention_while_decoding_is_explained_without_gradients() -> None:
    with force_backend("torch"):
        (row,) = (
            row
            for row in verdicts(CPU)
            if row.operation == "attention while decoding" and row.reason is None
        )
    assert row.implementation == "in place"


def test_kernels_that_cannot_compute_a_call_say_why() -> None:
    core = AttentionCore(8, 2, attention=AttentionConfig("rela-g", activation="gelu"), dropout=0.0)
    with force_backend("native"):
        with pytest.raises(UserError, match=r"Pointwise.*gelu.*has no forward and backward"):
            core((torch.ones(1, 3, 24),), None)
        with pytest.raises(UserError, match=r"expected float32 on a CPU, got torch.float64"):
            AttentionCore(8, 2, attention=AttentionConfig("softmax"), dropout=0.0)(
                (torch.ones(1, 3, 24, dtype=torch.float64),), None
            )


PROGRAM = """
import logging, sys, torch
logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(levelname)s %(message)s")
from nmt.ops.linear import linear
x = torch.ones(2, 3, requires_grad=True)
for _ in range(2):
    linear(x, torch.ones(4, 3), torch.ones(4))
"""


def test_missing_kernels_are_one_warning(tmp_path: Path) -> None:
    environment = os.environ | {"NMT_KERNELS": str(tmp_path), "NMT_BACKEND": "", "NMT_NATIVE": ""}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True
    )
    first, second = done.stdout.split("\n")[:-1]
    assert first == "INFO linear layer: reference"
    assert second.startswith("WARNING the kernels in C cannot be used: they were not built")


def test_asking_for_the_kernels_does_not_switch_them_off() -> None:
    program = "from nmt.ops.native.library import loaded_build; print(loaded_build())"
    builds = [
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"NMT_BACKEND": "", "NMT_NATIVE": native},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for native in ("1", "", "0")
    ]
    assert builds[0] == builds[1]
    assert builds[2] == "None\n"


def test_a_command_refuses_an_unknown_backend_at_once() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "nmt.cli.translate", "--model", "nowhere"],
        env=os.environ | {"NMT_BACKEND": "fast"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("nmt-translate: NMT_BACKEND: expected one of auto, reference")
    assert done.stderr.count("\n") == 1
