"""Whether this process can compute on a CUDA device, and how torch computes there."""

import functools
import logging
import os
import subprocess
import warnings
from pathlib import Path

import torch

logger = logging.getLogger(__name__)

BFLOAT16_FROM = (8, 0)  # the compute capability of Ampere: the first with products in bfloat16
# The last wheels with kernels for the cards of 2014 to 2018 are those for CUDA 12.6.
OLD_CARDS = (
    "P100, 1080 Ti, V100 and older cards need a build of torch for CUDA 12.6: pip install torch "
    "--index-url https://download.pytorch.org/whl/cu126"
)
SECONDS_TO_LIST = 20.0


def cuda_problem() -> str | None:
    """Why torch cannot compute on a CUDA device here, with the remedy; None: it can."""
    if not is_available():
        return initialisation_problem()
    unfit = [card_problem(index) for index in range(torch.cuda.device_count())]
    return next((problem for problem in unfit if problem is not None), None)


def is_available() -> bool:
    """Whether torch finds a CUDA device; torch's warning is left to `initialisation_problem`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.cuda.is_available()


def initialisation_problem() -> str:
    """The reason that torch gives for finding no CUDA device."""
    if torch.version.cuda is None and torch.version.hip is None:
        return f"torch {torch.__version__} is a build for CPUs; install a build for CUDA"
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if hidden is not None and hidden.strip() in ("", "-1"):
        return f"CUDA_VISIBLE_DEVICES={hidden} hides all devices"
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
        reason = "no device was found"
    except (RuntimeError, AssertionError) as error:
        reason = str(error).strip().split("\n", maxsplit=1)[0].split(" Please ")[0].rstrip(".")
    built = f"torch {torch.__version__} is built for CUDA {torch.version.cuda}"
    if "driver" in reason and "too old" in reason:
        return (
            f"{reason}; {built}: update the driver (CUDA 13 needs 580 or newer), or install "
            "a build for CUDA 12.6: pip install torch --index-url "
            "https://download.pytorch.org/whl/cu126"
        )
    return f"{reason} ({built})"


def card_problem(index: int) -> str | None:
    """Why this build of torch has no kernels for a card, or None."""
    builds = torch.cuda.get_arch_list()
    capability = torch.cuda.get_device_capability(index)
    if not builds or any(runs_on(build, capability) for build in builds):
        return None
    return (
        f"{torch.cuda.get_device_name(index)} has compute capability {capability[0]}."
        f"{capability[1]}, but torch {torch.__version__} is built for {' '.join(builds)}; "
        f"{OLD_CARDS}"
    )


def runs_on(build: str, capability: tuple[int, int]) -> bool:
    """Whether code for `build` (sm_80, compute_120, ...) runs on a card of this capability."""
    kind, _, digits = build.partition("_")
    number = digits.rstrip("af")  # sm_90a: for this very card
    if not number.isdigit():
        return False
    major, minor = int(number[:-1]), int(number[-1])
    if kind == "compute":  # which the driver translates for later cards
        return (major, minor) <= capability
    return major == capability[0] and minor <= capability[1]


def visible_card(devices: Path = Path("/dev")) -> str | None:
    """An NVIDIA device of this machine that was not hidden on purpose, or None."""
    if os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1"):
        return None
    try:
        listed = subprocess.run(
            ["nvidia-smi", "-L"],
            capture_output=True,
            text=True,
            timeout=SECONDS_TO_LIST,
            check=False,
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        listed = ""
    cards = [line for line in listed.split("\n") if line.startswith("GPU ")]
    if cards:
        return cards[0].partition(" (UUID")[0]
    return next((str(path) for path in sorted(devices.glob("nvidia[0-9]*"))), None)


@functools.cache
def warn_of_unused_card(problem: str) -> None:
    """Say, once, that the CPU computes although there is a card, because of a problem."""
    if (card := visible_card()) is not None:
        logger.warning(
            "computing on the CPU although there is %s, which torch cannot use: %s", card, problem
        )


def has_bfloat16(device: torch.device) -> bool:
    """Whether a device computes matrix products in bfloat16 faster than in float32."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= BFLOAT16_FROM


def set_cuda_defaults() -> None:
    """Let torch compute fast on CUDA devices: once, before the first product.

    Products of float32 matrices take TF32, which rounds their inputs to 11 significant bits;
    NVIDIA_TF32_OVERRIDE=0 in the environment keeps them exact. cuDNN's attention is off, because
    it makes a plan for every new shape, and nearly every batch has one.
    """
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True
    torch.backends.cuda.enable_cudnn_sdp(False)


def tf32_is_on() -> bool:
    """Whether products of float32 matrices take TF32 on a CUDA device."""
    overridden = os.environ.get("NVIDIA_TF32_OVERRIDE") == "0"
    return bool(torch.backends.cuda.matmul.allow_tf32) and not overridden
