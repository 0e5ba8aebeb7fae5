"""Command-line arguments that several commands share."""

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from nmt.errors import UserError

if TYPE_CHECKING:
    import torch


def whole_number(text: str) -> int:
    """A number from 0 on, for argparse."""
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"expected a whole number, got {text!r}")
    return int(text)


def positive(text: str) -> int:
    """A whole number above 0, for argparse."""
    number = whole_number(text)
    if number == 0:
        raise argparse.ArgumentTypeError("expected a number above 0, got 0")
    return number


def share(text: str) -> float:
    """A number above 0 and up to 1, for argparse."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0.0 < number <= 1.0:
        raise argparse.ArgumentTypeError(f"expected a share above 0 and up to 1, got {text!r}")
    return number


def check_outputs(outputs: Iterable[Path | None], inputs: Iterable[Path | None]) -> None:
    """Never write over an input, nor two things to one file; None is an option not given."""
    taken = {path.resolve() for path in inputs if path is not None}
    for path in outputs:
        if path is None or path.is_char_device():
            continue
        if path.resolve() in taken:
            raise UserError(f"{path}: is to be written, but is also another file of this command")
        taken.add(path.resolve())


def add_device(parser: argparse._ActionsContainer) -> None:
    """The option --device."""
    parser.add_argument(
        "--device",
        choices=("auto", "cpu", "cuda"),
        default="auto",
        help="where to compute (default: auto, a GPU if there is one)",
    )


def choose_device(name: str) -> "torch.device":
    """The device that --device names; `auto` means a GPU if there is one."""
    import torch

    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda: torch finds no CUDA device; give cpu or auto")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")
