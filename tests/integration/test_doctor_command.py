"""nmt-doctor says what runs and why, and its exit code says whether it works."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.kernels import NAMES

import nmt
from nmt.bench.kinds import all_kinds
from nmt.cli import doctor
from nmt.doctor.installation import examine_builds, examine_installation, find_compiler
from nmt.doctor.report import installation_rows
from nmt.ops.backend import Implementation, force_backend
from nmt.ops.environment import BUILDS
from nmt.ops.linear import linear
from nmt.ops.native.library import build_path


def run(directory: Path, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """The command in a process and an environment of its own, with an empty TMPDIR."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("NMT_")}
    (directory / "temporary").mkdir()
    return subprocess.run(
        [sys.executable, "-m", "nmt.cli.doctor", *arguments],
        cwd=directory,
        env={**inherited, "TMPDIR": str(directory / "temporary"), **settings},
        capture_output=True,
        text=True,
    )


def running(document: dict[str, Any]) -> dict[str, str]:
    """The backend that computes each operation on the CPU."""
    (table,) = (table for table in document["operations"] if table["device"] == "cpu")
    return {row["operation"]: row["backend"] for row in table["verdicts"] if row["reason"] is None}


def test_a_sound_installation(tmp_path: Path) -> None:
    done = run(tmp_path, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    assert document["problems"] == []
    assert document["installation"]["version"] == nmt.__version__
    assert document["backend"] == "auto"
    packages = {row["name"]: row["version"] for row in document["installation"]["packages"]}
    assert packages["torch"] == torch.__version__
    assert {"sentencepiece", "sacrebleu", "numpy", "triton"} <= set(packages)
    assert "pytest" not in packages
    assert [row["name"] for row in document["builds"] if row["reason"] is None] == NAMES[:1]
    assert len(running(document)) >= 10
    if NAMES:
        assert running(document)["attention"] == "native"
        assert running(document)["steps of a translation"] == "native"
    tested = [row["name"] for row in document["smoke_tests"] if row["device"] == "cpu"]
    assert tested == [*(f"update with {kind}" for kind in all_kinds()), "translation"]
    left = {path.name for path in tmp_path.rglob("*")}
    torchs_own = {name for name in left if name.startswith("torchinductor_")}  # an empty directory
    assert left - torchs_own == {"temporary"}


def test_no_kernels_and_no_compiler_are_a_warning(tmp_path: Path) -> None:
    done = run(tmp_path, NMT_KERNELS=str(tmp_path), PATH=str(tmp_path), CC="cc")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.split("\n")[:-1]
    assert lines[-1] == "all is well, but for the warnings"
    assert lines[-2].startswith("warning: the kernels in C cannot be used: they were not built")
    assert "  C compiler  none found" in lines
    (attention,) = (line for line in lines if line.startswith("  attention  "))
    assert attention.split() == ["attention", "torch", "blockwise", "runs"]
    assert sum("x86_64_v3   not used (not built: there is no file" in line for line in lines) == 1


def test_kernels_that_are_asked_for_and_missing_are_one_problem(tmp_path: Path) -> None:
    done = run(tmp_path, NMT_KERNELS=str(tmp_path), NMT_BACKEND="native")
    assert (done.returncode, done.stderr) == (doctor.PROBLEM, "")
    *_, before, last = done.stdout.split("\n")[:-1]
    assert before == ""
    assert last.startswith("problem: NMT_BACKEND=native cannot compute on cpu: linear layer")
    assert "(the kernels in C cannot be used: " in last


def test_native_zero_means_torch(tmp_path: Path) -> None:
    done = run(tmp_path, "--json", NMT_NATIVE="0")
    document = json.loads(done.stdout)
    assert (done.returncode, document["problems"]) == (0, [])
    assert (document["backend"], document["computer"]["settings"]["NMT_NATIVE"]) == ("torch", "0")
    assert set(running(document).values()) == {"torch", "reference"}
    assert document["warnings"] == [
        "the environment requests the backend torch, which is slower than auto"
    ]
    if NAMES:
        reasons = {row["reason"] for row in document["builds"]}
        assert "the backend torch is requested" in reasons


def test_the_reference(capsys: pytest.CaptureFixture[str]) -> None:
    with force_backend("reference"):
        assert doctor.main(["--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert set(running(document).values()) == {"reference"}
    assert all(test["problem"] is None for test in document["smoke_tests"])


def test_wrong_numbers_are_a_problem(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def wrong(*arguments: Any, **options: Any) -> torch.Tensor:
        return 2 * reference.run(*arguments, **options)

    reference = linear.implementations[-1]
    monkeypatch.setattr(
        linear, "implementations", [Implementation("native", "wrong", wrong), reference]
    )
    assert doctor.main([]) == doctor.PROBLEM
    output = capsys.readouterr().out
    problems = [line for line in output.split("\n") if line.startswith("problem: ")]
    assert problems
    assert all(", but the reference computes " in line for line in problems)
    assert "update with softmax" in problems[0]
    assert "all is well" not in output


def test_a_file_that_is_no_build_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NMT_KERNELS", str(tmp_path))
    build_path("x86_64_v3").write_bytes(b"not a library, but a text of some length" * 100)
    reasons = {build.name: build.reason for build in examine_builds()}
    assert set(reasons) == set(BUILDS)
    assert "no file" in str(reasons["x86_64_v4"])
    if "x86_64_v3" in NAMES:
        assert "invalid ELF header" in str(reasons["x86_64_v3"])


@pytest.mark.parametrize(
    ("tag", "kernels", "expected"),
    [
        ("py3-none-any", [], "wheel py3-none-any, without kernels in C, in "),
        ("py3-none-manylinux_2_17_x86_64", ["x86_64_v3"], "with kernels in C, in "),
    ],
)
def test_the_report_says_which_wheel_is_installed(
    tag: str, kernels: list[str], expected: str
) -> None:
    found = replace(examine_installation(), kind="wheel", tags=[tag], kernels=kernels)
    text = dict(installation_rows(found))["installed"]
    assert text.startswith(f"wheel {tag}, ")
    assert expected in text


def test_the_compiler_is_the_one_that_builds_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = tmp_path / "mycc"
    compiler.write_text("#!/bin/sh\n", encoding="utf-8")
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", f"{compiler} -pthread")
    assert find_compiler() == str(compiler)
    monkeypatch.setenv("CC", str(tmp_path / "none"))
    assert find_compiler() is None
