#!/usr/bin/env bash
# Compares our speed with other toolkits': bash run.sh [--work DIR] [--data DIR] [--peers NAME ...]; --help says more.
set -euo pipefail
recipe="$(cd "$(dirname "$0")" && pwd)"
start="$PWD"
source "$recipe/../../scripts/environment.sh"
cd "$start"
exec python "$recipe/compare.py" "$@"
