"""Models of other toolkits as model directories: what the importers of all formats share.

The ids of a model directory begin with PAD, BOS, EOS and UNK. The rows of embeddings and of the
output layer are put into that order. A symbol that the other toolkit does not have gets a row of
zeros, which is the start embedding of Marian, and an output bias so low that it has no probability.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nmt.checkpoint.model_directory import model_files, model_for
from nmt.config.config import (
    Config,
    DataConfig,
    ModelConfig,
    ParallelFiles,
    SubwordConfig,
    TokenizerConfig,
    TrainingCorpus,
)
from nmt.config.limits import MAX_PIECES
from nmt.config.loading import dump_config, parse_config
from nmt.config.search_options import DecodeConfig
from nmt.data.codec import Codec, LineCodec
from nmt.data.vocabulary import CONTROL, Vocabulary
from nmt.errors import DataError
from nmt.storage.directories import write_directory
from nmt.storage.tensors import TensorSpec

# The output bias of a symbol that is never predicted. Its probability is 0 in float32. The number
# is not larger because label smoothing multiplies it when such a model is trained further.
NEVER_BIAS = -100.0
NO_ROW = -1  # the row of a symbol that the other toolkit does not have
MAX_TEXT_BYTES = 100_000_000  # of configs and vocabularies
UNDETERMINED = "und"  # the language code of ISO 639 for languages that are not stated


@dataclass(frozen=True)
class ForeignVocabulary:
    """The pieces of another toolkit in the order of their ids, and the ids of its symbols."""

    pieces: tuple[str, ...]
    start: int  # NO_ROW: the decoder starts with an embedding of zeros
    end: int
    unknown: int
    padding: int = NO_ROW

    @property
    def rows(self) -> tuple[int, ...]:
        """The id in the other toolkit of each of our ids."""
        symbols = (self.padding, self.start, self.end, self.unknown)
        return *symbols, *(row for row in range(len(self.pieces)) if row not in symbols)

    def vocabulary(self) -> Vocabulary:
        """Our vocabulary of the same pieces."""
        return Vocabulary({self.pieces[row]: 0 for row in self.rows[len(CONTROL) :]})


def read_vocabulary(
    ids: Mapping[str, Any],
    name: str,
    *,
    start: str | None,
    end: str,
    unknown: str,
    padding: str | None = None,
) -> ForeignVocabulary:
    """A vocabulary whose ids are 0 to the number of pieces - 1, each once."""
    if not 0 < len(ids) <= MAX_PIECES:
        raise DataError(f"{name}: expected 1 to {MAX_PIECES} pieces, got {len(ids)}")
    numbers = {row for row in ids.values() if type(row) is int}
    if "" in ids or numbers != set(range(len(ids))) or not is_unicode("".join(ids)):
        raise DataError(f"{name}: expected the ids 0 to {len(ids) - 1}, each for one piece of text")
    for symbol in (end, unknown, *([] if start is None else [start])):
        if symbol not in ids:
            raise DataError(f"{name}: expected the symbol {symbol!a:.80}, which is missing")
    return ForeignVocabulary(
        tuple(sorted(ids, key=ids.__getitem__)),
        start=NO_ROW if start is None else ids[start],
        end=ids[end],
        unknown=ids[unknown],
        padding=NO_ROW if padding is None else ids[padding],
    )


def is_unicode(text: str) -> bool:
    """Whether a text can be written: JSON can hold halves of surrogate pairs."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


@dataclass(frozen=True)
class ForeignSettings:
    """The settings of a model of another toolkit, and the name of their file for messages."""

    name: str
    values: Mapping[str, Any]

    def get(self, key: str, kind: type, default: Any = None) -> Any:
        """A value of the expected type."""
        value = self.values.get(key, default)
        if type(value) is not kind:
            raise DataError(f"{self.name}: {key}: expected {kind.__name__}, got {value!r:.80}")
        return value


@dataclass
class ForeignTensors:
    """The tensors of another toolkit's file, which are read when they are taken."""

    name: str
    specs: Mapping[str, TensorSpec]
    read: Callable[[str], Tensor]
    taken: set[str] = field(default_factory=set)

    def take(self, key: str, shape: Sequence[int]) -> Tensor:
        """A tensor in float32; raises DataError if it is missing or has another shape."""
        found = self.specs.get(key)
        if found is None:
            raise DataError(f"{self.name}: the tensor {key} is missing")
        if found.shape != tuple(shape) or not found.dtype.is_floating_point:
            raise DataError(
                f"{self.name}: {key}: expected {list(shape)} floating-point numbers, got {found}"
            )
        self.taken.add(key)
        return self.read(key).float()

    def check_all_taken(self, *, but: Collection[str] = ()) -> None:
        """Raise for tensors that our model has no place for."""
        left = sorted(self.specs.keys() - self.taken - set(but))
        if left:
            raise DataError(
                f"{self.name}: the tensor {left[0]:.80} has no place in a model of nmt "
                f"({len(left)} such tensors)"
            )


def take_rows(tensors: ForeignTensors, key: str, vocabulary: ForeignVocabulary, dim: int) -> Tensor:
    """A table [V, D] in the order of our ids; the rows of absent symbols are 0."""
    table = tensors.take(key, (len(vocabulary.pieces), dim))
    return torch.cat([table, table.new_zeros(1, dim)])[list(vocabulary.rows)]


def take_bias(bias: Tensor, vocabulary: ForeignVocabulary) -> Tensor:
    """A bias [V] in the order of our ids; absent symbols are never predicted."""
    return torch.cat([bias, bias.new_full((1,), NEVER_BIAS)])[list(vocabulary.rows)]


def shape_of_model(config: ModelConfig, codec: Codec) -> dict[str, tuple[int, ...]]:
    """The shapes of all weights of a model, by name."""
    with torch.device("meta"):
        model = model_for(config, codec)
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


def import_config(
    model: ModelConfig,
    decode: DecodeConfig,
    codec: Codec,
    *,
    max_length: int,
    name: str,
    output: Path,
) -> Config:
    """The config of an imported model, which no text is known for; every limit is checked."""
    place = output.parent / "unknown"
    train, validation = (
        ((place / f"{part}.source",), (place / f"{part}.target",))
        for part in ("train", "validation")
    )
    config = Config(
        run_dir=output,
        data=DataConfig(
            source_language=codec.source.spec.language,
            target_language=codec.target.spec.language,
            train=(TrainingCorpus(*train),),
            validation=(ParallelFiles(*validation),),
            tokenizer=TokenizerConfig("none", "none"),
            subword=SubwordConfig(
                "sentencepiece" if isinstance(codec.source, LineCodec) else "none",
                vocabulary_size=len(codec.target.vocabulary),
            ),
            max_length=max_length,
        ),
        model=model,
        decode=decode,
    )
    # Lines and keys of messages are those of this text, and not of the file that is imported.
    return parse_config(
        dump_config(config), name=f"{name}, as a config of nmt", directory=output.parent
    )


def write_model(output: Path, config: Config, codec: Codec, weights: Mapping[str, Tensor]) -> None:
    """Create the model directory `output`, after a check that all weights are finite."""
    for name, tensor in weights.items():
        if not bool(tensor.isfinite().all()):
            raise DataError(f"{config.run_dir.name}: the weights have non-finite numbers ({name})")
    write_directory(output, model_files(config, codec, weights))


def read_bytes(path: Path, *, most: int = MAX_TEXT_BYTES) -> bytes:
    """The content of a file of limited size."""
    try:
        if path.stat().st_size > most:
            raise DataError(f"{path}: expected at most {most} bytes")
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object of a file."""
    try:
        value = json.loads(read_bytes(path))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: expected JSON ({error!s:.100})") from None
    if not isinstance(value, dict):
        raise DataError(f"{path}: expected a JSON object")
    return value
