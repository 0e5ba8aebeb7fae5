"""Command-line arguments that several commands share, read by the rules of configurations."""

import argparse
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from nmt.cli.console import Parser
from nmt.config.document import Location, Scalar, Source
from nmt.config.limits import (
    BatchTokens,
    Length,
    NonNegative,
    NumProcesses,
    Positive,
    PositiveShare,
    Probability,
)
from nmt.config.scalars import MismatchError, limits, read_scalar, type_hints
from nmt.config.search_options import command_line_fields
from nmt.errors import UserError
from nmt.storage.manifest import MANIFEST

if TYPE_CHECKING:
    import torch

COMMAND_LINE = Location(Source("command line", Path(), has_lines=False))


def reader(annotation: Any) -> Callable[[str], Any]:
    """The argparse type of values that a configuration would take as `annotation`."""

    def read(text: str) -> Any:
        try:
            return read_scalar(Scalar(COMMAND_LINE, text), annotation)
        except MismatchError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return read


whole_number = reader(NonNegative)
positive = reader(Positive)
share = reader(PositiveShare)
probability = reader(Probability)
length = reader(Length)
batch_tokens = reader(BatchTokens)
processes = reader(NumProcesses)


def add_fields(group: argparse._ArgumentGroup, section: type) -> None:
    """Offer the fields of a dataclass of options; one that is not given is None."""
    for flag, field in command_line_fields(section):
        annotation = type_hints(section)[field.name]
        help_text = field.metadata["help"].replace("%", "%%")
        if limit := limits(annotation):
            help_text += f" ({limit})"
        shape: dict[str, Any] = (
            {"choices": get_args(annotation)}
            if get_origin(annotation) is Literal
            else {"type": reader(annotation), "metavar": field.metadata["metavar"]}
        )
        name = f"--{flag.replace('_', '-')}"
        group.add_argument(name, dest=field.name, help=help_text, **shape)


def given_fields(arguments: argparse.Namespace, section: type) -> dict[str, Any]:
    """The values of those fields that the command line gave."""
    values = {
        field.name: getattr(arguments, field.name) for _, field in command_line_fields(section)
    }
    return {name: value for name, value in values.items() if value is not None}


def new_parser(program: str, description: str, epilog: str) -> Parser:
    """A parser that prints its description and epilog as they are."""
    form = argparse.RawDescriptionHelpFormatter
    return Parser(prog=program, description=description, epilog=epilog, formatter_class=form)


def add_path(
    group: argparse._ActionsContainer,
    flag: str,
    meaning: str,
    *,
    metavar: str = "FILE",
    **more: Any,
) -> None:
    """An option that names a file or directory."""
    group.add_argument(flag, type=Path, metavar=metavar, help=meaning, **more)


def check_unsealed(output: Path) -> None:
    """Reject an output in a model directory, which must hold what its manifest says and no more."""
    parent = next((parent for parent in output.resolve().parents if parent.exists()), None)
    if parent is not None and (parent / MANIFEST).exists():
        raise UserError(
            f"{output}: lies inside {parent}, which must hold only the files of its {MANIFEST}; "
            "choose another place"
        )


def check_new_directory(output: Path) -> None:
    """Reject an output that exists, because nothing is ever overwritten."""
    check_unsealed(output)
    if not os.path.lexists(output):
        return
    if not output.is_dir() or output.is_symlink() or any(output.iterdir()):
        raise UserError(f"--output {output}: exists; remove it or choose another directory")


def add_number(
    group: argparse._ActionsContainer,
    flag: str,
    default: float | None,
    meaning: str,
    *,
    type: Callable[[str], Any] = positive,
    metavar: str = "N",
) -> None:
    """An option that takes a number; the help text ends with its default."""
    text = meaning if default is None else f"{meaning} (default: {default})"
    group.add_argument(flag, type=type, default=default, metavar=metavar, help=text)


def add_flag(group: argparse._ActionsContainer, flag: str, meaning: str) -> None:
    """An option without a value."""
    group.add_argument(flag, action="store_true", help=meaning)


def add_choice(
    group: argparse._ActionsContainer, flag: str, choices: Sequence[str], meaning: str
) -> None:
    """An option that takes one of a few words; the first is the default, as the help text says."""
    text = f"{meaning} (default: {choices[0]})"
    group.add_argument(flag, choices=choices, default=choices[0], help=text)


def add_config(parser: argparse._ActionsContainer, *, example: str) -> None:
    """The option --config and the settings that override its values."""
    add_path(parser, "--config", "config file (YAML), or quickstart", required=True)
    meaning = f"overrides a value of the config, such as {example}"
    parser.add_argument("overrides", nargs="*", metavar="section.key=value", help=meaning)


def outside_kind(reference: str) -> str:
    """The argparse type of a kind from outside the package, which is loaded."""
    from nmt.config.outside_kinds import load_kind

    try:
        return load_kind(reference)
    except UserError as error:
        raise UserError(f"--kinds: {error}") from error


def add_outside_kinds(parser: argparse._ActionsContainer) -> None:
    """The option --kinds of commands that load models."""
    parser.add_argument(
        "--kinds",
        type=outside_kind,
        nargs="+",
        metavar="MODULE:NAME",
        help="attention kinds from outside nmt that the model needs and whose code may be run",
    )


def is_given(arguments: argparse.Namespace, option: str) -> bool:
    """Whether the user gave an option such as --max-length; its default does not count."""
    flag = getattr(arguments, option.removeprefix("--").replace("-", "_"), None)
    return flag is True or option in arguments.given


def check_needs(arguments: argparse.Namespace, needs: Mapping[str, str]) -> None:
    """Reject an option that was given without the one that it needs to have an effect."""
    for option, needed in needs.items():
        if is_given(arguments, option) and not is_given(arguments, needed):
            raise UserError(f"{option}: expected {needed} with it")


def check_without(arguments: argparse.Namespace, reason: str, options: Iterable[str]) -> None:
    """Reject options that have no effect, for a reason."""
    for option in options:
        if is_given(arguments, option):
            raise UserError(f"{reason}: leave out {option}")


def check_outputs(outputs: Iterable[Path | None], inputs: Iterable[Path | None]) -> None:
    """Never write over an input or into a model; None is an option not given."""
    taken = {path.resolve() for path in inputs if path is not None}
    for path in outputs:
        if path is None or path.is_char_device():
            continue
        check_unsealed(path)
        if path.resolve() in taken:
            raise UserError(f"{path}: is to be written, but is also another file of this command")
        taken.add(path.resolve())


def device(text: str) -> str:
    """The name of a device, as far as it can be checked without torch."""
    if re.fullmatch(r"auto|cpu|cuda(:\d{1,4})?", text) is None:
        raise argparse.ArgumentTypeError(f"expected auto, cpu, cuda or cuda:N, got {text!r}")
    return text


def devices(text: str) -> str:
    """The names of one or several devices, separated by commas."""
    for name in text.split(","):
        if name != "cuda:all":
            device(name)
    return text


def ray_address(text: str) -> str:
    """The address of a Ray cluster."""
    if re.fullmatch(r"local|auto|[^\s/]+:\d{1,5}", text) is None:
        raise argparse.ArgumentTypeError(f"expected local, auto or HOST:PORT, got {text!r}")
    return text


def add_ray(parser: argparse._ActionsContainer, purpose: str) -> None:
    """The option --ray."""
    parser.add_argument(
        "--ray",
        type=ray_address,
        metavar="ADDRESS",
        help=f"{purpose} on a Ray cluster: auto, HOST:PORT, or local for one on this machine. All "
        "nodes need nmt[ray], and the model and the text at the same path",
    )


def check_ray_device(name: str) -> None:
    """Reject a device that --ray does not take."""
    if name not in ("auto", "cpu", "cuda"):
        raise UserError(f"--device {name}: Ray assigns the GPUs; give auto, cpu or cuda with --ray")


def add_device(parser: argparse._ActionsContainer) -> None:
    """The option --device."""
    parser.add_argument(
        "--device",
        type=device,
        default="auto",
        metavar="NAME",
        help="where to compute: cpu, cuda (the first GPU), cuda:1 ... (default: auto, the first "
        "GPU if there is one)",
    )


def add_precision(parser: argparse._ActionsContainer, *, default: str = "auto") -> None:
    """The option --precision of commands that do not train."""
    parser.add_argument(
        "--precision",
        choices=("auto", "float32", "bfloat16"),
        default=default,
        help="the type of weights and activations; auto is bfloat16 on a GPU that computes in it, "
        f"else float32. Probabilities are summed in float32 or float64 (default: {default})",
    )


def choose_device(name: str) -> "torch.device":
    """The device that --device names; `auto` means a GPU if there is one."""
    from nmt.decoding.devices import find_device

    return find_device(name)


def add_on_bad_line(parser: argparse._ActionsContainer) -> None:
    """The option --on-bad-line."""
    meaning = (
        "for a line that is not UTF-8 or longer than a million bytes: end with an error when all "
        "before it are answered, or leave it empty, name it and count it"
    )
    add_choice(parser, "--on-bad-line", ("error", "skip"), meaning)
