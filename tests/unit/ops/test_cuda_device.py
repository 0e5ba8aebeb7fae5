"""Why a CUDA device cannot be used, told before a run begins on a CPU."""

from pathlib import Path

import pytest
import torch

from nmt.decoding.devices import find_device
from nmt.ops.cuda import old_card
from nmt.ops.cuda_device import (
    cuda_problem,
    runs_on,
    set_cuda_defaults,
    tf32_is_on,
    visible_card,
    warn_of_unused_card,
)

PYPI_BUILD = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120"]


@pytest.mark.parametrize(
    ("capability", "runs"),
    [
        ((6, 1), False),  # 1080 Ti
        ((7, 0), False),  # V100
        ((7, 5), True),
        ((8, 0), True),
        ((8, 9), True),  # by sm_86
        ((9, 0), True),
        ((12, 1), True),
        ((13, 0), True),  # by compute_120
    ],
)
def test_cards_that_a_build_has_code_for(capability: tuple[int, int], runs: bool) -> None:
    assert any(runs_on(build, capability) for build in PYPI_BUILD) == runs


def test_code_for_a_card_runs_on_no_older_one_and_on_no_other_generation() -> None:
    assert not runs_on("sm_86", (8, 0))
    assert not runs_on("sm_80", (9, 0))
    assert not runs_on("compute_120", (9, 0))
    assert runs_on("sm_90a", (9, 0))


def test_a_card_older_than_the_build_is_told_with_the_build_it_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: PYPI_BUILD)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _index: "Tesla V100-SXM2-16GB")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _index: (7, 0))
    problem = cuda_problem()
    assert problem is not None
    assert "Tesla V100-SXM2-16GB has compute capability 7.0" in problem
    assert "for CUDA 12.6: pip install torch --index-url https://" in problem
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _index: (8, 0))
    assert cuda_problem() is None


def test_an_old_driver_is_told_in_the_words_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise RuntimeError(
            "The NVIDIA driver on your system is too old (found version 11040). Please update "
            "your GPU driver by downloading and installing a new version\nmore"
        )

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "init", refuse)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    problem = cuda_problem()
    assert problem is not None
    assert problem.startswith("The NVIDIA driver on your system is too old (found version 11040);")
    assert "is built for CUDA 13.0" in problem
    assert "(CUDA 13 needs 580 or newer), or install a build for CUDA 12.6: pip " in problem
    assert "\n" not in problem
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert cuda_problem() == "CUDA_VISIBLE_DEVICES= hides all devices"


def test_a_card_is_seen_by_its_tool_or_its_device_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert visible_card(tmp_path) is None
    (tmp_path / "nvidia0").touch()
    (tmp_path / "nvidiactl").touch()
    assert visible_card(tmp_path) == str(tmp_path / "nvidia0")
    write_tool(tmp_path)
    assert visible_card(tmp_path) == "GPU 0: NVIDIA A100-SXM4-40GB"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert visible_card(tmp_path) is None


def test_auto_says_once_that_a_card_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    warn_of_unused_card.cache_clear()
    write_tool(tmp_path)
    for _ in range(2):
        assert find_device("auto") == find_device("cpu") == torch.device("cpu")
    (record,) = caplog.records
    message = record.getMessage()
    assert "on the CPU although there is GPU 0: NVIDIA A100-SXM4-40GB, which torch" in message
    warn_of_unused_card.cache_clear()


def write_tool(directory: Path) -> None:
    """An nvidia-smi that lists one card."""
    tool = directory / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-1)'\n")
    tool.chmod(0o755)


def test_tf32_is_on_unless_the_environment_forbids_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NVIDIA_TF32_OVERRIDE", raising=False)
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cuda.cudnn_sdp_enabled()
    cpu = torch.backends.mkldnn.matmul.fp32_precision  # type: ignore[attr-defined]
    try:
        set_cuda_defaults()
        assert tf32_is_on()
        assert not torch.backends.cuda.cudnn_sdp_enabled()
        assert torch.backends.mkldnn.matmul.fp32_precision == cpu  # type: ignore[attr-defined]
        monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
        assert not tf32_is_on()
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before[0]
        torch.backends.cuda.enable_cudnn_sdp(before[1])


def test_triton_is_refused_on_cards_older_than_volta(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _index: "GTX 1080 Ti")
    for capability, refused in (((6, 1), True), ((7, 0), False), ((12, 0), False)):
        old_card.cache_clear()
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, found=capability: found)
        assert (old_card(0) is not None) == refused
    old_card.cache_clear()
