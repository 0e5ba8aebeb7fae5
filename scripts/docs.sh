#!/usr/bin/env bash
# Builds the site of docs/ into site/; a broken link is an error. Arguments go to `mkdocs build`.
set -euo pipefail
export NMT_ENVIRONMENT="${NMT_ENVIRONMENT:-project}"
source "$(dirname "$0")/environment.sh"

exec "$python" -m mkdocs build --strict "$@"
