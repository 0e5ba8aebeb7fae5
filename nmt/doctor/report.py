"""An examination as text: aligned, one fact per line, problems last."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from nmt.doctor.installation import Build, Installation, TorchlessExamination

if TYPE_CHECKING:
    from nmt.doctor.compute import Computer, Device, DeviceTable
    from nmt.doctor.examination import Examination
    from nmt.doctor.plan import ScalingPlan
    from nmt.doctor.smoke import SmokeTest

GIB = 1 << 30
RUNS = "runs"


def report(found: "Examination | TorchlessExamination") -> str:
    """The whole report."""
    installation = found.installation
    sections = {
        "installation": align(installation_rows(installation)),
        "packages": align(
            (package.name, package.version or "not installed") for package in installation.packages
        ),
        "kernels in C": align(build_rows(found.builds, installation)),
    }
    if not isinstance(found, TorchlessExamination):
        sections = {"machine": align(machine_rows(found.computer)), **sections, **computing(found)}
    blocks = ["\n".join((title, *(f"  {line}" for line in sections[title]))) for title in sections]
    return "\n\n".join((*blocks, "\n".join(conclusion(found))))


def computing(found: "Examination") -> dict[str, list[str]]:
    """The sections on what torch computes, and what computes for it."""
    settings = found.computer.settings.items()
    sections = {
        "environment variables": align(
            (name, "not set" if value is None else value) for name, value in settings
        )
    }
    for table in found.operations:
        title = f"operations on {table.device} (backend: {found.backend})"
        sections[title] = align(operation_rows(table, found))
    sections["smoke tests"] = align(smoke_rows(found.smoke_tests))
    if found.expected_training:
        title = "training on these GPUs (calculated, not measured: plus or minus 40 %)"
        sections[title] = align(training_rows(found.expected_training))
    return sections


def align(rows: Iterator[Sequence[str]]) -> list[str]:
    """Lines whose cells begin in the same columns; a cell at the end may have any length."""
    cells = list(rows)
    widths = [max(map(len, column)) for column in zip(*(row[:-1] for row in cells), strict=True)]
    return [
        "  ".join((*map(str.ljust, row[:-1], widths), row[-1].replace("\n", " "))) for row in cells
    ]


def machine_rows(computer: "Computer") -> Iterator[tuple[str, str]]:
    """The machine."""
    yield "system", computer.system
    yield "Python", computer.python
    cores = f"{computer.cores}, of which {computer.usable_cores} can be used"
    yield "cores", f"{cores}; torch uses {computer.threads} threads"
    for device in computer.devices:
        yield device.name, device.model + memory(device)
    if len(computer.devices) == 1:
        built = f"built with CUDA {computer.cuda}" if computer.cuda else "built without CUDA"
        yield "GPU", f"none that torch can use (it was {built})"


def memory(device: "Device") -> str:
    """The memory of a device, to follow its name."""
    return "" if device.memory is None else f", {device.memory / GIB:.1f} GiB"


def installation_rows(installation: Installation) -> Iterator[tuple[str, str]]:
    """How the package was installed."""
    yield "version", installation.version
    kernels = "with kernels in C" if installation.kernels else "without kernels in C"
    kind = installation.kind
    if kind == "wheel":
        kind = " ".join((kind, *installation.tags))
    yield "installed", f"{kind}, {kernels}, in {installation.path}"
    yield "virtual environment", installation.environment or "none"
    if installation.commands is None:
        yield "commands", "not on PATH; activate the environment"
    else:
        yield "commands", f"on PATH, in {installation.commands}"


def build_rows(builds: Sequence[Build], installation: Installation) -> Iterator[tuple[str, str]]:
    """The builds of the kernels."""
    for build in builds:
        yield build.name, "used" if build.reason is None else f"not used ({build.reason})"
    yield "C compiler", installation.compiler or "none found"


def operation_rows(table: "DeviceTable", found: "Examination") -> Iterator[Sequence[str]]:
    """Every implementation of every operation: the one that runs first, then why others do not.

    A reason that is also a warning or a problem is printed there only.
    """
    if table.failure is not None:
        yield (table.failure,)
    said_below = (*found.warnings, *found.problems)
    for operation in dict.fromkeys(row.operation for row in table.verdicts):
        label = operation
        rows = [row for row in table.verdicts if row.operation == operation]
        for row in sorted(rows, key=lambda row: row.reason is not None):
            reason = row.reason or RUNS
            said = any(line == reason or line.endswith(f"({reason})") for line in said_below)
            cell = "see below" if said else reason
            yield label, row.backend, row.implementation, cell
            label = ""


def smoke_rows(tests: "Sequence[SmokeTest]") -> Iterator[tuple[str, str, str]]:
    """How the smoke tests went."""
    for test in tests:
        ending = f"{test.seconds:5.2f} s" if test.problem is None else "failed"
        yield test.name, test.device, ending


def training_rows(plans: "Sequence[ScalingPlan]") -> Iterator[Sequence[str]]:
    """The calculated training time of the paper's Table 1, by attention kind."""
    for plan in plans:
        one, most = plan.steps[0], plan.steps[-1]
        speeds = [f"{step.tokens_per_second:,.0f} tokens/s on {step.gpus}" for step in (one, most)]
        hours = f"{one.hours:.3g} hours per variant on one GPU"
        fits = f"about {plan.tokens_that_fit:,} tokens fit in a pass"
        yield plan.kind, plan.precision, ", ".join(dict.fromkeys(speeds)), hours, fits


def conclusion(found: "Examination | TorchlessExamination") -> Iterator[str]:
    """One line per warning and problem, and the verdict."""
    for warning in found.warnings:
        yield f"warning: {warning}"
    for problem in found.problems:
        yield f"problem: {' '.join(problem.split())}"
    if not found.problems:
        yield "all is well" if not found.warnings else "all is well, but for the warnings"
