#!/usr/bin/env bash
# Runs this recipe: bash run.sh [variant] [--stage NAME] [--data DIR] [section.key=value ...]; --help says more.
set -euo pipefail
recipe="$(cd "$(dirname "$0")" && pwd)"
source "$recipe/../../scripts/recipe.sh"
