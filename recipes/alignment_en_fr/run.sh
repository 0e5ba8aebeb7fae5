#!/usr/bin/env bash
# Trains English-French models of three attention kinds, and compares their attention with gold word links:
#   bash recipes/alignment_en_fr/run.sh DIR [section.key=value ...]
# DIR has train, dev and test in .en.gz and .fr.gz (Europarl), and gold.en, gold.fr and gold.links (Hansards).
# What is done is skipped, and a training that was stopped goes on.
set -euo pipefail
[ $# -gt 0 ] || { sed -n '2,5s/^# //p' "$0" >&2; exit 2; }
input="$(realpath "$1")"
shift
recipe="$(cd "$(dirname "$0")" && pwd)"
source "$recipe/../../scripts/environment.sh"

kinds=(softmax entmax15 rela-g)
text=data/alignment runs=runs/alignment results=runs/alignment/results
mkdir -p "$text" "$results"

# The Hansards are in lower case.
lower() { python -c 'import sys; sys.stdout.buffer.writelines(line.decode().lower().encode() for line in sys.stdin.buffer)'; }
for language in en fr; do
    for name in train dev test; do
        file="$text/$name.$language"
        [ -e "$file" ] || { gzip -dc "$input/$name.$language.gz" | lower > "$file.part" && mv "$file.part" "$file"; }
    done
    lower < "$input/gold.$language" > "$text/gold.$language"
done

models=()
for kind in "${kinds[@]}"; do
    nmt-train --config "$recipe/base.yaml" model.attention="$kind" run_dir="$runs/$kind" "$@"
    models+=("$runs/$kind")
done

gold=(--source "$text/gold.en" --target "$text/gold.fr" --gold "$input/gold.links" --gold-index 1 --development 50)
echo "error rates by update" >&2
for kind in "${kinds[@]}"; do
    for checkpoint in "$runs/$kind"/checkpoints/step-*; do
        report="$results/align-$kind-$(basename "$checkpoint").json"
        [ -s "$report" ] || { nmt-align --model "$checkpoint" "${gold[@]}" --json > "$report.part" && mv "$report.part" "$report"; }
    done
done
python "$recipe/error_rates.py" "$results"

nmt-analyze --model "${models[@]}" --names "${kinds[@]}" "${gold[@]}" --output "$results/analysis" --pdf

python "$recipe/planted_errors.py" "$text/test.en" "$text/test.fr" "$results/planted"
for kind in "${kinds[@]}"; do
    echo "$kind"
    nmt-filter --model "$runs/$kind" --source "$results/planted.source" --target "$results/planted.target" \
        --labels "$results/planted.label" --output "$results/planted-$kind.tsv" --json
done
