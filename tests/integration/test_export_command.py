"""nmt-export from the outside: CTranslate2 finds what our own search finds."""

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.small_models import content, leftover_names, write_model
from translation_models import (
    WORDS,
    make_codec,
    make_config,
    make_directory,
    random_lines,
    train_briefly,
    trained_model,
)

from nmt.checkpoint.model_directory import load_model, model_for
from nmt.checkpoint.store import verify
from nmt.cli.export import main
from nmt.config.config import Config, TokenizerConfig
from nmt.data.codec import Codec
from nmt.data.vocabulary import CONTROL
from nmt.decoding.translator import Translator
from nmt.exchange.ctranslate2 import export_ctranslate2
from nmt.model.transformer import Transformer

LINES = [*random_lines(20, longest=9), "the strange man", "zebra zebra", "old"]


def import_ctranslate2() -> Any:
    return pytest.importorskip("ctranslate2", reason="CTranslate2 is not installed: nothing to ask")


def config_of(norm: str, tie_embeddings: str) -> Config:
    config = make_config()
    model = replace(config.model, norm=norm, tie_embeddings=tie_embeddings, encoder_layers=3)
    return replace(config, model=model)


def codec_of(config: Config) -> Codec:
    if config.model.tie_embeddings != "all":
        return make_codec(config)
    words = " ".join(WORDS)
    return Codec.learn(config.data, [(words, words.upper())], shared_vocabulary=True)


def lively_model(config: Config, codec: Codec) -> Transformer:
    """Random weights, biases and gains so large that every one of them matters."""
    torch.manual_seed(3)
    model = model_for(config.model, codec)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(("embedding", "output_weight")):
                weight.copy_(0.4 * torch.randn(weight.shape))
            elif weight.dim() == 1:
                weight.add_(0.3 * torch.randn(weight.shape))
            else:
                weight.mul_(1.5)
    return model.eval()


def export(model: Path, output: Path, *options: str) -> None:
    arguments = ["--model", str(model), "--format", "ctranslate2", "--output", str(output)]
    assert main([*arguments, *options]) == 0


def source_pieces(codec: Codec, lines: Sequence[str]) -> list[list[str]]:
    vocabulary = codec.source.vocabulary
    return [[vocabulary.piece(number) for number in codec.source.encode(x)[:-1]] for x in lines]


def target_pieces(codec: Codec, lines: Sequence[str]) -> list[list[str]]:
    vocabulary = codec.target.vocabulary
    return [[vocabulary.piece(number) for number in codec.target.encode(x)[:-1]] for x in lines]


@pytest.mark.parametrize("tie_embeddings", ["none", "target", "all"])
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_probabilities_of_given_targets_agree(
    tmp_path: Path, norm: str, tie_embeddings: str
) -> None:
    """Token by token, far into a sentence: weights, positions, scales and epsilon are the same."""
    ctranslate2 = import_ctranslate2()
    config = config_of(norm, tie_embeddings)
    codec = codec_of(config)
    model = make_directory(tmp_path / "model", config, codec, lively_model(config, codec))
    export(model, tmp_path / "exported")
    sources = [*random_lines(3, seed=2, longest=60), "the strange man"]
    targets = [" ".join(line.upper().split(" ") * 4) for line in random_lines(4, seed=4)]
    ours = Translator.load(model, device="cpu").score_pairs(sources, targets)
    theirs = ctranslate2.Translator(str(tmp_path / "exported"), device="cpu", intra_threads=1)
    found = theirs.score_batch(source_pieces(codec, sources), target_pieces(codec, targets))
    for expected, result in zip(ours, found, strict=True):
        assert result.log_probs == pytest.approx(expected.tokens, abs=1e-4)


@pytest.mark.parametrize("activation", ["gelu", "swish"])
def test_options_of_imported_models(tmp_path: Path, activation: str) -> None:
    """Activation, output bias, epsilon, scale and positions: each would show in a probability."""
    ctranslate2 = import_ctranslate2()
    config = config_of("post", "target")
    options: dict[str, Any] = {"norm_epsilon": 0.1, "position_wavelengths": "exclusive"}
    options |= {"output_bias": True, "scale_embeddings": False}
    model_config = replace(config.model, feed_forward_activation=activation, **options)
    config = replace(config, model=model_config)
    codec = codec_of(config)
    model = make_directory(tmp_path / "model", config, codec, lively_model(config, codec))
    export(model, tmp_path / "exported")
    sources, targets = random_lines(3, seed=2, longest=40), ["THE MAN OLD", "ZEBRA", "MAN THE"]
    ours = Translator.load(model, device="cpu").score_pairs(sources, targets)
    theirs = ctranslate2.Translator(str(tmp_path / "exported"), device="cpu", intra_threads=1)
    found = theirs.score_batch(source_pieces(codec, sources), target_pieces(codec, targets))
    for expected, result in zip(ours, found, strict=True):
        assert result.log_probs == pytest.approx(expected.tokens, abs=1e-4)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Directories of trained models: the two that differ in everything but the attention."""
    directory = tmp_path_factory.mktemp("trained")
    config = config_of("pre", "all")
    codec = codec_of(config)
    made = {
        "post, none": trained_model(),
        "pre, all": (config, codec, train_briefly(config, codec)),
    }
    return {name: make_directory(directory / name, *parts) for name, parts in made.items()}


@pytest.mark.parametrize("name", ["post, none", "pre, all"])
def test_translations_and_scores_agree(tmp_path: Path, trained: dict[str, Path], name: str) -> None:
    ctranslate2 = import_ctranslate2()
    export(trained[name], tmp_path / "exported")
    ours = Translator.load(trained[name], device="cpu")
    codec = ours.models.members[0].codec
    theirs = ctranslate2.Translator(str(tmp_path / "exported"), device="cpu", intra_threads=1)
    lengths = set()
    for beam in (1, 4):
        expected = ours.translate(LINES, beam=beam, length_penalty=0.0)
        found = theirs.translate_batch(
            source_pieces(codec, LINES),
            beam_size=beam,
            length_penalty=0.0,
            min_decoding_length=0,
            return_scores=True,
        )
        for line, translation, result in zip(LINES, expected, found, strict=True):
            pieces = [codec.target.vocabulary.piece(number) for number in translation.ids]
            assert pieces == result.hypotheses[0], line
            assert result.scores[0] == pytest.approx(translation.log_probability, abs=1e-4)
            lengths.add(len(pieces))
    assert len(lengths) >= 5


@pytest.mark.parametrize(
    "search", [{}, {"beam": 2, "length_penalty": 1.0, "normalization": "length"}]
)
def test_readme_tells_how_to_translate(
    tmp_path: Path, trained: dict[str, Path], search: dict[str, Any]
) -> None:
    """The program in README.md searches as the model does; 8-bit weights are smaller."""
    import_ctranslate2()
    lines = [*LINES, "", "  ", "\u3000", " ".join(["old"] * 300)]
    for name, path in trained.items():
        loaded = load_model(path)
        decode = replace(loaded.config.decode, **search)
        config = replace(loaded.config, decode=decode)
        model = make_directory(tmp_path / "model" / name, config, loaded.codec, loaded.model)
        expected = [one.text for one in Translator.load(model, device="cpu").translate(lines)]
        for quantization, least in (("float32", 0.9), ("int8", 0.8)):
            output = tmp_path / quantization / name
            export(model, output, "--quantization", quantization)
            verify(output)
            text = (output / "README.md").read_text(encoding="utf-8")
            program = text.split("```python\n")[1].split("```")[0]
            names: dict[str, Any] = {}
            exec(program.replace("the directory of this file", str(output)), names)  # noqa: S102
            found = names["translate"](lines)
            equal = sum(a == b for a, b in zip(found, expected, strict=True))
            assert equal >= least * len(lines)  # these models are so small that they are not sure
            assert found[-4:-1] == ["", "", ""]
        small, large = (tmp_path / kind / name / "model.bin" for kind in ("int8", "float32"))
        assert small.stat().st_size < 0.8 * large.stat().st_size
    hidden = [path for path in tmp_path.rglob("*") if path.name.startswith(".")]
    assert hidden == []


def test_model_in_memory_is_left_as_it_is(tmp_path: Path) -> None:
    import_ctranslate2()
    loaded = load_model(write_model(tmp_path / "model", seed=1))
    before = {name: weight.clone() for name, weight in loaded.model.state_dict().items()}
    export_ctranslate2(loaded, tmp_path / "exported", quantization="int8")
    for name, weight in loaded.model.state_dict().items():
        assert torch.equal(weight, before[name]), name


def test_text_that_looks_like_control_symbols(tmp_path: Path) -> None:
    """The pieces of such text keep their numbers, and control symbols get other names."""
    ctranslate2 = import_ctranslate2()
    config = config_of("post", "none")
    config = replace(config, data=replace(config.data, tokenizer=TokenizerConfig("none", "none")))
    text = " ".join([*CONTROL, "<<s>>", "the", "man"])
    codec = Codec.learn(config.data, [(text, text)])
    model = make_directory(tmp_path / "model", config, codec, lively_model(config, codec))
    export(model, tmp_path / "exported")
    settings = json.loads((tmp_path / "exported/config.json").read_text())
    assert settings["decoder_start_token"] == settings["bos_token"] == "<<<s>>>"
    assert settings["unk_token"] == "<<unk>>"
    theirs = ctranslate2.Translator(str(tmp_path / "exported"), device="cpu", intra_threads=1)
    (found,) = theirs.score_batch([["the", "<s>", "</s>"]], [["</s>", "<unk>"]])
    (ours,) = Translator.load(model, device="cpu").score_pairs(["the <s> </s>"], ["</s> <unk>"])
    assert sum(found.log_probs) == pytest.approx(ours.log_probability, rel=1e-5)


def fails(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert error.startswith("nmt-export: ")
    assert message in error


@pytest.mark.parametrize(
    ("attention", "place"),
    [
        ("{encoder_self: softmax, decoder_self: softmax, cross: rela-g}", "cross, layer 0"),
        ("{encoder_self: sparsemax}", "encoder_self, layer 0"),
        ("{decoder_self: {kind: softmax, layers: {0: entmax15}}}", "decoder_self, layer 0"),
    ],
)
def test_other_attention_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], attention: str, place: str
) -> None:
    import_ctranslate2()
    layers = ", attention: "
    model = write_model(tmp_path / "model", seed=1, model=layers + attention)
    arguments = ["--model", str(model), "--format", "ctranslate2", "--output", str(tmp_path / "x")]
    fails(arguments, f"model.attention.{place}: ", capsys)
    assert sorted(os.listdir(tmp_path)) == ["model"]


def test_existing_output_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = write_model(tmp_path / "model", seed=1)
    before = content(model)
    arguments = ["--model", str(model), "--format", "ctranslate2", "--output", str(model)]
    fails(arguments, "exists; remove it", capsys)
    assert content(model) == before
    assert leftover_names(tmp_path) == []


def test_two_types_of_weights_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--model", "x", "--format", "packed", "--output", str(tmp_path / "y")]
    fails([*arguments, "--int8", "--quantization", "float32"], "leave out --quantization", capsys)


def test_missing_package_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    model = write_model(tmp_path / "model", seed=1)
    arguments = ["--model", str(model), "--format", "ctranslate2", "--output", str(tmp_path / "x")]
    fails(arguments, "pip install 'nmt[ctranslate2]'", capsys)
