"""Messages between the server and its worker processes: JSON, with its length in front.

The server never imports torch. Nothing is pickled, so that a worker cannot harm the server.
"""

import asyncio
import json
import struct
from dataclasses import dataclass
from typing import Any, BinaryIO

LENGTH_PREFIX = struct.Struct(">I")

Message = dict[str, Any]


@dataclass(frozen=True)
class ServedModel:
    """A model that a worker has loaded."""

    name: str
    path: str
    source: str  # language codes
    target: str
    version: str  # changes when the files of the model change
    beam: int
    attention: dict[str, str]  # by type: a description of the kind
    layers: dict[str, int]  # by type
    heads: int


@dataclass(frozen=True)
class WorkerPlan:
    """How a worker loads its models: model directories by name, and options of search."""

    models: dict[str, str]
    device: str
    precision: str
    int8: bool
    threads: int
    search: dict[str, Any]


def encode_message(message: Message) -> bytes:
    """The bytes of a message."""
    content = json.dumps(message, separators=(",", ":")).encode()
    return LENGTH_PREFIX.pack(len(content)) + content


def read_message(stream: BinaryIO) -> Message | None:
    """The next message of a stream, or None at its end."""
    header = stream.read(LENGTH_PREFIX.size)
    if len(header) < LENGTH_PREFIX.size:
        return None
    (size,) = LENGTH_PREFIX.unpack(header)
    content = stream.read(size)
    return None if len(content) < size else dict(json.loads(content))


async def receive_message(reader: asyncio.StreamReader) -> Message:
    """The next message of a worker; raises IncompleteReadError when there is none."""
    (size,) = LENGTH_PREFIX.unpack(await reader.readexactly(LENGTH_PREFIX.size))
    return dict(json.loads(await reader.readexactly(size)))
