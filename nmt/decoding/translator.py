"""Translate text with one model or several: the Python interface.

translator = Translator.load("runs/demo")
translator.translate(["The old man sees a dog."])
"""

import contextlib
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import torch

from nmt.checkpoint.model_directory import load_model
from nmt.checkpoint.selection import find_model
from nmt.config.search_options import DecodeConfig, SearchOptions
from nmt.data.codec import Codec
from nmt.data.vocabulary import BOS, EOS, PAD, UNK
from nmt.decoding.alignment import (
    AlignmentHead,
    Attention,
    Links,
    check_head,
    link_words,
    observed_attention,
)
from nmt.decoding.batching import compute_by_halves, length_batches
from nmt.decoding.devices import Precision, current, find_device, place
from nmt.decoding.ensemble import (
    BATCH_MULTIPLE,
    LENGTH_MULTIPLE,
    EnsembleStep,
    Member,
    check_same_target,
    round_up,
)
from nmt.decoding.memory import Budget, search_need
from nmt.decoding.scorer import PairScore, score
from nmt.decoding.search import Hypothesis, Symbols, search
from nmt.decoding.translation import NO_DETAILS, Details, Failure, Line, Translation
from nmt.errors import UserError
from nmt.model.transformer import Transformer

__all__ = ["Line", "SearchOptions", "Translation", "Translator"]


SYMBOLS = Symbols(start=BOS, end=EOS, never=(PAD, BOS, UNK))


@dataclass(frozen=True)
class _Sentence:
    """A line as token ids: one source for each member, all with EOS."""

    line: Line
    sources: tuple[list[int], ...]
    prefix: list[int]
    num_dropped: int

    @property
    def length(self) -> int:
        return max(len(source) for source in self.sources)

    def output_limit(self, options: SearchOptions) -> int:
        """The most tokens of its translation."""
        return options.output_limit(len(self.sources[0]) - 1, len(self.prefix))


class Translator:
    """Models that translate lines of raw text."""

    def __init__(
        self,
        members: Sequence[Member],
        options: SearchOptions,
        *,
        max_source_length: int | None,
        device: torch.device | str,
    ) -> None:
        self.members = members
        self.options = options
        self.max_source_length = max_source_length
        self.device = device
        place = torch.device(device)
        self.budget = Budget(place) if place.type == "cuda" else None  # None: batches by tokens

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
        uses 8-bit weights (CPU only); `threads` sets torch's threads for the process.
        """
        if threads is not None:
            torch.set_num_threads(threads)
        chosen = find_device(device)
        if int8 and chosen.type != "cpu":
            raise UserError(f"8-bit weights are for the CPU, got device {chosen}")
        if int8 and precision == "bfloat16":
            raise UserError("8-bit weights have no precision of their own, got bfloat16")
        paths = [model] if isinstance(model, str | Path) else list(model)
        assert paths, "expected at least one model directory"
        loaded = [load_model(find_model(Path(path))) for path in paths]
        members = [
            Member.of(place(one.model, chosen, precision).eval(), one.codec, int8=int8)
            for one in loaded
        ]
        check_same_target(members, [str(path) for path in paths])
        return cls(
            members,
            replace(SearchOptions.of(loaded[0].config.decode), fill_memory=True),
            max_source_length=min(one.config.data.max_length for one in loaded),
            device=chosen,
        )

    @classmethod
    def from_model(
        cls,
        model: Transformer,
        codec: Codec,
        decode_config: DecodeConfig,
        *,
        max_source_length: int | None = None,
    ) -> Self:
        """A translator for a model in training, which it does not change."""
        return cls(
            [Member.of(model, codec, keep_model=True)],
            SearchOptions.of(decode_config),
            max_source_length=max_source_length,
            device=model.target_embedding.device,
        )

    def translate(
        self,
        texts: Sequence[str],
        *,
        prefixes: Sequence[str] | None = None,
        alignments: bool | AlignmentHead = False,
        attention: bool | Sequence[str] = False,
        **changes: Any,
    ) -> list[Translation]:
        """A translation for each line, in order.

        `attention` names types of attention to return; True means cross-attention.
        `changes` are fields of `SearchOptions` (beam, nbest, max_length, sampling, ...); those left
        out are the model's own. A blank line gives an empty one. A source longer than the model was
        trained for is cut (`num_dropped`); `failure` says why a line has no translation.
        """
        given = {name: value for name, value in changes.items() if value is not None}
        if "batch_tokens" in given:
            given.setdefault("fill_memory", False)
        options = replace(self.options, **given)
        head = AlignmentHead() if alignments is True else alignments or None
        types = ("cross",) if attention is True else tuple(attention or ())
        prefixes = prefixes or [""] * len(texts)
        lines = [
            Line(number, text, prefix)
            for number, (text, prefix) in enumerate(zip(texts, prefixes, strict=True))
        ]
        found = dict(self.translate_lines(lines, options, Details(head, types)))
        return [found[position] for position in range(len(lines))]

    def translate_lines(
        self, lines: Sequence[Line], options: SearchOptions, details: Details = NO_DETAILS
    ) -> Iterator[tuple[int, Translation]]:
        """The position of each line and its translation, batch by batch, longest sources first."""
        if details.alignment is not None:
            check_head(self.members[0], details.alignment)
        sentences: dict[int, _Sentence] = {}
        for position, line in enumerate(lines):
            sentence = self._encode(line)
            if sentence.length > 1:
                sentences[position] = sentence
            else:
                yield position, self._blank(details, count=options.nbest)
        positions = list(sentences)

        def compute(batch: Sequence[_Sentence]) -> list[Translation]:
            return self._translations(batch, self._search(batch, options), options, details)

        def too_large(sentence: _Sentence) -> Translation:
            return self._failed(sentence, details, Failure.OUT_OF_MEMORY)

        on_halving = bool if self.budget is None else self.budget.halve
        for batch in self._batches(list(sentences.values()), options):
            chosen = [positions[index] for index in batch]
            with torch.inference_mode(), evaluating(self.members), current(self.device):
                found = compute_by_halves(
                    [sentences[p] for p in chosen], compute, too_large, on_halving
                )
            yield from zip(chosen, found, strict=True)

    def _batches(
        self, sentences: Sequence[_Sentence], options: SearchOptions
    ) -> Iterator[list[int]]:
        """Positions of sentences of similar length, by tokens or by the memory of a GPU."""
        multiple = length_multiple(options)
        if self.budget is None or not options.fill_memory:
            lengths = [sentence.length for sentence in sentences]
            yield from length_batches(lengths, batch_tokens=options.batch_tokens, multiple=multiple)
            return
        need = functools.cache(functools.partial(search_need, self.members, beam=options.width))
        limits = [sentence.output_limit(options) for sentence in sentences]
        yield from self.budget.batches(
            [
                need(round_up(sentence.length, multiple), limit)
                for sentence, limit in zip(sentences, limits, strict=True)
            ]
        )

    def score_pairs(
        self,
        sources: Sequence[str],
        targets: Sequence[str],
        *,
        batch_tokens: int | None = None,
        attention: Sequence[str] = (),
    ) -> list[PairScore]:
        """The log probability of each target given its source; `attention` names types of it."""
        encoded = [self._encode(Line(0, source)) for source in sources]
        with torch.inference_mode(), evaluating(self.members), current(self.device):
            scores = score(
                self.members,
                [sentence.sources for sentence in encoded],
                [self.members[0].codec.target.encode(target) for target in targets],
                batch_tokens=batch_tokens or self.options.batch_tokens,
                attention=attention,
                device=self.device,
            )
        return [
            replace(pair, num_dropped=sentence.num_dropped)
            for pair, sentence in zip(scores, encoded, strict=True)
        ]

    def _encode(self, line: Line) -> _Sentence:
        """A line as token ids, cut to what the model was trained for; blank ones are only EOS."""
        limit = self.max_source_length
        sources: list[list[int]] = []
        num_dropped = 0
        for member in self.members:
            ids = member.codec.source.encode(line.text) if line.text.strip() else [EOS]
            if limit is not None and len(ids) - 1 > limit:
                num_dropped = max(num_dropped, len(ids) - 1 - limit)
                ids = [*ids[:limit], EOS]
            sources.append(ids)
        prefix = self.members[0].codec.target.encode(line.prefix)[:-1] if line.prefix else []
        return _Sentence(line, tuple(sources), prefix, num_dropped)

    def _blank(self, details: Details, *, count: int = 1) -> Translation:
        """The empty translation, or `count` of them, of a line without words."""
        attention = None
        if details.attention:
            attention = Attention.empty(self.members[0].model.config, details.attention)
        links = None if details.alignment is None else ()
        blank = Translation("", alignment=links, attention=attention)
        return replace(blank, nbest=(blank,) * count) if count > 1 else blank

    def _failed(self, sentence: _Sentence, details: Details, failure: Failure) -> Translation:
        """The empty translation of a line that has none."""
        nan = float("nan")
        return replace(
            self._blank(details),
            score=nan,
            log_probability=nan,
            failure=failure,
            num_dropped=sentence.num_dropped,
        )

    def _search(self, batch: Sequence[_Sentence], options: SearchOptions) -> list[list[Hypothesis]]:
        """The best hypotheses of each sentence."""
        packed = all(member.decoder.packed for member in self.members)
        batch_multiple = 1 if packed or options.fast else BATCH_MULTIPLE
        num_padding = -len(batch) % batch_multiple
        padded = [*batch, *[batch[-1]] * num_padding]
        limits = [sentence.output_limit(options) for sentence in padded]
        step = EnsembleStep(
            self.members,
            [
                [sentence.sources[index] for sentence in padded]
                for index in range(len(self.members))
            ],
            beam=options.width,
            max_length=max(limits),
            multiple=length_multiple(options),
            device=self.device,
        )
        return search(
            step,
            options,
            SYMBOLS,
            max_lengths=limits,
            prefixes=[sentence.prefix for sentence in padded],
            seeds=[sentence.line.number for sentence in padded],
            num_padding=num_padding,
            batch_multiple=batch_multiple,
            device=self.device,
        )

    def _translations(
        self,
        batch: Sequence[_Sentence],
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
        described = iter(self._describe(flat, length_multiple(options), details))
        translations = []
        for sentence, hypotheses in zip(batch, found, strict=True):
            nbest = tuple(next(described) for _ in hypotheses)
            if not nbest:
                translations.append(self._failed(sentence, details, Failure.NON_FINITE))
                continue
            best = replace(nbest[0], num_dropped=sentence.num_dropped)
            translations.append(replace(best, nbest=nbest) if options.nbest > 1 else best)
        return translations

    def _describe(
        self, flat: Sequence[tuple[_Sentence, Hypothesis]], multiple: int, details: Details
    ) -> list[Translation]:
        """A translation for each pair of sentence and hypothesis."""
        target = self.members[0].codec.target
        plain = [
            Translation(
                text=target.decode(hypothesis.tokens).replace("\n", " "),
                score=hypothesis.score,
                log_probability=hypothesis.log_probability,
                ids=hypothesis.tokens,
            )
            for _, hypothesis in flat
        ]
        if not flat or details == NO_DETAILS:
            return plain
        pairs = [(sentence.sources[0], [*found.tokens, EOS]) for sentence, found in flat]
        weights = observed_attention(
            self.members[0],
            [source for source, _ in pairs],
            [target for _, target in pairs],
            types={"cross", *details.attention},
            multiple=multiple,
            device=self.device,
        )
        described = []
        for translation, (sentence, hypothesis), pair, by_type in zip(
            plain, flat, pairs, weights, strict=True
        ):
            links = self._links(sentence, hypothesis, by_type["cross"], details.alignment)
            wanted = {type_: by_type[type_] for type_ in details.attention}
            attention = Attention.of(self.members[0].codec, *pair, wanted) if wanted else None
            described.append(replace(translation, alignment=links, attention=attention))
        return described

    def _links(
        self,
        sentence: _Sentence,
        hypothesis: Hypothesis,
        weights: torch.Tensor,
        head: AlignmentHead | None,
    ) -> Links | None:
        """The word alignment of one output, if one is wanted."""
        if head is None:
            return None
        codec = self.members[0].codec
        source_words = codec.source.segment(sentence.line.text).word_of_piece
        return link_words(
            weights,
            head,
            source_words=source_words[: len(sentence.sources[0]) - 1],
            target_words=codec.target.segment_ids(hypothesis.tokens).word_of_piece,
        )


def length_multiple(options: SearchOptions) -> int:
    """The number of which padded source lengths are multiples."""
    return 1 if options.fast else LENGTH_MULTIPLE


@contextlib.contextmanager
def evaluating(members: Sequence[Member]) -> Iterator[None]:
    """Put the models into evaluation mode, and restore their mode afterwards."""
    training = [member for member in members if member.model.training]
    for member in training:
        member.model.eval()
    try:
        yield
    finally:
        for member in training:
            member.model.train()
