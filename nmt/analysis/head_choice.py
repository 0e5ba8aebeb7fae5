"""The choice of the head that aligns best: by gold alignments, or by how informative its links are.

Arrays have one entry per place of a `HeadGrid`, [L, H + 1, 2]. W is the number of target words.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from nmt.analysis.alignment import STEPS, HeadGrid
from nmt.analysis.gold import Gold, GoldLinks
from nmt.analysis.pairs import SegmentedPair
from nmt.decoding.alignment import NO_LINK, AlignmentHead, Sources

Rates = npt.NDArray[np.float64]

SMOOTHING = 1.0  # pseudo-count of links by chance


class GridCounts:
    """The counts behind the AER of every head, added up pair by pair."""

    def __init__(self, grid: HeadGrid) -> None:
        self.grid = grid
        self.pairs = 0
        self.sure = 0
        self.links, self.in_sure, self.in_possible = (
            np.zeros(grid.shape, dtype=np.int64) for _ in range(3)
        )

    def add(self, words: Sources, gold: GoldLinks) -> None:
        """Add the links of one pair, words [L, H + 1, 2, W] (see `alignment.all_links`)."""
        self.pairs += 1
        self.sure += len(gold.sure)
        self.links += (words != NO_LINK).sum(axis=-1)
        for source, target in gold.possible:
            self.in_possible += words[..., target] == source
        for source, target in gold.sure:
            self.in_sure += words[..., target] == source

    def error_rates(self) -> Rates:
        """AER [L, H + 1, 2]; 1 without any link, so that no head is chosen for having none."""
        total = self.links + self.sure
        agreed = self.in_sure + self.in_possible
        return 1.0 - agreed / np.maximum(total, 1)


class GoldComparison:
    """The links of every head against the gold links of all pairs.

    `choosing` counts the first `gold.development` pairs, on which heads are chosen, and `reported`
    the other pairs; without such a part both count all pairs. A `reverse` model translates from
    target to source.
    """

    def __init__(self, grid: HeadGrid, gold: Gold, *, reverse: bool = False) -> None:
        self.gold = gold
        self.reverse = reverse
        self.reported = GridCounts(grid)
        self.choosing = GridCounts(grid) if gold.development else self.reported

    def add(self, pair: SegmentedPair, words: Sources) -> None:
        """Add the links of one pair, words [L, H + 1, 2, W]."""
        links = self.gold.links[pair.index]
        sides = [len(pair.source.words), len(pair.target.words)]
        if self.reverse:
            links, sides = links.swapped(), sides[::-1]
        self.gold.check(pair.index, num_source=sides[0], num_target=sides[1])
        in_development = pair.index < self.gold.development
        (self.choosing if in_development else self.reported).add(words, links)

    def table(self) -> dict[str, Any]:
        """The AER by step and layer: of the layer attention, every head and the chosen head.

        AoL and AoH are the means over the layers of the layer attention and of the chosen head
        (Table 5). Without a development part heads are chosen on the pairs that they are scored
        on, as in the paper, which makes their error rates too low.
        """
        choosing_rates, rates = self.choosing.error_rates(), self.reported.error_rates()
        num_heads = self.reported.grid.heads
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


def best_choice(grid: HeadGrid, cost: Rates, *, shifted: bool | None = None) -> AlignmentHead:
    """The head of least cost [L, H + 1, 2], among the shifted or the normal ones if given."""
    choices = [choice for choice in grid.choices() if shifted is None or choice.shifted == shifted]
    return min(choices, key=lambda choice: cost[grid.place(choice)])


@dataclass
class LinkInformation:
    """How informative the links of each head are: how well a target word predicts its source word.

    A head that aligns words links a word to its translations again and again. A head that attends
    to a fixed position, to neighbours or always to the full stop does not, or does so for any word.
    The score is the mean of log P(source word | target word) / P(source word) over the target
    words, with probabilities estimated from the links of all other sentences; a word without a link
    counts as 0. It needs neither gold links nor a second model, but enough text to repeat words.
    """

    grid: HeadGrid
    sources: list[Sources] = field(default_factory=list)  # [places, W] ids of linked words
    targets: list[Sources] = field(default_factory=list)  # [W]
    _source_ids: dict[str, int] = field(default_factory=dict)
    _target_ids: dict[str, int] = field(default_factory=dict)

    def add(self, pair: SegmentedPair, words: Sources) -> None:
        """Add the links of one pair, words [L, H + 1, 2, W]."""
        places = words.reshape(int(np.prod(self.grid.shape)), words.shape[-1])
        source = np.append(word_ids(pair.source.words, self._source_ids), NO_LINK)
        self.sources.append(source[places])  # NO_LINK, -1, is the last entry
        self.targets.append(word_ids(pair.target.words, self._target_ids))

    def scores(self) -> Rates:
        """[L, H + 1, 2] nats per target word; higher is better."""
        total = sum(len(words) for words in self.targets)
        if total == 0:
            return np.zeros(self.grid.shape)
        values = [
            float(self._values(sources).sum() / total)
            for sources in np.concatenate(self.sources, axis=1)
        ]
        return np.array(values).reshape(self.grid.shape)

    def costs(self) -> Rates:
        """[L, H + 1, 2] for `best_choice`: the scores with the sign changed.

        A head that links fewer than half as many words as the one with the most links costs
        infinitely much: by its score alone, a head without links would win against chance.
        """
        linked = np.zeros(int(np.prod(self.grid.shape)), dtype=np.int64)
        for words in self.sources:
            linked += (words != NO_LINK).sum(axis=-1)
        few = (linked < linked.max() / 2).reshape(self.grid.shape)
        return np.where(few, np.inf, -self.scores())

    def by_sentence(self, place: tuple[int, int, int]) -> Rates:
        """[sentences] nats per target word of the links of one head, in the order of `add`."""
        row = int(np.ravel_multi_index(place, self.grid.shape))
        values = self._values(np.concatenate([sources[row] for sources in self.sources]))
        lengths = [len(words) for words in self.targets]
        sums = np.add.reduceat(np.append(values, 0.0), np.cumsum([0, *lengths[:-1]]))
        return np.where(np.array(lengths) > 0, sums / np.maximum(lengths, 1), 0.0)

    def _values(self, sources: Sources) -> Rates:
        """[N] nats of each target word, linked to the source words [N]."""
        sentences = np.repeat(np.arange(len(self.targets)), [len(words) for words in self.targets])
        targets = np.concatenate(self.targets)
        return link_information(
            sources, targets, sentences, vocabulary=(len(self._source_ids), len(self._target_ids))
        )


def word_ids(words: Sequence[str], ids: dict[str, int]) -> Sources:
    """The ids of words, small and capital letters alike; new words are added to `ids`."""
    return np.array([ids.setdefault(word.casefold(), len(ids)) for word in words], dtype=np.int64)


def link_information(
    sources: Sources, targets: Sources, sentences: Sources, *, vocabulary: tuple[int, int]
) -> Rates:
    """The score [N] (see `LinkInformation`) of each target word by one head, 0 without a link.

    `vocabulary` has the numbers of different source and target words.
    """
    num_sources, num_targets = vocabulary
    values = np.zeros(len(sources))
    linked = sources != NO_LINK
    source, target, sentence = sources[linked], targets[linked], sentences[linked]
    if not len(source):
        return values
    link = source * num_targets + target
    together = elsewhere(link, sentence)
    of_target = elsewhere(target, sentence)
    of_source = elsewhere(source, sentence)
    in_others = len(source) - np.bincount(sentence)[sentence]
    by_chance = (of_source + 1.0) / (in_others + num_sources)
    informed = (together + SMOOTHING * by_chance) / (of_target + SMOOTHING)
    values[linked] = np.log(informed / by_chance)
    return values


def elsewhere(values: Sources, sentences: Sources) -> Sources:
    """How often [N] each value occurs in sentences other than its own."""
    _, kinds, counts = np.unique(values, return_inverse=True, return_counts=True)
    own = kinds * (int(sentences.max()) + 1) + sentences
    _, own_kinds, own_counts = np.unique(own, return_inverse=True, return_counts=True)
    others: Sources = counts[kinds] - own_counts[own_kinds]
    return others
