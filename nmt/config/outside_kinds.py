"""Attention kinds from outside the package: found by reference, checked, put into the table.

A reference is `module:name` (or `module.name`) of an `AttentionKind`. The kind has the same name,
with hyphens: `my_package:rectified_power` is the kind `rectified-power`. Only users name code that
is to run: in the `kinds` of a config, by `--kinds` or NMT_KINDS, or by installing a package with an
entry point in the group `nmt.kinds`. A model directory names what it needs, but loads nothing.
"""

import importlib
import os
import re
from collections.abc import Iterable, Iterator
from importlib.metadata import entry_points

from nmt.config.attention_kinds import ALIASES, ATTENTION_KINDS, AttentionKind
from nmt.config.config import AttentionTypesConfig
from nmt.config.document import Entry, Items, MappingNode, Node, Scalar, UnreadableError, quote
from nmt.errors import UserError

GROUP = "nmt.kinds"
ENVIRONMENT = "NMT_KINDS"  # references, separated by spaces; processes started by us inherit it
KIND_REFERENCE = re.compile(r"([a-z_]\w*(?:\.[a-z_]\w*)*)[:.]([a-z]\w*)", re.ASCII | re.IGNORECASE)

OUTSIDE_KINDS: dict[str, str] = {}  # the reference of each kind that was loaded


def split_reference(reference: str) -> tuple[str, str]:
    """The module and the name in it."""
    match = KIND_REFERENCE.fullmatch(reference)
    if match is None:
        raise UserError(f"expected module:name of an attention kind, got {quote(reference)}")
    return match[1], match[2]


def kind_name(reference: str) -> str:
    """The name of the kind in a config."""
    return split_reference(reference)[1].replace("_", "-")


def load_kind(reference: str) -> str:
    """Put a kind that the user named into the table; its name."""
    module, attribute = split_reference(reference)
    reference, kind = f"{module}:{attribute}", kind_name(reference)
    if OUTSIDE_KINDS.get(kind) == reference and kind in ATTENTION_KINDS:
        return kind
    if kind in ATTENTION_KINDS or kind in ALIASES:
        other = OUTSIDE_KINDS.get(kind, "nmt itself")
        raise UserError(f"{reference}: {other} has an attention kind {kind!r}, too; rename one")
    ATTENTION_KINDS[kind] = import_row(module, attribute)
    OUTSIDE_KINDS[kind] = reference
    os.environ[ENVIRONMENT] = " ".join(dict.fromkeys([*named_references(), reference]))
    return kind


def import_row(module: str, attribute: str) -> AttentionKind:
    """The row that is defined in a module outside the package."""
    reference = f"{module}:{attribute}"
    try:
        row = getattr(importlib.import_module(module), attribute, None)
    except ModuleNotFoundError as error:
        raise UserError(
            f"{reference}: there is no module {error.name}; install its package, or put the "
            "directory that holds it into PYTHONPATH"
        ) from error
    except Exception as error:  # the code is not ours, and may fail in any way
        problem = f"{type(error).__name__}: {error}"
        raise UserError(f"{reference}: {module} cannot be imported ({problem})") from error
    if not isinstance(row, AttentionKind):
        found = "nothing" if row is None else f"an object of type {type(row).__name__}"
        raise UserError(
            f"{reference}: expected an AttentionKind (of nmt.config.attention_kinds), got {found}"
        )
    return row


def named_references() -> list[str]:
    """The references in the environment."""
    return os.environ.get(ENVIRONMENT, "").split()


def installed_references() -> list[str]:
    """The references that installed packages offer."""
    return [point.value for point in entry_points(group=GROUP)]


def load_named_kinds(tree: Node, *, from_user: bool) -> None:
    """Load the kinds that a config names before it is read.

    These are its `kinds`, and kinds of its attention that the environment or an installed package
    offers. The `kinds` of a config that is not the user's own are compared with what the user
    offers; UnreadableError says what is missing.
    """
    entries = tree.entries if isinstance(tree, MappingNode) else {}
    for scalar in scalars(entries.get("kinds")):
        try:
            if from_user:
                load_kind(scalar.text)
            elif not load_offered([kind_name(scalar.text)]):
                raise UserError(
                    f"the model needs the attention kind {kind_name(scalar.text)} of "
                    f"{scalar.text}. A model directory never loads code; if you trust this "
                    f"package, name it yourself: --kinds {scalar.text}"
                )
        except UserError as error:
            raise UnreadableError(scalar.place, str(error), key="kinds") from None
    model = entries["model"].node if "model" in entries else None
    if isinstance(model, MappingNode) and "attention" in model.entries:
        found = list(scalars(model.entries["attention"]))
        try:
            load_offered(scalar.text for scalar in found)
        except UserError as error:
            raise UnreadableError(found[0].place, str(error), key="model.attention") from None


def load_offered(words: Iterable[str]) -> bool:
    """Load those kinds that the user offers; whether all words are kinds now."""
    missing = {word for word in words if word not in ATTENTION_KINDS and word not in ALIASES}
    if missing:
        for reference in dict.fromkeys([*named_references(), *installed_references()]):
            if kind_name(reference) in missing:
                missing.remove(load_kind(reference))
    return not missing


def scalars(entry: Entry | None) -> Iterator[Scalar]:
    """All scalars below an entry."""
    nodes: list[Node] = [] if entry is None else [entry.node]
    for node in nodes:
        if isinstance(node, Scalar):
            yield node
        elif isinstance(node, Items):
            nodes.extend(node.items)
        else:
            nodes.extend(inner.node for inner in node.entries.values())


def needed_references(attention: AttentionTypesConfig) -> tuple[str, ...]:
    """The references of the outside kinds that a model has."""
    sublayers = (attention.encoder_self, attention.decoder_self, attention.cross)
    kinds = [each.kind for one in sublayers for each in (one, *one.layers.values())]
    return tuple(
        dict.fromkeys(OUTSIDE_KINDS[kind] for kind in sorted(kinds) if kind in OUTSIDE_KINDS)
    )
