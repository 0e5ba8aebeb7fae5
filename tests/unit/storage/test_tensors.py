"""Tensors come back bit for bit, in the common form, and only as what was expected."""

import tempfile
from pathlib import Path

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from nmt.checkpoint.optimizer import flatten_optimizer, restore_optimizer
from nmt.storage.arrays import TensorMismatchError
from nmt.storage.directories import write_directory
from nmt.storage.manifest import SealedDirectory
from nmt.storage.tensors import (
    TENSOR_DTYPES,
    TensorSpec,
    open_tensors,
    read_into,
    tensors_writer,
)


def serialised(tensors: dict[str, Tensor]) -> bytes:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "t.safetensors"
        tensors_writer(tensors)(path)
        return path.read_bytes()


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> SealedDirectory:
    write_directory(path, {"t.safetensors": tensors_writer(tensors)})
    return SealedDirectory(path)


def specs(tensors: dict[str, Tensor]) -> dict[str, TensorSpec]:
    return {name: TensorSpec.of(tensor) for name, tensor in tensors.items()}


def read_all(path: Path) -> dict[str, Tensor]:
    with open_tensors(path) as file:
        return {name: file.tensor(name) for name in file.specs}


def assert_same(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert set(one) == set(other)
    for name, tensor in one.items():
        assert specs(one)[name] == specs(other)[name]
        first, second = (item.contiguous().reshape(-1) for item in (tensor, other[name]))
        assert torch.equal(first.view(torch.uint8), second.view(torch.uint8)), name


tensor_dictionaries = st.dictionaries(
    st.text("abc.é", min_size=1, max_size=6),
    st.tuples(
        st.sampled_from(sorted(TENSOR_DTYPES)),
        st.lists(st.integers(0, 3), max_size=3),
        st.integers(0, 99),
    ),
    max_size=6,
)


@given(tensor_dictionaries)
def test_common_form(description: dict[str, tuple[str, list[int], int]]) -> None:
    """The safetensors package reads what we write; order of names does not matter."""
    tensors = {
        name: torch.randint(0, 100, shape, generator=torch.Generator().manual_seed(seed)).to(
            TENSOR_DTYPES[dtype]
        )
        for name, (dtype, shape, seed) in description.items()
    }
    data = serialised(tensors)
    assert_same(safetensors.torch.load(data), tensors)
    assert serialised(dict(reversed(tensors.items()))) == data


def test_round_trip_of_odd_numbers(tmp_path: Path) -> None:
    """NaN payloads, signed zeros, subnormals, views and numbers without a dimension."""
    tensors = {
        "nan": torch.tensor([0x7FC12345, -1, 1, -(2**31)], dtype=torch.int32).view(torch.float32),
        "transposed": torch.arange(6.0).view(2, 3).t(),
        "scalar": torch.tensor(3.0, dtype=torch.bfloat16),
        "empty": torch.empty(0, 4),
        "bytes": torch.arange(7, dtype=torch.uint8),
    }
    with write_tensors(tmp_path / "a", tensors).open("t.safetensors") as path:
        again = read_all(path)
    assert_same(again, tensors)
    assert serialised(again) == serialised(tensors)


def test_reads_the_packages_files(tmp_path: Path) -> None:
    tensors = {"a": torch.randn(3, 5), "b": torch.arange(4)}
    data = safetensors.torch.save(tensors, metadata={"format": "pt"})
    write_directory(tmp_path / "a", {"t.safetensors": lambda path: path.write_bytes(data)})
    with SealedDirectory(tmp_path / "a").open("t.safetensors") as path:
        assert_same(read_all(path), tensors)


def test_shared_memory_is_stored_once(tmp_path: Path) -> None:
    table = torch.randn(1000, 8)
    tied = {"embedding": table, "output": table, "part": table[:2]}
    assert len(serialised(tied)) < table.nbytes + 500
    destination = torch.zeros(1000, 8)
    fresh = {"output": destination, "embedding": destination, "part": torch.zeros(2, 8)}
    with write_tensors(tmp_path / "a", tied).open("t.safetensors") as path:
        read_into(path, fresh)
    assert torch.equal(destination, table)
    assert torch.equal(fresh["part"], table[:2])


@pytest.mark.parametrize(
    ("destinations", "message"),
    [
        ({"a": torch.zeros(2), "b": torch.zeros(3), "c": torch.zeros(1)}, "c is missing"),
        ({"a": torch.zeros(2)}, "b is not expected"),
        (
            {"a": torch.zeros(2), "b": torch.zeros(1, 3)},
            r"b is float32 \[3\] but should be float32 \[1, 3\]",
        ),
        (
            {"a": torch.zeros(2, dtype=torch.float16), "b": torch.zeros(3)},
            r"a is float32 \[2\] but should be float16 \[2\]",
        ),
    ],
)
def test_misfits_are_named(tmp_path: Path, destinations: dict[str, Tensor], message: str) -> None:
    directory = write_tensors(tmp_path / "a", {"a": torch.ones(2), "b": torch.ones(3)})
    with (
        pytest.raises(TensorMismatchError, match=message),
        directory.open("t.safetensors") as path,
    ):
        read_into(path, destinations)
    assert all(not tensor.any() for tensor in destinations.values())


def two_layers() -> nn.Module:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 4))
    model[1].bias.requires_grad_(False)  # a parameter that never has a state
    return model


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        data = torch.randn(5, 4, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        model(data).square().sum().backward()
        optimizer.step()


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("first", [0, 3])
def test_optimizer_goes_on_bit_for_bit(
    tmp_path: Path, kind: type[torch.optim.Adam], fused: bool, first: int
) -> None:
    model = two_layers()
    optimizer = kind(model.parameters(), fused=fused)
    train(model, optimizer, range(first))
    write_directory(
        tmp_path / "a",
        {
            "model.safetensors": tensors_writer(model.state_dict()),
            "t.safetensors": tensors_writer(flatten_optimizer(optimizer, model.named_parameters())),
        },
    )
    train(model, optimizer, range(first, first + 3))

    other = two_layers()
    other_optimizer = kind(other.parameters(), fused=fused)
    train(other, other_optimizer, range(50, 50 + first))  # what is there must not matter
    directory = SealedDirectory(tmp_path / "a")
    with directory.open("model.safetensors") as path:
        read_into(path, other.state_dict())
    with directory.open("t.safetensors") as path:
        restore_optimizer(path, other_optimizer, other.named_parameters())
    train(other, other_optimizer, range(first, first + 3))
    assert_same(dict(other.named_parameters()), dict(model.named_parameters()))
    assert_same(
        flatten_optimizer(other_optimizer, other.named_parameters()),
        flatten_optimizer(optimizer, model.named_parameters()),
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop("exp_avg:0.bias"), "exp_avg:0.bias is missing"),
        (lambda state: state.update({"exp_avg:2.bias": torch.zeros(1)}), "exp_avg:2.bias is not"),
        (lambda state: state.update({"exp_avg:0.bias": torch.zeros(9)}), "exp_avg:0.bias is float"),
        (lambda state: state.update({"step:0.bias": torch.zeros(1)}), "step:0.bias is float32"),
        (lambda state: state.update({"nonsense": torch.zeros(1)}), "nonsense is not expected"),
    ],
)
def test_optimizer_misfits_are_named(tmp_path: Path, change: object, message: str) -> None:
    assert callable(change)
    model = two_layers()
    optimizer = torch.optim.Adam(model.parameters())
    train(model, optimizer, range(1))
    state = flatten_optimizer(optimizer, model.named_parameters())
    change(state)
    directory = write_tensors(tmp_path / "a", state)
    with (
        pytest.raises(TensorMismatchError, match=message),
        directory.open("t.safetensors") as path,
    ):
        restore_optimizer(path, optimizer, model.named_parameters())
