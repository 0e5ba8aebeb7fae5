"""Models in ONNX, of every attention kind: an encoder and a decoder step with a cache.

The files are run by onnxruntime before they are written, and compared with the model.
"""

import tempfile
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nmt.checkpoint.model_directory import LoadedModel, codec_files
from nmt.errors import UserError, require_package
from nmt.exchange.exporting import position_count
from nmt.exchange.onnx_graphs import DecoderGraph, EncoderGraph, traceable
from nmt.model.transformer import Transformer
from nmt.ops.backend import force_backend
from nmt.storage.directories import new_directory

OPSET = 17
ENCODER, DECODER = "encoder.onnx", "decoder.onnx"
ONNX_MAX_BYTES = 2_000_000_000  # of a file in ONNX that keeps its weights inside
LARGEST_DIFFERENCE = 1e-3  # of logits, relative to the largest; rounding gives about 1e-6

# The names of inputs and outputs, and which of their dimensions may have any size.
CROSS = {1: "batch", 3: "source_length"}
PAST = {1: "batch", 3: "past_length"}
ENCODER_INPUTS = {"source": {0: "batch", 1: "source_length"}}
ENCODER_INPUTS["source_visible"] = ENCODER_INPUTS["source"]
ENCODER_OUTPUTS = {"cross_keys": CROSS, "cross_values": CROSS}
DECODER_INPUTS = {
    "tokens": {0: "batch"},
    "past_keys": PAST,
    "past_values": PAST,
    "cross_keys": CROSS,
    "cross_values": CROSS,
    "source_visible": {0: "batch", 1: "source_length"},
}
NEXT = {1: "batch", 3: "next_length"}
DECODER_OUTPUTS = {
    "logits": {0: "batch"},
    "next_keys": NEXT,
    "next_values": NEXT,
    "cross_attention": {1: "batch", 3: "source_length"},
}


def export_onnx(loaded: LoadedModel, output: Path) -> None:
    """Create the directory `output`, which must not exist (or be empty)."""
    for package in ("onnx", "onnxruntime"):
        require_package(package, extra="onnx", purpose="--format onnx")
    positions = position_count(loaded.config)
    files = graphs(loaded.model, positions=positions)
    check(loaded.model, files, name=str(loaded.path))
    with new_directory(output) as directory:
        for name, data in {**files, **codec_files(loaded.codec)}.items():
            (directory / name).write_bytes(data)
        (directory / "README.md").write_text(readme(loaded, positions), encoding="utf-8")


def graphs(model: Transformer, *, positions: int) -> dict[str, bytes]:
    """The content of both files."""
    size = 4 * sum(weight.numel() for weight in model.parameters())
    if size > ONNX_MAX_BYTES:
        raise UserError(
            f"the weights take {size} bytes; a file in ONNX has at most {ONNX_MAX_BYTES}"
        )
    copied = traceable(model, positions=positions)
    source, visible = example(model, 2, 5)
    with force_backend("reference"), torch.no_grad():
        encoder = EncoderGraph(copied)
        cross = encoder(source, visible)
        inputs = decoder_inputs(model, cross, visible, past_length=3)
        return {
            ENCODER: trace(encoder, (source, visible), ENCODER_INPUTS, ENCODER_OUTPUTS),
            DECODER: trace(DecoderGraph(copied), inputs, DECODER_INPUTS, DECODER_OUTPUTS),
        }


def trace(
    module: nn.Module,
    inputs: tuple[Tensor, ...],
    named_inputs: Mapping[str, Mapping[int, str]],
    named_outputs: Mapping[str, Mapping[int, str]],
) -> bytes:
    """The graph of a module in ONNX."""
    with tempfile.TemporaryDirectory() as directory, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of shapes that are constants, and of another exporter
        path = Path(directory) / "graph.onnx"
        torch.onnx.export(
            module,
            inputs,
            path,
            dynamo=False,  # the other exporter needs a package more
            opset_version=OPSET,
            input_names=list(named_inputs),
            output_names=list(named_outputs),
            dynamic_axes={**named_inputs, **named_outputs},
        )
        return path.read_bytes()


def example(model: Transformer, batch: int, length: int) -> tuple[Tensor, Tensor]:
    """A source [B, S] and what is visible of it: one position less in each further sentence."""
    size = len(model.source_embedding)
    source = torch.arange(batch * length).view(batch, length).mul_(7).remainder_(size)
    visible = torch.arange(length) < length - torch.arange(batch)[:, None]
    return source, visible


def decoder_inputs(
    model: Transformer, cross: Sequence[Tensor], visible: Tensor, *, past_length: int
) -> tuple[Tensor, ...]:
    """The inputs of a decoder step after `past_length` positions."""
    layers, batch, heads, _, width = cross[0].shape
    generator = torch.Generator().manual_seed(1)
    shape = (2, layers, batch, heads, past_length, width)
    past = torch.randn(shape, generator=generator)
    tokens = torch.arange(batch) % len(model.target_embedding)
    return (tokens, past[0], past[1], *cross, visible)


def check(model: Transformer, files: Mapping[str, bytes], *, name: str) -> None:
    """Raise if onnxruntime does not compute what the model does, for other sizes than traced."""
    source, visible = example(model, 3, 11)
    encoder, decoder = session(files[ENCODER]), session(files[DECODER])
    tokens = torch.arange(3) + 1
    with torch.inference_mode():
        memory = model.encode(source, visible)
        target = tokens[:, None] + torch.arange(4) % (len(model.target_embedding) - 4)
        expected = model.logits(model.decode(target, memory, visible))
    cross = encoder.run(None, {"source": source.numpy(), "source_visible": visible.numpy()})
    past = [cross[0][:, :, :, :0], cross[1][:, :, :, :0]]
    for position in range(target.shape[1]):
        inputs = [target[:, position].numpy(), *past, *cross, visible.numpy()]
        logits, *past, _ = decoder.run(None, dict(zip(DECODER_INPUTS, inputs, strict=True)))
        difference = (torch.from_numpy(logits) - expected[:, position]).abs().max()
        if not difference <= LARGEST_DIFFERENCE * max(1.0, float(expected.abs().max())):
            raise UserError(
                f"{name}: onnxruntime does not compute what the model does (logits differ by "
                f"{float(difference):.2g}); an attention kind of it cannot be traced"
            )


def session(data: bytes) -> Any:
    """A graph ready to run on the CPU."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = torch.get_num_threads()
    return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])


def readme(loaded: LoadedModel, positions: int) -> str:
    """The README.md of an exported model, which says how to translate with it."""
    kinds, decode = loaded.config.model.attention, loaded.config.decode
    limits = (loaded.config.data.max_length, decode.max_length_ratio, decode.max_length_extra)
    program = EXAMPLE.replace(LIMITS.format(256, 2.0, 50), LIMITS.format(*limits))
    return f"""# A translation model in ONNX

`{ENCODER}` and `{DECODER}` are the model; `codec.json` and the files beside it turn text into
token ids and back (package `nmt`). Sentences have at most {positions} tokens on either side.
Attention: encoder {kinds.encoder_self}; decoder {kinds.decoder_self}; cross {kinds.cross}.
To translate lines of text by greedy search:

```python
{program}```

`{ENCODER}` takes `source` [batch, source_length] (int64, any padding) and `source_visible` (bool).
It gives the keys and values of all layers [layers, batch, heads, source_length, width].
`{DECODER}` takes the last tokens [batch], the past, and the keys and values of the source. It gives
`logits` [batch, vocabulary], the past with one position more, and the weights of cross-attention,
[layers, batch, heads, source_length].
"""


LIMITS = "max_length={}, ratio={}, extra={}"
EXAMPLE = """\
import numpy as np
import onnxruntime
from pathlib import Path

from nmt.data.codec import Codec
from nmt.data.vocabulary import BOS, EOS, PAD, UNK

directory = Path("the directory of this file")
codec = Codec.load(directory)
encoder = onnxruntime.InferenceSession(directory / "encoder.onnx")
decoder = onnxruntime.InferenceSession(directory / "decoder.onnx")


def translate(lines, max_length=256, ratio=2.0, extra=50):
    sources = [codec.source.encode(line)[:-1][:max_length] + [EOS] for line in lines]
    limits = [int(ratio * (len(ids) - 1)) + extra for ids in sources]
    source = np.full((len(sources), max(map(len, sources))), PAD)
    for row, ids in enumerate(sources):
        source[row, : len(ids)] = ids
    visible = np.arange(source.shape[1]) < np.array([[len(ids)] for ids in sources])
    keys, values = encoder.run(None, {"source": source, "source_visible": visible})
    inputs = {"cross_keys": keys, "cross_values": values, "source_visible": visible}
    past_keys, past_values = keys[:, :, :, :0], values[:, :, :, :0]
    tokens = np.full(len(sources), BOS)
    outputs = []
    for _ in range(max(limits)):
        past = {"past_keys": past_keys, "past_values": past_values}
        logits, past_keys, past_values, _ = decoder.run(None, {"tokens": tokens, **past, **inputs})
        logits[:, [PAD, BOS, UNK]] = -np.inf
        tokens = logits.argmax(axis=1)
        outputs.append(tokens)
        if all(EOS in row for row in zip(*outputs)):
            break
    texts = [codec.target.decode(row[:limit]) for row, limit in zip(zip(*outputs), limits)]
    return [text if line.strip() else "" for line, text in zip(lines, texts)]
"""
