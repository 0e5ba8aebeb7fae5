"""Word alignments from cross-attention, for all layers and heads at once.

Each target word is linked to the source word that it attends to most (see `decoding.alignment`).
"Normal" weights are those of the step that predicts a subword (row i for subword i). "Shifted"
weights are those of the next step, which reads it (row i + 1; for the last subword the step that
predicts EOS). The end token of the source is not a word: its weights are left out, and a target
word that attends to nothing else has no link.

Shapes: L layers, H heads, T target and S source positions (both with EOS), W target words, V source
words.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from nmt.analysis.pairs import PairAttention, SegmentedPair
from nmt.decoding.alignment import AlignmentHead, Links, Sources, Weights, merge_subwords, strongest
from nmt.model.observe import Site

STEPS = ("normal", "shifted")


@dataclass(frozen=True)
class HeadGrid:
    """The heads to choose from, as a grid [L, H + 1, 2] of layer, head and step.

    Entry H of the second axis is the layer attention, the mean of the heads.
    """

    layers: int
    heads: int

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of arrays with one entry per choice."""
        return self.layers, self.heads + 1, len(STEPS)

    def place(self, choice: AlignmentHead) -> tuple[int, int, int]:
        """The indices of a choice; without a layer it means the middle one."""
        layer = (self.layers - 1) // 2 if choice.layer is None else choice.layer
        head = self.heads if choice.head is None else choice.head
        return layer, head, int(choice.shifted)

    def choice(self, place: tuple[int, ...]) -> AlignmentHead:
        """The choice at these indices."""
        layer, head, step = (int(number) for number in place)
        return AlignmentHead(layer, None if head == self.heads else head, bool(step))

    def choices(self) -> Iterator[AlignmentHead]:
        """All choices, beginning with the default: shifted layer attention of the middle layer.

        The first of several equally good choices is taken.
        """
        usual = self.place(AlignmentHead())
        yield self.choice(usual)
        for place in np.ndindex(self.shape):
            if place != usual:
                yield self.choice(place)


def describe_head(choice: AlignmentHead) -> str:
    """A description of a choice for messages."""
    head = "mean of the heads" if choice.head is None else f"head {choice.head}"
    return f"layer {choice.layer}, {head}, {STEPS[choice.shifted]}"


def word_attention(attention: PairAttention) -> Weights:
    """The word weights [L, H + 1, 2, W, V] of a pair, for each place of its `HeadGrid`."""
    cross = attention.cross().astype(np.float64)
    cross = np.concatenate([cross, cross.mean(axis=1, keepdims=True)], axis=1)
    steps = np.stack([cross[:, :, :-1], cross[:, :, 1:]], axis=2)
    return merge_pair(attention.pair, steps)


def merge_pair(pair: SegmentedPair, steps: Weights) -> Weights:
    """The word weights [..., W, V] of a pair, from the weights [..., T - 1, S] of its subwords."""
    return merge_subwords(
        steps[..., :-1],  # without EOS
        source_words=pair.source.word_of_piece,
        target_words=pair.target.word_of_piece,
        num_source_words=len(pair.source.words),
        num_target_words=len(pair.target.words),
    )


def all_links(attention: PairAttention) -> Sources:
    """The source word [L, H + 1, 2, W] of each target word, for each place of the `HeadGrid`."""
    return strongest(word_attention(attention))


def chosen_links(attention: PairAttention, choice: AlignmentHead) -> Sources:
    """The source word [W] of each target word by one head; `choice` names a layer."""
    assert choice.layer is not None
    layer = attention.weights[Site("cross", choice.layer)].astype(np.float64)
    weights = layer.mean(axis=0) if choice.head is None else layer[choice.head]
    return strongest(merge_pair(attention.pair, weights[1:] if choice.shifted else weights[:-1]))


def format_links(links: Links) -> str:
    """Links in the Pharaoh format, `0-0 1-2`."""
    return " ".join(f"{source}-{target}" for source, target in links)
