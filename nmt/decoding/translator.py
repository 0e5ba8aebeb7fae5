"""Translate text with one model or several: the Python interface.

translator = Translator.load("runs/demo")
translator.translate(["The old man sees a dog."])

The translator turns text into batches of token ids and back. Its models search: those of torch
(torch_models.py), or a packed one without torch (packed_models.py). They are imported when they are
loaded, since importing torch takes seconds.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

from nmt.checkpoint.packed import is_packed
from nmt.config.limits import MAX_POSITIONS
from nmt.config.search_options import DecodeConfig, SearchOptions
from nmt.data.vocabulary import EOS, UNK
from nmt.decoding.alignment import AlignmentHead, Attention
from nmt.decoding.batching import compute_by_halves
from nmt.decoding.search_record import Hypothesis
from nmt.decoding.translation import (
    NO_DETAILS,
    Details,
    Failure,
    Line,
    PairScore,
    Precision,
    Sentence,
    Translation,
)
from nmt.errors import DataError

if TYPE_CHECKING:
    from nmt.data.codec import Codec
    from nmt.model.transformer import Transformer

__all__ = ["Line", "SearchOptions", "Translation", "Translator"]


class Models(Protocol):
    """One model or several that search together, as a translator needs them."""

    @property
    def codecs(self) -> Sequence["Codec"]:
        """The codec of each model; all have the same target vocabulary."""

    @property
    def device_type(self) -> str:
        """`cpu` or `cuda`."""

    def check(self, options: SearchOptions, details: Details) -> None:
        """Raise for options or details that the models cannot compute."""

    def computing(self) -> AbstractContextManager[None]:
        """The context of all calls below."""

    def batches(self, sentences: Sequence[Sentence], options: SearchOptions) -> Iterator[list[int]]:
        """Positions of sentences that are searched together."""

    def halve(self, size: int) -> None:
        """Make room after memory did not suffice for a batch of this size."""

    def search(self, batch: Sequence[Sentence], options: SearchOptions) -> list[list[Hypothesis]]:
        """The best hypotheses of each sentence."""

    def blank_attention(self, types: Sequence[str]) -> Attention:
        """The attention of a line without words."""

    def describe(
        self,
        plain: Sequence[Translation],
        sentences: Sequence[Sentence],
        options: SearchOptions,
        details: Details,
    ) -> list[Translation]:
        """The translations of sentences with the details that are wanted."""

    def score(
        self,
        sentences: Sequence[Sentence],
        targets: Sequence[Sequence[int]],
        *,
        batch_tokens: int,
        attention: Sequence[str],
    ) -> list[PairScore]:
        """The log probability of each target (with EOS) given its source."""


class ReadyModels(NamedTuple):
    """Models that were loaded, with the search options and the longest source of the first."""

    models: Models
    decode: DecodeConfig
    max_source_length: int


def load_models(
    paths: Sequence[Path], *, device: str, precision: Precision, int8: bool, threads: int | None
) -> ReadyModels:
    """The models of model or run directories; packed ones are loaded without torch."""
    if any(map(is_packed, paths)):
        from nmt.decoding.packed_models import load_packed

        packed = load_packed(paths, device=device, precision=precision, int8=int8, threads=threads)
        return ReadyModels(*packed)
    from nmt.decoding.torch_models import load_torch

    loaded = load_torch(paths, device=device, precision=precision, int8=int8, threads=threads)
    return ReadyModels(*loaded)


def refuse_one_text(**lists: Sequence[str] | None) -> None:
    """Raise for a text where a list of texts is expected: each character would be a line."""
    for name, given in lists.items():
        if isinstance(given, str):
            raise TypeError(f"{name}: expected a list of texts, got one text; write [text]")


def attention_types(wanted: bool | str | Sequence[str]) -> tuple[str, ...]:
    """The types of attention that are wanted; True means cross-attention."""
    if wanted is True:
        return ("cross",)
    return (wanted,) if isinstance(wanted, str) else tuple(wanted or ())


class Translator:
    """Models that translate lines of raw text."""

    def __init__(
        self, models: Models, options: SearchOptions, *, max_source_length: int | None
    ) -> None:
        self.models = models
        self.options = options
        self.max_source_length = max_source_length

    @classmethod
    def load(
        cls,
        model: str | Path | Sequence[str | Path],
        *,
        device: str = "auto",
        precision: Precision = "auto",
        int8: bool = False,
        threads: int | None = None,
    ) -> Self:
        """The models of one or several (an ensemble) model or run directories.

        `precision` is float32, bfloat16, or auto: bfloat16 on a GPU that computes in it. `int8`
        uses 8-bit weights (CPU only); `threads` sets torch's threads for the process. A packed
        model (`nmt-export --format packed`) is loaded without torch.
        """
        paths = [Path(path) for path in ([model] if isinstance(model, str | Path) else model)]
        assert paths, "expected at least one model directory"
        found = load_models(paths, device=device, precision=precision, int8=int8, threads=threads)
        options = replace(SearchOptions.of(found.decode), fill_memory=True)
        return cls(found.models, options, max_source_length=found.max_source_length)

    @classmethod
    def from_model(
        cls,
        model: "Transformer",
        codec: "Codec",
        decode_config: DecodeConfig,
        *,
        max_source_length: int | None = None,
    ) -> Self:
        """A translator for a model in training, which it does not change.

        It is of no use any more when the weights of the model have changed.
        """
        from nmt.decoding.ensemble import Member
        from nmt.decoding.torch_models import TorchModels

        member = Member.of(model, codec, keep_model=True)
        return cls(
            TorchModels([member], model.target_embedding.device),
            SearchOptions.of(decode_config),
            max_source_length=max_source_length,
        )

    def translate(
        self,
        texts: Sequence[str],
        *,
        prefixes: Sequence[str] | None = None,
        alignments: bool | AlignmentHead = False,
        attention: bool | str | Sequence[str] = False,
        **changes: Any,
    ) -> list[Translation]:
        """A translation for each line, in order.

        `attention` is a type of attention to return, or several; True means cross-attention.
        `changes` are fields of `SearchOptions` (beam, nbest, max_length, sampling, ...); those left
        out are the model's own. A blank line gives an empty one. A source longer than the model was
        trained for is cut (`num_dropped`); `failure` says why a line has no translation.
        """
        given = {name: value for name, value in changes.items() if value is not None}
        if "batch_tokens" in given:
            given.setdefault("fill_memory", False)
        options = replace(self.options, **given) if given else self.options
        head = AlignmentHead() if alignments is True else alignments or None
        refuse_one_text(texts=texts, prefixes=prefixes)
        prefixes = prefixes or [""] * len(texts)
        lines = [
            Line(number, text, prefix)
            for number, (text, prefix) in enumerate(zip(texts, prefixes, strict=True))
        ]
        details = Details(head, attention_types(attention))
        found = dict(self.translate_lines(lines, options, details))
        return [found[position] for position in range(len(lines))]

    def translate_lines(
        self, lines: Sequence[Line], options: SearchOptions, details: Details = NO_DETAILS
    ) -> Iterator[tuple[int, Translation]]:
        """The position of each line and its translation, batch by batch, longest sources first."""
        self.models.check(options, details)
        sentences: dict[int, Sentence] = {}
        for position, line in enumerate(lines):
            sentence = self._encode(line)
            if sentence.length > 1:
                sentences[position] = sentence
            else:
                yield position, self._blank(details, count=options.nbest)
        positions = list(sentences)

        def compute(batch: Sequence[Sentence]) -> list[Translation]:
            return self._translations(batch, self.models.search(batch, options), options, details)

        def too_large(sentence: Sentence) -> Translation:
            return self._failed(sentence, details, Failure.OUT_OF_MEMORY)

        for batch in self.models.batches(list(sentences.values()), options):
            chosen = [positions[index] for index in batch]
            with self.models.computing():
                found = compute_by_halves(
                    [sentences[p] for p in chosen], compute, too_large, self.models.halve
                )
            yield from zip(chosen, found, strict=True)

    def score_pairs(
        self,
        sources: Sequence[str],
        targets: Sequence[str],
        *,
        batch_tokens: int | None = None,
        attention: bool | str | Sequence[str] = False,
    ) -> list[PairScore]:
        """The log probability of each target given its source; `attention` as in `translate`."""
        refuse_one_text(sources=sources, targets=targets)
        encoded = [self._encode(Line(0, source)) for source in sources]
        with self.models.computing():
            scores = self.models.score(
                encoded,
                [self.models.codecs[0].target.encode(target) for target in targets],
                batch_tokens=batch_tokens or self.options.batch_tokens,
                attention=attention_types(attention),
            )
        return [
            replace(pair, num_dropped=sentence.num_dropped)
            for pair, sentence in zip(scores, encoded, strict=True)
        ]

    def _encode(self, line: Line) -> Sentence:
        """A line as token ids, cut to what the model was trained for; blank ones are only EOS."""
        limit = self.max_source_length
        sources: list[list[int]] = []
        num_dropped = 0
        for codec in self.models.codecs:
            ids = codec.source.encode(line.text) if line.text.strip() else [EOS]
            if limit is not None and len(ids) - 1 > limit:
                num_dropped = max(num_dropped, len(ids) - 1 - limit)
                ids = [*ids[:limit], EOS]
            sources.append(ids)
        prefix = self.models.codecs[0].target.encode(line.prefix)[:-1] if line.prefix else []
        if len(prefix) > MAX_POSITIONS:
            raise DataError(
                f"prefix of line {line.number + 1}: expected at most {MAX_POSITIONS:,} subwords, "
                f"got {len(prefix):,}"
            )
        unknown = self.models.codecs[0].target.unknown_pieces(line.prefix) if UNK in prefix else []
        return Sentence(line, tuple(sources), prefix, num_dropped, tuple(unknown))

    def _blank(self, details: Details, *, count: int = 1) -> Translation:
        """The empty translation, or `count` of them, of a line without words."""
        attention = None
        if details.attention:
            attention = self.models.blank_attention(details.attention)
        links = None if details.alignment is None else ()
        blank = Translation("", alignment=links, attention=attention)
        return replace(blank, nbest=(blank,) * count) if count > 1 else blank

    def _failed(self, sentence: Sentence, details: Details, failure: Failure) -> Translation:
        """The empty translation of a line that has none."""
        nan = float("nan")
        return replace(
            self._blank(details),
            score=nan,
            log_probability=nan,
            failure=failure,
            num_dropped=sentence.num_dropped,
        )

    def _translations(
        self,
        batch: Sequence[Sentence],
        found: Sequence[Sequence[Hypothesis]],
        options: SearchOptions,
        details: Details,
    ) -> list[Translation]:
        """The text of what search found, with alignments and attention when they are wanted."""
        flat = [
            (sentence, hypothesis)
            for sentence, hypotheses in zip(batch, found, strict=True)
            for hypothesis in hypotheses
        ]
        texts = [self._text(hypothesis, sentence.unknown) for sentence, hypothesis in flat]
        if flat and details != NO_DETAILS:
            sentences = [sentence for sentence, _ in flat]
            texts = self.models.describe(texts, sentences, options, details)
        described = iter(texts)
        translations = []
        for sentence, hypotheses in zip(batch, found, strict=True):
            nbest = tuple(next(described) for _ in hypotheses)
            if not nbest:
                translations.append(self._failed(sentence, details, Failure.NON_FINITE))
                continue
            best = nbest[0]
            if sentence.num_dropped:
                best = replace(best, num_dropped=sentence.num_dropped)
            translations.append(replace(best, nbest=nbest) if options.nbest > 1 else best)
        return translations

    def _text(self, hypothesis: Hypothesis, unknown: Sequence[str]) -> Translation:
        """The translation that a hypothesis is, whose prefix has these unknown pieces."""
        text = self.models.codecs[0].target.decode(hypothesis.tokens, unknown)
        return Translation(
            text=text.replace("\n", " "),
            score=hypothesis.score,
            log_probability=hypothesis.log_probability,
            ids=hypothesis.tokens,
        )
