"""Every kernel in Triton compiles for real GPUs, uses tensor cores, and spills no register."""

import re
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest

triton = pytest.importorskip("triton", reason="Triton is not installed")

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from nmt.ops.triton import attention, attention_kernels, rows_kernels  # noqa: E402

TOOL = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
ARCHITECTURES = (80, 89, 90, 100, 120)  # A100; RTX 4090; H100; B200; RTX 5090
NAMES = ["softmax", "sparsemax", "entmax15", "entmax", "relu", "gelu"]
LENGTHS = (27, 60, 120, 257)  # one tile of several sizes, and several tiles
FORMS = {"none": 0, "keys": 1, "causal": 2, "any": 3}  # of the mask
POINTERS = {"STATE": "*fp32", "MEAN": "*fp32", "SEED": "*i64", "MASK": "*u8", "GOLD": "*i64"}
POINTERS |= dict.fromkeys(("SCALE", "GAIN", "GATE", "BIAS", "BETA", "LOSS", "LIKELIHOOD"), "*fp32")
POINTERS |= dict.fromkeys(("SUM", "RESIDUAL", "PARAMETERS"), "*fp32")
POINTERS |= {f"GRAD_{name}": "*fp32" for name in ("GAIN", "GATE", "BIAS", "BETA", "PARAMETERS")}
FLOATS = {"scale", "fixed", "keep_scale", "epsilon", "smoothing", "factor"}


class Build(NamedTuple):
    """A kernel with its constants, as it is launched."""

    kernel: Any
    constants: dict[str, Any]
    num_warps: int
    num_stages: int

    def compile(self, architecture: int) -> Any:
        types = {name: self.type_of(name) for name in self.kernel.arg_names}
        aligned = {
            (place,): [["tt.divisibility", 16]]
            for place, name in enumerate(self.kernel.arg_names)
            if types[name].startswith("*") or name.endswith(("_batch", "_step"))
        }
        return triton.compile(
            ASTSource(self.kernel, types, self.constants, aligned),
            target=GPUTarget("cuda", architecture, 32),
            options={"num_warps": self.num_warps, "num_stages": self.num_stages},
        )

    def type_of(self, name: str) -> str:
        if name in self.constants:
            return "constexpr"
        if name in FLOATS:
            return "fp32"
        if name == "least_kept":
            return "u32"
        return POINTERS.get(name, "*bf16" if name.isupper() else "i32")


def attention_builds(name: str, length: int, form: str) -> dict[str, Build]:
    constants = {"HEADS": 8, "DIM": 64, "WIDTH": 64, "MAP": NAMES.index(name), "IEEE": False}
    constants |= {"PER_HEAD": name == "entmax", "MASK_FORM": FORMS[form], "DROPPED": True}
    tiles, one_tile = attention.forward_tiles(length, length, 64, NAMES.index(name))
    sizes = {"M": tiles.queries, "N": tiles.keys}
    settings = {**constants, **sizes, "ONE_TILE": one_tile}
    kernels = attention_kernels
    builds = {"forward": Build(kernels.forward_kernel, settings, tiles.num_warps, tiles.num_stages)}
    tiles, one_tile = attention.backward_tiles(length, length, 64)
    settings = {**constants, "M": tiles.queries, "N": tiles.keys}
    learned = {**settings, "LEARNED": name == "entmax"}
    run = (tiles.num_warps, tiles.num_stages)
    if one_tile:
        builds["backward"] = Build(kernels.backward_short_kernel, learned, *run)
    else:
        builds["queries"] = Build(kernels.backward_queries_kernel, learned, *run)
        builds["keys"] = Build(kernels.backward_keys_kernel, settings, *run)
    return builds


ROWS = {
    "gated norm": Build(rows_kernels.gated_norm_kernel, {"D": 512, "W": 512, "GATED": True}, 2, 1),
    "gated norm backward": Build(
        rows_kernels.gated_norm_backward_kernel, {"D": 512, "W": 512, "GATED": True}, 2, 1
    ),
    "add norm": Build(rows_kernels.add_norm_kernel, {"D": 512, "W": 512, "DROPPED": True}, 2, 1),
    "add norm backward": Build(
        rows_kernels.add_norm_backward_kernel, {"D": 512, "W": 512, "DROPPED": True}, 2, 1
    ),
    "entmax": Build(rows_kernels.entmax_kernel, {"HEADS": 8, "W": 256, "MAP": 3}, 1, 1),
    "entmax backward": Build(
        rows_kernels.entmax_backward_kernel, {"HEADS": 8, "W": 256, "LEARNED": True}, 1, 1
    ),
    "loss": Build(rows_kernels.cross_entropy_kernel, {"N": 4096, "NEEDS_GRADIENT": True}, 8, 1),
}


def check(build: Build, architecture: int, tmp_path: Path, *, products: bool) -> None:
    compiled = build.compile(architecture)
    path = tmp_path / "kernel.cubin"
    path.write_bytes(compiled.asm["cubin"])
    usage = subprocess.run(
        [str(TOOL), "-res-usage", str(path)], capture_output=True, text=True, check=True
    ).stdout
    found = dict(re.findall(r"(REG|STACK|LOCAL):(\d+)", usage))
    assert int(found["STACK"]) == 0, f"{found['STACK']} bytes of registers are spilled"
    assert int(found["LOCAL"]) == 0
    if products:
        assert re.search(r"mma\.sync|wgmma\.mma_async|tcgen05\.mma", compiled.asm["ptx"])


QUICK = {("relu", 27, 80, "keys"), ("entmax", 60, 90, "causal"), ("relu", 257, 80, "causal")}


@pytest.mark.parametrize(
    ("name", "length", "architecture", "form"),
    [
        pytest.param(*case, marks=[] if case in QUICK else pytest.mark.slow)
        for case in (
            (name, length, architecture, form)
            for name in NAMES
            for length in LENGTHS
            for architecture in ARCHITECTURES
            for form in ("keys", "causal")  # those of training
        )
    ],
)
def test_attention(name: str, length: int, architecture: int, form: str, tmp_path: Path) -> None:
    for build in attention_builds(name, length, form).values():
        check(build, architecture, tmp_path, products=True)


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize(
    "architecture", [80, *(pytest.param(x, marks=pytest.mark.slow) for x in ARCHITECTURES[1:])]
)
def test_rows(name: str, architecture: int, tmp_path: Path) -> None:
    check(ROWS[name], architecture, tmp_path, products=False)
