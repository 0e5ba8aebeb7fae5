"""nmt-import of models of Marian, against outputs that Marian gave for tiny models.

scripts/record_imports.py made the models and the record.
"""

import gzip
import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nmt
from nmt.checkpoint.model_directory import load_model
from nmt.checkpoint.store import verify
from nmt.cli.import_ import main
from nmt.data.subword import LineSentencePiece
from nmt.decoding.translator import Translator
from nmt.exchange.marian import read_words
from nmt.ops.backend import force_backend

FOLDER = Path(__file__).parent / "marian"
RECORDED = json.loads((FOLDER / "recorded.json").read_text(encoding="utf-8"))
VOCABULARIES = {"pieces": "both.spm both.spm", "words": "source.yml target.yml"}
CORPUS = Path(nmt.__file__).parent / "builtin/corpus"


def run_import(model: Path, vocabularies: str, output: Path) -> int:
    files = [str(FOLDER / name) for name in vocabularies.split()]
    arguments = ["--format", "marian", str(model), "--vocabs", *files, "--output", str(output)]
    return main([*arguments, "--source-language", "en", "--target-language", "de"])


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("imported")
    for name, vocabularies in VOCABULARIES.items():
        assert run_import(FOLDER / f"{name}.npz", vocabularies, directory / name) == 0
        verify(directory / name)
    return {name: directory / name for name in VOCABULARIES}


@pytest.mark.parametrize("backend", ["native", "torch"])
def test_translations_are_those_of_marian(imported: dict[str, Path], backend: str) -> None:
    with force_backend(backend):
        translator = Translator.load(imported["pieces"], device="cpu")
        assert (translator.models.members[0].decoder.engine is not None) == (backend == "native")
        found = translator.translate(
            RECORDED["lines"], beam=3, length_penalty=0.0, early_stop="exact", max_length_ratio=10.0
        )
    for one, (text, log_probability) in zip(found, RECORDED["pieces"], strict=True):
        assert one.text == text
        assert one.log_probability == pytest.approx(log_probability, abs=1e-3)
    assert len({one.text for one in found}) > 3


@pytest.mark.parametrize("name", VOCABULARIES)
def test_cross_entropy_is_that_of_marian(imported: dict[str, Path], name: str) -> None:
    """The losses of Marian on the text after the last update; `words` has pre-norm."""
    pairs = []
    for language in ("en", "de"):
        with gzip.open(CORPUS / f"train.{language}.gz", "rt", encoding="utf-8") as file:
            pairs.append([line.rstrip("\n") for _, line in zip(range(1000), file, strict=False)])
    scores = Translator.load(imported[name], device="cpu").score_pairs(*pairs)
    total = -sum(score.log_probability for score in scores)
    mean = total / sum(len(score.tokens) for score in scores)
    assert mean == pytest.approx(RECORDED[f"{name}: cross-entropy"], abs=1e-4)


def test_options_are_those_of_the_file(imported: dict[str, Path]) -> None:
    pieces, words = (load_model(imported[name]).config for name in ("pieces", "words"))
    assert (pieces.model.norm, words.model.norm) == ("post", "pre")
    assert (pieces.model.tie_embeddings, words.model.tie_embeddings) == ("all", "none")
    assert pieces.model.feed_forward_activation == "swish"
    assert words.model.feed_forward_activation == "relu"
    assert pieces.data.source_language == "en"
    assert (pieces.decode.normalization, pieces.decode.early_stop) == ("length", "narrow")


SETTINGS = "special:model.yml"


def change_settings(arrays: dict[str, Any], change: Callable[[str], str]) -> None:
    text = change(bytes(arrays[SETTINGS].astype(np.uint8)).rstrip(b"\0").decode())
    arrays[SETTINGS] = np.frombuffer(text.encode(), dtype=np.int8)


def setting(key: str, value: str) -> Callable[[dict[str, Any]], None]:
    """Replace one setting."""

    def change(text: str) -> str:
        lines = [line for line in text.splitlines() if not line.startswith(f"{key}:")]
        return "\n".join([*lines, f"{key}: {value}"])

    return lambda arrays: change_settings(arrays, change)


BOMB = "\n".join(["a0: &a0 [x]", *(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 60))])
NORM = "encoder_l1_ffn_ffn_ln_bias"
BAD: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "rnn": (setting("type", "s2s"), "type: nmt has 'transformer' only, got 's2s'"),
    "ssru": (
        setting("transformer-decoder-autoreg", "rnn"),
        "transformer-decoder-autoreg: nmt has 'self-attention' only, got 'rnn'",
    ),
    "average attention": (
        setting("transformer-decoder-autoreg", "average-attention"),
        "got 'average-attention'",
    ),
    "gelu": (setting("transformer-ffn-activation", "gelu"), "got 'gelu'"),
    "depth": (setting("transformer-ffn-depth", "3"), "transformer-ffn-depth: nmt has 2 only"),
    "tied layers": (setting("transformer-tied-layers", "[1, 1]"), "transformer-tied-layers"),
    "learned positions": (
        setting("transformer-train-position-embeddings", "true"),
        "transformer-train-position-embeddings: nmt has False only, got True",
    ),
    "alibi": (setting("transformer-attention-mask", "alibi"), "got 'alibi'"),
    "factors": (setting("lemma-dim-emb", "7"), "lemma-dim-emb: nmt has 0 only, got 7"),
    "order": (setting("transformer-postprocess", "nda"), "('', 'nda', '')"),
    "sizes": (setting("dim-vocabs", "[131, 131]"), "expected 131 pieces"),
    "no sizes": (setting("dim-vocabs", "many"), "dim-vocabs: expected two numbers"),
    "layers": (setting("enc-depth", "2"), "encoder_l2_self_Wq is missing"),
    "fewer": (setting("tied-embeddings-all", "false"), "encoder_Wemb is missing"),
    "many": (setting("enc-depth", "1000000000"), "encoder_layers"),
    "bomb": (lambda x: change_settings(x, lambda text: f"{text}\n{BOMB}"), "expected no aliases"),
    "no YAML": (lambda x: change_settings(x, lambda _: "a: b: c"), "expected YAML"),
    "no date": (setting("version", "2021-99-99"), "expected YAML (month must be in 1..12)"),
    "no whole number": (setting("dim-emb", "!!int ''"), "expected YAML"),
    "no time": (setting("version", "!!timestamp x"), "expected YAML"),
    "a list": (lambda x: change_settings(x, lambda _: "[]"), "expected a YAML mapping"),
    "no settings": (lambda x: x.pop(SETTINGS), f"expected the array {SETTINGS}"),
    "missing": (lambda x: x.pop(NORM), f"{NORM} is missing"),
    "shape": (lambda x: x.update({NORM: np.zeros((1, 17), np.float32)}), "got float32 [1, 17]"),
    "integers": (lambda x: x.update({NORM: np.zeros((1, 16), np.int8)}), "got int8 [1, 16]"),
    "double": (lambda x: x.update({NORM: np.zeros((1, 16))}), "got the type float64"),
    "pickle": (lambda x: x.update({NORM: np.array([print], object)}), "got the type object"),
    "text": (lambda x: x.update({NORM: np.array(["x"])}), "expected numbers, got the type"),
    "infinite": (lambda x: x.update({NORM: np.full((1, 16), np.inf, np.float32)}), "non-finite"),
    "surplus": (lambda x: x.update({"adapter": np.zeros(3, np.float32)}), "adapter has no place"),
}


def fails(path: Path, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_import(path, "both.spm both.spm", path.parent / "output") == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert error.startswith("nmt-import: ")
    assert message in error
    assert [one.name for one in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_imported_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    change, message = BAD[name]
    with np.load(FOLDER / "pieces.npz") as file:
        arrays = {key: file[key] for key in file.files}
    change(arrays)
    np.savez(tmp_path / "model.npz", **arrays, allow_pickle=True)
    fails(tmp_path / "model.npz", message, capsys)


def header(shape: str) -> bytes:
    """An array of a stated shape without its numbers."""
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}}}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


HOSTILE = {
    "huge": (header("(1000000, 1000000)"), "which the archive does not hold"),
    "negative": (header("(-4, 4)"), "does not hold"),
    "dimensions": (header("(" + "1, " * 30 + ")"), "at most 4 dimensions"),
    "code": (header("__import__('os').getcwd()"), "not an array"),
    "brackets": (header("((1,)")[:-2] + b"\n", "not an array"),
    "magic": (b"\x80\x04pickle", "not an array"),
    "empty": (b"", "not an array"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_headers_that_lie_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    data, message = HOSTILE[name]
    with zipfile.ZipFile(tmp_path / "model.npz", "w") as archive:
        archive.writestr("Wemb.npy", data)
    fails(tmp_path / "model.npz", message, capsys)


def test_archives_that_are_none_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "model.npz"
    for data in (b"", b"PK\x03\x04" + b"\0" * 100, (FOLDER / "pieces.npz").read_bytes()[:3000]):
        path.write_bytes(data)
        fails(path, "not an .npz file", capsys)


def test_wrong_bytes_anywhere_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bytes of the head, the compressed numbers and the directory of an archive."""
    written = io.BytesIO()
    np.savez_compressed(written, a=np.arange(300, dtype=np.float32), b=np.ones(9, np.float32))
    data = written.getvalue()
    name = data.rindex(b"b.npy")
    flags = data.rindex(b"PK\x01\x02") + 9
    marked = data[:flags] + b"\x08" + data[flags + 1 :]  # the name is UTF-8, which it is not
    for number, bad in enumerate(
        (
            data[:60] + b"\xff" * 40 + data[100:],
            data[:300] + b"\xff" * 200 + data[500:],
            marked[:name] + b"\xff" + marked[name + 1 :],
        )
    ):
        path = tmp_path / str(number) / "model.npz"
        path.parent.mkdir()
        path.write_bytes(bad)
        fails(path, "model.npz: ", capsys)


def test_words_are_lines_and_other_separators_are_not(tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    path.write_bytes("</s>\n<unk>\na\x85\nb\u2028c\r\nd\n".encode())
    assert read_words(path) == {"</s>": 0, "<unk>": 1, "a\x85": 2, "b\u2028c": 3, "d": 4}


def test_no_piece_ends_the_line_of_a_translation() -> None:
    model = LineSentencePiece((FOLDER / "both.spm").read_bytes())
    assert model.merge(["▁a", "x\ny"]) == "ax\ufffdy"


def test_a_zip_bomb_takes_no_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A few kilobytes that unpack to 64 MB of zeros are never unpacked."""
    path = tmp_path / "model.npz"
    written = io.BytesIO()
    np.save(written, np.zeros((1, 16), np.float32))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("Wemb.npy", written.getvalue() + bytes(1 << 26))
    fails(path, "expected the array special:model.yml", capsys)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("Wemb.npy", header("(1000, 5000)") + bytes(20_000_000))
    fails(path, "expected weights, got 20000000 bytes packed into", capsys)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("x.yml", "- a\n", "expected a YAML mapping"),
        ("x.yml", "</s>: 0\n<unk>: [1]\n", "expected words with their ids"),
        ("x.yml", "</s>: 0\n<unk>: -1\n", "expected words with their ids"),
        ("x.yml", "{", "expected YAML"),
        ("x.yml", "", "expected a YAML mapping"),
        ("x.yml", "- " * 100_000, "expected a YAML mapping"),
        ("x.yml", "a: 0\nb: " + "[" * 100_000, "expected words with their ids"),
        ("x.yml", "a: &a 0\nb: *a\n", "expected words with their ids"),
        ("x.yml", '"a\\nb": 0\n', "expected words with their ids"),
        ("x.yml", "</s>: 0\n<unk>: 1\n", "expected 130 pieces (dim-vocabs), got 2"),
        ("x.spm", "none", "no sentencepiece model"),
    ],
)
def test_bad_vocabularies_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, text: str, message: str
) -> None:
    (tmp_path / name).write_text(text)
    paths = f"{tmp_path / name} {tmp_path / name}"
    assert run_import(FOLDER / "pieces.npz", paths, tmp_path / "output") == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert message in error


def test_vocabularies_are_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, output = str(FOLDER / "pieces.npz"), str(tmp_path / "output")
    assert main(["--format", "marian", model, "--output", output]) == 2
    assert "--vocabs: expected for --format marian" in capsys.readouterr().err
    mixed = "both.spm source.yml"
    assert run_import(FOLDER / "pieces.npz", mixed, tmp_path / "output") == 2
    assert "expected two .spm or two .yml files" in capsys.readouterr().err
