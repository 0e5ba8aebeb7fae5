#!/usr/bin/env bash
# Sets everything up and runs all checks: format, lint, types, kernels, tests. Arguments go to pytest.
set -euo pipefail
# The versions of ruff, mypy and pytest are those of the project unless NMT_ENVIRONMENT says otherwise.
export NMT_ENVIRONMENT="${NMT_ENVIRONMENT:-project}"
source "$(dirname "$0")/environment.sh"

ruff format --check .
ruff check .
mypy
python scripts/check_kernels.py
exec pytest --numprocesses "$(nproc)" --dist worksteal "$@"
