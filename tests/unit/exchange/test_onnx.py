"""ONNX graphs run by onnxruntime, against the model they were made of."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.attention_cases import CASES
from support.outside_kinds import SharpSoftmax
from support.small_models import write_model
from support.transformers import MODELS, make_model
from torch import Tensor
from translation_models import make_directory, random_lines, trained_model

from nmt.checkpoint.store import verify
from nmt.cli.export import main
from nmt.cli.import_ import main as run_import
from nmt.decoding.translator import Translator
from nmt.exchange.onnx import (
    DECODER,
    DECODER_INPUTS,
    ENCODER,
    EXAMPLE,
    check,
    graphs,
    session,
)
from nmt.exchange.onnx_graphs import TracedMapping
from nmt.model.observe import observe_attention
from nmt.model.transformer import Transformer

pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: nothing to ask")

# Every option of a mapping is tested by itself; these, whole models, take longer.
QUICK = ["softmax", "sparsemax", "rela-g", "topk 2", "mixed"]
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in MODELS if name not in QUICK]


def lively_model(name: str, norm: str) -> Transformer:
    """A model whose biases, gains, gates, alphas and thresholds are all away from their start."""
    model = make_model(MODELS[name], norm=norm)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 1:
                weight.add_(0.3 * torch.randn(weight.shape, generator=generator))
    return model


@pytest.mark.parametrize("name", CASES)
def test_traced_mappings_compute_what_the_mappings_do(name: str) -> None:
    """Every kind and option: the same weights, with hidden keys, for any number of keys."""
    case = CASES[name]
    mapping = case.row.mapping(case.values)
    generator = torch.Generator().manual_seed(1)
    parameters = [torch.tensor([0.3, 0.7]) for _ in case.row.parameters(case.values)]
    for keys, size in ((1, 1.0), (2, 1.0), (7, 3.0), (40, 0.1), (40, 100.0)):
        scores = size * torch.randn(3, 2, 4, keys, generator=generator)
        visible = torch.rand(3, 1, 1, keys, generator=generator) < 0.6
        visible[..., 0] = True
        for mask in (None, visible):
            expected = mapping.weights(scores, mask, *parameters)
            found = TracedMapping(mapping).weights(scores, mask, *parameters)
            torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)


def test_a_mapping_that_extends_ours_is_traced_by_its_own_definition() -> None:
    scores, mapping = torch.randn(1, 2, 3, 4), SharpSoftmax()
    found = TracedMapping(mapping).weights(scores, None)
    torch.testing.assert_close(found, mapping.weights(scores, None))


def run_steps(files: dict[str, bytes], source: Tensor, visible: Tensor, target: Tensor) -> Any:
    """Logits [B, T, V] and cross-attention [L, B, H, T, S] of onnxruntime, step by step."""
    encoder, decoder = session(files[ENCODER]), session(files[DECODER])
    cross = encoder.run(None, {"source": source.numpy(), "source_visible": visible.numpy()})
    past = [cross[0][:, :, :, :0], cross[1][:, :, :, :0]]
    logits, attention = [], []
    for position in range(target.shape[1]):
        inputs = [target[:, position].numpy(), *past, *cross, visible.numpy()]
        found, *past, weights = decoder.run(None, dict(zip(DECODER_INPUTS, inputs, strict=True)))
        logits.append(torch.from_numpy(found))
        attention.append(torch.from_numpy(weights))
    return torch.stack(logits, dim=1), torch.stack(attention, dim=3)


@pytest.mark.parametrize("name", [*QUICK, *SLOW])
def test_logits_and_attention_of_every_kind(name: str) -> None:
    """Two sentences of other sizes than those that were traced, one of them with padding."""
    model = lively_model(name, "pre" if len(name) % 2 else "post")
    files = graphs(model, positions=64)
    source = torch.randint(4, 29, (2, 13), generator=torch.Generator().manual_seed(1))
    visible = torch.arange(13) < torch.tensor([[13], [4]])
    target = torch.randint(1, 31, (2, 9), generator=torch.Generator().manual_seed(2))
    logits, attention = run_steps(files, source, visible, target)
    observed: list[Tensor] = []
    with (
        torch.inference_mode(),
        observe_attention(
            model,
            lambda site, weights, _: observed.append(weights) if site.type == "cross" else None,
        ),
    ):
        expected = model.logits(model(source, visible, target))
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(attention, torch.stack(observed), atol=1e-4, rtol=1e-3)
    assert (attention[:, 1, :, :, 4:] == 0).all()


def test_graphs_of_another_model_are_noticed() -> None:
    files = graphs(lively_model("softmax", "post"), positions=64)
    with pytest.raises(Exception, match="onnxruntime does not compute what the model does"):
        check(lively_model("rela-g", "post"), files, name="model")


def test_the_example_translates_like_nmt(tmp_path: Path) -> None:
    """The program in README.md gives the text of nmt-translate with a beam of 1."""
    config, codec, trained = trained_model()
    data = replace(config.data, max_length=6)
    decode = replace(config.decode, max_length_ratio=0.5, max_length_extra=1)
    lines = [*random_lines(12, longest=9), "", "  ", "\u3000", " ".join(["old"] * 120)]
    programs = []
    for name, own in (("all", config), ("short", replace(config, data=data, decode=decode))):
        model = make_directory(tmp_path / name, own, codec, trained)
        output = tmp_path / f"{name}-exported"
        assert main(["--model", str(model), "--format", "onnx", "--output", str(output)]) == 0
        verify(output)
        text = (output / "README.md").read_text(encoding="utf-8")
        programs.append(text.split("```python\n")[1].split("```")[0])
        names: dict[str, Any] = {}
        exec(programs[-1].replace("the directory of this file", str(output)), names)  # noqa: S102
        ours = Translator.load(model, device="cpu").translate(lines, beam=1)
        assert names["translate"](lines) == [found.text for found in ours]
    program = programs[0]
    assert program.count("\n") <= 42
    page = Path(__file__).parents[3] / "docs/import_export.md"
    assert program in page.read_text(encoding="utf-8")


def test_an_imported_model_in_onnx(tmp_path: Path) -> None:
    """From Hugging Face to ONNX: the same greedy translations as by transformers."""
    folder = Path(__file__).parent / "huggingface"
    arguments = ["--format", "huggingface", str(folder), "--output", str(tmp_path / "model")]
    assert run_import(arguments) == 0
    output = tmp_path / "exported"
    arguments = ["--model", str(tmp_path / "model"), "--format", "onnx", "--output", str(output)]
    assert main(arguments) == 0
    program = EXAMPLE.replace("the directory of this file", str(output))
    names: dict[str, Any] = {}
    exec(program, names)  # noqa: S102
    recorded = json.loads((folder / "recorded.json").read_text(encoding="utf-8"))
    assert names["translate"](recorded["lines"], ratio=0.0, extra=58) == recorded["greedy"]


def test_eight_bits_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = write_model(tmp_path / "model", seed=1)
    arguments = ["--model", str(model), "--format", "onnx", "--output", str(tmp_path / "x")]
    assert main([*arguments, "--quantization", "int8"]) == 2
    assert "expected float32 for onnx" in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["model"]
