"""Adam's state by the names of the parameters, so that it is stored as plain tensors."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor
from torch.optim import Optimizer

from nmt.storage.arrays import check_specs
from nmt.storage.tensors import TensorSpec, open_tensors

KEYS = ("step", "exp_avg", "exp_avg_sq")


def flatten_optimizer(
    optimizer: Optimizer, named_parameters: Iterable[tuple[str, Tensor]]
) -> dict[str, Tensor]:
    """The state as `exp_avg:NAME`, `exp_avg_sq:NAME` and `step:NAME` for each parameter.

    Rates and betas are not part of it: they follow from the configuration and the update.
    """
    tensors: dict[str, Tensor] = {}
    for name, parameter in named_parameters:
        state = optimizer.state.get(parameter, {})
        assert not state or set(state) == set(KEYS), f"Adam's state expected, got {set(state)}"
        tensors.update({f"{key}:{name}": value for key, value in state.items()})
    return tensors


def restore_optimizer(
    path: Path, optimizer: Optimizer, named_parameters: Iterable[tuple[str, Tensor]]
) -> None:
    """Give an optimizer of the same kind the stored state, bit for bit."""
    named = dict(named_parameters)
    with open_tensors(path) as file:
        with_state = {key.partition(":")[2] for key in file.specs}
        known = {name: named[name] for name in with_state if name in named}
        check_specs(file.specs, expected_state(known, file.specs), file.name)
        tensors = {key: file.tensor(key) for key in file.specs}
    for group in optimizer.param_groups:
        step_with_parameter = bool(group.get("capturable") or group.get("fused"))
        members = {id(parameter) for parameter in group["params"]}
        for name, parameter in named.items():
            if id(parameter) in members and name in with_state:
                optimizer.state[parameter] = {
                    "step": tensors[f"step:{name}"].to(
                        parameter.device if step_with_parameter else "cpu"
                    ),
                    "exp_avg": like(tensors[f"exp_avg:{name}"], parameter),
                    "exp_avg_sq": like(tensors[f"exp_avg_sq:{name}"], parameter),
                }


def like(tensor: Tensor, parameter: Tensor) -> Tensor:
    """The tensor on the parameter's device and in its memory layout."""
    return torch.empty_like(parameter, requires_grad=False).copy_(tensor)


def expected_state(
    named: Mapping[str, Tensor], found: Mapping[str, TensorSpec]
) -> dict[str, TensorSpec]:
    """The specs of the tensors that the file must hold for parameters that have a state."""
    expected = {}
    for name, parameter in named.items():
        for key in KEYS[1:]:
            expected[f"{key}:{name}"] = TensorSpec.of(parameter)
        step = found.get(f"step:{name}")
        # Adam counts in the default dtype of the process that began.
        dtype = step.dtype if step and step.dtype == torch.float64 else torch.float32
        expected[f"step:{name}"] = TensorSpec(dtype, ())
    return expected
