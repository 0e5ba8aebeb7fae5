"""Softmax models as folders that MarianMTModel.from_pretrained of Hugging Face loads."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from nmt.checkpoint.model_directory import LoadedModel, codec_files
from nmt.checkpoint.selection import validation_score
from nmt.data.codec import LineCodec
from nmt.data.text import SIDES
from nmt.data.vocabulary import BOS, CONTROL, EOS, PAD, UNK, Vocabulary
from nmt.errors import UserError
from nmt.exchange.exporting import check_attention, position_count
from nmt.exchange.huggingface import (
    EARLY_STOPPING,
    MODEL_TYPE,
    NORM_EPSILON,
    POSITIONS,
    WEIGHTS,
    foreign_names,
)
from nmt.model.embeddings import sinusoids
from nmt.storage.arrays import safetensors_errors
from nmt.storage.directories import new_directory
from nmt.storage.records import METRICS_FILE, read_records

BAD_WORDS_IDS = [[PAD], [BOS], [UNK]]  # what search never puts out


def export_huggingface(loaded: LoadedModel, output: Path) -> None:
    """Create the directory `output`, which must not exist (or be empty)."""
    name, config = str(loaded.path), loaded.model.config
    check_attention(config, name=name, program="MarianMT")
    if config.norm != "post":
        raise UserError(f"{name}: model.norm: MarianMT normalises after a sublayer, got pre")
    if config.norm_epsilon > NORM_EPSILON:
        raise UserError(
            f"{name}: model.norm_epsilon: MarianMT has {NORM_EPSILON}, got {config.norm_epsilon:g}"
        )
    described = {**settings(loaded), **vocabularies(loaded)}
    files = codec_files(loaded.codec)
    if isinstance(loaded.codec.source, LineCodec):  # which MarianTokenizer can replace
        files |= {f"{side}.spm": files[f"{side}.model"] for side in SIDES}
    with new_directory(output) as directory:
        for file, value in described.items():
            text = json.dumps(value, indent=1, ensure_ascii=False) + "\n"
            (directory / file).write_text(text, encoding="utf-8")
        for file, data in files.items():
            (directory / file).write_bytes(data)
        with safetensors_errors():
            save_file(weights(loaded), directory / WEIGHTS, metadata={"format": "pt"})
        (directory / "README.md").write_text(model_card(loaded), encoding="utf-8")


def settings(loaded: LoadedModel) -> dict[str, Any]:
    """config.json and generation_config.json."""
    config, decode = loaded.model.config, loaded.config.decode
    symbols = {
        "pad_token_id": PAD,
        "bos_token_id": BOS,
        "decoder_start_token_id": BOS,
        "eos_token_id": EOS,
        "forced_eos_token_id": EOS,
    }
    model = {
        "architectures": ["MarianMTModel"],
        "model_type": MODEL_TYPE,
        "is_encoder_decoder": True,
        "vocab_size": len(loaded.codec.source.vocabulary),
        "decoder_vocab_size": len(loaded.codec.target.vocabulary),
        "d_model": config.dim,
        "encoder_layers": config.encoder_layers,
        "decoder_layers": config.decoder_layers,
        **{f"{side}_attention_heads": config.heads for side in ("encoder", "decoder")},
        **{f"{side}_ffn_dim": config.feed_forward_dim for side in ("encoder", "decoder")},
        "activation_function": config.feed_forward_activation,
        "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "activation_dropout": config.feed_forward_dropout,
        "scale_embedding": config.scale_embeddings,
        "share_encoder_decoder_embeddings": config.tie_embeddings == "all",
        "tie_word_embeddings": config.tie_embeddings != "none",
        "max_position_embeddings": position_count(loaded.config),
        **symbols,
    }
    generation = {
        **symbols,
        "num_beams": decode.beam,
        "length_penalty": decode.length_penalty,
        "early_stopping": EARLY_STOPPING.get(decode.early_stop, "never"),
        "max_length": position_count(loaded.config) + 1,  # it counts the start and the end
        "bad_words_ids": BAD_WORDS_IDS,
    }
    return {"config.json": model, "generation_config.json": generation}


def vocabularies(loaded: LoadedModel) -> dict[str, Any]:
    """The ids of pieces, as MarianTokenizer reads them."""
    codec = loaded.codec
    separate = codec.source.vocabulary != codec.target.vocabulary
    described: dict[str, Any] = {
        "vocab.json": ids(codec.source.vocabulary),
        "tokenizer_config.json": {
            "tokenizer_class": "MarianTokenizer",
            "source_lang": codec.source.spec.language,
            "target_lang": codec.target.spec.language,
            "separate_vocabs": separate,
            "additional_special_tokens": [CONTROL[BOS]],
            "model_max_length": loaded.config.data.max_length + 1,  # it counts the end
            **{f"{name}_token": CONTROL[row] for name, row in TOKEN_ROWS.items()},
        },
    }
    if separate:
        described["target_vocab.json"] = ids(codec.target.vocabulary)
    return described


TOKEN_ROWS = {"pad": PAD, "eos": EOS, "unk": UNK}


def ids(vocabulary: Vocabulary) -> dict[str, int]:
    """The id of each piece; a piece that looks like a symbol is not to be found in text."""
    return {
        **{piece: row for row, piece in enumerate(vocabulary.counts, start=len(CONTROL))},
        **{symbol: row for row, symbol in enumerate(CONTROL)},
    }


def weights(loaded: LoadedModel) -> dict[str, Tensor]:
    """The tensors by the names of MarianMT, those that are tied once."""
    model = loaded.model
    found: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        if name.startswith(("encoder.", "decoder.")):
            parts = foreign_names(name)
            for part, own in zip(parts, tensor.chunk(len(parts)), strict=True):
                found[part] = own.contiguous().clone()
    if model.config.tie_embeddings == "all":
        found["model.shared.weight"] = model.target_embedding.detach()
    else:
        found["model.encoder.embed_tokens.weight"] = model.source_embedding.detach()
        found["model.decoder.embed_tokens.weight"] = model.target_embedding.detach()
    if model.config.tie_embeddings == "none":
        found["lm_head.weight"] = model.output_weight.detach()
    bias = model.output_bias
    size = len(model.output_weight)
    found["final_logits_bias"] = torch.zeros(1, size) if bias is None else bias.detach()[None]
    for name in POSITIONS:
        found[name] = sinusoids(torch.arange(position_count(loaded.config)), model.config)
    return found


def model_card(loaded: LoadedModel) -> str:
    """The README.md of the folder: what the model is, its score, and how to translate with it."""
    source, target = (getattr(loaded.codec, side).spec.language for side in SIDES)
    return f"""---
language: [{source}, {target}]
library_name: transformers
pipeline_tag: translation
---
# A translation model from {source} to {target}

Exported from `nmt` for `MarianMTModel` of transformers. {scores(loaded)}

```python
from pathlib import Path

import torch
from nmt.data.codec import Codec
from transformers import MarianMTModel

directory = Path("the directory of this file")
codec = Codec.load(directory)
model = MarianMTModel.from_pretrained(directory).eval()
source = torch.tensor([codec.source.encode("A line of text.")])
print(codec.target.decode(model.generate(source)[0].tolist()))
```

{TOKENIZER_NOTE if isinstance(loaded.codec.source, LineCodec) else CODEC_NOTE}

MarianMT adds 1e-5 to the variance in LayerNorm; this model was made with
{loaded.model.config.norm_epsilon:g}. Its positions are stored in `{WEIGHTS}`, but
`save_pretrained` of transformers leaves them out and computes its own.
"""


CODEC_NOTE = """\
`codec.json` and the files beside it turn text into token ids and back (package `nmt`); no
tokenizer of transformers does the same."""
TOKENIZER_NOTE = """\
`MarianTokenizer.from_pretrained` can take the place of the codec. It needs source.spm, target.spm
and vocab.json, which are here."""


def scores(loaded: LoadedModel) -> str:
    """The score on the validation set and its signature, as far as they are known."""
    score = validation_score(loaded.path)
    if score is None:
        return "No score of it is known."
    text = f"Validation set: {score.metric} {score.value:.2f}"
    records = read_records(loaded.path.parent / METRICS_FILE)
    signatures = [record["signature"] for record in records if "signature" in record]
    return f"{text} (signature {signatures[-1]})." if signatures else f"{text}."
