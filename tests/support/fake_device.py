"""Whether the CUDA device of fake tensors can be built and registered here."""

import shutil

import torch


def missing_for_fake_device() -> str | None:
    """Why there can be no fake device, or None."""
    if shutil.which("g++") is None:
        return "the fake device is built with g++, which is not installed"
    if torch.version.cuda is not None or torch.version.hip is not None:
        return f"torch {torch.__version__} brings a device of its own; a build for CPUs is needed"
    return None
