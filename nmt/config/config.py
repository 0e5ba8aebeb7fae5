"""The config of a run: the keys of the YAML file with their meaning, default and limits."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from nmt.config.attention_kinds import ALIASES, ATTENTION_KINDS, AttentionKind
from nmt.config.limits import (
    MAX_BATCH_TOKENS,
    MAX_BEAM,
    BatchTokens,
    Heads,
    InnerWidth,
    Layers,
    Length,
    LineBytes,
    NonNegative,
    NonNegativeFloat,
    NonNegativePieces,
    NonNegativeProcesses,
    Pieces,
    Positive,
    PositiveFloat,
    Probability,
    Seconds,
    Seed,
    Width,
)
from nmt.config.scalars import Names, Range
from nmt.config.search_options import DecodeConfig
from nmt.errors import ConfigError

TokenizerKind = Literal["auto", "none", "moses", "jieba"]

AttentionKindName = Annotated[str, Names(ATTENTION_KINDS, ALIASES)]


class AttentionOptions(Mapping[str, Mapping[str, Any]]):
    """The types of the options of each attention kind that is in the table now."""

    def __getitem__(self, kind: str) -> Mapping[str, Any]:
        options = ATTENTION_KINDS[kind].options
        return {name: option.type | None for name, option in options.items()}

    def __iter__(self) -> Iterator[str]:
        return iter(ATTENTION_KINDS)

    def __len__(self) -> int:
        return len(ATTENTION_KINDS)


# The options that only some kinds of subwords have.
SUBWORD_OPTIONS: dict[str, frozenset[str]] = {
    "bpe": frozenset({"merges", "vocabulary_threshold", "dropout"}),
    "sentencepiece": frozenset({"vocabulary_size", "model", "dropout"}),
    "none": frozenset({"vocabulary_size"}),
}


@dataclass(frozen=True)
class ParallelFiles:
    """A corpus: two files, or two lists of files to concatenate; line n translates line n."""

    source: tuple[Path, ...]  # text in the source language, in UTF-8
    target: tuple[Path, ...]  # its translation, line by line
    name: str | None = None  # of letters, digits, - and _; a corpus of a list needs one
    tag: str | None = None  # a reserved symbol that is put before each source sentence


@dataclass(frozen=True)
class TrainingCorpus(ParallelFiles):
    """A corpus to train on; how the corpora of a list are mixed is in docs/corpora.md."""

    weight: PositiveFloat | None = None  # its share of the pairs drawn; default: its pairs
    from_update: NonNegative | None = None  # it is used after this update; default: 0
    until_update: Positive | None = None  # the last update that uses it; default: the last of all


@dataclass(frozen=True)
class TokenizerConfig:
    """How raw text is split into words on each side; a single word in YAML sets both sides.

    `auto` is jieba for Chinese, none for other languages that do not separate words by spaces, and
    moses for all others. Text that is tokenized already needs `none`.
    """

    shorthand: ClassVar[tuple[str, ...]] = ("source", "target")

    source: TokenizerKind = "auto"  # of the source side
    target: TokenizerKind = "auto"  # of the target side


@dataclass(frozen=True)
class SubwordDropoutConfig:
    """Random segmentations of the training text; a single number in YAML sets both sides.

    For BPE it is the probability that a merge is left out. For the unigram model of sentencepiece
    it is the alpha of sampling: the smaller, the more random. With 0 there is one segmentation.
    """

    shorthand: ClassVar[tuple[str, ...]] = ("source", "target")

    source: Probability | None = None  # of the source side
    target: Probability | None = None  # of the target side


@dataclass(frozen=True)
class SubwordConfig:
    """How words are split into subwords."""

    shorthand: ClassVar[str] = "kind"
    variant: ClassVar[str] = "kind"
    options: ClassVar[Mapping[str, frozenset[str]]] = SUBWORD_OPTIONS

    kind: Literal["bpe", "sentencepiece", "none"] = "bpe"  # none: whole words
    merges: NonNegativePieces = 0  # bpe: merge operations; 0: by the number of pairs
    # sentencepiece: pieces; none: most frequent words kept; 0: by the number of pairs
    vocabulary_size: NonNegativePieces = 0
    joint: bool = True  # one subword model for both sides
    vocabulary_threshold: NonNegative = 0  # bpe: rarer pieces are split further
    model: Literal["unigram", "bpe"] = "unigram"  # sentencepiece's algorithm
    sample_pairs: NonNegative = 10_000_000  # pairs the subword model is learned from; 0: all
    # symbols such as <num> that are one piece each, wherever they stand in a text
    reserved: tuple[str, ...] = ()
    dropout: SubwordDropoutConfig = SubwordDropoutConfig()


@dataclass(frozen=True)
class DataConfig:
    """The text, and how it is encoded."""

    source_language: str  # a language code such as en or pt-BR
    target_language: str  # a language code such as en or pt-BR
    train: tuple[TrainingCorpus, ...]
    validation: tuple[ParallelFiles, ...]
    tokenizer: TokenizerConfig = TokenizerConfig()
    subword: SubwordConfig = SubwordConfig()
    max_length: Length = 256  # subwords per side; longer pairs are left out and counted
    max_ratio: NonNegativeFloat = 0.0  # longer side / shorter side; 0: any
    on_bad_line: Literal["error", "skip"] = "error"  # for invalid UTF-8, over-long or empty lines
    max_line_bytes: LineBytes = 1_000_000  # longer lines are bad lines
    # most pieces that the vocabularies of train.start_from get for the new text; default: none
    extend_vocabulary: Pieces | None = None
    prepared_dir: Path | None = None  # default: `prepared` in the run directory
    workers: NonNegativeProcesses = 0  # processes that encode text; 0: one per core

    @property
    def reserved(self) -> tuple[str, ...]:
        """The reserved symbols: those of the subwords, and the tags of all corpora."""
        tags = [corpus.tag for corpus in (*self.train, *self.validation) if corpus.tag is not None]
        return tuple(dict.fromkeys([*self.subword.reserved, *tags]))


@dataclass(frozen=True, init=False)
class AttentionConfig:
    """An attention kind with the options that are given; the others have their defaults."""

    shorthand: ClassVar[str] = "kind"
    variant: ClassVar[str] = "kind"
    options: ClassVar[Mapping[str, Mapping[str, Any]]] = AttentionOptions()
    options_field: ClassVar[str] = "given"

    kind: AttentionKindName  # a row of the table of attention kinds
    given: Mapping[str, Any]

    def __init__(self, kind: str, **options: Any) -> None:
        given = {name: value for name, value in options.items() if value is not None}
        if kind in ATTENTION_KINDS and not given.keys() <= ATTENTION_KINDS[kind].options.keys():
            known = ", ".join(ATTENTION_KINDS[kind].options)
            raise TypeError(f"{kind}: expected some of the options {known}, got {', '.join(given)}")
        object.__setattr__(self, "kind", kind)
        object.__setattr__(self, "given", given)

    @property
    def row(self) -> AttentionKind:
        """The row of this kind in the table."""
        row = ATTENTION_KINDS.get(self.kind)
        if row is None:
            known = ", ".join(ATTENTION_KINDS)
            raise ConfigError(f"attention kind: expected one of {known}, got {self.kind!r}")
        return row

    @property
    def values(self) -> dict[str, Any]:
        """The values of all options of the kind, with defaults."""
        return self.row.values(self.given)

    @property
    def label(self) -> str:
        """The kind and the options that are given, as text."""
        given = [
            f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
            for name, value in self.given.items()
        ]
        return ", ".join([self.kind, *given])

    def __str__(self) -> str:
        return self.label


@dataclass(frozen=True, init=False)
class SublayerAttentionConfig(AttentionConfig):
    """The attention of one type of sublayer, with exceptions by layer (counted from 0)."""

    # by layer, counted from 0: attention that replaces that of the type of sublayer
    layers: dict[int, AttentionConfig] = field(default_factory=dict)

    def __init__(
        self, kind: str, *, layers: dict[int, AttentionConfig] | None = None, **options: Any
    ) -> None:
        super().__init__(kind, **options)
        object.__setattr__(self, "layers", layers or {})

    def at(self, layer: int) -> AttentionConfig:
        """The attention of one layer."""
        return self.layers.get(layer, self)

    def __str__(self) -> str:
        exceptions = [f"layer {layer}: {other}" for layer, other in sorted(self.layers.items())]
        return ", ".join([self.label, *exceptions])


@dataclass(frozen=True)
class AttentionTypesConfig:
    """The attention of the three types of sublayer; a single word in YAML sets all three."""

    shorthand: ClassVar[tuple[str, ...]] = ("encoder_self", "decoder_self", "cross")

    encoder_self: SublayerAttentionConfig = SublayerAttentionConfig("softmax")
    decoder_self: SublayerAttentionConfig = SublayerAttentionConfig("softmax")
    cross: SublayerAttentionConfig = SublayerAttentionConfig("softmax")


@dataclass(frozen=True)
class ModelConfig:
    """The Transformer; the defaults are those of Transformer-base in the paper."""

    dim: Width = 512  # width of the hidden states: even, and a multiple of heads
    heads: Heads = 8  # attention heads of each sublayer
    encoder_layers: Layers = 6  # layers of the encoder
    decoder_layers: Layers = 6  # layers of the decoder
    feed_forward_dim: InnerWidth = 2048  # width inside the feed-forward sublayer
    # between its two layers; swish is x * sigmoid(x)
    feed_forward_activation: Literal["relu", "gelu", "swish"] = "relu"
    dropout: Probability = 0.1  # on embeddings and residual branches
    attention_dropout: Probability = 0.1  # on attention weights
    feed_forward_dropout: Probability = 0.0  # inside the feed-forward sublayer
    norm: Literal["post", "pre"] = "post"  # LayerNorm after or before each sublayer
    norm_epsilon: PositiveFloat = 1e-6  # added to the variance by LayerNorm
    scale_embeddings: bool = True  # multiply embeddings by the square root of dim
    # wavelengths of the positions: geometric from 2 pi to 10000 * 2 pi, that one included or not
    position_wavelengths: Literal["inclusive", "exclusive"] = "inclusive"
    # weights that are shared; target: target embeddings and output; all: source embeddings, too
    tie_embeddings: Literal["none", "target", "all"] = "target"
    output_bias: bool = False  # one learned number per entry of the target vocabulary
    # of the projections; uniform_unit_scaling is what the authors of ReLA use: it draws query, key
    # and value of self-attention as one matrix of D x 3D, so that they start smaller by sqrt(2)
    initializer: Literal["xavier", "uniform_unit_scaling"] = "xavier"
    # initial factor of all attention scores; 0.1 starts sparse kinds with all keys in their support
    initial_score_scale: PositiveFloat = 1.0
    attention: AttentionTypesConfig = AttentionTypesConfig()

    def attention_labels(self) -> dict[str, str]:
        """By type a description of the kind of attention, and of the layers that differ from it."""
        labels = {}
        for type_ in AttentionTypesConfig.shorthand:
            sublayer: SublayerAttentionConfig = getattr(self.attention, type_)
            count = self.encoder_layers if type_ == "encoder_self" else self.decoder_layers
            others = [
                f"layer {layer}: {sublayer.at(layer).label}"
                for layer in range(count)
                if sublayer.at(layer).label != sublayer.label
            ]
            labels[type_] = sublayer.label + (f" ({', '.join(others)})" if others else "")
        return labels


@dataclass(frozen=True)
class ScheduleConfig:
    """The learning rate as a function of the update."""

    shorthand: ClassVar[str] = "kind"

    # all rise linearly during the warm-up; then noam and inverse_sqrt fall with the square root of
    # the update
    kind: Literal["noam", "inverse_sqrt", "constant"] = "noam"
    warmup: NonNegative = 4000  # updates until the highest rate


@dataclass(frozen=True)
class AdamConfig:
    """The constants of Adam."""

    beta1: Probability = 0.9  # decay of the mean of gradients
    beta2: Probability = 0.98  # decay of the mean of squared gradients
    epsilon: PositiveFloat = 1e-8  # added to the denominator


@dataclass(frozen=True)
class TrainConfig:
    """The training loop."""

    max_updates: Positive = 100_000  # updates of the whole run
    batch_tokens: BatchTokens = 6250  # most target tokens of one forward pass
    accumulate: Positive = 4  # batches per update, which all devices share equally
    learning_rate: PositiveFloat = 1.0  # noam: a factor; other schedules: the highest rate
    schedule: ScheduleConfig = ScheduleConfig()
    adam: AdamConfig = AdamConfig()
    label_smoothing: Probability = 0.1  # probability that is spread over the vocabulary
    clip_norm: NonNegativeFloat = 0.0  # highest norm of the gradient; 0: no clipping
    # auto: bfloat16 on GPUs of compute capability 8.0 or newer, and on CPUs with AVX512_BF16 from
    # model.dim 128 on; float32 elsewhere
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    compile: bool | Literal["auto"] = "auto"  # torch.compile; auto: on GPUs
    all_reduce: Literal["float32", "bfloat16"] = "float32"  # of gradients, over processes
    ema: Probability = 0.0  # decay of the moving average of the weights; 0: none
    device: Literal["auto", "cpu", "cuda"] = "auto"  # auto: a GPU if torch can use one
    threads: NonNegativeProcesses = 0  # CPU threads; 0: torch chooses
    prefetch: Annotated[int, Range(0, 1000)] = 2  # batches made ahead by a background thread
    save_every: NonNegative = 0  # updates between checkpoints; 0: by max_updates, at most 1000
    keep_last: Annotated[int, Range(2, 1_000_000)] = 5  # checkpoints kept, the newest ones
    # at most this many of the last checkpoints, if they are close, are averaged at the end; 0: none
    average_last: NonNegative = 5
    log_every: Positive = 100  # updates between records of the training loss
    # a model or run directory whose weights and codec the run starts with; the optimizer is new
    start_from: Path | None = None
    # parts of the model that are not trained, such as encoder, embeddings, cross or decoder.0
    freeze: tuple[str, ...] = ()
    # seconds without a heartbeat until a process is taken for dead
    distributed_timeout: Seconds = 120.0

    @property
    def save_interval(self) -> int:
        """The updates between two checkpoints on schedule.

        By default the last few lie close enough to each other to be averaged, also in a short run.
        """
        shortest, longest, saves = 20, 1000, 50
        return self.save_every or min(longest, max(shortest, self.max_updates // saves))


@dataclass(frozen=True)
class ValidateConfig:
    """Validation during training; with beam 0 there is no decoding and no BLEU."""

    every: Positive = 1000  # updates between validations
    beam: Annotated[int, Range(0, MAX_BEAM)] = 4  # hypotheses kept; 0: no decoding
    metric: Literal["bleu", "chrf", "loss", "perplexity"] = "bleu"  # chooses `best`
    corpus: str | None = None  # name of the validation corpus that chooses; default: the first
    patience: NonNegative = 0  # validations without improvement before the run stops; 0: never
    sentences: NonNegative = 0  # at most this number is decoded; 0: all
    # most target tokens of a batch; 0: as train.batch_tokens
    batch_tokens: Annotated[int, Range(0, MAX_BATCH_TOKENS)] = 0


@dataclass(frozen=True)
class Config:
    """All settings of a run."""

    run_dir: Path  # directory of checkpoints, metrics and logs
    data: DataConfig
    seed: Seed = 1  # of weights, order of the data and dropout
    model: ModelConfig = ModelConfig()
    train: TrainConfig = TrainConfig()
    validate: ValidateConfig = ValidateConfig()
    decode: DecodeConfig = field(default_factory=DecodeConfig)
    kinds: tuple[str, ...] = ()  # attention kinds from outside nmt, as my_package:my_kind


def resolved_prepared_dir(config: Config) -> Path:
    """The directory of the prepared data of a run, which is replaced as a whole; links stay."""
    return Path(os.path.realpath(config.data.prepared_dir or config.run_dir / "prepared"))
