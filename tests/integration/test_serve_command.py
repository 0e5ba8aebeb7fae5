"""nmt-serve in a real process: its answers are those of nmt-translate."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.serving import ServerProcess, serving
from translation_models import make_directory, random_lines, trained_model

from nmt.cli.translate import main as nmt_translate

pytest.importorskip("starlette", reason="needs starlette: pip install 'nmt[serve]'")
pytest.importorskip("uvicorn", reason="needs uvicorn: pip install 'nmt[serve]'")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two models of the same languages."""
    directory = tmp_path_factory.mktemp("models")
    return {
        kind: make_directory(directory / kind, *trained_model(kind))
        for kind in ("rela-g", "softmax")
    }


@pytest.fixture(scope="module")
def server(
    models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """One server for all tests that do not end it."""
    named = [f"--model={name}={path}" for name, path in models.items()]
    with serving(tmp_path_factory.mktemp("server"), *named, "--workers", "2") as found:
        yield found


def by_command(model: Path, lines: list[str], directory: Path, *options: str) -> list[str]:
    """The output lines of nmt-translate."""
    text, output = directory / "input", directory / "output"
    text.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    arguments = ["--model", str(model), "--input", str(text), "--output", str(output), *options]
    assert nmt_translate(arguments) == 0
    return output.read_text(encoding="utf-8").split("\n")[:-1]


def test_translations_are_those_of_the_command(
    server: ServerProcess, models: dict[str, Path], tmp_path: Path
) -> None:
    lines = ["", *random_lines(40, longest=12), "  ", "a dog"]
    expected = by_command(models["rela-g"], lines, tmp_path)
    assert server.translate(lines) == expected
    assert [server.translate(line) for line in lines[:10]] == expected[:10]
    assert server.translate("\n".join(lines)) == "\n".join(expected)
    assert server.translate("\r\n".join(lines[:3]) + "\n") == "\r\n".join(expected[:3]) + "\n"
    other = by_command(models["softmax"], lines, tmp_path)
    assert other != expected
    assert server.translate(lines, model="softmax") == other


def test_alternatives_are_the_n_best_of_the_command(
    server: ServerProcess, models: dict[str, Path], tmp_path: Path
) -> None:
    lines = random_lines(5, longest=8)
    found = by_command(models["rela-g"], lines, tmp_path, "--nbest", "3")
    texts = [line.split(" ||| ")[1] for line in found]
    reply = server.post("/translate", {"q": lines, "target": "de", "alternatives": 2}).json()
    assert reply["translatedText"] == texts[::3]
    assert reply["alternatives"] == [texts[n + 1 : n + 3] for n in range(0, len(texts), 3)]


def test_languages_models_and_health(server: ServerProcess) -> None:
    assert server.get("/languages").json() == [
        {"code": "en", "name": "English", "targets": ["de"]},
        {"code": "de", "name": "German", "targets": []},
    ]
    assert [model["name"] for model in server.get("/models").json()] == ["rela-g", "softmax"]
    assert server.get("/health").json() == {"status": "ok"}


def test_attention_has_the_structure_of_the_report(server: ServerProcess) -> None:
    reply = server.post("/attention", {"q": "the old man sees a dog", "model": "rela-g"}).json()
    assert reply["translation"] == server.translate("the old man sees a dog")
    assert reply["nbest"][0]["text"] == reply["translation"]
    words = reply["translation"].split()
    assert [word["text"] for word in reply["target_words"]] == words
    assert all(0 < word["probability"] <= 1 for word in reply["target_words"])
    (model,) = reply["models"]
    assert model["sentences"][0]["target"]["words"] == words
    assert len(model["measures"]["cross"]) == model["layers"]["cross"] == 2
    assert all(source < 6 and target < len(words) for source, target in reply["links"])
    given = server.post("/attention", {"q": "a dog", "target_text": "DOG CAT"}).json()
    assert [word["text"] for word in given["target_words"]] == ["DOG", "CAT"]
