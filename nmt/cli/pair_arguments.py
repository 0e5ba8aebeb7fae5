"""Arguments of the commands that read sentence pairs with a model: nmt-align, -filter, -analyze."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from nmt.cli.arguments import (
    add_choice,
    add_device,
    add_number,
    add_path,
    add_precision,
    batch_tokens,
    length,
)
from nmt.errors import UserError

if TYPE_CHECKING:
    from nmt.analysis.gold import Gold
    from nmt.checkpoint.model_directory import LoadedModel

# Options without an effect unless --gold is given, too.
NEED_GOLD = dict.fromkeys(
    ("--gold-possible", "--gold-order", "--gold-index", "--development"), "--gold"
)
MODEL_HELP = (
    "a model directory, or a run directory: the better one of its average and its best model, else "
    "its newest checkpoint"
)


def add_reading(group: argparse._ArgumentGroup, *, too_long: str, precision: str = "auto") -> None:
    """How pairs are read; `too_long` says what happens to pairs that are too long."""
    meaning = f"pairs with more than N subwords on a side {too_long}"
    add_number(group, "--max-length", 512, meaning, type=length)
    meaning = "tokens in a batch, padding included; changes no result"
    add_number(group, "--batch-tokens", 2048, meaning, type=batch_tokens)
    add_device(group)
    add_precision(group, default=precision)


def add_gold(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """The gold alignments to compare with; returns the group of options."""
    group = parser.add_argument_group("gold alignments")
    add_path(
        group,
        "--gold",
        "gold links with one line per pair, `i-j` for a sure and `ipj` for a possible link; every "
        "head is compared with them",
    )
    add_path(group, "--gold-possible", "more links, all of them possible")
    orders = ("source-target", "target-source")
    add_choice(group, "--gold-order", orders, "the side that a link names first")
    group.add_argument(
        "--gold-index",
        type=int,
        choices=(0, 1),
        default=0,
        help="the index of the first word of a sentence (default: 0)",
    )
    add_number(
        group,
        "--development",
        None,
        "choose heads on the first N pairs and report error rates on the others (default: choose "
        "and report on all pairs, which makes the rates of chosen heads too low)",
    )
    return group


def add_weights(group: argparse._ArgumentGroup) -> None:
    """The weights that links are taken from."""
    meaning = (
        "take a link from the largest attention weight, or from the largest weight times the "
        "length of the value after the output projection (Kobayashi et al. 2020)"
    )
    add_choice(group, "--weights", ("attention", "norm"), meaning)


def read_gold(arguments: argparse.Namespace, *, max_pairs: int | None = None) -> "Gold | None":
    """The gold links of the first `max_pairs` pairs, if --gold was given."""
    if arguments.gold is None:
        return None
    from nmt.analysis import gold

    links = gold.read_gold(
        arguments.gold,
        arguments.gold_possible,
        order=arguments.gold_order,
        first=arguments.gold_index,
    )[:max_pairs]
    development = arguments.development or 0
    if development >= len(links) > 0:
        raise UserError(
            f"--development: expected fewer than the {len(links)} pairs of {arguments.gold}, got "
            f"{development}: some pairs must be left to report on"
        )
    return gold.Gold(links, arguments.gold, arguments.gold_index, development)


def open_model(
    path: Path, arguments: argparse.Namespace, *, device: str | None = None
) -> "LoadedModel":
    """The model of a model or run directory, as --device (unless given) and --precision say."""
    import torch

    from nmt.checkpoint.model_directory import load_model
    from nmt.checkpoint.selection import find_model
    from nmt.decoding.devices import find_device, place

    chosen = find_device(device or arguments.device)
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    loaded = load_model(find_model(path))
    place(loaded.model, chosen, arguments.precision)
    return loaded
