"""Makes from text and trained models what all toolkits train on and translate (see task.py)."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from task import (
    BATCH_TOKENS,
    BEAM,
    DROPOUT,
    FIRST_PIECE,
    LABEL_SMOOTHING,
    LEARNING_RATE,
    SHAPES,
    WARMUP,
)

from nmt.checkpoint.model_directory import LoadedModel, load_model, model_files
from nmt.checkpoint.selection import find_model
from nmt.config.config import Config, SubwordConfig, TokenizerConfig
from nmt.config.loading import load_config
from nmt.data.batching import plan_epoch
from nmt.data.codec import Codec
from nmt.data.prepare import prepare
from nmt.data.text import read_text
from nmt.decoding.translator import Translator
from nmt.errors import DataError, UserError
from nmt.exchange.ctranslate2 import export_ctranslate2
from nmt.storage.directories import replace_directory

PLANNED_EPOCHS = 3
WORD = "{:06d}"  # a piece as text: so the order of pieces is that of their numbers
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


def training_config(directory: Path, size: str) -> Config:
    """The configuration with the shapes of one size."""
    shape = SHAPES[size]
    config = load_config(directory / "config.yaml", [])
    model = replace(
        config.model,
        dim=shape.dim,
        heads=shape.heads,
        encoder_layers=shape.layers,
        decoder_layers=shape.layers,
        feed_forward_dim=shape.feed_forward_dim,
    )
    return replace(config, model=model)


def write_training(directory: Path, data: Path) -> None:
    """Prepare the text, and write it as arrays with the batches of a few epochs."""
    write_config(directory, data)
    config = training_config(directory, "small")
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


def write_decoding(directory: Path, lines: Sequence[str], models: dict[str, Path]) -> None:
    """Write the models (`softmax`, and perhaps others) with the sentences as they encode them."""
    directory.mkdir(parents=True, exist_ok=True)
    loaded = {kind: load_model(find_model(path)) for kind, path in models.items()}
    first = loaded["softmax"]
    for kind, model in loaded.items():
        if model.codec.source.vocabulary != first.codec.source.vocabulary:
            raise UserError(f"{model.path}: expected the vocabulary of {first.path}, got another")
        numbered = with_numbers(model)
        files = model_files(numbered.config, numbered.codec, numbered.model.state_dict())
        replace_directory(directory / f"model-{kind}", files)
        if kind == "softmax":
            export_both(numbered, directory)
    sentences = sorted((first.codec.source.encode(line) for line in lines if line.strip()), key=len)
    lengths = output_lengths(directory / "model-softmax", sentences)
    ending = [index for index, source in enumerate(sentences) if ends(source, lengths[index])]
    if not ending:
        raise UserError(f"{first.path}: no translation of it ends; train it for longer")
    sentences = [sentences[index] for index in ending]
    arrays = {f"weight/{name}": value.numpy() for name, value in first.model.state_dict().items()}
    np.savez(
        directory / "decode.npz",
        tokens=np.concatenate([np.array(sentence) for sentence in sentences]),
        offsets=np.concatenate([[0], np.cumsum([len(sentence) for sentence in sentences])]),
        output_lengths=[lengths[index] for index in ending],
        **arrays,
    )
    (directory / "task.json").write_text(describe(first), encoding="utf-8")


def output_lengths(model: Path, sentences: Sequence[Sequence[int]]) -> list[int]:
    """How long our translations are, the end not counted."""
    lines = [" ".join(map(WORD.format, sentence[:-1])) for sentence in sentences]
    translator = Translator.load(model, device="cpu", threads=1)
    return [len(found.ids) for found in translator.translate(lines, beam=BEAM)]


def ends(source: Sequence[int], output: int) -> bool:
    """Whether an output ends by itself: one that does not would take most of its batch's time."""
    return output <= 1.5 * len(source) + 10


def with_numbers(loaded: LoadedModel) -> LoadedModel:
    """The model with a codec whose words are the numbers of pieces: text costs no time then."""
    data = replace(
        loaded.config.data,
        tokenizer=TokenizerConfig(),
        subword=SubwordConfig(kind="none", vocabulary_size=1_000_000),
    )
    size = len(loaded.codec.target.vocabulary)
    text = " ".join(WORD.format(number) for number in range(FIRST_PIECE, size))
    codec = Codec.learn(data, [(text, text)], shared_vocabulary=True)
    assert codec.source.encode(WORD.format(size - 1))[0] == size - 1
    return replace(loaded, config=replace(loaded.config, data=data), codec=codec)


def export_both(loaded: LoadedModel, directory: Path) -> None:
    """For CTranslate2, in float32 and 8 bits."""
    import shutil

    for quantization in ("float32", "int8"):
        output = directory / f"ctranslate2-{quantization}"
        shutil.rmtree(output, ignore_errors=True)
        export_ctranslate2(loaded, output, quantization=quantization)


def describe(loaded: LoadedModel) -> str:
    """The shapes of the softmax model."""
    config = loaded.model.config
    if config.tie_embeddings != "all" or config.encoder_layers != config.decoder_layers:
        raise UserError(f"{loaded.path}: expected tied embeddings and as many layers on each side")
    shape = {
        "dim": config.dim,
        "heads": config.heads,
        "layers": config.encoder_layers,
        "feed_forward_dim": config.feed_forward_dim,
    }
    vocabulary = len(loaded.codec.target.vocabulary)
    model = {"shape": shape, "norm": config.norm, "vocabulary": vocabulary}
    return json.dumps({"model": model}, indent=1)


def read_lines(path: Path) -> list[str]:
    """The lines of a text file."""
    return list(read_text(path))
