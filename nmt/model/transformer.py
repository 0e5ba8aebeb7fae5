"""The Transformer whose attention kind is chosen per sublayer.

Shapes: B batch, S source positions, T target positions, D width, V target vocabulary.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from nmt.config.config import ModelConfig
from nmt.errors import ConfigError
from nmt.model.attention import (
    CrossAttention,
    HeadParameters,
    SelfAttention,
    Site,
    head_values,
    holding,
)
from nmt.model.cache import DecoderCache
from nmt.model.embeddings import PositionalInput
from nmt.model.layers import DecoderLayer, EncoderLayer
from nmt.model.linear import Linear
from nmt.ops.half_linear import JointCopies
from nmt.ops.residual import ResidualStream
from nmt.ops.seeds import seeds_of_one_pass
from nmt.ops.shared_vectors import vectors_of_one_pass


def causal(length: int, device: torch.device) -> Tensor:
    """[T, T] boolean: position i may attend to positions 0 to i."""
    return torch.ones(length, length, dtype=torch.bool, device=device).tril_()


class Transformer(nn.Module):
    """Encoder and decoder; `logits` (or `output_weight`) turns the decoder's output into scores."""

    # Copies in half precision, if there are any: of output_weight, and of the projections of the
    # memory to keys and values.
    half_output_weight: Tensor | None = None
    half_memory_layers: JointCopies | None = None

    def __init__(
        self, config: ModelConfig, *, source_vocabulary_size: int, target_vocabulary_size: int
    ) -> None:
        super().__init__()
        check_sizes(config, source_vocabulary_size, target_vocabulary_size)
        self.config = config
        dim = config.dim
        # Tied tables exist once, under one name: a state dict never holds a tensor twice.
        self.target_embedding = nn.Parameter(torch.empty(target_vocabulary_size, dim))
        self.own_source_embedding = (
            None
            if config.tie_embeddings == "all"
            else nn.Parameter(torch.empty(source_vocabulary_size, dim))
        )
        self.own_output_weight = (
            nn.Parameter(torch.empty(target_vocabulary_size, dim))
            if config.tie_embeddings == "none"
            else None
        )
        self.output_bias = (
            nn.Parameter(torch.empty(target_vocabulary_size)) if config.output_bias else None
        )
        self.source_input = PositionalInput(config)
        self.target_input = PositionalInput(config)
        kinds = config.attention
        self.encoder = nn.ModuleList(
            EncoderLayer(config, kinds.encoder_self.at(layer))
            for layer in range(config.encoder_layers)
        )
        self.decoder = nn.ModuleList(
            DecoderLayer(config, kinds.decoder_self.at(layer), kinds.cross.at(layer))
            for layer in range(config.decoder_layers)
        )
        self.encoder_norm = self.final_norm()
        self.decoder_norm = self.final_norm()
        self.reset_parameters()

    def final_norm(self) -> nn.Module:
        """Pre-norm layers leave their sum unnormed; one more norm ends the stack."""
        if self.config.norm == "post":
            return nn.Identity()
        return nn.LayerNorm(self.config.dim, eps=self.config.norm_epsilon)

    def reset_parameters(self) -> None:
        """Draw embeddings from N(0, 1/D), projections from Xavier's uniform; biases are 0.

        A fused projection is drawn block by block, as the separate matrices it stands for; with
        `initializer: uniform_unit_scaling` that of self-attention is drawn as one matrix. What
        belongs to an attention kind (gains, gates, alphas, thresholds) draws itself.
        """
        if self.target_embedding.is_meta:
            return
        dim = self.config.dim
        for table in (self.target_embedding, self.own_source_embedding, self.own_output_weight):
            if table is not None:
                nn.init.normal_(table, std=dim**-0.5)
        if self.output_bias is not None:
            nn.init.zeros_(self.output_bias)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)
                nn.init.xavier_uniform_(module.weight)
        for attention in self.attentions().values():
            if not isinstance(attention, SelfAttention):
                fused = attention.key_value
            elif self.config.initializer == "xavier":
                fused = attention.query_key_value
            else:
                continue
            for block in fused.weight.detach().view(-1, dim, dim):
                nn.init.xavier_uniform_(block)
        for attention in self.attentions().values():
            attention.scale_scores_(self.config.initial_score_scale)

    def allocate(self) -> None:
        """Give a model that was made on the meta device memory on the CPU, its weights not set."""
        self.to_empty(device="cpu")
        for positions in (self.source_input, self.target_input):
            positions.reset_table()

    @property
    def source_embedding(self) -> Tensor:
        """[source vocabulary, D]."""
        own = self.own_source_embedding
        return self.target_embedding if own is None else own

    @property
    def output_weight(self) -> Tensor:
        """[V, D]."""
        own = self.own_output_weight
        return self.target_embedding if own is None else own

    def attentions(self) -> dict[Site, SelfAttention | CrossAttention]:
        """Every attention sublayer by its site: encoder, decoder self, cross, each by layer."""
        sites: dict[Site, SelfAttention | CrossAttention] = {}
        for index, layer in enumerate(self.encoder):
            assert isinstance(layer, EncoderLayer)
            sites[Site("encoder_self", index)] = layer.self_attention
        for index, layer in enumerate(self.decoder):
            assert isinstance(layer, DecoderLayer)
            sites[Site("decoder_self", index)] = layer.self_attention
        for index, layer in enumerate(self.decoder):
            assert isinstance(layer, DecoderLayer)
            sites[Site("cross", index)] = layer.cross_attention
        return sites

    def encode(self, source: Tensor, source_visible: Tensor) -> Tensor:
        """Memory [B, S, D] of source [B, S], whose padding is not source_visible [B, S]."""
        visible = source_visible[:, None, None, :]
        x = ResidualStream.of(self.source_input(source, self.source_embedding))
        for layer in self.encoder:
            x = layer(x, visible)
        result: Tensor = self.encoder_norm(x.rounded)
        return result

    def decode(self, target_input: Tensor, memory: Tensor, source_visible: Tensor) -> Tensor:
        """Hidden states [B, T, D] that predict the token after each of target_input [B, T]."""
        memory_visible = source_visible[:, None, None, :]
        visible = causal(target_input.shape[1], target_input.device)
        x = ResidualStream.of(self.target_input(target_input, self.target_embedding))
        joint = self.keys_and_values(memory)
        for index, layer in enumerate(self.decoder):
            assert isinstance(layer, DecoderLayer)
            cross = layer.cross_attention
            key_value = cross.key_value(memory) if joint is None else joint[index]
            x = layer(
                x,
                partial(layer.self_attention, visible=visible, causal=True),
                partial(cross, key_value=key_value, visible=memory_visible),
            )
        result: Tensor = self.decoder_norm(x.rounded)
        return result

    def keys_and_values(self, memory: Tensor) -> tuple[Tensor, ...] | None:
        """The projections [B, S, 2 D] of memory [B, S, D] for all layers by one product.

        None where that is not to be had.
        """
        if self.half_memory_layers is None or not memory.is_cuda:
            return None
        return self.half_memory_layers.multiply(memory, self.memory_layers())

    def memory_layers(self) -> list[Linear]:
        """The layers that project the memory to keys and values."""
        layers = []
        for layer in self.decoder:
            assert isinstance(layer, DecoderLayer)
            layers.append(layer.cross_attention.key_value)
        return layers

    def forward(self, source: Tensor, source_visible: Tensor, target_input: Tensor) -> Tensor:
        """Hidden states [B, T, D]; `logits` of them predict the target."""
        with seeds_of_one_pass(), self.parameters_of_one_pass():
            return self.decode(target_input, self.encode(source, source_visible), source_visible)

    @contextmanager
    def parameters_of_one_pass(self) -> Iterator[None]:
        """A context in which small parameters are computed, and have their gradients, together.

        Only where each would be a launch: on a GPU, and in a model that is not compiled.
        """
        if torch.compiler.is_compiling() or not self.target_embedding.is_cuda:
            yield
            return
        vectors = [vector for vector in self.parameters() if vector.dim() == 1]
        with holding(head_values(self.head_parameters())), vectors_of_one_pass(vectors):
            yield

    def head_parameters(self) -> list[HeadParameters]:
        """The learned parameters of the heads of all sublayers."""
        return [attention.core.weights for attention in self.attentions().values()]

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., V] for hidden [..., D]."""
        return functional.linear(hidden, self.output_weight, self.output_bias)

    def start(
        self, memory: Tensor, source_visible: Tensor, *, beam: int, max_length: int
    ) -> DecoderCache:
        """The cache with which `step` decodes up to max_length positions of `beam` hypotheses."""
        cross = []
        for layer in self.decoder:
            assert isinstance(layer, DecoderLayer)
            cross.append(layer.cross_attention.project(memory))
        visible = source_visible[:, None, None, :]
        cache = DecoderCache(cross, visible, beam=beam, max_length=max_length)
        cache.head_values = head_values(self.head_parameters())
        return cache

    def step(self, tokens: Tensor, cache: DecoderCache) -> Tensor:
        """Hidden states [B, W, D] after one more token of each hypothesis, tokens [B, W].

        In the first step W may be less than the beam, until `cache.reorder` widens it.
        """
        position = self.target_input.positions(cache.position + 1)[-1]
        x = ResidualStream.of(self.target_input.at(tokens, self.target_embedding, position))
        cache.open_position(tokens.shape[1])
        with holding(cache.head_values):
            for index, layer in enumerate(self.decoder):
                assert isinstance(layer, DecoderLayer)
                attend_past = partial(layer.self_attention.attend_past, past=cache.layers[index])
                # The hypotheses are the queries of attention: past and source are there once.
                memory = cache.cross[index]
                attend = partial(layer.cross_attention.attend, memory=memory, mask=cache.source)
                x = layer(x, attend_past, attend)
        cache.position += 1
        result: Tensor = self.decoder_norm(x.rounded)
        return result


def check_sizes(config: ModelConfig, source_size: int, target_size: int) -> None:
    """Reject a configuration that the vocabularies cannot have."""
    if config.dim % config.heads != 0:
        raise ConfigError(
            f"model.heads: expected a divisor of model.dim ({config.dim}), got {config.heads}"
        )
    if config.tie_embeddings == "all" and source_size != target_size:
        raise ConfigError(
            "model.tie_embeddings: `all` expects one vocabulary for both sides, got "
            f"{source_size} source and {target_size} target entries; use a joint subword model, "
            "or tie_embeddings: target"
        )
