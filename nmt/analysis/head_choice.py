"""Which head aligns best: by gold alignments, or without any by what its links tell about words.

Arrays have an entry for each place of a `HeadGrid`, [L, H + 1, 2]; W target words.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from nmt.analysis.alignment import NO_LINK, STEPS, HeadGrid, Words
from nmt.analysis.gold import AlignmentCounts, GoldLinks
from nmt.analysis.pairs import SegmentedPair
from nmt.decoding.alignment import AlignmentHead

Rates = npt.NDArray[np.float64]

SMOOTHING = 1.0  # links of a word by chance, added to those seen


class GridCounts:
    """How far the links of every head are from the gold, while sentences stream by."""

    def __init__(self, grid: HeadGrid) -> None:
        self.grid = grid
        self.pairs = 0
        self.sure = 0
        self.links, self.in_sure, self.in_possible = (
            np.zeros(grid.shape, dtype=np.int64) for _ in range(3)
        )

    def add(self, words: Words, gold: GoldLinks) -> None:
        """The links of one pair, words [L, H + 1, 2, W] (see `alignment.all_links`)."""
        self.pairs += 1
        self.sure += len(gold.sure)
        self.links += (words != NO_LINK).sum(axis=-1)
        for source, target in gold.possible:
            self.in_possible += words[..., target] == source
        for source, target in gold.sure:
            self.in_sure += words[..., target] == source

    def counts(self, choice: AlignmentHead) -> AlignmentCounts:
        """The counts of one head."""
        place = self.grid.place(choice)
        links, in_sure, in_possible = (
            int(numbers[place]) for numbers in (self.links, self.in_sure, self.in_possible)
        )
        return AlignmentCounts(links, in_sure, in_possible, self.sure)

    def error_rates(self) -> Rates:
        """[L, H + 1, 2] AER."""
        total = self.links + self.sure
        agreed = self.in_sure + self.in_possible
        return np.where(total > 0, 1.0 - agreed / np.maximum(total, 1), 0.0)


def best_choice(grid: HeadGrid, cost: Rates, *, shifted: bool | None = None) -> AlignmentHead:
    """The head of least cost [L, H + 1, 2]; only shifted or only normal ones, if that is given."""
    choices = [choice for choice in grid.choices() if shifted is None or choice.shifted == shifted]
    return min(choices, key=lambda choice: cost[grid.place(choice)])


def error_rate_table(choosing: GridCounts, reported: GridCounts) -> dict[str, Any]:
    """AER by step and layer: layer attention, every head, and the head that is best by `choosing`.

    AoL and AoH are the means over the layers of the layer attention and of the best head (Table 5).
    With the same counts twice, as in the paper, the best heads are chosen on what they are scored
    on, which flatters them.
    """
    choosing_rates, rates = choosing.error_rates(), reported.error_rates()
    num_heads = reported.grid.heads
    table: dict[str, Any] = {}
    for step, name in enumerate(STEPS):
        best = choosing_rates[:, :num_heads, step].argmin(axis=1)
        layers = [
            {
                "layer": layer,
                "layer_attention": float(rates[layer, num_heads, step]),
                "best_head": int(head),
                "best_head_aer": float(rates[layer, head, step]),
                "heads": rates[layer, :num_heads, step].tolist(),
            }
            for layer, head in enumerate(best)
        ]
        table[name] = {
            "AoL": float(np.mean([row["layer_attention"] for row in layers])),
            "AoH": float(np.mean([row["best_head_aer"] for row in layers])),
            "layers": layers,
        }
    return table


@dataclass
class LinkInformation:
    """What the links of each head tell: how well a target word predicts the word it is linked to.

    A head that aligns links a word to its translations again and again; one that looks at a fixed
    place, at its neighbours or always at the full stop does not, or would do so for any word. So
    the score is the mean of log P(source word | target word) / P(source word) over the target
    words, with probabilities estimated from the links of all other sentences; a word without link
    counts as 0. It needs no gold and no second model, but text enough to see words again.
    """

    grid: HeadGrid
    sources: list[Words] = field(default_factory=list)  # [places, W] numbers of linked words
    targets: list[Words] = field(default_factory=list)  # [W]
    _numbers: dict[tuple[str, str], int] = field(default_factory=dict)

    def add(self, pair: SegmentedPair, words: Words) -> None:
        """The links of one pair, words [L, H + 1, 2, W]."""
        places = words.reshape(int(np.prod(self.grid.shape)), words.shape[-1])
        source = np.array(
            [*(self._number("source", word) for word in pair.source.words), NO_LINK],
            dtype=np.int64,
        )
        self.sources.append(source[places])  # NO_LINK is the last entry, too
        self.targets.append(
            np.array([self._number("target", word) for word in pair.target.words], dtype=np.int64)
        )

    def _number(self, side: str, word: str) -> int:
        return self._numbers.setdefault((side, word.casefold()), len(self._numbers))

    def scores(self) -> Rates:
        """[L, H + 1, 2] nats a target word; the more the better."""
        if not self.sources:
            return np.zeros(self.grid.shape)
        sources = np.concatenate(self.sources, axis=1)
        targets = np.concatenate(self.targets)
        lengths = [len(words) for words in self.targets]
        sentences = np.repeat(np.arange(len(lengths)), lengths)
        values = [
            link_information(row, targets, sentences, num_words=len(self._numbers))
            for row in sources
        ]
        return np.array(values).reshape(self.grid.shape)


def link_information(sources: Words, targets: Words, sentences: Words, *, num_words: int) -> float:
    """The score of one head for the words [N] of all sentences: see `LinkInformation`."""
    linked = sources != NO_LINK
    source, target, sentence = sources[linked], targets[linked], sentences[linked]
    if not len(source):
        return 0.0
    link = source * num_words + target
    together = elsewhere(link, sentence)
    of_target = elsewhere(target, sentence)
    of_source = elsewhere(source, sentence)
    in_others = len(source) - np.bincount(sentence)[sentence]
    by_chance = (of_source + 1.0) / (in_others + num_words)
    informed = (together + SMOOTHING * by_chance) / (of_target + SMOOTHING)
    return float(np.log(informed / by_chance).sum() / len(sources))


def elsewhere(values: Words, sentences: Words) -> Words:
    """[N] how often each value occurs in sentences other than its own."""
    _, kinds, counts = np.unique(values, return_inverse=True, return_counts=True)
    own = kinds * (int(sentences.max()) + 1) + sentences
    _, own_kinds, own_counts = np.unique(own, return_inverse=True, return_counts=True)
    others: Words = counts[kinds] - own_counts[own_kinds]
    return others
