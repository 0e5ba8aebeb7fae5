"""Settings for the whole suite: one thread, fixed random numbers, and fast property tests."""

import gc
import os
import signal
import sys

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from hypothesis import HealthCheck, settings

# `nohup pytest &` begins with SIGINT ignored, which the commands under test would inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile(
    "ci", max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("nightly", settings.get_profile("ci"), max_examples=5000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_collection_finish() -> None:
    """Keep collected tests and imported modules out of each later garbage collection."""
    gc.freeze()


@pytest.fixture(autouse=True)
def fixed_random_numbers() -> None:
    """Make random numbers independent of the tests before; torch is not imported for this."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(0)
