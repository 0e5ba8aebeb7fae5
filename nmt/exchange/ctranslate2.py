"""Models in the format of CTranslate2, which translates without torch.

All that CTranslate2 would otherwise choose itself is written out: the position encodings, the scale
of the embeddings, the epsilon of the layer norms, the control symbols and the one that begins an
output.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from nmt.checkpoint.model_directory import LoadedModel, codec_files
from nmt.data.vocabulary import CONTROL, Vocabulary
from nmt.errors import require_package
from nmt.exchange.exporting import check_attention, position_count
from nmt.model.attention import CrossAttention, SelfAttention
from nmt.model.embeddings import sinusoids
from nmt.model.layers import DecoderLayer, EncoderLayer, FeedForward, Residual
from nmt.model.transformer import Transformer
from nmt.storage.directories import new_directory

if TYPE_CHECKING:
    from ctranslate2.specs import TransformerSpec

Quantization = Literal["float32", "int8"]

README = "README.md"
LEAST_POSITIONS = 1024  # the default length limit of CTranslate2
CTRANSLATE2_ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "swish": "SWISH"}


def export_ctranslate2(loaded: LoadedModel, output: Path, *, quantization: Quantization) -> None:
    """Create the directory `output`, which must not exist (or be empty)."""
    require_package("ctranslate2", extra="ctranslate2", purpose="--format ctranslate2")
    check_attention(loaded.model.config, name=str(loaded.path), program="CTranslate2")
    controls = control_names(loaded.codec.source.vocabulary, loaded.codec.target.vocabulary)
    spec = make_spec(loaded, controls)
    spec.validate()
    spec.optimize(quantization=None if quantization == "float32" else quantization)
    with new_directory(output) as directory:
        spec.save(str(directory))
        for name, data in codec_files(loaded.codec).items():
            assert not (directory / name).exists(), name
            (directory / name).write_bytes(data)
        shared = (directory / "shared_vocabulary.json").exists()
        (directory / README).write_bytes(readme(loaded, controls, shared=shared).encode())


def control_names(*vocabularies: Vocabulary) -> tuple[str, ...]:
    """Strings for PAD, BOS, EOS and UNK that are not in any vocabulary.

    CTranslate2 knows control symbols by their strings, and text may contain a piece `<s>`.
    """
    names: list[str] = []
    for name in CONTROL:
        while any(name in vocabulary for vocabulary in vocabularies):
            name = f"<{name}>"
        names.append(name)
    return tuple(names)


def tokens(vocabulary: Vocabulary, controls: Sequence[str]) -> list[str]:
    """The strings of all token ids, in order."""
    return [*controls, *vocabulary.counts]


def make_spec(loaded: LoadedModel, controls: Sequence[str]) -> "TransformerSpec":
    """The weights, vocabularies and settings in the format of CTranslate2."""
    from ctranslate2.specs import TransformerSpec, common_spec

    config, model = loaded.config.model, loaded.model
    spec = TransformerSpec.from_config(
        (config.encoder_layers, config.decoder_layers),
        config.heads,
        pre_norm=config.norm == "pre",
        activation=common_spec.Activation[CTRANSLATE2_ACTIVATIONS[config.feed_forward_activation]],
    )
    spec.register_source_vocabulary(tokens(loaded.codec.source.vocabulary, controls))
    spec.register_target_vocabulary(tokens(loaded.codec.target.vocabulary, controls))
    _, begin, end, unknown = controls
    spec.config.bos_token = begin
    spec.config.eos_token = end
    spec.config.unk_token = unknown
    spec.config.decoder_start_token = begin
    spec.config.add_source_bos = False
    spec.config.add_source_eos = True
    spec.config.layer_norm_epsilon = config.norm_epsilon
    positions = position_table(loaded)
    spec.encoder.embeddings[0].weight = array(model.source_embedding)
    spec.decoder.embeddings.weight = array(model.target_embedding)
    spec.decoder.projection.weight = array(model.output_weight)
    if model.output_bias is not None:
        spec.decoder.projection.bias = array(model.output_bias)
    for side, embedded in ((spec.encoder, model.source_input), (spec.decoder, model.target_input)):
        side.scale_embeddings = np.float32(embedded.scale)
        side.position_encodings.encodings = positions
    set_layers(spec, model)
    return spec


def set_layers(spec: Any, model: Transformer) -> None:
    """Set the weights of all layers, and of the final norms of pre-norm models."""
    for target, layer in zip(spec.encoder.layer, model.encoder, strict=True):
        assert isinstance(layer, EncoderLayer)
        set_attention(target.self_attention, layer.self_attention, layer.self_attention_residual)
        set_feed_forward(target.ffn, layer.feed_forward, layer.feed_forward_residual)
    for target, layer in zip(spec.decoder.layer, model.decoder, strict=True):
        assert isinstance(layer, DecoderLayer)
        set_attention(target.self_attention, layer.self_attention, layer.self_attention_residual)
        set_attention(target.attention, layer.cross_attention, layer.cross_attention_residual)
        set_feed_forward(target.ffn, layer.feed_forward, layer.feed_forward_residual)
    for side, norm in ((spec.encoder, model.encoder_norm), (spec.decoder, model.decoder_norm)):
        if isinstance(norm, nn.LayerNorm):
            set_norm(side.layer_norm, norm)


def set_attention(
    target: Any, attention: SelfAttention | CrossAttention, residual: Residual
) -> None:
    """Set the projections, which CTranslate2 packs as we do: self QKV; cross Q, then KV."""
    if isinstance(attention, SelfAttention):
        projections = [attention.query_key_value, attention.output]
    else:
        projections = [attention.query, attention.key_value, attention.output]
    for linear, projection in zip(target.linear, projections, strict=True):
        set_linear(linear, projection)
    target.queries_scale = np.float32(attention.core.scale)
    set_norm(target.layer_norm, residual.norm)


def set_feed_forward(target: Any, feed_forward: FeedForward, residual: Residual) -> None:
    """Set two linear layers."""
    set_linear(target.linear_0, feed_forward.input)
    set_linear(target.linear_1, feed_forward.output)
    set_norm(target.layer_norm, residual.norm)


def set_linear(target: Any, linear: nn.Linear) -> None:
    """Set the weight [out, in] and bias [out]."""
    target.weight = array(linear.weight)
    target.bias = array(linear.bias)


def set_norm(target: Any, norm: nn.LayerNorm) -> None:
    """Set the gain and bias."""
    target.gamma = array(norm.weight)
    target.beta = array(norm.bias)


def array(tensor: Tensor) -> npt.NDArray[np.float32]:
    """A copy of a weight, because CTranslate2 quantizes in place."""
    return tensor.detach().float().numpy().copy()


def position_table(loaded: LoadedModel) -> npt.NDArray[np.float32]:
    """Position encodings [positions, D] for sources of the training length and their outputs."""
    count = max(position_count(loaded.config), LEAST_POSITIONS + 1)  # with the end or start token
    return array(sinusoids(torch.arange(count), loaded.config.model))


# What makes the score of CTranslate2, log p / n^P, that of nmt; n counts the end token, too.
RENORMALIZED = {"gnmt": "score * (6 * n / (5 + n)) ** {}", "length": "score"}


def readme(loaded: LoadedModel, controls: Sequence[str], *, shared: bool) -> str:
    """The README.md of an exported model, which says how to translate with it."""
    decode, max_length = loaded.config.decode, loaded.config.data.max_length
    score = RENORMALIZED[decode.normalization].format(decode.length_penalty)
    source, target = ("shared", "shared") if shared else ("source", "target")
    names: Mapping[str, str] = {
        "source": f"{source}_vocabulary.json",
        "target": f"{target}_vocabulary.json",
    }
    padding, begin, _, unknown = map(repr, controls)
    return f"""# A translation model for CTranslate2

`model.bin`, `config.json` and the `.json` vocabularies are the model; `codec.json` and the files
beside it turn text into subwords and back (package `nmt`). To translate lines of text:

```python
import json
from pathlib import Path

import ctranslate2
from nmt.data.codec import Codec

directory = Path("the directory of this file")
codec = Codec.load(directory)
source_tokens = json.loads((directory / "{names["source"]}").read_text(encoding="utf-8"))
target_tokens = json.loads((directory / "{names["target"]}").read_text(encoding="utf-8"))
target_ids = {{token: number for number, token in enumerate(target_tokens)}}
translator = ctranslate2.Translator(str(directory), device="cpu", intra_threads=1)


def translate(lines):
    ids = [codec.source.encode(line)[:-1][:{max_length}] for line in lines]
    longest = max(map(len, ids))
    results = translator.translate_batch(
        [[source_tokens[i] for i in source] for source in ids],
        beam_size={decode.beam},
        num_hypotheses={decode.beam},
        patience={1 if decode.early_stop in ("narrow", "full") else 2},
        length_penalty={decode.length_penalty},
        min_decoding_length=0,
        max_decoding_length={decode.max_length_extra} + int({decode.max_length_ratio} * longest),
        max_input_length=0,
        return_scores=True,
        return_end_token=True,
        suppress_sequences=[[{padding}], [{begin}], [{unknown}]],
    )
    texts = [codec.target.decode([target_ids[token] for token in best(found)]) for found in results]
    return [text if line.strip() else "" for line, text in zip(lines, texts)]


def best(found):  # by the length penalty of the model
    lengths = map(len, found.hypotheses)
    scores = [{score} for score, n in zip(found.scores, lengths)]
    return found.hypotheses[scores.index(max(scores))]
```

Beam, length penalty and limits are those of the model. CTranslate2 ends a search when it has
finished `patience` times as many hypotheses as the beam is wide, `nmt-translate` when no better one
can be expected, so now and then a translation differs.
"""
