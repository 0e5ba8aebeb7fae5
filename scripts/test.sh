#!/usr/bin/env bash
# Sets everything up and runs all checks: format, lint, types, kernels, tests. Arguments go to pytest.
set -euo pipefail
source "$(dirname "$0")/environment.sh"

ruff format --check .
ruff check .
mypy
python scripts/check_kernels.py
exec pytest --numprocesses "$(nproc)" --dist worksteal "$@"
