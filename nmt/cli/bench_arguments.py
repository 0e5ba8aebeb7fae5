"""The arguments that benchmarks share, their checks, and the files that they write."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from nmt.cli.arguments import (
    add_device,
    add_flag,
    add_number,
    add_path,
    check_outputs,
    outside_kind,
    positive,
)
from nmt.errors import UserError, require_package
from nmt.storage.files import storage_errors


def add_numbers(
    parser: argparse.ArgumentParser, flag: str, default: list[int], meaning: str
) -> None:
    """An option that takes several numbers."""
    text = f"{meaning} (default: {' '.join(map(str, default))})"
    parser.add_argument(flag, type=positive, nargs="+", default=default, metavar="N", help=text)


def add_kinds(parser: argparse.ArgumentParser, note: str) -> None:
    """The attention kinds to compare."""
    parser.add_argument(
        "--kinds",
        nargs="+",
        metavar="KIND",
        help=f"attention kinds, or my_package:my_kind (default: all); {note}",
    )


def add_paper(group: argparse._ArgumentGroup) -> None:
    """The option that asks for the setting of the paper."""
    meaning = (
        "the model and batches of the paper's Table 2 (Transformer base, 25,000 tokens) and its "
        "kinds, with its numbers beside ours; other options change single values"
    )
    add_flag(group, "--paper", meaning)


def take_paper(arguments: argparse.Namespace, kinds: list[str] | None) -> list[str] | None:
    """With --paper fill in the paper's setting where options were not given; returns the kinds."""
    if not arguments.paper:
        return kinds
    from nmt.bench import paper

    setting = {**paper.SHAPES, "batch_tokens": paper.BATCH_TOKENS, "dropout": paper.DROPOUT}
    for name, value in setting.items():
        if getattr(arguments, name, value) is None:
            setattr(arguments, name, value)
    return kinds or list(paper.SPEEDS)


def add_output(parser: argparse.ArgumentParser, *, repeats: int, figure: str | None) -> None:
    """The number of rounds, the device and the files to write."""
    add_number(parser, "--repeats", repeats, "number of rounds; medians are reported")
    add_device(parser)
    add_number(parser, "--threads", None, "number of CPU threads (default: torch's)")
    add_path(parser, "--json", "write all numbers to this file")
    parser.set_defaults(figure=None)
    if figure is not None:
        add_path(parser, "--figure", f"write a figure: {figure}", metavar="FILE.png")


def check_kinds(kinds: Sequence[str] | None, *, extra: Sequence[str] = ()) -> list[str]:
    """The kinds to compare, without repetitions; all of them if none are named."""
    from nmt.bench.kinds import all_kinds
    from nmt.config.attention_kinds import ALIASES

    named = [outside_kind(kind) if ":" in kind else kind for kind in kinds or all_kinds()]
    chosen = [ALIASES.get(kind, kind) for kind in named]
    for kind in chosen:
        if kind not in (*all_kinds(), *extra):
            known = ", ".join((*all_kinds(), *extra))
            raise UserError(f"--kinds: expected some of {known}, got {kind}")
    return list(dict.fromkeys(chosen))


def check_files(
    arguments: argparse.Namespace, inputs: Sequence[Path | None], *others: Path
) -> None:
    """Reject output files that could not be written, before the long measurements begin."""
    outputs = [arguments.json, arguments.figure, *others]
    check_outputs(outputs, inputs)
    if arguments.figure is not None:
        require_package("matplotlib", extra="analysis", purpose="--figure")
    for path in outputs:
        if path is not None and (path.is_dir() or not path.parent.is_dir()):
            raise UserError(f"{path}: expected the name of a file in a directory that exists")


def set_threads(threads: int | None) -> None:
    """Set the number of torch's threads, if one was given."""
    import torch

    if threads:
        torch.set_num_threads(threads)


def write(path: Path | None, make: Callable[[], str | bytes]) -> None:
    """Write a file, if one was asked for."""
    if path is None:
        return
    content = make()
    with storage_errors(path):
        path.write_bytes(f"{content}\n".encode() if isinstance(content, str) else content)
