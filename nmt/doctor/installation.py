"""How the package was installed, beside which versions, and with which kernels and compiler.

This needs no torch, so that an environment for packed models can be examined, too.
"""

import json
import os
import re
import shutil
import sys
import sysconfig
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import nmt
from nmt.ops.environment import AUTO, BUILDS, requested_backend, requested_build
from nmt.ops.native.library import build_path, build_problem, loaded_build

BESIDES = ("triton",)  # packages that matter and that no requirement names on every platform
REQUIREMENT = re.compile(r"[\w.-]+")


@dataclass(frozen=True)
class Package:
    """A package that this one can use."""

    name: str
    version: str | None  # None: it is not installed
    required: bool


@dataclass(frozen=True)
class Installation:
    """Where the package is, how it came there, and what is installed beside it."""

    version: str
    kind: str  # editable | wheel | source tree
    tags: list[str]  # the platforms that the wheel is for, such as py3-none-any
    path: str
    kernels: list[str]  # the builds of the kernels in C that came with it
    environment: str | None  # the virtual environment that runs; None: there is none
    activated: bool  # whether the commands on PATH are those of this installation
    commands: str | None  # the directory on PATH in which the commands are found
    compiler: str | None  # the C compiler that would build the kernels
    packages: list[Package]


@dataclass(frozen=True)
class Build:
    """A build of the kernels in C, and why it is not used; None: it is."""

    name: str
    reason: str | None


@dataclass(frozen=True)
class TorchlessExamination:
    """The results that nmt-doctor reports where there is no torch."""

    installation: Installation
    builds: list[Build]
    warnings: list[str]
    problems: list[str]


def examine_without_torch(reason: str) -> TorchlessExamination:
    """Examine what translates packed models: the kernels in C."""
    builds = examine_builds()
    runs = any(build.reason is None for build in builds)
    problem = "no kernels in C can be used (see above): without torch, nothing can translate"
    return TorchlessExamination(examine_installation(), builds, [reason], [] if runs else [problem])


def examine_builds() -> list[Build]:
    """Each build of the kernels, and why it is not used."""
    backend, choice, used = requested_backend(), requested_build(), loaded_build()
    found = []
    for name in BUILDS:
        reason = build_problem(name)
        if reason is None and backend not in (AUTO, "native"):
            reason = f"the backend {backend} is requested"
        elif reason is None and choice not in (None, name):
            reason = f"NMT_NATIVE is {choice}"
        elif reason is None and name != used:
            reason = f"{used} is faster"
        found.append(Build(name, reason))
    return found


def examine_installation() -> Installation:
    """The installation that this process runs from."""
    try:
        installed: Distribution | None = distribution("nmt")
    except PackageNotFoundError:
        installed = None
    found = shutil.which("nmt-doctor")
    commands = None if found is None else str(Path(found).parent)
    return Installation(
        version="unknown" if installed is None else installed.version,
        kind=installation_kind(installed),
        tags=wheel_tags(installed),
        path=str(Path(nmt.__file__).parent),
        kernels=[name for name in BUILDS if build_path(name).exists()],
        environment=sys.prefix if sys.prefix != sys.base_prefix else os.environ.get("CONDA_PREFIX"),
        activated=commands is not None and same_directory(commands, sysconfig.get_path("scripts")),
        commands=commands,
        compiler=find_compiler(),
        packages=find_packages(installed),
    )


def installation_kind(installed: Distribution | None) -> str:
    """Editable, wheel, or a source tree that was never installed."""
    if installed is None:
        return "source tree"
    origin = json.loads(installed.read_text("direct_url.json") or "{}")
    return "editable" if origin.get("dir_info", {}).get("editable") else "wheel"


def wheel_tags(installed: Distribution | None) -> list[str]:
    """The tags of the wheel that was installed: for any platform without the kernels in C."""
    lines = ((installed and installed.read_text("WHEEL")) or "").splitlines()
    return sorted(line.removeprefix("Tag: ") for line in lines if line.startswith("Tag: "))


def find_compiler() -> str | None:
    """The path of the C compiler that would build the kernels, or None."""
    command = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    return shutil.which(command.split()[0])


def find_packages(installed: Distribution | None) -> list[Package]:
    """All packages that the package requires or can use, but for its development."""
    wanted: dict[str, bool] = {}
    for line in (installed and installed.requires) or ():
        requirement, _, condition = line.partition(";")
        match = REQUIREMENT.match(requirement)
        own = match is not None and match[0] == "nmt"  # an extra that consists of others
        if match is not None and not own and "development" not in condition:
            wanted.setdefault(match[0], "extra" not in condition)
    for name in BESIDES:
        wanted.setdefault(name, False)
    return [Package(name, package_version(name), required) for name, required in wanted.items()]


def package_version(name: str) -> str | None:
    """The version of an installed package, or None."""
    try:
        return distribution(name).version
    except PackageNotFoundError:
        return None


def same_directory(first: str, second: str) -> bool:
    """Whether two paths are one directory, by whatever links."""
    return Path(first).resolve() == Path(second).resolve()
