"""May this run go on from that checkpoint? What differs is named, and nothing is touched."""

from dataclasses import replace

from nmt.config.config import Config, TrainingCorpus
from nmt.config.differences import differences
from nmt.data.encoding_choice import with_choices_of
from nmt.errors import ConfigError

# Keys that may change between two parts of a run: they change no update. The text files may move:
# what counts is the prepared data, and its fingerprint is compared. Of data.train, weights and
# windows must stay.
CHANGEABLE = (
    "run_dir",
    "kinds",
    "data.train",
    "data.validation",
    "data.prepared_dir",
    "data.workers",
    "train.max_updates",
    "train.compile",
    "train.device",
    "train.threads",
    "train.prefetch",
    "train.save_every",
    "train.keep_last",
    "train.average_last",
    "train.log_every",
    "train.distributed_timeout",
    "validate",
    "decode",
)


def check_resumable(before: Config, after: Config, *, directory: str) -> None:
    """Raise ConfigError when the run so far was another run."""
    ignored: tuple[str, ...] = CHANGEABLE
    if before.train.start_from is not None and after.train.start_from is not None:
        ignored += ("train.start_from",)  # where the start was: it is not read again
    rows = differences(before, after, ignored=ignored)
    mixed = [[describe_use(corpus) for corpus in config.data.train] for config in (before, after)]
    if mixed[0] != mixed[1]:
        rows.append(f"data.train: {'; '.join(mixed[0])} -> {'; '.join(mixed[1])}")
    if rows:
        listed = "\n  ".join(rows)
        raise ConfigError(
            f"{directory} holds a run with other settings; go on with its own, or choose another "
            f"run_dir:\n  {listed}"
        )


def describe_use(corpus: TrainingCorpus) -> str:
    """The weight and the window of a training corpus, which decide when its pairs are used."""
    weight = "by size" if corpus.weight is None else f"{corpus.weight:g}"
    until = "the end" if corpus.until_update is None else corpus.until_update
    return f"weight {weight}, updates {(corpus.from_update or 0) + 1} to {until}"


def with_saved_choices(config: Config, saved: Config) -> Config:
    """The config with what it leaves open as the run had it so far.

    So a run of an earlier version goes on with the defaults of that version, which its checkpoint
    names.
    """
    train = config.train
    return replace(
        config,
        data=with_choices_of(config.data, saved.data),
        train=replace(train, save_every=train.save_every or saved.train.save_every),
    )
