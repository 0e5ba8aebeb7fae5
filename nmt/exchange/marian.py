"""Transformers of Marian: an .npz file with its settings inside, and two vocabularies."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
import yaml
from torch import Tensor

from nmt.config.config import ModelConfig
from nmt.config.search_options import DecodeConfig
from nmt.data.codec import Codec
from nmt.data.learning import LearnedSide
from nmt.data.subword import LineSentencePiece, Subword, WholeWords
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
    read_vocabulary,
    shape_of_model,
    take_bias,
    take_rows,
    write_model,
)
from nmt.exchange.npz import Npz
from nmt.storage.tensors import TensorSpec

SETTINGS = "special:model.yml"
MARIAN_MAX_LENGTH = 1000  # the --max-length of marian-decoder
MARIAN_EPSILON = 1e-6  # of its LayerNorm
# Files do not say how they are to be decoded; these are usual options of marian-decoder.
MARIAN_DECODE = DecodeConfig(
    beam=6,
    length_penalty=0.6,
    normalization="length",
    max_length_ratio=3.0,
    early_stop="narrow",
)
MAX_SETTINGS_BYTES = 1_000_000
END, UNKNOWN = "</s>", "<unk>"
ID = re.compile("[0-9]{1,9}")
ACTIVATIONS_READ: Mapping[str, Literal["relu", "swish"]] = {"relu": "relu", "swish": "swish"}
NORMS: Mapping[tuple[str, str, str], Literal["pre", "post"]] = {
    ("", "dan", ""): "post",
    ("n", "da", "n"): "pre",
}
# Settings that have to have one of these values. One that the file does not state is the first.
REQUIRED: Mapping[str, tuple[Any, ...]] = {
    "type": ("transformer",),
    "transformer-decoder-autoreg": ("self-attention",),
    "transformer-ffn-activation": ("relu", "swish"),
    "transformer-postprocess-emb": ("d", ""),
    "transformer-ffn-depth": (2,),
    "transformer-decoder-ffn-depth": (0, 2),
    "transformer-tied-layers": ([],),
    "transformer-train-position-embeddings": (False,),
    "transformer-disable-position-embeddings": (False,),
    "transformer-attention-mask": ("default",),
    "transformer-no-projection": (False,),
    "transformer-no-bias": (False,),
    "transformer-no-affine": (False,),
    "transformer-rnn-projection": (False,),
    "transformer-pool": (False,),
    "ulr": (False,),
    "right-left": (False,),
    "lemma-dim-emb": (0,),
    "lemma-dependency": ("",),
    "factors-combine": ("sum",),
    "factors-dim-emb": (0,),
    "input-types": ([], ["sequence", "sequence"]),
    "tied-embeddings-src": (False,),
}
# Our parts of a layer, and the parts there that are side by side in them; {} is W or b.
LINEAR_PARTS = {
    "self_attention.query_key_value": ("self_{}q", "self_{}k", "self_{}v"),
    "self_attention.output": ("self_{}o",),
    "cross_attention.query": ("context_{}q",),
    "cross_attention.key_value": ("context_{}k", "context_{}v"),
    "cross_attention.output": ("context_{}o",),
    "feed_forward.input": ("ffn_{}1",),
    "feed_forward.output": ("ffn_{}2",),
}
NORM_PARTS = {
    "self_attention_residual.norm": "self_Wo",
    "cross_attention_residual.norm": "context_Wo",
    "feed_forward_residual.norm": "ffn_ffn",
}


class SettingsLoader(yaml.SafeLoader):
    """Reads YAML without aliases, with which a few bytes could stand for very many."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("expected no aliases")
        return super().compose_node(parent, index)


def import_marian(
    path: Path, vocabularies: Sequence[Path], output: Path, *, languages: Mapping[Side, str | None]
) -> None:
    """Create the model directory `output` from a model of Marian and its vocabularies."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    with file:
        arrays = Npz.read(path, file)
        settings = read_settings(arrays)
        files = dict(zip(SIDES, vocabularies, strict=True))
        codec, foreign = read_codec(files, settings, languages)
        config = import_config(
            read_model_config(settings, foreign),
            MARIAN_DECODE,
            codec,
            max_length=MARIAN_MAX_LENGTH,
            name=settings.name,
            output=output,
        )
        specs = {
            key: TensorSpec(getattr(torch, spec.dtype), spec.shape)
            for key, spec in arrays.specs.items()
            if key != SETTINGS
        }
        tensors = ForeignTensors(arrays.name, specs, arrays.tensor)
        weights = read_weights(tensors, config.model, codec, foreign)
        tensors.check_all_taken()
    write_model(output, config, codec, weights)


def read_settings(arrays: Npz) -> ForeignSettings:
    """The settings of a model, after a check that nmt can represent it."""
    if SETTINGS not in arrays.specs:
        raise DataError(f"{arrays.name}: expected the array {SETTINGS} of a model of Marian")
    if arrays.specs[SETTINGS].num_bytes > MAX_SETTINGS_BYTES:
        raise DataError(f"{arrays.name}: {SETTINGS}: expected at most {MAX_SETTINGS_BYTES} bytes")
    name = f"{arrays.name}: {SETTINGS}"
    try:
        text = arrays.array(SETTINGS).tobytes().rstrip(b"\0").decode()
        values = yaml.load(text, Loader=SettingsLoader)  # noqa: S506 (it makes plain values only)
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, RecursionError) as error:
        raise DataError(f"{name}: expected YAML ({str(error).splitlines()[0]:.100})") from None
    if not isinstance(values, dict):
        raise DataError(f"{name}: expected a YAML mapping")
    for key, allowed in REQUIRED.items():
        value = values.get(key, allowed[0])
        if value not in allowed or isinstance(value, bool) != isinstance(allowed[0], bool):
            expected = " or ".join(repr(one) for one in allowed)
            raise DataError(f"{name}: {key}: nmt has {expected} only, got {value!r:.80}")
    return ForeignSettings(name, values)


def read_model_config(
    settings: ForeignSettings, vocabularies: Mapping[Side, ForeignVocabulary]
) -> ModelConfig:
    """Our options for the same model."""
    before, after, top = (
        str(settings.values.get(f"transformer-{step}") or "")
        for step in ("preprocess", "postprocess", "postprocess-top")
    )
    order = (before, after, top)
    if order not in NORMS:
        raise DataError(
            f"{settings.name}: transformer-preprocess, -postprocess and -postprocess-top: nmt has "
            f"'', 'dan', '' (post-norm) and 'n', 'da', 'n' (pre-norm), got {order}"
        )
    inner = settings.get("transformer-dim-ffn", int)
    if settings.values.get("transformer-decoder-dim-ffn", 0) not in (0, inner):
        raise DataError(f"{settings.name}: transformer-decoder-dim-ffn: expected {inner}")
    shared = settings.get("tied-embeddings-all", bool, False)
    tied = settings.get("tied-embeddings", bool, False)
    if shared and vocabularies["source"] != vocabularies["target"]:
        raise DataError(f"{settings.name}: tied-embeddings-all needs one vocabulary for both sides")
    return ModelConfig(
        dim=settings.get("dim-emb", int),
        heads=settings.get("transformer-heads", int),
        encoder_layers=settings.get("enc-depth", int),
        decoder_layers=settings.get("dec-depth", int),
        feed_forward_dim=inner,
        feed_forward_activation=ACTIVATIONS_READ[
            settings.get("transformer-ffn-activation", str, "relu")
        ],
        norm=NORMS[order],
        norm_epsilon=MARIAN_EPSILON,
        tie_embeddings="all" if shared else "target" if tied else "none",
        output_bias=True,
    )


def read_codec(
    files: Mapping[Side, Path], settings: ForeignSettings, languages: Mapping[Side, str | None]
) -> tuple[Codec, dict[Side, ForeignVocabulary]]:
    """The vocabularies of both sides: sentencepiece models, or words with their ids in YAML."""
    kinds = {side: path.suffix for side, path in files.items()}
    lines = kinds["source"] == ".spm"
    if lines != (kinds["target"] == ".spm"):
        raise DataError(
            f"--vocabs {files['source']} {files['target']}: expected two .spm or two .yml files"
        )
    foreign: dict[Side, ForeignVocabulary] = {}
    specs, learned = {}, {}
    sizes = vocabulary_sizes(settings)
    for side, path in files.items():
        subword, ids = read_pieces(path) if lines else (WholeWords(), read_words(path))
        # Of a longer vocabulary Marian knows the first words only.
        ids = {piece: row for piece, row in ids.items() if row < sizes[side]}
        if len(ids) != sizes[side]:
            raise DataError(f"{path}: expected {sizes[side]} pieces (dim-vocabs), got {len(ids)}")
        foreign[side] = read_vocabulary(ids, str(path), start=None, end=END, unknown=UNKNOWN)
        language = languages.get(side) or UNDETERMINED
        specs[side] = TokenizerSpec("line" if lines else "none", language)
        learned[side] = LearnedSide(subword, foreign[side].vocabulary().counts)
    shared = foreign["source"].vocabulary() if foreign["source"] == foreign["target"] else None
    kind = "line_sentencepiece" if lines else "none"
    return Codec(specs, learned, kind=kind, joint=False, shared=shared), foreign


def vocabulary_sizes(settings: ForeignSettings) -> dict[Side, int]:
    """The vocabulary size of each side."""
    match settings.values.get("dim-vocabs"):
        case [int(source), int(target)]:
            return {"source": source, "target": target}
    raise DataError(f"{settings.name}: dim-vocabs: expected two numbers")


def read_pieces(path: Path) -> tuple[Subword, dict[str, int]]:
    """A sentencepiece model and the ids of its pieces."""
    model = LineSentencePiece(read_bytes(path), name=str(path))
    return model, {piece: number for number, piece in enumerate(model.all_pieces())}


def read_words(path: Path) -> dict[str, int]:
    """The ids of words in a YAML (or JSON) file, or of a text file with one word per line."""
    data = read_bytes(path)
    try:
        if path.suffix not in (".yml", ".yaml", ".json"):
            lines = data.decode().removesuffix("\n").split("\n")
            return {word.removesuffix("\r"): row for row, word in enumerate(lines)}
        return dict(read_entries(data, path))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: expected YAML ({str(error).splitlines()[0]:.100})") from None


def read_entries(data: bytes, path: Path) -> Iterator[tuple[str, int]]:
    """The entries of a YAML mapping from words to ids, without any depth that could fill the stack.

    All is text, as it is to Marian: `no` is a word.
    """
    events = yaml.parse(data, Loader=getattr(yaml, "CBaseLoader", yaml.BaseLoader))
    kinds = (yaml.StreamStartEvent, yaml.DocumentStartEvent, yaml.MappingStartEvent)
    for kind in kinds:
        if not isinstance(next(events), kind):
            raise DataError(f"{path}: expected a YAML mapping from words to ids")
    while not isinstance(word := next(events), yaml.MappingEndEvent):
        row = next(events)
        both = isinstance(word, yaml.ScalarEvent) and isinstance(row, yaml.ScalarEvent)
        if not both or "\n" in word.value or not ID.fullmatch(row.value):
            raise DataError(f"{path}: expected words with their ids, got another entry")
        yield word.value, int(row.value)


def read_weights(
    tensors: ForeignTensors,
    config: ModelConfig,
    codec: Codec,
    vocabularies: Mapping[Side, ForeignVocabulary],
) -> dict[str, Tensor]:
    """Our weights by name."""
    dim, (source, target) = config.dim, (vocabularies[side] for side in SIDES)
    out, size = "decoder_ff_logit_out", len(target.pieces)
    bias = torch.zeros(1, size)
    if f"{out}_b" in tensors.specs:  # else --output-omit-bias
        bias = tensors.take(f"{out}_b", (1, size))
    weights = {"output_bias": take_bias(bias[0], target)}
    if config.tie_embeddings == "all":
        weights["target_embedding"] = take_rows(tensors, "Wemb", target, dim)
    else:
        weights["own_source_embedding"] = take_rows(tensors, "encoder_Wemb", source, dim)
        weights["target_embedding"] = take_rows(tensors, "decoder_Wemb", target, dim)
        if config.tie_embeddings == "none":
            weights["own_output_weight"] = take_rows(tensors, f"{out}_Wt", target, dim)
    for name, shape in shape_of_model(config, codec).items():
        if name not in weights:
            weights[name] = read_layer(tensors, name, shape, norm=config.norm)
    return weights


def read_layer(tensors: ForeignTensors, name: str, shape: tuple[int, ...], *, norm: str) -> Tensor:
    """One tensor of our layers, or of the norms after them; Marian's matrices are transposed."""
    stack, layer, *rest = name.split(".")
    if stack.endswith("_norm"):
        kind = "scale" if layer == "weight" else "bias"
        return tensors.take(f"{stack.removesuffix('_norm')}_top_ln_{kind}", (1, *shape))[0]
    prefix, part, kind = f"{stack}_l{int(layer) + 1}", ".".join(rest[:-1]), rest[-1]
    if part in NORM_PARTS:
        kind = "scale" if kind == "weight" else "bias"
        ending = "_pre" if norm == "pre" else ""
        return tensors.take(f"{prefix}_{NORM_PARTS[part]}_ln_{kind}{ending}", (1, *shape))[0]
    names = LINEAR_PARTS[part]
    own = shape[0] // len(names)
    if kind == "bias":
        return torch.cat(
            [tensors.take(f"{prefix}_{one.format('b')}", (1, own))[0] for one in names]
        )
    return torch.cat(
        [tensors.take(f"{prefix}_{one.format('W')}", (shape[1], own)).t() for one in names]
    )
