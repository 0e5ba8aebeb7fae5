"""nmt-export --format huggingface: the folder that transformers reads, and the way back."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from support.small_models import write_model
from translation_models import (
    make_codec,
    make_config,
    make_directory,
    make_model,
    random_lines,
    trained_model,
)

from nmt.checkpoint.model_directory import load_model
from nmt.checkpoint.store import verify
from nmt.cli.export import main
from nmt.cli.import_ import main as run_import
from nmt.decoding.translator import Translator

FOLDER = Path(__file__).parent / "huggingface"


def export(model: Path, output: Path) -> int:
    return main(["--model", str(model), "--format", "huggingface", "--output", str(output)])


def import_folder(folder: Path, output: Path) -> int:
    return run_import(["--format", "huggingface", str(folder), "--output", str(output)])


def test_there_and_back_again(tmp_path: Path) -> None:
    """A model from transformers goes back there, and comes again with the same bits."""
    first, folder, second = (tmp_path / name for name in ("first", "folder", "second"))
    assert import_folder(FOLDER, first) == 0
    assert export(first, folder) == 0
    verify(folder)
    assert import_folder(folder, second) == 0
    before, after = load_model(first), load_model(second)
    assert before.model.config == after.model.config
    assert before.config.data.max_length == after.config.data.max_length
    assert before.codec.source.vocabulary == after.codec.source.vocabulary
    for name, weight in before.model.state_dict().items():
        assert torch.equal(weight, after.model.state_dict()[name]), name
    with (
        safe_open(folder / "model.safetensors", "pt") as found,
        safe_open(FOLDER / "model.safetensors", "pt") as given,
    ):
        assert found.metadata() == given.metadata() == {"format": "pt"}
        tables = {"model.shared.weight", "final_logits_bias"}
        for name in set(given.keys()) - tables:
            assert torch.equal(found.get_tensor(name), given.get_tensor(name)), name
        assert set(given.keys()) <= set(found.keys())


def test_positions_of_our_models_come_back(tmp_path: Path) -> None:
    """They are another table than that of MarianMT, so the folder holds them."""
    first, folder, second = (tmp_path / name for name in ("first", "folder", "second"))
    assert import_folder(FOLDER, first) == 0
    loaded = load_model(first)
    model = replace(loaded.config.model, position_wavelengths="inclusive")
    config = replace(loaded.config, model=model)
    inclusive = make_directory(tmp_path / "inclusive", config, loaded.codec, loaded.model)
    assert export(inclusive, folder) == 0
    assert import_folder(folder, second) == 0
    assert load_model(second).model.config == model


def test_folder_of_a_model_of_ours(tmp_path: Path) -> None:
    """Two vocabularies, no output bias, and a codec that no tokenizer of theirs replaces."""
    config = make_config()
    codec = make_codec(config)
    model = make_model(config, codec)
    directory = make_directory(tmp_path / "model", config, codec, model)
    assert export(directory, tmp_path / "folder") == 0
    settings = json.loads((tmp_path / "folder/config.json").read_text())
    expected = {
        "model_type": "marian",
        "d_model": model.config.dim,
        "decoder_vocab_size": len(codec.target.vocabulary),
        "activation_function": "relu",
        "decoder_start_token_id": 1,
        "share_encoder_decoder_embeddings": False,
        "scale_embedding": True,
        "max_position_embeddings": 2 * 256 + 50 + 1,
    }
    assert expected.items() <= settings.items()
    generation = json.loads((tmp_path / "folder/generation_config.json").read_text())
    assert generation["max_length"] == 1 + 2 * 256 + 50 + 1  # start, subwords and end
    tokenizer = json.loads((tmp_path / "folder/tokenizer_config.json").read_text())
    assert tokenizer["model_max_length"] == 256 + 1
    with safe_open(tmp_path / "folder/model.safetensors", "pt") as file:
        fused = model.state_dict()["decoder.0.cross_attention.key_value.weight"]
        key, value = (
            file.get_tensor(f"model.decoder.layers.0.encoder_attn.{x}_proj.weight") for x in "kv"
        )
        assert torch.equal(torch.cat([key, value]), fused)
        assert not file.get_tensor("final_logits_bias").any()
    assert not (tmp_path / "folder/source.spm").exists()
    card = (tmp_path / "folder/README.md").read_text()
    assert "No score of it is known." in card
    assert "no\ntokenizer of transformers does the same" in card


def test_model_card_has_the_score_and_its_signature(tmp_path: Path) -> None:
    from nmt.checkpoint.model_directory import model_files
    from nmt.storage.directories import json_writer, write_directory

    config = make_config()
    codec = make_codec(config)
    weights = make_model(config, codec).state_dict()
    state: dict[str, Any] = {"training": {"best_score": 32.954}, "data_fingerprint": "x"}
    files = {**model_files(config, codec, weights), "state.json": json_writer(state)}
    write_directory(tmp_path / "run/best", files)
    records = '{"step": 1}\n{"signature": "nrefs:1|x"}\n{"signature": "nre'  # a kill cut it off
    (tmp_path / "run/metrics.jsonl").write_text(records)
    assert export(tmp_path / "run/best", tmp_path / "folder") == 0
    card = (tmp_path / "folder/README.md").read_text()
    assert "Validation set: bleu 32.95 (signature nrefs:1|x)." in card


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (", attention: {cross: rela-g}", "cross, layer 0: MarianMT has softmax attention only"),
        (", norm: pre", "MarianMT normalises after a sublayer, got pre"),
        (", norm_epsilon: 1e-3", "model.norm_epsilon: MarianMT has 1e-05, got 0.001"),
    ],
)
def test_what_marianmt_does_not_have_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: str, message: str
) -> None:
    model = write_model(tmp_path / "model", seed=1, model=options)
    assert export(model, tmp_path / "folder") == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert message in error
    assert not (tmp_path / "folder").exists()


def test_transformers_translates_the_same(tmp_path: Path) -> None:
    """Where transformers is installed, which nmt does not need."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    directory = make_directory(tmp_path / "model", *trained_model())
    assert export(directory, tmp_path / "folder") == 0
    theirs = transformers.MarianMTModel.from_pretrained(tmp_path / "folder").eval()
    translator = Translator.load(directory, device="cpu")
    codec = translator.models.members[0].codec
    lines = random_lines(8, longest=9)
    found = translator.translate(lines, beam=1, max_length=60)
    for line, ours in zip(lines, found, strict=True):
        source = torch.tensor([codec.source.encode(line)])
        output = theirs.generate(source, num_beams=1, max_length=62)[0].tolist()
        assert codec.target.decode(output) == ours.text
