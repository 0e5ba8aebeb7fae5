"""The average is the mean, whatever the order, of models that differ in their weights alone."""

import itertools
import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.small_models import (
    flip_bit,
    leftover_names,
    small_codec,
    small_config,
    small_files,
    small_transformer,
    write_model,
)

from nmt.checkpoint.average import average_checkpoints, mean
from nmt.checkpoint.model_directory import ModelMismatchError, load_model, model_files
from nmt.errors import DivergedError, IntegrityError, UserError
from nmt.storage.arrays import TensorMismatchError
from nmt.storage.directories import replace_directory, write_directory
from nmt.storage.manifest import MANIFEST, SealedDirectory


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7])
def test_average_of_copies_is_the_copy(tmp_path: Path, count: int) -> None:
    paths = [write_model(tmp_path / f"step-{number:08d}", seed=3) for number in range(count)]
    write_directory(tmp_path / "average", average_checkpoints(paths))
    expected = SealedDirectory(paths[0]).entries
    found = SealedDirectory(tmp_path / "average").entries
    assert {name for name in expected if expected[name] != found[name]} == {"state.json"}


@given(
    st.lists(
        st.lists(
            st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=1
        ),
        min_size=1,
        max_size=9,
    )
)
def test_mean_is_within_the_last_bit(numbers: list[list[float]]) -> None:
    parts = [torch.tensor(row) for row in numbers]
    exact = torch.tensor(numbers, dtype=torch.float64).mean(0)
    found = mean((("file", part) for part in parts), "x")
    assert torch.allclose(found.double(), exact, rtol=2**-23, atol=1e-38)


def test_order_does_not_matter(tmp_path: Path) -> None:
    paths = [write_model(tmp_path / f"step-{number:08d}", seed=number) for number in (1, 2, 3)]
    manifests = set()
    for order in itertools.permutations(paths):
        replace_directory(tmp_path / "average", average_checkpoints(order))
        manifests.add((tmp_path / "average" / MANIFEST).read_bytes())
    assert len(manifests) == 1
    loaded = load_model(tmp_path / "average").model.state_dict()
    models = [load_model(path).model.state_dict() for path in paths]
    for name, tensor in loaded.items():
        expected = torch.stack([model[name].double() for model in models]).mean(0).float()
        assert torch.equal(tensor, expected), name


def test_only_what_translation_needs_is_written(tmp_path: Path) -> None:
    files = small_files(tmp_path, seed=1)
    more = dict.fromkeys(("optimizer", "unaveraged"), files["model.safetensors"])
    path = tmp_path / "step-00000001"
    write_directory(path, files | {f"{name}.safetensors": more[name] for name in more})
    write_directory(tmp_path / "average", average_checkpoints([path]))
    assert set(SealedDirectory(tmp_path / "average").entries) == set(files)


def test_inputs_are_recorded(tmp_path: Path) -> None:
    paths = [write_model(tmp_path / f"step-{number:08d}", seed=number) for number in (20, 10)]
    write_directory(tmp_path / "average", average_checkpoints(paths))
    state = json.loads((tmp_path / "average/state.json").read_text())
    assert state["step"] == 20
    assert state["average_of"] == [
        {"path": str(path), "step": int(path.name[5:]), "digest": SealedDirectory(path).digest}
        for path in reversed(paths)
    ]


def refused(tmp_path: Path, paths: list[Path], kind: type[UserError], message: str) -> None:
    with pytest.raises(kind, match=message):
        write_directory(tmp_path / "average", average_checkpoints(paths))
    assert not (tmp_path / "average").exists()
    assert leftover_names(tmp_path) == []


def test_another_model_is_refused(tmp_path: Path) -> None:
    one = write_model(tmp_path / "one", seed=1)
    other = write_model(tmp_path / "other", seed=1, model=", dropout: 0.3, norm: pre")
    refused(tmp_path, [one, other], ModelMismatchError, r"model\.dropout: .*; model\.norm: p")


def test_another_codec_is_refused(tmp_path: Path) -> None:
    config = small_config(tmp_path)
    codec = small_codec(config)
    weights = small_transformer(config, codec, seed=1).state_dict()
    write_directory(tmp_path / "one", model_files(config, codec, weights))
    other = type(codec).learn(config.data, [("two words", "zwei Wörter")])
    write_directory(tmp_path / "other", model_files(config, other, weights))
    paths = [tmp_path / "one", tmp_path / "other"]
    refused(tmp_path, paths, ModelMismatchError, r"source\.vocabulary is another file")


def test_other_tensors_are_refused(tmp_path: Path) -> None:
    """The configurations agree, the weights do not."""
    config = small_config(tmp_path)
    codec = small_codec(config)
    weights = small_transformer(config, codec, seed=1).state_dict()
    write_directory(tmp_path / "one", model_files(config, codec, weights))
    weights["target_embedding"] = weights["target_embedding"][:, :4].clone()
    write_directory(tmp_path / "other", model_files(config, codec, weights))
    paths = [tmp_path / "one", tmp_path / "other"]
    refused(tmp_path, paths, TensorMismatchError, "target_embedding is float32")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_numbers_that_are_none_are_refused(tmp_path: Path, value: float) -> None:
    config = small_config(tmp_path)
    codec = small_codec(config)
    weights = small_transformer(config, codec, seed=1).state_dict()
    write_directory(tmp_path / "one", model_files(config, codec, weights))
    weights["target_embedding"][3, 2] = value
    write_directory(tmp_path / "other", model_files(config, codec, weights))
    paths = [tmp_path / "one", tmp_path / "other"]
    refused(tmp_path, paths, DivergedError, r"other/model\.safetensors: target_embedding holds NaN")


@pytest.mark.parametrize("name", ["model.safetensors", "config.yaml", "codec.json"])
def test_damaged_inputs_are_refused(tmp_path: Path, name: str) -> None:
    paths = [write_model(tmp_path / f"step-{number:08d}", seed=number) for number in (1, 2)]
    file = paths[1] / name
    flip_bit(file, 8 * (file.stat().st_size - 20) + 1)
    refused(tmp_path, paths, IntegrityError, name)
