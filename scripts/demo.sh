#!/usr/bin/env bash
# Sets everything up and does the main job on the embedded corpus: writes it, trains a small model
# with ReLA-g cross attention, averages, translates and scores. Results are in demo/.
set -euo pipefail
source "$(dirname "$0")/environment.sh"

run=demo/runs/rela-g-cross
python recipes/demo/generate.py --output demo/data
nmt-train --config configs/demo/rela-g-cross.yaml
nmt-average-checkpoints --run "$run" --last 5
nmt-translate --model "$run" --input demo/data/test.en --output demo/test.translated.de
nmt-score --hypothesis demo/test.translated.de --reference demo/data/test.de --metrics bleu chrf ter
