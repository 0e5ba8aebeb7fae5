"""From cross-attention to word alignments, for every layer and head at once.

A word is linked to the source word to which it pays most attention: weights are summed over the
subwords of the source word and averaged over the subwords of the target word. "Normal" are the
weights of the step that predicts a subword (row i for subword i), "shifted" those of the next step,
which reads it (row i + 1; the step that predicts EOS serves the last subword). The end token of the
source is no word: its weights are left out, and a target word that attends to nothing else, or to
nothing at all, has no link. Of equal weights the first word's wins.

Shapes: L layers, H heads, T target and S source positions (both with EOS), W target words, V source
words.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from nmt.analysis.pairs import PairAttention, SegmentedPair
from nmt.analysis.symmetrization import Links
from nmt.decoding.alignment import AlignmentHead
from nmt.model.observe import Site

Weights = npt.NDArray[np.floating]
Words = npt.NDArray[np.int64]  # [..., W] the source word of each target word, or NO_LINK

NO_LINK = -1
STEPS = ("normal", "shifted")


@dataclass(frozen=True)
class HeadGrid:
    """The heads among which to choose; a grid [L, H + 1, 2] of layer, head and step.

    Place H of the second axis is the layer attention, the mean over the heads.
    """

    layers: int
    heads: int

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of arrays with an entry for each choice."""
        return self.layers, self.heads + 1, len(STEPS)

    def place(self, choice: AlignmentHead) -> tuple[int, int, int]:
        """Where a choice stands; without a layer it is the middle one."""
        layer = (self.layers - 1) // 2 if choice.layer is None else choice.layer
        head = self.heads if choice.head is None else choice.head
        return layer, head, int(choice.shifted)

    def choice(self, place: tuple[int, ...]) -> AlignmentHead:
        """What stands at a place."""
        layer, head, step = (int(number) for number in place)
        return AlignmentHead(layer, None if head == self.heads else head, bool(step))

    def choices(self) -> Iterator[AlignmentHead]:
        """All of them; first the usual one, shifted layer attention in the middle.

        So it is the one taken when several are equally good.
        """
        usual = self.place(AlignmentHead())
        yield self.choice(usual)
        for place in np.ndindex(self.shape):
            if place != usual:
                yield self.choice(place)


def describe(choice: AlignmentHead) -> str:
    """A choice in words."""
    head = "mean of the heads" if choice.head is None else f"head {choice.head}"
    return f"layer {choice.layer}, {head}, {STEPS[choice.shifted]}"


def merge_subwords(
    weights: Weights,
    *,
    source_words: Sequence[int],
    target_words: Sequence[int],
    num_source_words: int,
    num_target_words: int,
) -> Weights:
    """[..., W, V] in float64 for weights [..., T - 1, S - 1]; the word of each subword is given.

    A word without subwords has weights of 0.
    """
    columns = np.zeros((len(source_words), num_source_words))
    columns[np.arange(len(source_words)), source_words] = 1.0
    rows = np.zeros((num_target_words, len(target_words)))
    rows[target_words, np.arange(len(target_words))] = 1.0
    rows /= np.maximum(rows.sum(axis=1, keepdims=True), 1.0)
    merged: Weights = rows @ (weights.astype(np.float64) @ columns)
    return merged


def strongest(weights: Weights) -> Words:
    """[..., W] the source word of most weight for weights [..., W, V]; none where all are 0."""
    if weights.shape[-1] == 0:
        return np.full(weights.shape[:-1], NO_LINK, dtype=np.int64)
    null = ~(weights != 0).any(axis=-1)
    return np.where(null, NO_LINK, weights.argmax(axis=-1))


def word_attention(attention: PairAttention) -> Weights:
    """[L, H + 1, 2, W, V] word weights of a pair for each place of its `HeadGrid`."""
    cross = attention.cross().astype(np.float64)
    cross = np.concatenate([cross, cross.mean(axis=1, keepdims=True)], axis=1)
    steps = np.stack([cross[:, :, :-1], cross[:, :, 1:]], axis=2)
    return merge_pair(attention.pair, steps)


def merge_pair(pair: SegmentedPair, steps: Weights) -> Weights:
    """[..., W, V] for weights [..., T - 1, S] of the steps of a pair's subwords."""
    return merge_subwords(
        steps[..., :-1],  # EOS is no word
        source_words=pair.source.word_of_piece,
        target_words=pair.target.word_of_piece,
        num_source_words=len(pair.source.words),
        num_target_words=len(pair.target.words),
    )


def all_links(attention: PairAttention) -> Words:
    """[L, H + 1, 2, W] the source word of each target word, for each place of the `HeadGrid`."""
    return strongest(word_attention(attention))


def chosen_links(attention: PairAttention, choice: AlignmentHead) -> Words:
    """[W] the source word of each target word by one head; `choice` names a layer."""
    assert choice.layer is not None
    layer = attention.weights[Site("cross", choice.layer)].astype(np.float64)
    weights = layer.mean(axis=0) if choice.head is None else layer[choice.head]
    return strongest(merge_pair(attention.pair, weights[1:] if choice.shifted else weights[:-1]))


def links_of(words: Words, *, reverse: bool = False) -> Links:
    """Links (source, target) of words [W], sorted; `reverse`: the model reads the target side."""
    links = [(int(word), position) for position, word in enumerate(words) if word != NO_LINK]
    if reverse:
        links = [(position, word) for word, position in links]
    return tuple(sorted(links))


def format_links(links: Links) -> str:
    """Links in the Pharaoh form, `0-0 1-2`."""
    return " ".join(f"{source}-{target}" for source, target in links)
