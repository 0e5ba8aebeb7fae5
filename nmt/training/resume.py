"""May this run go on from that checkpoint? What differs is named, and nothing is touched."""

from dataclasses import replace

from nmt.config.config import Config
from nmt.config.differences import differences
from nmt.data.encoding_choice import with_choices_of
from nmt.errors import ConfigError

# Keys that may change between two parts of a run: they change no update. The text files may move:
# what counts is the prepared data, and its fingerprint is compared.
CHANGEABLE = (
    "run_dir",
    "kinds",
    "data.train",
    "data.validation",
    "data.on_bad_line",
    "data.max_line_bytes",
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
    rows = differences(before, after, ignored=CHANGEABLE)
    if rows:
        listed = "\n  ".join(rows)
        raise ConfigError(
            f"{directory} holds a run with other settings; go on with its own, or choose another "
            f"run_dir:\n  {listed}"
        )


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
