#!/usr/bin/env bash
# Sets everything up and does the main job on the embedded corpus: writes it, trains a small model
# with ReLA-g cross attention (which ends with an average of its checkpoints), translates, scores and
# looks inside. Results are in demo/.
#   bash scripts/demo.sh            a few minutes
#   bash scripts/demo.sh --quick    under a minute, to see that everything works; learns next to nothing
set -euo pipefail

# ${name[@]+...}: before bash 4.4, an empty array is unbound.
sizes=()
settings=()
case "$*" in
    "") ;;
    --quick)
        sizes=(--train 1000 --validation 20 --test 20 --noisy 20)
        settings=(train.max_updates=20 train.schedule.warmup=10 train.save_every=5 validate.every=20)
        ;;
    *)
        echo "usage: bash scripts/demo.sh [--quick]" >&2
        exit 2
        ;;
esac
source "$(dirname "$0")/environment.sh"

run=demo/runs/rela-g-cross
python recipes/demo/generate.py --output demo/data ${sizes[@]+"${sizes[@]}"}
nmt-train --config configs/demo/rela-g-cross.yaml ${settings[@]+"${settings[@]}"}
nmt-translate --model "$run" --input demo/data/test.en --output demo/test.translated.de
nmt-align --model "$run" --source demo/data/test.en --target demo/data/test.de \
    --gold demo/data/test.align --output demo/test.links
nmt-analyze --model "$run" --source demo/data/test.en --target demo/data/test.de \
    --gold demo/data/test.align --output demo/analysis

echo
paste -d '\n' <(head -n 3 demo/data/test.en | sed 's/^/source      /') \
    <(head -n 3 demo/test.translated.de | sed 's/^/translation /') \
    <(head -n 3 demo/data/test.de | sed 's/^/reference   /')
echo
nmt-score --hypothesis demo/test.translated.de --reference demo/data/test.de --metrics bleu chrf ter
echo
echo "look at   demo/analysis/report.html (in a browser) and demo/analysis/*.png"
[ "$python" != "$PWD/.venv/bin/python" ] || echo "commands  source .venv/bin/activate"
echo "curves    tensorboard --logdir demo/runs"
echo "try it    echo 'The old man sees a dog.' | nmt-translate --model $run"
