"""Makes from text what all toolkits train on (see task.py)."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
from task import (
    BATCH_TOKENS,
    DROPOUT,
    LABEL_SMOOTHING,
    LEARNING_RATE,
    SHAPES,
    WARMUP,
    Shape,
)

from nmt.config.config import Config, ModelConfig
from nmt.config.loading import load_config
from nmt.data.batching import plan_epoch
from nmt.data.prepare import prepare
from nmt.errors import DataError

PLANNED_EPOCHS = 3
SUFFIXES = ("", ".gz", ".xz", ".bz2")
LANGUAGES = ("en", "de")


def find_text(directory: Path, name: str) -> Path:
    """A text file, compressed or not."""
    for suffix in SUFFIXES:
        path = directory / f"{name}{suffix}"
        if path.exists():
            return path.resolve()
    raise DataError(
        f"{directory / name}: not found; `bash recipes/multi30k_en_de/run.sh --stage prepare` "
        "makes data/multi30k_en_de, or give --data DIR"
    )


def write_config(directory: Path, data: Path) -> None:
    """The configuration with which we prepare the data and train."""
    train, validation = (
        {side: str(find_text(data, f"{name}.{language}")) for side, language in SIDES}
        for name in ("train", "val")
    )
    config = {
        "run_dir": "run",
        "data": {
            "source_language": LANGUAGES[0],
            "target_language": LANGUAGES[1],
            "train": train,
            "validation": validation,
            "tokenizer": "moses",
            "subword": {"kind": "bpe", "merges": 8000, "joint": True},
            "prepared_dir": "prepared",
        },
        "model": {
            "dropout": DROPOUT,
            "attention_dropout": DROPOUT,
            "norm": "post",
            "tie_embeddings": "all",
        },
        "train": {
            "batch_tokens": BATCH_TOKENS,
            "accumulate": 1,
            "learning_rate": LEARNING_RATE,
            "schedule": {"kind": "inverse_sqrt", "warmup": WARMUP},
            "label_smoothing": LABEL_SMOOTHING,
            "device": "cpu",
        },
    }
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.yaml").write_text(json.dumps(config, indent=1), encoding="utf-8")


SIDES = (("source", LANGUAGES[0]), ("target", LANGUAGES[1]))


def training_config(directory: Path, size: str, precision: str = "float32") -> Config:
    """The configuration with the shapes of one size."""
    config = load_config(directory / "config.yaml", [f"train.precision={precision}"])
    return replace(config, model=shaped(config.model, SHAPES[size]))


def shaped(model: ModelConfig, shape: Shape) -> ModelConfig:
    """The options of a model with the shapes of one size."""
    return replace(
        model,
        dim=shape.dim,
        heads=shape.heads,
        encoder_layers=shape.layers,
        decoder_layers=shape.layers,
        feed_forward_dim=shape.feed_forward_dim,
    )


def write_training(directory: Path, data: Path) -> None:
    """Prepare the text, and write it as arrays with the batches of a few epochs."""
    write_config(directory, data)
    config = training_config(directory, "middle")
    prepared = prepare(config)
    corpus = prepared.train
    arrays = {"vocabulary": np.array(len(prepared.codec.target.vocabulary))}
    for side, lengths in (("source", corpus.source_lengths), ("target", corpus.target_lengths)):
        ids, visible = corpus.padded(side, np.arange(len(corpus)), padding=0)
        arrays[f"{side}_tokens"] = ids[visible].astype(np.int32)
        arrays[f"{side}_offsets"] = np.concatenate([[0], np.cumsum(lengths)])
    batches = [
        batch
        for epoch in range(PLANNED_EPOCHS)
        for batch in plan_epoch(
            corpus.source_lengths,
            corpus.target_lengths,
            batch_tokens=BATCH_TOKENS,
            seed=config.seed,
            epoch=epoch,
        )
    ]
    arrays["plan_pairs"] = np.concatenate(batches)
    arrays["plan_bounds"] = np.concatenate([[0], np.cumsum([len(batch) for batch in batches])])
    np.savez(directory / "train.npz", **arrays)
