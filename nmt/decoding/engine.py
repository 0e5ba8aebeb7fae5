"""A packed model laid out for the kernels in C: encoding and decoding on a CPU. Imports no torch.

Every linear layer is laid out once, in float32 or in 8 bits. Sentences are computed without
padding, and each hypothesis reads its own past only, so a translation has the same bits in every
batch and with any number of threads. The structures that the kernels read are declared in
nmt/ops/native/interface.py.

Shapes: B sentences, K hypotheses per sentence, R rows, D width, V vocabulary, L layers.
"""

import ctypes
import math
from array import array
from collections.abc import Iterable, Sequence
from ctypes import c_void_p
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any

import numpy as np
import numpy.typing as npt

from nmt.data.ragged import Integers
from nmt.decoding.embedded_input import EmbeddedInput
from nmt.decoding.packed_model import Array, PackedModel, PackedSettings
from nmt.ops.native import interface
from nmt.ops.native.interface import RowMap, address

HEAD_NORMS = {"none": 0, "rms": 1, "layer": 2}
ACTIVATION_CODES = {"relu": 0, "gelu": 1, "swish": 2}
CACHE_LINE_BYTES = 64  # bytes of a line of the cache: a vector that lies in two of them is slower


def integers(numbers: Iterable[int]) -> "array[int]":
    """Numbers of 64 bits, for the kernels; made and addressed faster than an array of numpy's."""
    return array("q", numbers)


def empty(shape: Sequence[int], dtype: type = np.float32) -> Array:
    """New memory that begins with a line of the cache."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    block = np.empty(size + CACHE_LINE_BYTES, dtype=np.uint8)
    first = -block.ctypes.data % CACHE_LINE_BYTES
    return block[first : first + size].view(dtype).reshape(shape)


class MemoryBlock:
    """One block of memory for several arrays, given by their sizes in bytes."""

    def __init__(self, **sizes: int) -> None:
        self.sizes = sizes
        places, end = {}, 0
        for name, size in sizes.items():
            places[name] = end
            end += -(-size // CACHE_LINE_BYTES) * CACHE_LINE_BYTES
        self.places = places
        block = np.empty(end + CACHE_LINE_BYTES, dtype=np.uint8)
        start = block.ctypes.data
        first = start + -start % CACHE_LINE_BYTES
        self.block = block[first - start :]
        self.addresses = {name: first + place for name, place in places.items()}

    def view(self, name: str, dtype: npt.DTypeLike) -> Array:
        """The array of this name."""
        place = self.places[name]
        return self.block[place : place + self.sizes[name]].view(dtype)


class ModelStructures:
    """Makes the structures of a packed model, and keeps the memory that they point to."""

    def __init__(self, kernels: ctypes.CDLL, model: PackedModel) -> None:
        self.kernels = kernels
        self.panel: int = kernels.panel_size()
        self.group: int = kernels.group_size()
        self.input_zero: int = kernels.input_zero()
        self.settings: PackedSettings = model.settings
        self.arrays = model.arrays
        self.kept: list[object] = []

    def named(self, name: str) -> Array:
        """An array that the model must have."""
        if name not in self.arrays:
            raise ValueError(f"expected a packed model with an array {name}, got none")
        return self.arrays[name]

    def keep(self, array: Array, shape: Sequence[int], dtype: type = np.float32) -> int:
        """The address of an array of this shape, which is kept in memory."""
        self.kept.append(array)
        return address(array, shape, dtype)

    def numbers(self, name: str, size: int) -> int:
        """The address of the numbers [size] of this name."""
        return self.keep(np.ascontiguousarray(in_memory(self.named(name))), (size,))

    def optional(self, name: str, size: int) -> int | None:
        """The address of the numbers [size] of this name, None where the model has none."""
        return self.numbers(name, size) if name in self.arrays else None

    def linear(
        self, name: str, *, inputs: int, outputs: int, weight: Array | None = None
    ) -> interface.PackedLinear:
        """A linear layer in panels; `weight` [outputs, inputs] replaces the one of that name."""
        weight = self.named(f"{name}.weight") if weight is None else weight
        if weight.shape != (outputs, inputs):
            raise ValueError(f"{name}.weight: expected {(outputs, inputs)}, got {weight.shape}")
        panels = -(-outputs // self.panel)
        structure = interface.PackedLinear(
            inputs=inputs, outputs=outputs, bias=self.optional(f"{name}.bias", outputs)
        )
        if not self.settings.int8:
            laid_out = empty((panels, inputs, self.panel))
            padded = pad(weight, panels * self.panel, inputs)
            laid_out[:] = padded.reshape(panels, self.panel, inputs).transpose(0, 2, 1)
            structure.weight = self.keep(laid_out, (panels, inputs, self.panel))
            return structure
        groups = -(-inputs // self.group)
        padded = pad(weight, panels * self.panel, groups * self.group)
        laid_out = empty((panels, groups, self.panel, self.group), np.int8)
        parts = (panels, self.panel, groups, self.group)
        laid_out[:] = padded.reshape(parts).transpose(0, 2, 1, 3)
        structure.weight8 = self.keep(laid_out, laid_out.shape, np.int8)
        structure.scales = self.numbers(f"{name}.scales", outputs)
        # Inputs come with `input_zero` added; the sums start without what that adds.
        offsets = empty((panels * self.panel,), np.int32)
        offsets[:] = padded.sum(axis=1, dtype=np.int32) * -self.input_zero
        structure.offsets = self.keep(offsets, offsets.shape, np.int32)
        return structure

    def layer_norm(self, name: str) -> interface.LayerNorm:
        """A LayerNorm."""
        dim = self.settings.dim
        return interface.LayerNorm(
            self.numbers(f"{name}.norm.gain", dim), self.numbers(f"{name}.norm.bias", dim)
        )

    def kind(self, name: str) -> interface.Kind:
        """The description of an attention kind that the kernels read."""
        settings = self.settings
        return interface.Kind(
            map=int(RowMap[settings.score_maps[name].upper()]),
            parameters=self.numbers(f"{name}.parameters", settings.heads),
            norm=HEAD_NORMS[settings.head_norms[name]],
            gain=self.optional(f"{name}.gain", settings.dim),
            gate=self.optional(f"{name}.gate", settings.dim),
        )

    def attention(self, name: str, *, cross: bool) -> interface.AttentionLayer:
        """An attention sublayer."""
        dim = self.settings.dim
        structure = interface.AttentionLayer(
            input=self.linear(f"{name}.input", inputs=dim, outputs=dim if cross else 3 * dim),
            output=self.linear(f"{name}.output", inputs=dim, outputs=dim),
            kind=self.kind(name),
            norm=self.layer_norm(name),
        )
        if cross:
            structure.key_value = self.linear(f"{name}.key_value", inputs=dim, outputs=2 * dim)
        return structure

    def layer(self, name: str, *, decoder: bool) -> interface.StackLayer:
        """A layer of either stack."""
        dim, hidden = self.settings.dim, self.settings.hidden_dim
        feed_forward = f"{name}.feed_forward"
        structure = interface.StackLayer(
            self=self.attention(f"{name}.self", cross=False),
            feed_forward=interface.FeedForwardLayer(
                self.linear(f"{feed_forward}.input", inputs=dim, outputs=hidden),
                self.linear(f"{feed_forward}.output", inputs=hidden, outputs=dim),
                self.layer_norm(feed_forward),
            ),
        )
        if decoder:
            structure.cross = self.attention(f"{name}.cross", cross=True)
        return structure

    def stack(self, side: str, count: int) -> interface.Stack:
        """The encoder or the decoder, as the kernels have checked it."""
        settings, decoder = self.settings, side == "decoder"
        layers = [self.layer(f"{side}.{index}", decoder=decoder) for index in range(count)]
        array = (interface.StackLayer * count)(*layers)
        self.kept.append(array)
        stack = interface.Stack(
            dim=settings.dim,
            heads=settings.heads,
            hidden_dim=settings.hidden_dim,
            num_layers=count,
            pre_norm=int(settings.pre_norm),
            activation=ACTIVATION_CODES[settings.activation],
            epsilon=settings.norm_epsilon,
            layers=array,
        )
        if settings.pre_norm:
            stack.final = self.layer_norm(side)
        self.kernels.check_stack(ctypes.byref(stack), int(decoder))
        return stack


def in_memory(array: Array) -> Array:
    """The array, or a copy if it is a view of a file, which may be overwritten or cut later."""
    return array if array.flags.writeable else array.copy()


def pad(weight: Array, outputs: int, inputs: int) -> Array:
    """A weight with zeros up to this size."""
    room = ((0, outputs - weight.shape[0]), (0, inputs - weight.shape[1]))
    return np.pad(weight, room) if any(map(any, room)) else weight


class Engine:
    """A packed model for the kernels."""

    def __init__(self, kernels: ctypes.CDLL, model: PackedModel) -> None:
        self.kernels = kernels
        self.chunk: int = kernels.chunk_size()
        self.settings = settings = model.settings
        self.layout = layout = ModelStructures(kernels, model)
        self.encoder = layout.stack("encoder", settings.encoder_layers)
        self.decoder = layout.stack("decoder", settings.decoder_layers)
        target = in_memory(layout.named("target_embedding"))
        positions = in_memory(layout.named("positions"))
        source = in_memory(model.arrays.get("source_embedding", target))
        self.source_input = EmbeddedInput(source, positions, settings)
        self.target_input = EmbeddedInput(target, positions, settings)
        tied = "output.weight" not in model.arrays and not settings.int8
        self.vocabulary_size = len(target)
        # Of one row of a step, roughly.
        layer = 6 * settings.dim**2 + 2 * settings.dim * settings.hidden_dim
        self.products = settings.decoder_layers * layer + settings.dim * len(target)
        self.output = layout.linear(
            "output",
            inputs=settings.dim,
            outputs=len(target),
            weight=target if tied else None,
        )

    def workspace(self, rows: int, *, keys: int, threads: int, sentences: int = 0) -> "Workspace":
        """Scratch memory for the kernels, for `rows` rows that attend to at most `keys` keys.

        Encoding also needs some for whole `sentences`.
        """
        dim, hidden_dim = self.settings.dim, self.settings.hidden_dim
        attention = self.kernels.attention_scratch(keys)
        packed = rows + sentences * self.layout.panel if sentences else 0
        memory = MemoryBlock(
            attention=4 * threads * attention,
            projected=4 * rows * 3 * dim,
            attended=4 * rows * dim,
            buffer=4 * rows * dim,
            hidden=4 * rows * hidden_dim,
            packed=4 * packed * dim,
            scratch=4 * rows * (2 + max(dim, hidden_dim)) if self.settings.int8 else 0,
        )
        fields = interface.WorkingMemory(rows, threads, attention, **memory.addresses)
        return Workspace(fields, keys, memory)


@dataclass(frozen=True)
class Workspace:
    """Scratch memory for the kernels: the addresses of its parts, and what holds them."""

    fields: interface.WorkingMemory
    keys: int  # of attention, at most
    memory: MemoryBlock


class EngineBatch:
    """A batch of sentences that the engine decodes: its sources, and the past of its hypotheses."""

    def __init__(
        self,
        engine: Engine,
        sources: Sequence[Sequence[int]],
        *,
        beam: int,
        max_length: int,
        threads: int,
    ) -> None:
        self.engine = engine
        self.threads = threads  # may be changed between steps
        self.starts = integers(accumulate(map(len, sources), initial=0))
        self.longest = max(map(len, sources), default=0)
        self.num_sentences = len(sources)
        self.positions = max_length + 1  # the start token is read, too
        self.rows = np.arange(len(sources))
        self.descent = np.empty((len(sources), 1, 0), dtype=np.int32)
        self.past: list[Array] = []  # [L, sentences, chunk, beam, 2, D] of each chunk so far
        # The same memory in every step: new memory would cost as much as a layer.
        self.work = engine.workspace(
            max(self.starts[-1], len(sources) * beam),
            keys=max(self.longest, 2 * engine.chunk),
            threads=threads,
            sentences=len(sources),
        )
        self.outputs = MemoryBlock()
        self.state = interface.DecodingBatch(
            sentences=len(sources), most_width=beam, starts=self.starts.buffer_info()[0]
        )
        self.encode(sources)

    def encode(self, sources: Sequence[Sequence[int]]) -> None:
        """Encode the sources, and project them to the keys and values of the cross-attention."""
        engine, settings, rows = self.engine, self.engine.settings, self.starts[-1]
        layers, line = settings.decoder_layers, 4 * settings.dim
        key_size = (rows + self.num_sentences * engine.layout.panel) * line
        memory = self.encoded = MemoryBlock(
            x=rows * line, keys=layers * key_size, key_values=layers * 2 * rows * line
        )
        keys, key_values = memory.addresses["keys"], memory.addresses["key_values"]
        self.memories = (interface.Memory * layers)(
            *(
                interface.Memory(keys + n * key_size, key_values + n * 2 * rows * line)
                for n in range(layers)
            )
        )
        self.state.memories = ctypes.addressof(self.memories)
        tokens = integers(chain.from_iterable(sources))
        starts, x = self.state.starts, memory.addresses["x"]
        engine.kernels.encode(
            ctypes.byref(engine.encoder),
            ctypes.byref(engine.source_input.at_least(self.longest)),
            starts,
            self.num_sentences,
            tokens.buffer_info()[0],
            x,
            ctypes.byref(self.work.fields),
        )
        engine.kernels.remember(
            ctypes.byref(engine.decoder),
            starts,
            self.num_sentences,
            x,
            self.memories,
            ctypes.byref(self.work.fields),
        )

    def step(self, tokens: Integers) -> Array:
        """Logits [B, K, V] after tokens [B, K], valid until the next step."""
        engine, state = self.engine, self.state
        batch, width = tokens.shape
        self.check(batch, width)
        if state.position == len(self.past) * engine.chunk:
            self.open_chunk()
        if self.descent.shape[1] != width:  # before the first step, when a sample starts wide
            self.descent = np.repeat(self.descent[:, :1], width, axis=1)
        state.batch, state.width = batch, width
        state.rows = address(self.rows, (batch,), np.int64)
        state.descent = address(self.descent, (batch, width, state.most_positions), np.int32)
        self.make_room(batch * width, batch * width)
        hidden, work = self.outputs.addresses["hidden"], ctypes.byref(self.work.fields)
        engine.kernels.decode(
            ctypes.byref(engine.decoder),
            ctypes.byref(engine.target_input.at_least(state.position + 1)),
            ctypes.byref(state),
            address(tokens, dtype=np.int64),
            hidden,
            work,
        )
        state.position += 1
        engine.kernels.apply_linear(
            ctypes.byref(engine.output),
            hidden,
            batch * width,
            self.outputs.addresses["logits"],
            0,
            self.work.fields.scratch,
            self.work.fields.threads,
        )
        logits = self.outputs.view("logits", np.float32)
        size = engine.vocabulary_size
        return logits[: batch * width * size].reshape(batch, width, size)

    def check(self, batch: int, width: int) -> None:
        """Raise for tokens that there is no memory for."""
        if self.state.position >= self.positions:
            raise ValueError(f"expected at most {self.positions} steps, got another one")
        if not 1 <= width <= self.state.most_width:
            raise ValueError(f"expected 1 to {self.state.most_width} hypotheses, got {width}")
        if batch != len(self.rows):
            raise ValueError(f"expected tokens of {len(self.rows)} sentences, got {batch}")

    def make_room(self, rows: int, logit_rows: int) -> None:
        """Allocate memory for steps of `rows` rows and some of their logits, unless it is there."""
        engine, work = self.engine, self.work
        keys = max(self.longest, self.state.most_positions)
        if keys > work.keys or self.threads != work.fields.threads:
            # Twice the keys, so that long outputs do not need new memory for each chunk.
            self.work = engine.workspace(work.fields.rows, keys=2 * keys, threads=self.threads)
        hidden, logits = 4 * rows * engine.settings.dim, 4 * logit_rows * engine.vocabulary_size
        sizes = self.outputs.sizes
        if hidden > sizes.get("hidden", -1) or logits > sizes.get("logits", -1):
            self.outputs = MemoryBlock(hidden=hidden, logits=logits)

    def open_chunk(self) -> None:
        """Allocate memory for the next positions, but not beyond the longest output."""
        engine, settings = self.engine, self.engine.settings
        shape = (self.num_sentences, engine.chunk, self.state.most_width, 2, settings.dim)
        self.past.append(empty((settings.decoder_layers, *shape)))
        size = self.past[-1].nbytes // settings.decoder_layers
        starts = (address(chunk) for chunk in self.past)
        addresses = [start + n * size for start in starts for n in range(settings.decoder_layers)]
        self.pasts = (c_void_p * len(addresses))(*addresses)
        self.state.pasts = ctypes.addressof(self.pasts)
        batch, width, positions = self.descent.shape
        longer = np.zeros((batch, width, positions + engine.chunk), dtype=np.int32)
        longer[:, :, :positions] = self.descent
        self.descent = longer
        self.state.most_positions = positions + engine.chunk

    def reorder(self, parents: npt.NDArray[Any]) -> None:
        """Continue the old hypotheses parents [B, K]."""
        taken = np.take_along_axis(self.descent, parents[:, :, None], axis=1)
        self.descent = np.ascontiguousarray(taken)

    def select(self, sentences: npt.NDArray[Any]) -> None:
        """Keep these sentences [B']; nothing is copied but the tables that say where they are."""
        self.rows = self.rows[sentences]
        self.descent = self.descent[sentences]
