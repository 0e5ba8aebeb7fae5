"""Opens a model to look into it."""

from pathlib import Path

import torch

from nmt.checkpoint.model_directory import LoadedModel, ModelDirectory, find_model
from nmt.errors import UserError


def open_model(path: Path, *, device: str = "auto") -> LoadedModel:
    """The model of a model or run directory, on a device: auto, cpu or cuda."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda: torch finds no CUDA device; give cpu or auto")
    loaded = ModelDirectory.load(find_model(path))
    loaded.model.to(device)
    return loaded
