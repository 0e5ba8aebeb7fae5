"""MarianMT models of Hugging Face's transformers: a folder of config, weights and vocabularies."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from nmt.config.config import ModelConfig
from nmt.config.limits import MAX_POSITIONS
from nmt.config.search_options import DecodeConfig, EarlyStop
from nmt.data.codec import Codec
from nmt.data.learning import LearnedSide
from nmt.data.subword import LineSentencePiece
from nmt.data.text import SIDES, Side
from nmt.data.tokenizer import TokenizerSpec
from nmt.errors import DataError
from nmt.exchange.importing import (
    UNDETERMINED,
    ForeignSettings,
    ForeignTensors,
    ForeignVocabulary,
    import_config,
    read_bytes,
    read_json,
    read_vocabulary,
    shape_of_model,
    take_bias,
    take_rows,
    write_model,
)
from nmt.model.embeddings import sinusoids
from nmt.storage.tensors import open_tensors

WEIGHTS = "model.safetensors"
PICKLED_WEIGHTS = "pytorch_model.bin"
MODEL_TYPE = "marian"
NORM_EPSILON = 1e-5  # of its LayerNorm
HUGGINGFACE_ACTIVATIONS: Mapping[str, Literal["relu", "gelu", "swish"]] = {
    "relu": "relu",
    "gelu": "gelu",
    "swish": "swish",
    "silu": "swish",
}
WAVELENGTHS: tuple[Literal["exclusive", "inclusive"], ...] = ("exclusive", "inclusive")
# Our parts of a layer, and the parts there that are side by side in them.
LAYER_PARTS = {
    "self_attention.query_key_value": tuple(f"self_attn.{x}_proj" for x in "qkv"),
    "self_attention.output": ("self_attn.out_proj",),
    "self_attention_residual.norm": ("self_attn_layer_norm",),
    "cross_attention.query": ("encoder_attn.q_proj",),
    "cross_attention.key_value": ("encoder_attn.k_proj", "encoder_attn.v_proj"),
    "cross_attention.output": ("encoder_attn.out_proj",),
    "cross_attention_residual.norm": ("encoder_attn_layer_norm",),
    "feed_forward.input": ("fc1",),
    "feed_forward.output": ("fc2",),
    "feed_forward_residual.norm": ("final_layer_norm",),
}
# Our `early_stop` for `early_stopping` of `generate`; the others search on, as its "never" does.
EARLY_STOPPING: Mapping[EarlyStop, bool] = {"current": False, "full": True}
POSITIONS = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")
# Tensors that repeat others, or that are computed.
REPEATED = (
    *POSITIONS,
    "model.shared.weight",
    "model.encoder.embed_tokens.weight",
    "model.decoder.embed_tokens.weight",
    "lm_head.weight",
)


@dataclass(frozen=True)
class FolderSettings(ForeignSettings):
    """config.json, generation_config.json and tokenizer_config.json of a folder."""

    generation: Mapping[str, Any]
    tokenizer: Mapping[str, Any]

    def number(self, key: str, default: float) -> float:
        """A value of config.json that is a number."""
        value = self.values.get(key, default)
        return float(value) if type(value) is int else float(self.get(key, float, default))

    @property
    def longest_source(self) -> int:
        """The most subwords of a source, without its end."""
        positions = int(self.get("max_position_embeddings", int, 512))
        stated = self.tokenizer.get("model_max_length")  # it may be about 1e30, for no limit
        return min(positions, stated if type(stated) is int and stated > 1 else positions) - 1

    def both(self, key: str) -> int:
        """A size that encoder and decoder have to share."""
        encoder, decoder = (self.get(f"{side}_{key}", int) for side in ("encoder", "decoder"))
        if encoder != decoder:
            raise DataError(
                f"{self.name}: encoder_{key} is {encoder} and decoder_{key} is {decoder}; "
                "nmt has models with the same number on both sides only"
            )
        return int(encoder)


def import_huggingface(folder: Path, output: Path, *, languages: Mapping[Side, str | None]) -> None:
    """Create the model directory `output` from a folder of a MarianMT model.

    Languages that are not given are those of tokenizer_config.json, if it has them.
    """
    settings = read_settings(folder)
    codec, vocabularies = read_codec(folder, settings, languages)
    model = read_model_config(settings, vocabularies)
    config = import_config(
        model,
        read_decode_config(settings),
        codec,
        max_length=settings.longest_source,
        name=settings.name,
        output=output,
    )
    if not (folder / WEIGHTS).exists() and (folder / PICKLED_WEIGHTS).exists():
        raise DataError(
            f"{folder / PICKLED_WEIGHTS}: a pickle can run any code; if you trust it, convert it: "
            'python -c "from transformers import MarianMTModel as M; '
            f"M.from_pretrained('{folder}').save_pretrained('{folder}', safe_serialization=True)\""
        )
    if not (folder / WEIGHTS).is_file():
        raise DataError(f"{folder / WEIGHTS}: not found; expected the weights of a MarianMT model")
    with open_tensors(folder / WEIGHTS) as file:
        tensors = ForeignTensors(str(folder / WEIGHTS), file.specs, file.tensor)
        config = replace(config, model=with_positions(config.model, tensors))
        weights = read_weights(tensors, config.model, codec, vocabularies)
        tensors.check_all_taken(but=REPEATED)
    write_model(output, config, codec, weights)


def read_settings(folder: Path) -> FolderSettings:
    """The settings of a folder, which has to be of a MarianMT model."""
    if not folder.is_dir():
        raise DataError(f"{folder}: expected the folder of a MarianMT model")
    path = folder / "config.json"
    values = read_json(path)
    kind = values.get("model_type")
    if kind != MODEL_TYPE:
        raise DataError(f"{path}: model_type: expected {MODEL_TYPE}, got {kind!r:.80}")
    generation, tokenizer = folder / "generation_config.json", folder / "tokenizer_config.json"
    return FolderSettings(
        str(path),
        values,
        read_json(generation) if generation.exists() else values,
        read_json(tokenizer) if tokenizer.exists() else {},
    )


def read_model_config(
    settings: FolderSettings, vocabularies: Mapping[Side, ForeignVocabulary]
) -> ModelConfig:
    """Our options for the same model."""
    activation = settings.get("activation_function", str)
    if activation not in HUGGINGFACE_ACTIVATIONS:
        known = ", ".join(HUGGINGFACE_ACTIVATIONS)
        raise DataError(
            f"{settings.name}: activation_function: expected one of {known}, got {activation!r:.80}"
        )
    shared = settings.get("share_encoder_decoder_embeddings", bool, True)
    if shared and vocabularies["source"] != vocabularies["target"]:
        raise DataError(f"{settings.name}: shared embeddings need one vocabulary, got two")
    tied = settings.get("tie_word_embeddings", bool, True)
    if shared and not tied:
        raise DataError(
            f"{settings.name}: share_encoder_decoder_embeddings without tie_word_embeddings: nmt "
            "has no model whose embeddings are shared but for the output layer"
        )
    return ModelConfig(
        dim=settings.get("d_model", int),
        heads=settings.both("attention_heads"),
        encoder_layers=settings.get("encoder_layers", int),
        decoder_layers=settings.get("decoder_layers", int),
        feed_forward_dim=settings.both("ffn_dim"),
        feed_forward_activation=HUGGINGFACE_ACTIVATIONS[activation],
        dropout=settings.number("dropout", 0.1),
        attention_dropout=settings.number("attention_dropout", 0.0),
        feed_forward_dropout=settings.number("activation_dropout", 0.0),
        norm_epsilon=NORM_EPSILON,
        scale_embeddings=settings.get("scale_embedding", bool, False),
        position_wavelengths="exclusive",
        tie_embeddings="all" if shared else "target" if tied else "none",
        output_bias=True,
    )


def read_decode_config(settings: FolderSettings) -> DecodeConfig:
    """The search options that `generate` would take."""
    beam = settings.generation.get("num_beams", 1)
    power = settings.generation.get("length_penalty", 1.0)
    if type(beam) is not int or type(power) not in (int, float):
        raise DataError(f"{settings.name}: num_beams or length_penalty is not a number")
    early = settings.generation.get("early_stopping", False)
    stop: EarlyStop = "exact"
    for ours, theirs in EARLY_STOPPING.items():
        stop = ours if early is theirs else stop
    return DecodeConfig(
        beam=beam, length_penalty=float(power), normalization="length", early_stop=stop
    )


def read_codec(
    folder: Path, settings: FolderSettings, languages: Mapping[Side, str | None]
) -> tuple[Codec, dict[Side, ForeignVocabulary]]:
    """Two sentencepiece models, and the ids of their pieces."""
    tokenizer = settings.tokenizer
    separate = tokenizer.get("separate_vocabs", False) is True
    files: dict[Side, Path] = {
        "source": folder / "vocab.json",
        "target": folder / ("target_vocab.json" if separate else "vocab.json"),
    }
    vocabularies: dict[Side, ForeignVocabulary] = {}
    for side in SIDES:
        ids = read_json(files[side])
        size = "decoder_vocab_size" if side == "target" else "vocab_size"
        expected = settings.values.get(size) or settings.values.get("vocab_size")
        if len(ids) != expected:
            raise DataError(f"{files[side]}: expected {expected} pieces ({size}), got {len(ids)}")
        start, end = (settings.get(f"{name}_token_id", int) for name in ("decoder_start", "eos"))
        pieces = {number: piece for piece, number in ids.items() if type(number) is int}
        padding = settings.get("pad_token_id", int)
        if not {start, end, padding} <= pieces.keys() or end in (start, padding):
            raise DataError(
                f"{settings.name}: expected decoder_start_token_id, eos_token_id and pad_token_id "
                f"to be ids of {files[side].name}, and the end to be another one"
            )
        unknown = tokenizer.get("unk_token", "<unk>")
        unknown = unknown if isinstance(unknown, str) else "<unk>"
        vocabularies[side] = read_vocabulary(
            ids,
            str(files[side]),
            start=pieces[start],
            end=pieces[end],
            unknown=unknown,
            padding=None if padding == start else pieces[padding],
        )
    specs, learned = {}, {}
    for side, key in (("source", "source_lang"), ("target", "target_lang")):
        language = languages.get(side) or tokenizer.get(key) or UNDETERMINED
        specs[side] = TokenizerSpec("line", str(language))
        path = folder / f"{side}.spm"
        subword = LineSentencePiece(read_bytes(path), name=str(path))
        learned[side] = LearnedSide(subword, vocabularies[side].vocabulary().counts)
    shared = None if separate else vocabularies["source"].vocabulary()
    codec = Codec(specs, learned, kind="line_sentencepiece", joint=False, shared=shared)
    return codec, vocabularies


def with_positions(config: ModelConfig, tensors: ForeignTensors) -> ModelConfig:
    """The config with the wavelengths of the positions that a file holds, if it does."""
    fitting = [replace(config, position_wavelengths=wavelengths) for wavelengths in WAVELENGTHS]
    for name in POSITIONS:
        if name not in tensors.specs:
            continue
        rows = (*tensors.specs[name].shape, 0)[0]
        table = tensors.take(name, (min(rows, MAX_POSITIONS + 1), config.dim))
        numbers = torch.arange(len(table))
        fitting = [one for one in fitting if table.allclose(sinusoids(numbers, one), atol=1e-3)]
        if not fitting:
            raise DataError(f"{tensors.name}: {name}: expected sinusoids, got other numbers")
    return fitting[0]


def read_weights(
    tensors: ForeignTensors,
    config: ModelConfig,
    codec: Codec,
    vocabularies: Mapping[Side, ForeignVocabulary],
) -> dict[str, Tensor]:
    """Our weights by name."""
    dim, target = config.dim, vocabularies["target"]
    bias = tensors.take("final_logits_bias", (1, len(target.pieces)))
    weights = {"output_bias": take_bias(bias[0], target)}
    if config.tie_embeddings == "all":
        shared = "model.shared.weight"
        if shared not in tensors.specs:  # saved once, under the name that sorts first
            shared = "lm_head.weight"
        if shared not in tensors.specs:
            shared = "model.decoder.embed_tokens.weight"
        weights["target_embedding"] = take_rows(tensors, shared, target, dim)
    else:
        source, embedding = "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"
        if config.tie_embeddings == "target" and embedding not in tensors.specs:
            embedding = "lm_head.weight"
        weights["own_source_embedding"] = take_rows(tensors, source, vocabularies["source"], dim)
        weights["target_embedding"] = take_rows(tensors, embedding, target, dim)
        if config.tie_embeddings == "none":
            weights["own_output_weight"] = take_rows(tensors, "lm_head.weight", target, dim)
    for name, shape in shape_of_model(config, codec).items():
        if name in weights:
            continue
        parts = foreign_names(name)
        own = (shape[0] // len(parts), *shape[1:])
        weights[name] = torch.cat([tensors.take(part, own) for part in parts])
    return weights


def foreign_names(name: str) -> list[str]:
    """The tensors there that a tensor of one of our layers is made of, one after the other."""
    stack, layer, rest = name.split(".", 2)
    part, _, kind = rest.rpartition(".")
    return [f"model.{stack}.layers.{layer}.{other}.{kind}" for other in LAYER_PARTS[part]]
