#!/usr/bin/env bash
# Sets everything up and runs all checks: format, lint, types, tests. Arguments go to pytest.
set -euo pipefail
source "$(dirname "$0")/environment.sh"

ruff format --check .
ruff check .
mypy
exec pytest --numprocesses "$(nproc)" --dist worksteal "$@"
