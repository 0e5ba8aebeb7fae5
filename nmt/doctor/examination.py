"""The whole examination, and the problems and warnings that follow from it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nmt.doctor.compute import (
    Computer,
    DeviceTable,
    examine_computer,
    examine_operations,
)
from nmt.doctor.installation import Build, Installation, examine_builds, examine_installation
from nmt.doctor.plan import ScalingPlan, plans_for
from nmt.doctor.smoke import SmokeTest, run_smoke_tests
from nmt.ops.backend import Costly
from nmt.ops.cuda_device import cuda_problem, visible_card
from nmt.ops.environment import AUTO, requested_backend


@dataclass(frozen=True)
class Examination:
    """The results that nmt-doctor reports."""

    installation: Installation
    computer: Computer
    backend: str  # that was requested
    builds: list[Build]
    operations: list[DeviceTable]
    smoke_tests: list[SmokeTest]
    expected_training: list[ScalingPlan]  # on the GPUs of this machine, calculated
    warnings: list[str]  # what costs speed
    problems: list[str]  # what does not work


def examine() -> Examination:
    """Examine everything; takes a few seconds."""
    computer, installation = examine_computer(), examine_installation()
    tables = [examine_operations(device.name) for device in computer.devices]
    tests = [test for device in devices_to_test(computer) for test in run_smoke_tests(device)]
    return Examination(
        installation=installation,
        computer=computer,
        backend=requested_backend(),
        builds=examine_builds(),
        operations=tables,
        smoke_tests=tests,
        expected_training=plans_for(computer.devices),
        warnings=list(dict.fromkeys(find_warnings(installation, tables))),
        problems=list(find_problems(installation, computer, tables, tests)),
    )


def devices_to_test(computer: Computer) -> list[str]:
    """The CPU and the first GPU; a backend that was forced has to run on the better one only."""
    names = [device.name for device in computer.devices[:2]]
    return names if requested_backend() == AUTO else names[-1:]


def find_warnings(installation: Installation, tables: Sequence[DeviceTable]) -> Iterator[str]:
    """One line for everything that works, but slowly or in a way that may surprise."""
    backend = requested_backend()
    if backend == AUTO:
        for table in tables:
            for row in table.verdicts:
                if isinstance(row.reason, Costly):
                    yield str(row.reason)
    elif backend in ("torch", "reference"):
        yield f"the environment requests the backend {backend}, which is slower than auto"
    problem = cuda_problem()
    if problem is not None and (card := visible_card()) is not None:
        yield f"there is {card}, but torch cannot use it: {problem}"
    if installation.commands is not None and not installation.activated:
        yield f"the commands on PATH ({installation.commands}) are those of another installation"


def find_problems(
    installation: Installation,
    computer: Computer,
    tables: Sequence[DeviceTable],
    tests: Sequence[SmokeTest],
) -> Iterator[str]:
    """One line for everything that does not work."""
    for package in installation.packages:
        if package.required and package.version is None:
            yield f"the package {package.name} is not installed; install nmt again"
    refused: set[str] = set()  # devices on which the requested backend cannot run
    for table in tables:
        if table.device not in devices_to_test(computer):
            continue
        for problem in table.problems:
            refused.add(table.device)
            yield problem
    failures: dict[tuple[str, str], list[str]] = {}
    for test in tests:
        said = test.device in refused and (test.problem or "").startswith("NMT_BACKEND=")
        if test.problem is not None and not said:
            failures.setdefault((test.device, test.problem), []).append(test.name)
    for (device, problem), names in failures.items():
        yield f"smoke test on {device} failed ({', '.join(names)}): {problem}"
