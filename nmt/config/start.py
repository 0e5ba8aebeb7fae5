"""The sections of a config that a run takes from the model it starts from (`train.start_from`)."""

from collections.abc import Iterator
from pathlib import Path

from nmt.config.config import Config
from nmt.config.document import (
    Entry,
    MappingNode,
    Node,
    Scalar,
    Source,
    UnreadableError,
    read_document,
    resolve_path,
)
from nmt.config.outside_kinds import load_named_kinds
from nmt.config.schema import expand, merge

START_KEY = "train.start_from"
PACKED = "packed.yaml"  # the config of a packed model
# The model, and all that the codec was learned with.
TAKEN = ("model",)
TAKEN_OF_DATA = ("source_language", "target_language", "tokenizer", "subword")


def with_start(tree: Node) -> Node:
    """The tree with what it leaves open of the model and the codec as its start has it.

    A run that has begun takes it from its own config: the start may be gone by then. Raises
    UnreadableError for a start without a config.
    """
    start = _scalar(tree, START_KEY)
    if start is None or start.is_null:
        return tree
    for path in _configs(tree, start):
        if path.is_file():
            below = read_document(path, Source(str(path), path.parent), [])
            load_named_kinds(below, from_user=False)
            return merge(_sections(below), tree, Config)
    message = f"expected a model or run directory with a config.yaml, found none in {start.text}"
    if (_path(start) / PACKED).is_file():
        message = f"{start.text} is a packed model; start from the model that it was exported from"
    raise UnreadableError(start.place, message, key=START_KEY)


def _configs(tree: Node, start: Scalar) -> Iterator[Path]:
    """The configs to take sections from, the best first."""
    run_dir = _scalar(tree, "run_dir")
    if run_dir is not None:
        begun = sorted(_path(run_dir).glob("checkpoints/step-*/config.yaml"), reverse=True)
        yield from [_path(run_dir) / "config.yaml", *begun] if begun else []
    yield _path(start) / "config.yaml"
    # A run that was killed before it wrote its config, or whose config somebody has removed.
    yield from (_path(start) / name / "config.yaml" for name in ("average", "best"))


def _path(scalar: Scalar) -> Path:
    return resolve_path(scalar.text, scalar.place.source.directory)


def _scalar(tree: Node, key: str) -> Scalar | None:
    """The value of a dotted key, if it is set to one."""
    node = expand(tree, Config)
    for name in key.split("."):
        if not isinstance(node, MappingNode) or name not in node.entries:
            return None
        node = node.entries[name].node
    return node if isinstance(node, Scalar) else None


def _sections(tree: Node) -> Node:
    """The sections of a start's config that are taken."""
    entries = tree.entries if isinstance(tree, MappingNode) else {}
    taken = {name: entry for name, entry in entries.items() if name in TAKEN}
    data = entries["data"].node if "data" in entries else None
    if isinstance(data, MappingNode):
        inner = {name: entry for name, entry in data.entries.items() if name in TAKEN_OF_DATA}
        taken["data"] = Entry(entries["data"].place, MappingNode(data.place, inner))
    return MappingNode(tree.place, taken)
