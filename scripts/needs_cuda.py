"""Exit 0 when the installed torch needs the packages of requirements-cuda.lock, else 1."""

import importlib.metadata
import platform
import sys

requirements = importlib.metadata.requires("torch") or []
needed = platform.system() == "Linux" and any("nvidia" in each for each in requirements)
sys.exit(not needed)
