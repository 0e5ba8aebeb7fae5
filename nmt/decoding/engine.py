"""A model laid out for the kernels in C: encoding and decoding on a CPU, without gradients.

Every linear layer is packed once, in float32 or in 8 bits. Sentences are computed without padding,
and each hypothesis reads its own past only, so a translation has the same bits in every batch. The
structures have the fields of those in nmt/native/engine.c and linear.h, in the same order.
"""

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, c_float, c_int64, c_void_p
from typing import Self

import torch
from torch import Tensor, nn

from nmt.model.attention import AttentionCore, CrossAttention, SelfAttention
from nmt.model.layers import LAYER_NORM_EPSILON, DecoderLayer, EncoderLayer, FeedForward, Residual
from nmt.model.norms import HeadNorm
from nmt.model.transformer import Transformer
from nmt.native import library
from nmt.native.library import pointer

TINY = 1e-30
LARGEST = 127  # the largest 8-bit number used; -128 is left out to be symmetric
HEAD_NORMS = {"none": 0, "rms": 1, "layer": 2}


class _Linear(ctypes.Structure):
    _fields_ = (
        ("inputs", c_int64),
        ("outputs", c_int64),
        ("weight", c_void_p),
        ("weight8", c_void_p),
        ("scales", c_void_p),
        ("offsets", c_void_p),
        ("bias", c_void_p),
    )


class _LayerNorm(ctypes.Structure):
    _fields_ = (("gain", c_void_p), ("bias", c_void_p))


class _Kind(ctypes.Structure):
    _fields_ = (
        ("map", c_int64),
        ("parameters", c_void_p),
        ("norm", c_int64),
        ("gain", c_void_p),
        ("gate", c_void_p),
    )


class _Attention(ctypes.Structure):
    _fields_ = (
        ("input", _Linear),
        ("key_value", _Linear),
        ("output", _Linear),
        ("kind", _Kind),
        ("norm", _LayerNorm),
    )


class _FeedForward(ctypes.Structure):
    _fields_ = (("input", _Linear), ("output", _Linear), ("norm", _LayerNorm))


class _Layer(ctypes.Structure):
    _fields_ = (("self", _Attention), ("cross", _Attention), ("feed_forward", _FeedForward))


class _Stack(ctypes.Structure):
    _fields_ = (
        ("dim", c_int64),
        ("heads", c_int64),
        ("hidden_dim", c_int64),
        ("num_layers", c_int64),
        ("pre_norm", c_int64),
        ("epsilon", c_float),
        ("layers", POINTER(_Layer)),
        ("final", _LayerNorm),
    )


class _Memory(ctypes.Structure):
    _fields_ = (("keys", c_void_p), ("key_values", c_void_p))


class _Batch(ctypes.Structure):
    _fields_ = (
        ("threads", c_int64),
        ("batch", c_int64),
        ("width", c_int64),
        ("position", c_int64),
        ("most_width", c_int64),
        ("most_positions", c_int64),
        ("rows", c_void_p),
        ("starts", c_void_p),
        ("memories", c_void_p),
        ("pasts", c_void_p),
        ("descent", c_void_p),
    )


class _Workspace(ctypes.Structure):
    _fields_ = tuple(
        (name, c_void_p)
        for name in ("projected", "attended", "buffer", "hidden", "packed", "scratch")
    )


class Packer:
    """Makes the structures of a model, and keeps the memory that they point to."""

    def __init__(self, kernels: ctypes.CDLL, *, int8: bool) -> None:
        self.panel = int(kernels.panel_size())
        self.group = int(kernels.group_size())
        self.input_zero = int(kernels.input_zero())
        self.int8 = int8
        self.kept: list[object] = []

    def keep(self, tensor: Tensor | None) -> c_void_p | None:
        """Where a tensor of this type is, contiguous; None stays None."""
        if tensor is None:
            return None
        tensor = tensor.detach().contiguous()
        self.kept.append(tensor)
        return pointer(tensor)

    def linear(self, weight: Tensor, bias: Tensor | None) -> _Linear:
        """A weight [outputs, inputs] in panels."""
        weight = weight.detach().float()
        outputs, inputs = weight.shape
        panels = -(-outputs // self.panel)
        structure = _Linear(inputs=inputs, outputs=outputs, bias=self.keep(bias))
        if not self.int8:
            padded = nn.functional.pad(weight, (0, 0, 0, panels * self.panel - outputs))
            structure.weight = self.keep(padded.view(panels, self.panel, inputs).transpose(1, 2))
            return structure
        largest = weight.abs().amax(dim=1).clamp(min=TINY)
        quantized = (weight * (LARGEST / largest)[:, None]).round()
        groups = -(-inputs // self.group)
        room = (0, groups * self.group - inputs, 0, panels * self.panel - outputs)
        quantized = nn.functional.pad(quantized, room)
        shape = (panels, self.panel, groups, self.group)
        structure.weight8 = self.keep(quantized.to(torch.int8).view(shape).transpose(1, 2))
        structure.scales = self.keep(largest / LARGEST)
        # Inputs come with `input_zero` added; the sums start without what that adds.
        structure.offsets = self.keep((quantized.sum(1) * -self.input_zero).to(torch.int32))
        return structure

    def layer_norm(self, module: nn.Module) -> _LayerNorm:
        """A LayerNorm; anything else does nothing."""
        if not isinstance(module, nn.LayerNorm):
            return _LayerNorm()
        return _LayerNorm(self.keep(module.weight), self.keep(module.bias))

    def kind(self, core: AttentionCore) -> _Kind:
        """In what this attention differs from others."""
        row_map = core.weights.row_map()
        assert row_map is not None, "expected a kind that the kernels know"
        number, parameter = row_map
        parameters = torch.as_tensor(parameter, dtype=torch.float32).expand(core.heads)
        structure = _Kind(map=int(number), parameters=self.keep(parameters))
        if core.norm is not None:
            assert isinstance(core.norm, HeadNorm)
            structure.norm = HEAD_NORMS[core.norm.norm]
            structure.gain = self.keep(core.norm.gain)
            structure.gate = self.keep(core.norm.gate)
        return structure

    def attention(self, module: SelfAttention | CrossAttention, residual: Residual) -> _Attention:
        """An attention sublayer."""
        structure = _Attention(
            output=self.linear(module.output.weight, module.output.bias),
            kind=self.kind(module.core),
            norm=self.layer_norm(residual.norm),
        )
        if isinstance(module, SelfAttention):
            first = module.query_key_value
        else:
            first = module.query
            structure.key_value = self.linear(module.key_value.weight, module.key_value.bias)
        structure.input = self.linear(first.weight, first.bias)
        return structure

    def feed_forward(self, module: FeedForward, residual: Residual) -> _FeedForward:
        """A feed-forward sublayer."""
        return _FeedForward(
            self.linear(module.input.weight, module.input.bias),
            self.linear(module.output.weight, module.output.bias),
            self.layer_norm(residual.norm),
        )

    def layer(self, layer: nn.Module) -> _Layer:
        """A layer of either stack."""
        assert isinstance(layer, EncoderLayer | DecoderLayer)
        structure = _Layer(
            self=self.attention(layer.self_attention, layer.self_attention_residual),
            feed_forward=self.feed_forward(layer.feed_forward, layer.feed_forward_residual),
        )
        if isinstance(layer, DecoderLayer):
            structure.cross = self.attention(layer.cross_attention, layer.cross_attention_residual)
        return structure

    def stack(self, model: Transformer, layers: nn.ModuleList, final: nn.Module) -> _Stack:
        """The encoder or the decoder."""
        array = (_Layer * len(layers))(*map(self.layer, layers))
        self.kept.append(array)
        config = model.config
        return _Stack(
            dim=config.dim,
            heads=config.heads,
            hidden_dim=config.feed_forward_dim,
            num_layers=len(layers),
            pre_norm=int(config.norm == "pre"),
            epsilon=LAYER_NORM_EPSILON,
            layers=array,
            final=self.layer_norm(final),
        )


class Engine:
    """A model for the kernels; the original is left as it is."""

    def __init__(self, kernels: ctypes.CDLL, model: Transformer, *, int8: bool) -> None:
        self.kernels = kernels
        self.chunk = int(kernels.chunk_size())
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

    @classmethod
    def of(cls, model: Transformer, *, int8: bool) -> Self | None:
        """The engine of a model on a CPU, or None where there is none for it."""
        kernels = library.load()
        known = all(
            attention.core.weights.row_map() is not None
            for attention in model.attentions().values()
        )
        if kernels is None or not known or model.target_embedding.dtype != torch.float32:
            return None
        return cls(kernels, model, int8=int8)

    def workspace(self, rows: int, *, sentences: int = 0) -> tuple[_Workspace, Tensor]:
        """Memory for the kernels to work in; it lives as long as the tensor."""
        packed = rows + sentences * self.packer.panel if sentences else 0
        widest = max(self.dim, self.hidden_dim)
        sizes = [
            rows * 3 * self.dim,
            rows * self.dim,
            rows * self.dim,
            rows * self.hidden_dim,
            packed * self.dim,
            rows * (2 + widest) if self.int8 else 0,
        ]
        memory = torch.empty(sum(sizes))
        return _Workspace(*(pointer(part) for part in torch.split(memory, sizes))), memory

    def encode(self, sentences: Sequence[Sequence[int]], starts: Tensor) -> Tensor:
        """Memory [R, D] of sentences, whose tokens lie one sentence behind the other."""
        tokens = torch.tensor([token for sentence in sentences for token in sentence])
        places = torch.cat([torch.arange(len(sentence)) for sentence in sentences])
        positions = self.source_input.positions(max(map(len, sentences)))[places]
        x = self.source_input.at(tokens, self.source_embedding, positions)
        work, _memory = self.workspace(len(x), sentences=len(sentences))
        self.kernels.encode(
            ctypes.byref(self.encoder),
            pointer(starts),
            c_int64(len(sentences)),
            pointer(x),
            ctypes.byref(work),
            c_int64(torch.get_num_threads()),
        )
        return x

    def logits(self, hidden: Tensor, work: _Workspace, out: Tensor) -> None:
        """Write [R, V] to out for hidden [..., D]."""
        self.kernels.linear(
            ctypes.byref(self.output),
            pointer(hidden),
            c_int64(len(out)),
            pointer(out),
            c_int64(0),
            c_void_p(work.scratch),
            c_int64(torch.get_num_threads()),
        )


class EngineStep:
    """The step function of a batch of sentences."""

    def __init__(
        self, engine: Engine, sources: Sequence[Sequence[int]], *, beam: int, max_length: int
    ) -> None:
        self.engine = engine
        lengths = torch.tensor([0, *map(len, sources)])
        self.starts = lengths.cumsum(0)
        self.num_sentences = len(sources)
        self.rows = torch.arange(len(sources))
        encoded = engine.encode(sources, self.starts)
        self.memories = self.remember(encoded)
        self.positions = max_length + 1  # the start token is read, too
        self.past: list[Tensor] = []  # [L, sentences, chunk, beam, 2, D] of each chunk so far
        self.descent = torch.empty(len(sources), 1, 0, dtype=torch.int32)
        # The same memory in every step: new memory would cost as much as a layer.
        self.work, self.work_memory = engine.workspace(0)
        self.logits = torch.empty(0, engine.output.outputs)
        self.state = _Batch(
            most_width=beam,
            starts=pointer(self.starts),
            memories=ctypes.cast(self.memories, c_void_p),
        )

    def remember(self, encoded: Tensor) -> ctypes.Array[_Memory]:
        """What cross-attention reads, of all layers."""
        engine = self.engine
        rows, layers, dim = len(encoded), engine.num_layers, engine.dim
        keys = encoded.new_empty(layers, rows + self.num_sentences * engine.packer.panel, dim)
        key_values = encoded.new_empty(layers, rows, 2, dim)
        self.kept = (keys, key_values)
        work, _memory = engine.workspace(rows)
        memories = (_Memory * layers)(
            *(_Memory(pointer(keys[n]), pointer(key_values[n])) for n in range(layers))
        )
        engine.kernels.remember(
            ctypes.byref(engine.decoder),
            pointer(self.starts),
            c_int64(self.num_sentences),
            pointer(encoded),
            memories,
            ctypes.byref(work),
            c_int64(torch.get_num_threads()),
        )
        return memories

    def __call__(self, tokens: Tensor) -> Tensor:
        """Logits [B, K, V] after tokens [B, K], valid until the next call."""
        engine, state = self.engine, self.state
        batch, width = tokens.shape
        if state.position >= self.positions:
            raise ValueError(f"expected at most {self.positions} steps, got another one")
        if width > state.most_width:
            raise ValueError(f"expected at most {state.most_width} hypotheses, got {width}")
        if state.position == len(self.past) * engine.chunk:
            self.open_chunk()
        if self.descent.shape[1] != width:  # before the first step, when a sample starts wide
            self.descent = self.descent.expand(-1, width, -1).contiguous()
        position = engine.target_input.positions(state.position + 1)[-1]
        x = engine.target_input.at(tokens, engine.target_embedding, position)
        state.threads = torch.get_num_threads()
        state.batch, state.width = batch, width
        state.rows, state.descent = pointer(self.rows), pointer(self.descent)
        rows = batch * width
        if rows > len(self.logits):
            self.work, self.work_memory = engine.workspace(rows)
            self.logits = torch.empty(rows, engine.output.outputs)
        engine.kernels.decode(
            ctypes.byref(engine.decoder), ctypes.byref(state), pointer(x), ctypes.byref(self.work)
        )
        state.position += 1
        logits = self.logits[:rows]
        engine.logits(x, self.work, logits)
        return logits.view(batch, width, -1)

    def open_chunk(self) -> None:
        """Take memory for the next positions: no more than outputs get long."""
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
