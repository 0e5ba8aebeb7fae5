"""Every kernel in Triton compiles for real GPUs, uses tensor cores, and spills no register."""

import re
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest

triton = pytest.importorskip("triton", reason="Triton is not installed")

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from nmt.ops.triton import (  # noqa: E402
    attention,
    attention_backward_kernels,
    attention_kernels,
    product_kernels,
    products,
    rows,
    rows_kernels,
    search_kernels,
)

TOOL = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
ARCHITECTURES = (80, 89, 90, 100, 120)  # A100; RTX 4090; H100; B200; RTX 5090
MAPS = {"softmax": 0, "sparsemax": 1, "entmax15": 2, "entmax": 3, "relu": 4, "gelu": 5, "topk": 9}
NAMES = list(MAPS)
LENGTHS = (27, 60, 120, 257)  # one tile of several sizes, and several tiles
FORMS = {"none": 0, "keys": 1, "causal": 2, "any": 3}  # of the mask
POINTERS = {"STATE": "*fp32", "MEAN": "*fp32", "SEED": "*i64", "MASK": "*u8", "GOLD": "*i64"}
POINTERS |= dict.fromkeys(("SCALE", "GAIN", "GATE", "BIAS", "BETA", "LOSS", "LIKELIHOOD"), "*fp32")
POINTERS |= dict.fromkeys(("SUM", "RESIDUAL", "PARAMETERS"), "*fp32")
POINTERS |= dict.fromkeys(("X_BIAS", "GRAD_X_BIAS"), "*fp32")
POINTERS |= {f"GRAD_{name}": "*fp32" for name in ("GAIN", "GATE", "BIAS", "BETA", "PARAMETERS")}
FLOATS = {"scale", "fixed", "keep_scale", "epsilon", "head_epsilon", "smoothing", "factor"}


class Build(NamedTuple):
    """A kernel with its constants, as it is launched."""

    kernel: Any
    constants: dict[str, Any]
    num_warps: int
    num_stages: int
    types: dict[str, Any] = {}  # noqa: RUF012
    maxnreg: int | None = None

    def compile(self, architecture: int) -> Any:
        """The kernel as it is compiled at its first launch: addresses and distances of rows are
        multiples of 16, so that loads take several numbers at once."""
        types = {name: self.type_of(name) for name in self.kernel.arg_names}
        aligned = {
            (place,): [["tt.divisibility", 16]]
            for place, name in enumerate(self.kernel.arg_names)
            if types[name][0] == "*" or name.startswith(("query_", "key_", "output_", "grad_"))
        }
        return triton.compile(
            ASTSource(self.kernel, types, self.constants, aligned),
            target=GPUTarget("cuda", architecture, 32),
            options={
                "num_warps": self.num_warps,
                "num_stages": self.num_stages,
                "maxnreg": self.maxnreg,
            },
        )

    def type_of(self, name: str) -> Any:
        if name in self.constants:
            return "constexpr"
        if name in self.types:
            return self.types[name]
        if name in FLOATS:
            return "fp32"
        if name == "least_kept":
            return "u32"
        return POINTERS.get(name, "*bf16" if name.isupper() else "i32")


def attention_builds(name: str, length: int, form: str) -> dict[str, Build]:
    number = MAPS[name]
    constants = {"HEADS": 8, "DIM": 64, "WIDTH": 64, "MAP": number, "IEEE": False, "FAST": True}
    constants |= {"PER_HEAD": name == "entmax", "MASK_FORM": FORMS[form], "DROPPED": True}
    constants |= {"STATES": attention.state_numbers(number)}

    def build(kernel: Any, tiles: attention.Tiles, **more: Any) -> Build:
        sizes = {"M": tiles.queries, "N": tiles.keys}
        run = (tiles.num_warps, tiles.num_stages)
        return Build(kernel, {**constants, **sizes, **more}, *run, maxnreg=tiles.maxnreg)

    forward = attention.forward_tiles(length, length, 64, number)
    builds = {
        "forward": build(
            attention_kernels.forward_kernel,
            forward,
            TILES=forward.held,
            APPENDED=False,
            LIMIT=0.0,
        )
    }
    kernels = attention_backward_kernels
    by_queries, by_keys = attention.backward_tiles(length, length, 64, number)
    learned = name == "entmax"
    if by_keys is None:
        builds["backward"] = build(kernels.backward_short_kernel, by_queries, LEARNED=learned)
    else:
        builds["queries"] = build(
            kernels.backward_queries_kernel, by_queries, LEARNED=learned, TILES=by_queries.held
        )
        builds["keys"] = build(kernels.backward_keys_kernel, by_keys)
    return builds


SEARCH = dict.fromkeys(("LOGITS", "VALUES", "NORMALIZER"), "*fp32")
SEARCH |= dict.fromkeys(("TOKENS", "PARENTS", "CHOSEN"), "*i64")
SEARCH |= dict.fromkeys(("SCORES", "TOTALS"), "*fp64")
ROWS = {
    "gated norm": Build(rows_kernels.gated_norm_kernel, {"D": 512, "W": 512, "GATED": True}, 2, 1),
    "gated norm backward": Build(
        rows_kernels.gated_norm_backward_kernel, {"D": 512, "W": 512, "GATED": True}, 2, 1
    ),
    "add norm": Build(
        rows_kernels.add_norm_kernel,
        {"D": 512, "W": 512, "DROPPED": True, "BIASED": True, "IS_ROUNDED": True},
        *(2, 1),
        {"Y": "*fp32"},
    ),
    "add norm backward": Build(
        rows_kernels.add_norm_backward_kernel,
        {"D": 512, "W": 512, "DROPPED": True, "BIASED": True}
        | {"IS_EXACT": True, "IS_ROUNDED": True},
        *(2, 1),
        dict.fromkeys(("GRAD_Y", "GRAD_RESIDUAL"), "*fp32"),
    ),
    "relu backward": Build(
        rows_kernels.relu_backward_kernel, {"D": 2048, "W": 1024}, 4, 1, {"SUMS": "*fp32"}
    ),
    "sums of parts": Build(
        rows_kernels.sum_parts_kernel,
        {"D": 512, "W": 32, "R": 32, "COUNT": rows.SUMMED_AT_ONCE},
        *(4, 1),
        {"INPUTS": ("*fp32",) * rows.SUMMED_AT_ONCE, "SUMS": "*fp32"},
    ),
    "entmax": Build(rows_kernels.entmax_kernel, {"HEADS": 8, "W": 256, "MAP": 3}, 1, 1),
    "entmax backward": Build(
        rows_kernels.entmax_backward_kernel, {"HEADS": 8, "W": 256, "LEARNED": True}, 1, 1
    ),
    "normalizer": Build(search_kernels.normalize_kernel, {"N": 4096}, 8, 1, SEARCH),
    "best tokens": Build(
        search_kernels.best_tokens_kernel, {"COUNT": 5, "SLOTS": 1024, "DEPTH": 32}, 4, 1, SEARCH
    ),
    "choice of a beam": Build(
        search_kernels.choose_beam_kernel,
        {"WIDTH": 4, "COUNT": 5, "BEAM": 4, "N": 32},
        1,
        1,
        SEARCH,
    ),
    "loss": Build(rows_kernels.cross_entropy_kernel, {"N": 4096, "NEEDS_GRADIENT": True}, 8, 1),
}


# Rows, inputs, outputs, type, whether the heads have a norm: tiles of 16, 32 and 64 rows, inputs
# in one part and in eight, widths that are no power of two.
PRODUCTS = [
    (400, 512, 512, "fp32", True),
    (400, 512, 512, "bf16", True),
    (400, 2048, 512, "fp32", False),
    (400, 2048, 512, "bf16", False),
    (4, 4096, 1024, "fp32", False),
    (4, 1024, 1024, "bf16", True),
    (100, 1024, 1024, "fp32", True),
    (400, 4096, 1024, "bf16", False),
    (400, 720, 720, "fp32", True),
]


def product_build(rows: int, inputs: int, outputs: int, dtype: str, normed: bool) -> Build:
    constants = products.kernel_constants(rows, inputs, outputs, 4 if dtype == "fp32" else 2)
    constants |= {"NORMED": normed, "GATED": normed, "IEEE": False}
    types = dict.fromkeys(("X", "WEIGHT", "X_BIAS", "RESIDUAL", "GAIN", "BIAS", "Y"), f"*{dtype}")
    types |= dict.fromkeys(("HEAD_GAIN", "HEAD_GATE", "SUMS", "SQUARES"), "*fp32")
    types |= {"ARRIVED": "*i32"}
    run = products.RUN
    return Build(
        product_kernels.product_norm_kernel,
        constants,
        *(run["num_warps"], run["num_stages"], types, run["maxnreg"]),
    )


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


@pytest.mark.parametrize("case", PRODUCTS)
@pytest.mark.parametrize(
    "architecture", [80, *(pytest.param(x, marks=pytest.mark.slow) for x in ARCHITECTURES[1:])]
)
def test_products(case: tuple[int, int, int, str, bool], architecture: int, tmp_path: Path) -> None:
    check(product_build(*case), architecture, tmp_path, products=True)


def test_sums_are_released_before_the_last_program_reads_them() -> None:
    """A barrier, a counter that releases and acquires, a barrier: as NVIDIA's memory model asks."""
    ptx = product_build(*PRODUCTS[0]).compile(80).asm["ptx"]
    order = re.findall(r"bar\.sync|atom\.global\.gpu\.acq_rel\.add|st\.global", ptx)
    place = order.index("atom.global.gpu.acq_rel.add")
    assert "st.global" in order[:place]
    assert order[place - 1] == order[place + 1] == "bar.sync"
