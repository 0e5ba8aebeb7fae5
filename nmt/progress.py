"""The progress bar that all commands share: on a terminal it is drawn, elsewhere it is quiet."""

import sys
from typing import Any

from tqdm import tqdm


def progress_bar(
    *,
    total: int | None,
    unit: str,
    description: str,
    initial: int = 0,
    position: int | None = None,
) -> "tqdm[Any]":
    """A bar on standard error with rate and time left; use as a context, call `.update(n)`.

    Bars of several positions are drawn below each other, and go when they are closed.
    """
    return tqdm(
        total=total,
        initial=initial,
        unit=unit,
        unit_scale=True,
        desc=description,
        file=sys.stderr,
        disable=None,  # quiet when standard error is no terminal
        dynamic_ncols=True,
        mininterval=0.2,
        position=position,
        leave=position is None,
    )
