"""A model laid out for the kernels in C: encoding and decoding on a CPU, without gradients.

Every linear layer is packed once, in float32 or in 8 bits. Sentences are computed without padding,
and each hypothesis reads its own past only, so a translation has the same bits in every batch. The
structures that the kernels read are declared in nmt/ops/native/interface.py.
"""

import ctypes
from collections.abc import Sequence
from ctypes import c_void_p
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nmt.model.attention import AttentionCore, CrossAttention, SelfAttention
from nmt.model.layers import DecoderLayer, EncoderLayer, FeedForward, Residual
from nmt.model.transformer import Transformer
from nmt.ops.native import interface
from nmt.ops.native.interface import address

TINY = 1e-30
LARGEST = 127  # the largest 8-bit number used; -128 is left out to be symmetric
HEAD_NORMS = {"none": 0, "rms": 1, "layer": 2}
ACTIVATIONS = {"relu": 0, "gelu": 1, "swish": 2}


class Packer:
    """Makes the structures of a model, and keeps the memory that they point to."""

    def __init__(self, kernels: ctypes.CDLL, *, int8: bool) -> None:
        self.kernels = kernels
        self.panel: int = kernels.panel_size()
        self.group: int = kernels.group_size()
        self.input_zero: int = kernels.input_zero()
        self.int8 = int8
        self.kept: list[object] = []

    def keep(
        self,
        tensor: Tensor | None,
        shape: Sequence[int],
        dtype: torch.dtype = torch.float32,
    ) -> int | None:
        """The address of a tensor of this shape, made contiguous first; None stays None."""
        if tensor is None:
            return None
        tensor = tensor.detach().contiguous()
        self.kept.append(tensor)
        return address(tensor, shape, dtype)

    def linear(self, weight: Tensor, bias: Tensor | None) -> interface.PackedLinear:
        """A weight [outputs, inputs] in panels."""
        weight = weight.detach().float()
        outputs, inputs = weight.shape
        panels = -(-outputs // self.panel)
        structure = interface.PackedLinear(
            inputs=inputs, outputs=outputs, bias=self.keep(bias, (outputs,))
        )
        if not self.int8:
            padded = nn.functional.pad(weight, (0, 0, 0, panels * self.panel - outputs))
            laid_out = padded.view(panels, self.panel, inputs).transpose(1, 2)
            structure.weight = self.keep(laid_out, (panels, inputs, self.panel))
            return structure
        largest = weight.abs().amax(dim=1).clamp(min=TINY)
        quantized = (weight * (LARGEST / largest)[:, None]).round()
        groups = -(-inputs // self.group)
        room = (0, groups * self.group - inputs, 0, panels * self.panel - outputs)
        quantized = nn.functional.pad(quantized, room)
        shape = (panels, self.panel, groups, self.group)
        structure.weight8 = self.keep(
            quantized.to(torch.int8).view(shape).transpose(1, 2),
            (panels, groups, self.panel, self.group),
            torch.int8,
        )
        structure.scales = self.keep(largest / LARGEST, (outputs,))
        # Inputs come with `input_zero` added; the sums start without what that adds.
        offsets = (quantized.sum(1) * -self.input_zero).to(torch.int32)
        structure.offsets = self.keep(offsets, (panels * self.panel,), torch.int32)
        return structure

    def layer_norm(self, module: nn.Module, dim: int) -> interface.LayerNorm:
        """A LayerNorm; anything else does nothing."""
        if not isinstance(module, nn.LayerNorm):
            return interface.LayerNorm()
        return interface.LayerNorm(self.keep(module.weight, (dim,)), self.keep(module.bias, (dim,)))

    def kind(self, core: AttentionCore, dim: int) -> interface.Kind:
        """The description of an attention kind that the kernels read."""
        mapping = core.mapping
        assert mapping.row_map is not None, "expected a mapping that the kernels have"
        parameters = torch.full((core.heads,), mapping.row_parameter)
        for learned in core.weights.values():
            parameters = mapping.decoding_parameters(learned)
        structure = interface.Kind(
            map=int(mapping.row_map), parameters=self.keep(parameters, (core.heads,))
        )
        if core.norm is not None:
            structure.norm = HEAD_NORMS[core.norm.norm]
            structure.gain = self.keep(core.norm.gain, (dim,))
            structure.gate = self.keep(core.norm.gate, (dim,))
        return structure

    def attention(
        self, module: SelfAttention | CrossAttention, residual: Residual
    ) -> interface.AttentionLayer:
        """An attention sublayer."""
        dim = len(module.output.weight)
        structure = interface.AttentionLayer(
            output=self.linear(module.output.weight, module.output.bias),
            kind=self.kind(module.core, dim),
            norm=self.layer_norm(residual.norm, dim),
        )
        if isinstance(module, SelfAttention):
            first = module.query_key_value
        else:
            first = module.query
            structure.key_value = self.linear(module.key_value.weight, module.key_value.bias)
        structure.input = self.linear(first.weight, first.bias)
        return structure

    def feed_forward(self, module: FeedForward, residual: Residual) -> interface.FeedForwardLayer:
        """A feed-forward sublayer."""
        return interface.FeedForwardLayer(
            self.linear(module.input.weight, module.input.bias),
            self.linear(module.output.weight, module.output.bias),
            self.layer_norm(residual.norm, len(module.output.weight)),
        )

    def layer(self, layer: nn.Module) -> interface.StackLayer:
        """A layer of either stack."""
        assert isinstance(layer, EncoderLayer | DecoderLayer)
        structure = interface.StackLayer(
            self=self.attention(layer.self_attention, layer.self_attention_residual),
            feed_forward=self.feed_forward(layer.feed_forward, layer.feed_forward_residual),
        )
        if isinstance(layer, DecoderLayer):
            structure.cross = self.attention(layer.cross_attention, layer.cross_attention_residual)
        return structure

    def stack(self, model: Transformer, layers: nn.ModuleList, final: nn.Module) -> interface.Stack:
        """The encoder or the decoder, as the kernels have checked it."""
        array = (interface.StackLayer * len(layers))(*map(self.layer, layers))
        self.kept.append(array)
        config = model.config
        stack = interface.Stack(
            dim=config.dim,
            heads=config.heads,
            hidden_dim=config.feed_forward_dim,
            num_layers=len(layers),
            pre_norm=int(config.norm == "pre"),
            activation=ACTIVATIONS[config.feed_forward_activation],
            epsilon=config.norm_epsilon,
            layers=array,
            final=self.layer_norm(final, config.dim),
        )
        self.kernels.check_stack(ctypes.byref(stack), int(layers is model.decoder))
        return stack


class Engine:
    """A model for the kernels; the original is left as it is."""

    def __init__(self, kernels: ctypes.CDLL, model: Transformer, *, int8: bool) -> None:
        self.kernels = kernels
        self.chunk: int = kernels.chunk_size()
        self.packer = Packer(kernels, int8=int8)
        self.encoder = self.packer.stack(model, model.encoder, model.encoder_norm)
        self.decoder = self.packer.stack(model, model.decoder, model.decoder_norm)
        self.output = self.packer.linear(model.output_weight, model.output_bias)
        self.num_layers = len(model.decoder)
        self.dim, self.hidden_dim = model.config.dim, model.config.feed_forward_dim
        self.int8 = int8
        self.source_input, self.target_input = model.source_input, model.target_input
        self.source_embedding = model.source_embedding.detach()
        self.target_embedding = model.target_embedding.detach()

    def workspace(self, rows: int, *, keys: int, sentences: int = 0) -> "Workspace":
        """Scratch memory for the kernels, for `rows` rows that attend to at most `keys` keys.

        Encoding also needs some for whole `sentences`.
        """
        threads = torch.get_num_threads()
        attention = self.kernels.attention_scratch(keys)
        packed = rows + sentences * self.packer.panel if sentences else 0
        widest = max(self.dim, self.hidden_dim)
        sizes = [
            threads * attention,
            rows * 3 * self.dim,
            rows * self.dim,
            rows * self.dim,
            rows * self.hidden_dim,
            packed * self.dim,
            rows * (2 + widest) if self.int8 else 0,
        ]
        memory = torch.empty(sum(sizes))
        parts = (part.data_ptr() for part in torch.split(memory, sizes))
        return Workspace(interface.WorkingMemory(rows, threads, attention, *parts), keys, memory)

    def encode(self, sentences: Sequence[Sequence[int]], starts: Tensor) -> Tensor:
        """The encoder output [R, D] of sentences, whose tokens are concatenated without padding."""
        tokens = torch.tensor(
            [token for sentence in sentences for token in sentence], dtype=torch.int64
        )
        longest = max(map(len, sentences), default=0)
        positions = self.source_input.positions(longest)
        places = [torch.arange(len(sentence)) for sentence in sentences]
        x = self.source_input.at(
            tokens, self.source_embedding, positions[torch.cat(places) if places else tokens]
        )
        work = self.workspace(len(x), keys=longest, sentences=len(sentences))
        self.kernels.encode(
            ctypes.byref(self.encoder),
            address(starts, (len(sentences) + 1,), torch.int64),
            len(sentences),
            address(x, (len(tokens), self.dim)),
            ctypes.byref(work.fields),
        )
        return x

    def logits(self, hidden: Tensor, work: "Workspace", out: Tensor) -> None:
        """Write [R, V] to out for hidden [..., D]."""
        self.kernels.apply_linear(
            ctypes.byref(self.output),
            address(hidden),
            len(out),
            address(out),
            0,
            work.fields.scratch,
            work.fields.threads,
        )


@dataclass(frozen=True)
class Workspace:
    """Scratch memory for the kernels: the addresses of its parts, and the tensor that holds it."""

    fields: interface.WorkingMemory
    keys: int  # of attention, at most
    memory: Tensor


class EngineStep:
    """The step function of a batch of sentences."""

    def __init__(
        self, engine: Engine, sources: Sequence[Sequence[int]], *, beam: int, max_length: int
    ) -> None:
        self.engine = engine
        self.starts = torch.tensor([0, *map(len, sources)]).cumsum(0)
        self.longest = max(map(len, sources), default=0)
        self.num_sentences = len(sources)
        self.rows = torch.arange(len(sources))
        encoded = engine.encode(sources, self.starts)
        self.memories = self.remember(encoded)
        self.positions = max_length + 1  # the start token is read, too
        self.past: list[Tensor] = []  # [L, sentences, chunk, beam, 2, D] of each chunk so far
        self.descent = torch.empty(len(sources), 1, 0, dtype=torch.int32)
        # The same memory in every step: new memory would cost as much as a layer.
        self.work: Workspace | None = None
        self.logits = torch.empty(0, engine.output.outputs)
        self.state = interface.DecodingBatch(
            sentences=len(sources),
            most_width=beam,
            starts=address(self.starts, dtype=torch.int64),
            memories=ctypes.cast(self.memories, c_void_p),
        )

    def remember(self, encoded: Tensor) -> ctypes.Array[interface.Memory]:
        """The keys and values of the cross-attention of all layers, from the encoder output."""
        engine = self.engine
        rows, layers, dim = len(encoded), engine.num_layers, engine.dim
        keys = encoded.new_empty(layers, rows + self.num_sentences * engine.packer.panel, dim)
        key_values = encoded.new_empty(layers, rows, 2, dim)
        self.kept = (keys, key_values)
        work = engine.workspace(rows, keys=self.longest)
        memories = (interface.Memory * layers)(
            *(interface.Memory(address(keys[n]), address(key_values[n])) for n in range(layers))
        )
        engine.kernels.remember(
            ctypes.byref(engine.decoder),
            address(self.starts, dtype=torch.int64),
            self.num_sentences,
            address(encoded, (rows, dim)),
            memories,
            ctypes.byref(work.fields),
        )
        return memories

    def __call__(self, tokens: Tensor) -> Tensor:
        """Logits [B, K, V] after tokens [B, K], valid until the next call."""
        engine, state = self.engine, self.state
        batch, width = tokens.shape
        self.check(batch, width)
        if state.position == len(self.past) * engine.chunk:
            self.open_chunk()
        if self.descent.shape[1] != width:  # before the first step, when a sample starts wide
            self.descent = self.descent.expand(-1, width, -1).contiguous()
        position = engine.target_input.positions(state.position + 1)[-1]
        x = engine.target_input.at(tokens, engine.target_embedding, position)
        state.batch, state.width = batch, width
        state.rows = address(self.rows, (batch,), torch.int64)
        state.descent = address(self.descent, (batch, width, state.most_positions), torch.int32)
        work = self.workspace(batch * width)
        engine.kernels.decode(
            ctypes.byref(engine.decoder),
            ctypes.byref(state),
            address(x, (batch, width, engine.dim)),
            ctypes.byref(work.fields),
        )
        state.position += 1
        logits = self.logits[: batch * width]
        engine.logits(x, work, logits)
        return logits.view(batch, width, engine.output.outputs)

    def check(self, batch: int, width: int) -> None:
        """Raise for tokens that there is no memory for."""
        if self.state.position >= self.positions:
            raise ValueError(f"expected at most {self.positions} steps, got another one")
        if not 1 <= width <= self.state.most_width:
            raise ValueError(f"expected 1 to {self.state.most_width} hypotheses, got {width}")
        if batch != len(self.rows):
            raise ValueError(f"expected tokens of {len(self.rows)} sentences, got {batch}")

    def workspace(self, rows: int) -> Workspace:
        """Scratch memory for a step of `rows` rows; reuses that of the last step if it suffices."""
        work, keys = self.work, max(self.longest, self.state.most_positions)
        if (
            work is None
            or rows > work.fields.rows
            or keys > work.keys
            or torch.get_num_threads() != work.fields.threads
        ):
            # Twice the keys, so that long outputs do not need new memory for each chunk.
            self.work = work = self.engine.workspace(rows, keys=max(self.longest, 2 * keys))
            if rows > len(self.logits):
                self.logits = torch.empty(rows, self.engine.output.outputs)
        return work

    def open_chunk(self) -> None:
        """Allocate memory for the next positions, but not beyond the longest output."""
        engine = self.engine
        shape = (self.num_sentences, engine.chunk, self.state.most_width, 2, engine.dim)
        self.past.append(torch.empty(engine.num_layers, *shape))
        addresses = [layer.data_ptr() for chunk in self.past for layer in chunk]
        self.pasts = (c_void_p * len(addresses))(*addresses)
        self.state.pasts = ctypes.cast(self.pasts, c_void_p)
        self.descent = nn.functional.pad(self.descent, (0, engine.chunk))
        self.state.most_positions = self.descent.shape[2]

    def reorder(self, parents: Tensor) -> None:
        """Continue the old hypotheses parents [B, K]."""
        index = parents[:, :, None].expand(-1, -1, self.descent.shape[2])
        self.descent = self.descent.gather(1, index)

    def select(self, sentences: Tensor) -> None:
        """Keep these sentences [B']; nothing is copied but the tables that say where they are."""
        self.rows = self.rows[sentences]
        self.descent = self.descent.index_select(0, sentences)
