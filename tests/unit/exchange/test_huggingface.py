"""nmt-import of MarianMT folders, against outputs that transformers gave for a tiny model.

scripts/record_imports.py made the folder and the record.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from safetensors.torch import load_file, save_file

from nmt.checkpoint.model_directory import load_model
from nmt.checkpoint.store import verify
from nmt.cli.import_ import main
from nmt.config.config import ModelConfig
from nmt.data.vocabulary import BOS, PAD
from nmt.decoding.translator import Translator
from nmt.exchange.huggingface import POSITIONS
from nmt.exchange.huggingface_export import export_huggingface
from nmt.model.embeddings import sinusoids
from nmt.ops.backend import force_backend

FOLDER = Path(__file__).parent / "huggingface"
RECORDED = json.loads((FOLDER / "recorded.json").read_text(encoding="utf-8"))
LINES, TARGETS = RECORDED["lines"], RECORDED["targets"]
LONGEST = 58  # transformers counts the start and the end to its 60


def run_import(folder: Path, output: Path, *more: str) -> int:
    return main(["--format", "huggingface", str(folder), "--output", str(output), *more])


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("imported") / "model"
    assert run_import(FOLDER, output) == 0
    verify(output)
    return output


@pytest.mark.parametrize("backend", ["native", "torch", "reference"])
def test_translations_are_those_of_transformers(imported: Path, backend: str) -> None:
    with force_backend(backend):
        translator = Translator.load(imported, device="cpu")
        assert (translator.models.members[0].decoder.engine is not None) == (backend == "native")
        for name, beam in (("greedy", 1), ("beam", None)):  # the model's own beam is 3
            found = translator.translate(LINES, beam=beam, max_length=LONGEST)
            assert [one.text for one in found] == RECORDED[name]
    assert len({*RECORDED["beam"], *RECORDED["greedy"]}) >= 5


def test_pieces_and_probabilities_are_those_of_transformers(imported: Path) -> None:
    translator = Translator.load(imported, device="cpu")
    source = translator.models.members[0].codec.source
    for line, pieces in zip(LINES, RECORDED["pieces"], strict=True):
        assert [source.vocabulary.piece(number) for number in source.encode(line)] == pieces
    scores = translator.score_pairs(LINES, TARGETS)
    for score, expected in zip(scores, RECORDED["log_probabilities"], strict=True):
        assert score.tokens == pytest.approx(expected, abs=1e-4)


def test_options_are_those_of_the_folder(imported: Path) -> None:
    loaded = load_model(imported)
    config = loaded.config
    assert (config.data.source_language, config.data.target_language) == ("en", "de")
    assert (config.decode.beam, config.decode.normalization) == (3, "length")
    assert config.data.max_length == 127  # of 128 positions, without the end
    assert config.model.feed_forward_activation == "swish"
    probabilities = loaded.model.logits(torch.randn(50, 16)).softmax(-1)
    assert (probabilities[:, PAD] == 0).all()  # transformers has no such row
    assert (probabilities[:, BOS] > 0).all()  # there it is the padding, which has a row


@pytest.mark.parametrize(
    ("early_stopping", "early_stop"), [(False, "current"), (True, "full"), ("never", "exact")]
)
def test_early_stopping_goes_there_and_back(
    tmp_path: Path, early_stopping: object, early_stop: str
) -> None:
    folder = shutil.copytree(FOLDER, tmp_path / "folder")
    file = folder / "generation_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "early_stopping": early_stopping}))
    assert run_import(folder, tmp_path / "model") == 0
    loaded = load_model(tmp_path / "model")
    assert loaded.config.decode.early_stop == early_stop
    export_huggingface(loaded, tmp_path / "back")
    written = json.loads((tmp_path / "back/generation_config.json").read_text())
    assert written["early_stopping"] == early_stopping


def test_languages_can_be_given(tmp_path: Path) -> None:
    more = ("--source-language", "fr", "--target-language", "pt-BR")
    assert run_import(FOLDER, tmp_path / "x", *more) == 0
    data = load_model(tmp_path / "x").config.data
    assert (data.source_language, data.target_language) == ("fr", "pt-BR")


def test_words_of_lines_and_outputs(imported: Path) -> None:
    codec = Translator.load(imported, device="cpu").models.members[0].codec
    for line in (*LINES, "", "☃", "  the   dog "):
        segmented = codec.source.segment(line)
        assert segmented.words == [word for word in line.split(" ") if word]
        assert segmented.ids == codec.source.encode(line)
        assert len(segmented.word_of_piece) == len(segmented.ids) - 1
        assert all(0 <= word < len(segmented.words) for word in segmented.word_of_piece)
    ids = codec.target.encode("Der alte Hund.")
    output = codec.target.segment_ids(ids)
    assert codec.target.decode(ids) == " ".join(output.words) == "Der alte Hund."
    assert sorted(set(output.word_of_piece)) == [0, 1, 2]


def test_half_precision_and_tables_of_their_own(tmp_path: Path, imported: Path) -> None:
    """Weights in float16, and a model whose three tables are different ones."""
    folder = copy_of(tmp_path)
    weights = {name: tensor.half() for name, tensor in load_file(folder / WEIGHTS).items()}
    shared = weights.pop("model.shared.weight")
    for name in ("model.encoder.embed_tokens", "model.decoder.embed_tokens", "lm_head"):
        weights[f"{name}.weight"] = shared + 0.0
    weights["lm_head.weight"] *= 2
    save_file(weights, folder / WEIGHTS)
    change_config(folder, share_encoder_decoder_embeddings=False, tie_word_embeddings=False)
    assert run_import(folder, tmp_path / "output") == 0
    model, before = load_model(tmp_path / "output").model, load_model(imported).model
    assert model.config.tie_embeddings == "none"
    torch.testing.assert_close(model.output_weight, 2 * before.output_weight, atol=1e-2, rtol=1e-2)
    torch.testing.assert_close(
        model.source_embedding, before.source_embedding, atol=1e-2, rtol=1e-2
    )


WEIGHTS = "model.safetensors"


def copy_of(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FOLDER, tmp_path / "folder"))


def change_config(folder: Path, **values: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def change_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    weights = load_file(folder / WEIGHTS)
    change(weights)
    save_file(weights, folder / WEIGHTS)


def change_vocabulary(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    ids = json.loads((folder / "vocab.json").read_text())
    change(ids)
    (folder / "vocab.json").write_text(json.dumps(ids))


def only_pickle(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "pytorch_model.bin")


TABLE = "model.decoder.embed_positions.weight"
NORM = "model.encoder.layers.1.final_layer_norm.bias"


def two_kinds_of_positions() -> dict[str, torch.Tensor]:
    """Sinusoids of other wavelengths in the decoder than in the encoder."""
    sides: tuple[Literal["exclusive", "inclusive"], ...] = ("exclusive", "inclusive")
    return {
        name: sinusoids(torch.arange(20), ModelConfig(dim=16, position_wavelengths=wavelengths))
        for name, wavelengths in zip(POSITIONS, sides, strict=True)
    }


BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "bart": (lambda x: change_config(x, model_type="bart"), "expected marian, got 'bart'"),
    "activation": (lambda x: change_config(x, activation_function="gelu_new"), "got 'gelu_new'"),
    "heads": (lambda x: change_config(x, encoder_attention_heads=4), "the same number on both"),
    "layers": (lambda x: change_config(x, encoder_layers=3), "layers.2.self_attn.q_proj.weight is"),
    "fewer": (lambda x: change_config(x, encoder_layers=1), "layers.1.fc1.bias has no place"),
    "many": (lambda x: change_config(x, encoder_layers=10**9), "encoder_layers"),
    "width": (
        lambda x: change_config(x, d_model=10**9),
        "config.json, as a config of nmt:25: model.dim: expected a whole number",
    ),
    "text": (lambda x: change_config(x, d_model="16"), "d_model: expected int, got '16'"),
    "start": (lambda x: change_config(x, decoder_start_token_id=0), "the end to be another one"),
    "positions": (
        lambda x: change_weights(x, lambda w: w.update({TABLE: torch.ones(20, 16)})),
        "embed_positions.weight: expected sinusoids",
    ),
    "positions of two kinds": (
        lambda x: change_weights(x, lambda w: w.update(two_kinds_of_positions())),
        "decoder.embed_positions.weight: expected sinusoids",
    ),
    "size": (lambda x: change_config(x, vocab_size=77), "expected 77 pieces"),
    "dropout": (lambda x: change_config(x, dropout=None), "dropout: expected float, got None"),
    "pickle": (only_pickle, "safe_serialization=True"),
    "no weights": (lambda x: (x / WEIGHTS).unlink(), "model.safetensors: not found"),
    "no pieces": (lambda x: (x / "source.spm").unlink(), "source.spm: cannot be read"),
    "bad pieces": (lambda x: (x / "source.spm").write_bytes(b"\0" * 99), "no sentencepiece model"),
    "no JSON": (lambda x: (x / "config.json").write_text("{"), "config.json: expected JSON"),
    "a list": (lambda x: (x / "vocab.json").write_text("[]"), "expected a JSON object"),
    "deep": (lambda x: (x / "config.json").write_text("[" * 10**5), "expected JSON"),
    "missing": (lambda x: change_weights(x, lambda w: w.pop(NORM)), f"{NORM} is missing"),
    "shape": (
        lambda x: change_weights(x, lambda w: w.update({NORM: torch.zeros(17)})),
        "expected [16] floating-point numbers, got float32 [17]",
    ),
    "integers": (
        lambda x: change_weights(x, lambda w: w.update({NORM: torch.zeros(16, dtype=torch.int64)})),
        "got int64 [16]",
    ),
    "not a number": (
        lambda x: change_weights(x, lambda w: w[NORM].fill_(float("nan"))),
        "non-finite",
    ),
    "surplus": (
        lambda x: change_weights(x, lambda w: w.update({"encoder.adapter": torch.zeros(3)})),
        "encoder.adapter has no place",
    ),
    "gap": (
        lambda x: change_vocabulary(x, lambda ids: ids.update({"▁": 10**6})),
        "each for one piece",
    ),
    "ids of text": (
        lambda x: change_vocabulary(x, lambda ids: ids.update({"▁": str(ids["▁"])})),
        "each for one piece",
    ),
    "half a character": (
        lambda x: change_vocabulary(x, lambda ids: ids.update({"\ud800": ids.pop("▁")})),
        "each for one piece",
    ),
    "no unknown": (
        lambda x: change_vocabulary(x, lambda ids: ids.update({"<u>": ids.pop("<unk>")})),
        "expected the symbol '<unk>'",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_imported_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    change, message = BAD[name]
    folder = copy_of(tmp_path)
    change(folder)
    assert run_import(folder, tmp_path / "output") == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert error.startswith("nmt-import: ")
    assert message in error
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_damaged_weights_are_an_integrity_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = copy_of(tmp_path)
    (folder / WEIGHTS).write_bytes(b"\xff" * 1000)
    assert run_import(folder, tmp_path / "output") == 7
    assert capsys.readouterr().err.count("\n") == 1


def test_outputs_are_never_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], imported: Path
) -> None:
    assert run_import(FOLDER, imported) == 2
    assert "exists; remove it" in capsys.readouterr().err
    assert run_import(tmp_path / "none", tmp_path / "output") == 2
    assert "none: not found" in capsys.readouterr().err
