"""The models of a translator as torch holds them: one or several (an ensemble), on any device."""

import contextlib
import functools
import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from nmt.checkpoint.model_directory import load_model
from nmt.checkpoint.selection import find_model
from nmt.config.search_options import DecodeConfig, SearchOptions
from nmt.data.codec import Codec
from nmt.data.vocabulary import EOS
from nmt.decoding.alignment import AlignmentHead, Attention, Links, check_head
from nmt.decoding.batching import length_batches, length_multiple, round_up
from nmt.decoding.devices import current, find_device, place, release_memory
from nmt.decoding.engine import Engine
from nmt.decoding.engine_search import search_by_engine, search_refusal
from nmt.decoding.ensemble import (
    BATCH_MULTIPLE,
    EnsembleStep,
    Member,
    check_same_target,
)
from nmt.decoding.memory import Budget, search_need
from nmt.decoding.observation import attention_of, link_words, observed_attention
from nmt.decoding.scorer import score
from nmt.decoding.search import Hypothesis, search
from nmt.decoding.translation import (
    SYMBOLS,
    Details,
    PairScore,
    Precision,
    Sentence,
    Translation,
)
from nmt.errors import UserError

logger = logging.getLogger(__name__)


@functools.cache
def log_search_in_python(reason: str) -> None:
    """Say once why only the steps of a search run in C, which costs small models most."""
    logger.info("search: in Python, with the steps of the engine in C (%s)", reason)


class TorchModels:
    """One model or several that translate together, and the device that they compute on."""

    def __init__(self, members: Sequence[Member], device: torch.device | str) -> None:
        self.members = members
        self.device = torch.device(device)
        # None: batches by tokens
        self.budget = Budget(self.device) if self.device.type == "cuda" else None

    @property
    def codecs(self) -> list[Codec]:
        """The codec of each model."""
        return [member.codec for member in self.members]

    @property
    def device_type(self) -> str:
        """`cpu` or `cuda`."""
        return self.device.type

    def check(self, _options: SearchOptions, details: Details) -> None:
        """Raise for details that the models do not have."""
        if details.alignment is not None:
            check_head(self.members[0].model.config, details.alignment)

    @contextlib.contextmanager
    def computing(self) -> Iterator[None]:
        """The state in which the models compute; what they were doing before is restored."""
        with torch.inference_mode(), evaluating(self.members), current(self.device):
            yield

    def batches(self, sentences: Sequence[Sentence], options: SearchOptions) -> Iterator[list[int]]:
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

    def halve(self, size: int) -> None:
        """Make room after memory did not suffice for a batch of this size."""
        if self.budget is not None:
            self.budget.halve(size)
        release_memory(size)

    def search(self, batch: Sequence[Sentence], options: SearchOptions) -> list[list[Hypothesis]]:
        """The best hypotheses of each sentence."""
        engine = self.members[0].decoder.engine
        if engine is not None and self._loop_in_c(engine, options):
            return search_by_engine(
                engine,
                [sentence.sources[0] for sentence in batch],
                options,
                SYMBOLS,
                max_lengths=[sentence.output_limit(options) for sentence in batch],
                prefixes=[sentence.prefix for sentence in batch],
                threads=torch.get_num_threads(),
            )
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

    def _loop_in_c(self, engine: Engine, options: SearchOptions) -> bool:
        """Whether the whole search runs in C; says once why it does not."""
        reason = search_refusal(engine, options)
        if len(self.members) > 1:
            reason = "an ensemble combines its models in Python"
        if reason is not None:
            log_search_in_python(reason)
        return reason is None

    def blank_attention(self, types: Sequence[str]) -> Attention:
        """The attention of a line without words."""
        return Attention.empty(self.members[0].model.config, types)

    def describe(
        self,
        plain: Sequence[Translation],
        sentences: Sequence[Sentence],
        options: SearchOptions,
        details: Details,
    ) -> list[Translation]:
        """The translations of sentences with the alignments and the attention that are wanted."""
        first = self.members[0]
        pairs = [
            (sentence.sources[0], [*found.ids, EOS])
            for sentence, found in zip(sentences, plain, strict=True)
        ]
        weights = observed_attention(
            first,
            [source for source, _ in pairs],
            [target for _, target in pairs],
            types={"cross", *details.attention},
            multiple=length_multiple(options),
            device=self.device,
        )
        described = []
        for translation, sentence, pair, by_type in zip(
            plain, sentences, pairs, weights, strict=True
        ):
            links = self._links(sentence, translation, by_type["cross"], details.alignment)
            wanted = {type_: by_type[type_] for type_ in details.attention}
            attention = attention_of(first.codec, *pair, wanted) if wanted else None
            described.append(replace(translation, alignment=links, attention=attention))
        return described

    def _links(
        self,
        sentence: Sentence,
        translation: Translation,
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
            target_words=codec.target.segment_ids(translation.ids, sentence.unknown).word_of_piece,
        )

    def score(
        self,
        sentences: Sequence[Sentence],
        targets: Sequence[Sequence[int]],
        *,
        batch_tokens: int,
        attention: Sequence[str],
    ) -> list[PairScore]:
        """The log probability of each target (with EOS) given its source."""
        return score(
            self.members,
            [sentence.sources for sentence in sentences],
            targets,
            batch_tokens=batch_tokens,
            attention=attention,
            device=self.device,
        )


def load_torch(
    paths: Sequence[Path], *, device: str, precision: Precision, int8: bool, threads: int | None
) -> tuple[TorchModels, DecodeConfig, int]:
    """The models of model or run directories, their search options, and the longest source."""
    if threads is not None:
        torch.set_num_threads(threads)
    chosen = find_device(device)
    if int8 and chosen.type != "cpu":
        raise UserError(f"8-bit weights are for the CPU, got device {chosen}")
    if int8 and precision == "bfloat16":
        raise UserError("8-bit weights have no precision of their own, got bfloat16")
    loaded = [load_model(find_model(path)) for path in paths]
    members = [
        Member.of(place(one.model, chosen, precision).eval(), one.codec, int8=int8)
        for one in loaded
    ]
    check_same_target(members, [str(path) for path in paths])
    longest = min(one.config.data.max_length for one in loaded)
    return TorchModels(members, chosen), loaded[0].config.decode, longest


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
