"""Null rates after words of a class, such as verbs or commas.

A query of the decoder reads the last subword that was produced. It comes "after" a word if that
subword is the last one of the word. Classes are lists of tokens, or tags of the words of the
target.

Shapes: B sentences, H heads, T target positions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nmt.analysis.key_classes import line_tokens
from nmt.analysis.measures import HeadCounts, count_heads
from nmt.analysis.pairs import PairBatch, SegmentedPair
from nmt.data.codec import SideCodec
from nmt.data.text import read_text
from nmt.errors import DataError, UserError
from nmt.model.observe import Observer, Site


@dataclass(frozen=True)
class WordClasses:
    """The classes of target words: token lists by name, and the tags of every line."""

    lists: Mapping[str, frozenset[str]]  # in lower case
    tags: Sequence[Sequence[str]] | None = None
    tags_path: Path | None = None

    def after(self, pair: SegmentedPair, codec: SideCodec) -> dict[str, list[int]]:
        """By class the decoder positions that follow a word of it."""
        found: dict[str, list[int]] = {}
        if self.lists:
            tokens = line_tokens(pair.target, codec)
            for number, end in last_pieces(tokens.of_piece).items():
                for name, members in self.lists.items():
                    if tokens.texts[number].casefold() in members:
                        found.setdefault(name, []).append(end + 1)
        if self.tags is not None:
            tags = self.line_tags(pair)
            for number, end in last_pieces(pair.target.word_of_piece).items():
                found.setdefault(tags[number], []).append(end + 1)
        return found

    def line_tags(self, pair: SegmentedPair) -> Sequence[str]:
        """The tags of one line, which has to have as many words."""
        assert self.tags is not None
        tags = self.tags[pair.index]
        if len(tags) != len(pair.target.words):
            raise DataError(
                f"{self.tags_path}:{pair.index + 1}: expected {len(pair.target.words)} tags, one "
                f"for each word of the target that spaces separate, got {len(tags)}"
            )
        return tags


def last_pieces(of_piece: Sequence[int]) -> dict[int, int]:
    """By word or token the position of its last subword."""
    return {number: place for place, number in enumerate(of_piece)}


def read_word_list(text: str) -> tuple[str, frozenset[str]]:
    """The name and the tokens, one per line, of `NAME=FILE`."""
    name, _, path = text.partition("=")
    if not name or not path:
        raise UserError(f"--word-list: expected NAME=FILE, got {text!r}")
    words = frozenset(line.strip().casefold() for line in read_text(Path(path)) if line.strip())
    if not words:
        raise DataError(f"{path}: expected a word per line, got an empty file")
    return name, words


def read_word_classes(
    lists: Sequence[str], tags: Path | None, *, count: int, max_pairs: int | None = None
) -> WordClasses | None:
    """The classes that a command line names, for `count` pairs; None without any.

    The pairs are the first `max_pairs` of the text if that is given, else all of it.
    """
    if not lists and tags is None:
        return None
    rows = None if tags is None else [line.split() for line in read_text(tags)][:max_pairs]
    if rows is not None and len(rows) != count:
        raise DataError(f"{tags}: expected a line for each of {count} pairs, got {len(rows)}")
    named = dict(read_word_list(text) for text in lists)
    if len(named) < len(lists):
        raise UserError("--word-list: a name is given twice; put all its words into one file")
    return WordClasses(named, rows, tags)


@dataclass
class NullAfterWords:
    """Null queries after words of each class, in the sublayers of the decoder that can be null."""

    classes: WordClasses
    codec: SideCodec
    sites: frozenset[Site]
    counts: dict[Site, dict[str, HeadCounts]] = field(default_factory=dict)

    def observer(self, batch: PairBatch) -> Observer:
        """An observer for one batch."""
        masks: dict[str, Tensor] = {}
        for row, pair in enumerate(batch.pairs):
            for name, places in self.classes.after(pair, self.codec).items():
                empty = torch.zeros(batch.target_visible.shape, dtype=torch.bool)
                masks.setdefault(name, empty)[row, places] = True
        queries = {name: mask.to(batch.target_visible.device) for name, mask in masks.items()}

        def observe(site: Site, weights: Tensor, visible: Tensor) -> None:
            if site not in self.sites or site.type == "encoder_self":
                return
            of_site = self.counts.setdefault(site, {})
            for name, mask in queries.items():
                new = count_heads(weights, visible, batch.target_visible & mask)
                of_site[name] = of_site[name] + new if name in of_site else new

        return observe

    def add_to(self, statistics: dict[str, Any]) -> None:
        """Write `null_after` by class into the summary of each layer."""
        for site, classes in self.counts.items():
            statistics[site.type][f"layer_{site.layer}"]["null_after"] = {
                name: {
                    "queries": int(counts.queries[0]),
                    "null_rate": float(counts.null_rate.mean()),
                    "heads": counts.null_rate.tolist(),
                }
                for name, counts in sorted(classes.items())
            }
