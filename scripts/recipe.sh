# shellcheck shell=bash
# Sourced by recipes/NAME/run.sh, with its arguments: runs nmt-recipe on the recipe in $recipe.

start="$PWD"
# shellcheck disable=SC2154
project="$(cd "$recipe/../.." && pwd)"
packages=()
for word in "$@"; do
    case "$word" in
        --list | --help | -h) packages=(--without-packages) ;; # answered at once
    esac
done
# shellcheck source=scripts/environment.sh
source "$project/scripts/environment.sh" "${packages[@]:-}"
cd "$start" || exit 2
exec "$python" -m nmt.cli.recipe "$recipe" "$@"
