"""Makes the models that all toolkits translate with: random weights, one set for everyone.

The embeddings of the start, of padding and of unknown words are zeros: Marian starts with zeros,
and a word that some toolkits may not choose is then one that none chooses.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from make_task import shaped
from task import (
    BOS,
    EOS,
    EPSILON,
    FIRST_PIECE,
    PAD,
    PIECES,
    SENTENCES,
    SHAPES,
    UNK,
    VOCABULARY,
    Shape,
    decoding_directory,
)

from nmt.checkpoint.model_directory import load_model, model_files
from nmt.config.config import (
    AttentionTypesConfig,
    Config,
    DataConfig,
    ModelConfig,
    ParallelFiles,
    SublayerAttentionConfig,
    SubwordConfig,
    TrainingCorpus,
)
from nmt.data.codec import Codec
from nmt.exchange.ctranslate2 import export_ctranslate2
from nmt.exchange.marian import LINEAR_PARTS, NORM_PARTS, SETTINGS
from nmt.model.transformer import Transformer
from nmt.storage.directories import replace_directory

WORD = "{:06d}"  # a piece as text: so the order of pieces is that of their numbers
KINDS = ("softmax", "rela-g")
# Of the gain of the last norm: clear choices, so that toolkits differ where they compute otherwise,
# not where they round otherwise.
CONTRAST = 4.0
NEVER = -1e9
SEED = 1


def write_decoding(task: Path, size: str) -> None:
    """Write the models of one size and the sentences for them."""
    directory = decoding_directory(task, size)
    codec = number_codec()
    generator = np.random.default_rng(SEED)
    sentences = generator.integers(FIRST_PIECE, VOCABULARY, (SENTENCES, PIECES + 1))
    sentences[:, -1] = EOS
    for kind in KINDS:
        config = model_config(SHAPES[size], kind)
        weights = random_model(config).state_dict()
        path = directory / f"model-{kind}"
        replace_directory(path, model_files(config, codec, weights))
        if kind != "softmax":
            continue
        for quantization in ("float32", "int8"):
            output = directory / f"ctranslate2-{quantization}"
            shutil.rmtree(output, ignore_errors=True)
            export_ctranslate2(load_model(path), output, quantization=quantization)
        arrays = {name: value.numpy() for name, value in weights.items()}
        write_marian(directory / "marian", arrays, config.model)
        named = {f"weight/{name}": value for name, value in arrays.items()}
    np.savez(directory / "decode.npz", sentences=sentences, **named)


def model_config(shape: Shape, kind: str) -> Config:
    """A configuration whose files are nowhere: nothing is trained."""
    sublayer = SublayerAttentionConfig(kind)
    names = ("train.en", "train.de", "validation.en", "validation.de")
    files = [(Path("nowhere") / name,) for name in names]
    model = ModelConfig(
        norm="post",
        norm_epsilon=EPSILON,
        tie_embeddings="all",
        attention=AttentionTypesConfig(sublayer, sublayer, sublayer),
    )
    return Config(
        run_dir=Path("nowhere") / "run",
        data=DataConfig(
            source_language="en",
            target_language="de",
            train=(TrainingCorpus(*files[:2]),),
            validation=(ParallelFiles(*files[2:]),),
            subword=SubwordConfig(kind="none", vocabulary_size=1_000_000),
        ),
        model=shaped(model, shape),
    )


def number_codec() -> Codec:
    """A codec whose words are token ids: text costs no time."""
    text = " ".join(WORD.format(number) for number in range(FIRST_PIECE, VOCABULARY))
    data = model_config(SHAPES["small"], "softmax").data
    codec = Codec.learn(data, [(text, text)], shared_vocabulary=True)
    assert codec.source.encode(WORD.format(VOCABULARY - 1))[0] == VOCABULARY - 1
    return codec


def random_model(config: Config) -> Transformer:
    """A model whose choices are clear."""
    torch.manual_seed(SEED)
    model = Transformer(
        config.model, source_vocabulary_size=VOCABULARY, target_vocabulary_size=VOCABULARY
    )
    with torch.no_grad():
        model.target_embedding[[PAD, BOS, UNK]] = 0.0
        model.decoder[-1].feed_forward_residual.norm.weight.mul_(CONTRAST)
    return model


def write_marian(directory: Path, weights: Mapping[str, Any], config: ModelConfig) -> None:
    """The same weights for Marian, whose vocabulary begins with the end and unknown words.

    Marian has no minimum length, so the bias of its output layer forbids the end.
    """
    directory.mkdir(parents=True, exist_ok=True)
    words = {"</s>": 0, "<unk>": 1}
    words |= {WORD.format(number): number - EOS for number in range(FIRST_PIECE, VOCABULARY)}
    lines = "".join(f'"{word}": {number}\n' for word, number in words.items())
    (directory / "vocabulary.yml").write_text(lines, encoding="ascii")
    bias = np.zeros((1, len(words)), dtype=np.float32)
    bias[0, 0] = NEVER
    arrays = {"Wemb": weights["target_embedding"][EOS:], "decoder_ff_logit_out_b": bias}
    for name, value in weights.items():
        if name != "target_embedding":
            arrays |= marian_layer(name, value)
    settings = json.dumps(marian_settings(config, len(words))).encode() + b"\0"
    arrays[SETTINGS] = np.frombuffer(settings, dtype=np.int8)
    np.savez(directory / "model.npz", **arrays)


def marian_layer(name: str, value: Any) -> dict[str, Any]:
    """One of our tensors under the names that Marian has for its parts."""
    stack, layer, *rest = name.split(".")
    prefix, part, kind = f"{stack}_l{int(layer) + 1}", ".".join(rest[:-1]), rest[-1]
    if part in NORM_PARTS:
        ending = "scale" if kind == "weight" else "bias"
        return {f"{prefix}_{NORM_PARTS[part]}_ln_{ending}": value[None]}
    names = LINEAR_PARTS[part]
    letter, chunks = ("W" if kind == "weight" else "b"), np.split(value, len(names))
    chunks = [chunk.T if kind == "weight" else chunk[None] for chunk in chunks]
    return {
        f"{prefix}_{one.format(letter)}": np.ascontiguousarray(chunk)
        for one, chunk in zip(names, chunks, strict=True)
    }


def marian_settings(config: ModelConfig, vocabulary: int) -> dict[str, Any]:
    """The settings of a model as Marian reads them."""
    return {
        "type": "transformer",
        "dim-vocabs": [vocabulary, vocabulary],
        "dim-emb": config.dim,
        "enc-depth": config.encoder_layers,
        "dec-depth": config.decoder_layers,
        "transformer-heads": config.heads,
        "transformer-dim-ffn": config.feed_forward_dim,
        "transformer-ffn-activation": "relu",
        "transformer-preprocess": "",
        "transformer-postprocess": "dan",
        "transformer-postprocess-emb": "d",
        "transformer-postprocess-top": "",
        "tied-embeddings-all": True,
    }
