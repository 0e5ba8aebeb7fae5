"""Whether a run that was stopped and resumed ends with the bits of a run that was not."""

import random
from dataclasses import replace
from pathlib import Path

from nmt.checkpoint.store import CheckpointStore
from nmt.config.config import (
    AttentionTypesConfig,
    Config,
    DataConfig,
    ModelConfig,
    ParallelFiles,
    ScheduleConfig,
    SubwordConfig,
    TokenizerConfig,
    TrainConfig,
    TrainingCorpus,
    ValidateConfig,
)
from nmt.training.run import train
from nmt.training.signals import StopRequest

UPDATES, STOPPED_AFTER = 6, 3
TEXT_WORDS = ["ab", "cde", "fgh", "ij", "klm", "no", "pqr", "st", "uvw", "xyz"]


def differing_tensors(attention: AttentionTypesConfig, directory: Path) -> list[str]:
    """The files of the last checkpoint in which two runs differ, one of them resumed."""
    config = small_run(attention, directory)
    whole = replace(config, run_dir=directory / "whole")
    resumed = replace(config, run_dir=directory / "resumed")
    train_to(whole, UPDATES)
    for updates in (STOPPED_AFTER, UPDATES):
        train_to(resumed, updates)
    expected, found = (
        {path.name: path.read_bytes() for path in sorted(newest.glob("*.safetensors"))}
        for newest in (newest_checkpoint(whole), newest_checkpoint(resumed))
    )
    assert expected, "a checkpoint has tensors"
    return [name for name, content in expected.items() if found.get(name) != content]


def train_to(config: Config, updates: int) -> None:
    """Train up to an update."""
    config = replace(config, train=replace(config.train, max_updates=updates))
    with StopRequest() as stop:
        train(config, stop, inspect=lambda *_: {})


def newest_checkpoint(config: Config) -> Path:
    """The checkpoint of the last update."""
    newest = CheckpointStore(config.run_dir).newest()
    assert newest is not None, "a run that has ended has a checkpoint"
    return newest


def small_run(attention: AttentionTypesConfig, directory: Path) -> Config:
    """The config of a run of a second, with dropout and accumulation, on random sentences."""
    generator = random.Random(5)
    files = {}
    for name, count in (("train", 60), ("validation", 6)):
        lines = [generator.choices(TEXT_WORDS, k=generator.randint(1, 9)) for _ in range(count)]
        source, target = directory / f"{name}.source", directory / f"{name}.target"
        source.write_text("".join(" ".join(line) + "\n" for line in lines), "utf-8")
        target.write_text("".join(" ".join(reversed(line)) + "\n" for line in lines), "utf-8")
        files[name] = ((source,), (target,))
    return Config(
        run_dir=directory,
        data=DataConfig(
            source_language="xx",
            target_language="yy",
            train=(TrainingCorpus(*files["train"]),),
            validation=(ParallelFiles(*files["validation"]),),
            tokenizer=TokenizerConfig("none", "none"),
            subword=SubwordConfig("none"),
            prepared_dir=directory / "prepared",
            workers=1,
        ),
        model=ModelConfig(
            dim=16,
            heads=2,
            encoder_layers=1,
            decoder_layers=1,
            feed_forward_dim=32,
            attention=attention,
        ),
        train=TrainConfig(
            max_updates=UPDATES,
            batch_tokens=60,
            accumulate=2,
            learning_rate=1e-3,
            schedule=ScheduleConfig("inverse_sqrt", warmup=2),
            average_last=0,
            device="cpu",
            compile=False,
        ),
        validate=ValidateConfig(beam=0, metric="loss"),
    )
