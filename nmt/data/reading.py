"""Reading the text of a config: its corpora by role, and their pairs with tags."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from nmt.config.config import DataConfig, ParallelFiles, TrainingCorpus
from nmt.data.text import SIDES, Pair, ReadStatistics, read_pairs
from nmt.progress import progress_bar

TRAIN, VALIDATION = "train", "validation"


def train_roles(data: DataConfig) -> dict[str, TrainingCorpus]:
    """The training corpora by their role: `train`, or `train.NAME` if there are several."""
    if len(data.train) == 1:
        return {TRAIN: data.train[0]}
    return {f"{TRAIN}.{corpus.name}": corpus for corpus in data.train}


def validation_roles(data: DataConfig) -> dict[str, ParallelFiles]:
    """The validation corpora by their role: the first is `validation`, others `validation.NAME`.

    Their files begin with the role.
    """
    first, *others = data.validation
    return {VALIDATION: first, **{f"{VALIDATION}.{corpus.name}": corpus for corpus in others}}


def input_roles(data: DataConfig) -> dict[str, tuple[Path, ...]]:
    """All input files by role and side."""
    corpora: dict[str, ParallelFiles] = {**train_roles(data), **validation_roles(data)}
    return {f"{role}.{side}": getattr(it, side) for role, it in corpora.items() for side in SIDES}


def read(data: DataConfig, files: ParallelFiles, statistics: ReadStatistics) -> Iterator[Pair]:
    """The pairs of a corpus without its tag, read as the config says."""
    return read_pairs(
        files.source,
        files.target,
        on_bad_line=data.on_bad_line,
        max_bytes=data.max_line_bytes,
        statistics=statistics,
    )


def read_tagged(
    data: DataConfig, corpus: ParallelFiles, statistics: ReadStatistics
) -> Iterator[Pair]:
    """The pairs of a corpus, with its tag before each source sentence."""
    pairs = read(data, corpus, statistics)
    if corpus.tag is None:
        return pairs
    return (Pair(f"{corpus.tag} {pair.source}", pair.target) for pair in pairs)


def count_pairs(data: DataConfig, corpora: Iterable[ParallelFiles], description: str) -> list[int]:
    """The number of usable pairs of each corpus, at least one."""
    counts = []
    with progress_bar(total=None, unit="pair", description=description) as bar:
        for corpus in corpora:
            count = 0
            for count, _ in enumerate(read(data, corpus, ReadStatistics()), start=1):
                if count % 10_000 == 0:
                    bar.update(10_000)
            counts.append(count)
    return counts


def evenly(pairs: Iterable[Pair], sample: int, total: int) -> Iterator[Pair]:
    """`sample` of `total` pairs, spread evenly: corpora are often several texts in a row."""
    for index, pair in enumerate(pairs):
        if index * sample // total != (index + 1) * sample // total:
            yield pair
