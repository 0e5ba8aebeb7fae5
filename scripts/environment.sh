# shellcheck shell=bash
# Sourced by the other scripts: finds or makes the environment in which the commands run.
# An environment that is active (venv, conda, module, container) is used when nmt and torch can be
# imported there. Otherwise it is .venv in the project, which is made anew when what it is made from
# changes. NMT_ENVIRONMENT=active allows only the first, NMT_ENVIRONMENT=project only the second.
# The interpreter is in $python. With the argument --without-packages it finds the code, but perhaps
# no package, and nothing is set up.

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 2

python="${PYTHON:-python3}"
version="$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2> /dev/null || true)"
case "$version" in
    3.1[1-9] | 3.[2-9][0-9]) ;;
    *)
        found="there is no $python that runs"
        [ -z "$version" ] || found="$python is Python $version"
        echo "expected Python 3.11 or newer, but $found; set PYTHON to the path of another" >&2
        exit 2
        ;;
esac
if [ "${1:-}" = --without-packages ]; then
    export PYTHONPATH="$PWD"
    return
fi

# Prefix, commands and place of nmt of the active environment, where it has nmt and torch. It is
# asked in another directory, since nmt can always be imported here.
ask_active() {
    (cd / && "$active_python" - 2> /dev/null) << 'END' || true
import importlib.util, os, sys, sysconfig
specs = [importlib.util.find_spec(name) for name in ("nmt", "torch")]
if sys.version_info >= (3, 11) and all(specs):
    place = os.path.dirname(specs[0].origin)
    print(os.path.realpath(sys.prefix), sysconfig.get_path("scripts"), place, sep="\t")
END
}

active=
active_python="${PYTHON:-$(command -v python || echo python3)}"
case "${NMT_ENVIRONMENT:-auto}" in
    auto | active) active="$(ask_active)" ;;
    project) ;;
    *)
        echo "NMT_ENVIRONMENT: expected auto, active or project, got $NMT_ENVIRONMENT" >&2
        exit 2
        ;;
esac
IFS=$'\t' read -r active_prefix active_commands active_place <<< "$active"
outside="${VIRTUAL_ENV:-${CONDA_PREFIX:-}}"
if [ "${NMT_ENVIRONMENT:-auto}" = active ] && [ -z "$active" ]; then
    echo "NMT_ENVIRONMENT=active, but nmt or torch cannot be imported in the active environment;" \
        "install them there (pip install --editable .), or unset NMT_ENVIRONMENT" >&2
    exit 2
elif [ "${NMT_ENVIRONMENT:-auto}" = active ] ||
    { [ -n "$active" ] && [ "$active_prefix" != "$(realpath .venv 2> /dev/null)" ]; }; then
    echo "Using the active environment $active_prefix (nmt is in $active_place)" >&2
    python="$active_python"
    export PATH="$active_commands:$PATH"
    return
elif [ "${NMT_ENVIRONMENT:-auto}" = auto ] && [ -z "$active" ] && [ -n "$outside" ]; then
    echo "The active environment $outside has no nmt with torch; using $PWD/.venv instead" \
        "(pip install --editable . installs nmt in the active one)" >&2
fi

# Progress bars are for people; without a terminal only what goes wrong is shown.
verbosity=--quiet
[ ! -t 2 ] || verbosity=--progress-bar=on

pip() {
    .venv/bin/python -m pip "$@" >&2
}

# Which torch: without CUDA where there is no NVIDIA GPU and pip knows of such a build, by
# PIP_FIND_LINKS or PIP_EXTRA_INDEX_URL. NMT_TORCH=cuda or NMT_TORCH=cpu decides it otherwise.
choose_torch() {
    local version gpu=no build=cuda
    version="$(sed -n 's/^torch==//p' constraints.txt)"
    if [ -e /proc/driver/nvidia/version ] || command -v nvidia-smi > /dev/null; then
        gpu=yes
    fi
    case "${NMT_TORCH:-auto}" in
        auto) [ "$gpu" = yes ] || ! pip_knows "$version+cpu" || build=cpu ;;
        cpu | cuda) build="$NMT_TORCH" ;;
        *)
            echo "NMT_TORCH: expected auto, cpu or cuda, got $NMT_TORCH" >&2
            exit 2
            ;;
    esac
    say_size "$build" "$gpu"
    # To pip, the build without CUDA is another 2.13.0, and the newer one, unless it is told so.
    torch="torch===$version"
    [ "$build" != cpu ] || torch="torch==$version+cpu"
}

pip_knows() {
    [[ "$(.venv/bin/python -m pip index versions torch 2> /dev/null)" == *"$1"* ]]
}

# Sizes of the files of requirements.lock for Python 3.11 on Linux, 18 November 2026: 411 MB without
# torch; torch without CUDA 192 MB; torch with CUDA 527 MB, and 2,006 MB for what that needs.
say_size() {
    if [ "$1" = cpu ]; then
        echo "Up to 0.6 GB will be downloaded (torch without CUDA)" >&2
    elif [ "$(uname -sm)" != "Linux x86_64" ]; then
        echo "Up to 0.6 GB will be downloaded" >&2
    else
        echo "Up to 2.9 GB will be downloaded (torch with CUDA)" >&2
        if [ "$2" = no ]; then
            echo "warning: this machine has no NVIDIA GPU, but pip knows of no build of torch without CUDA;" \
                "to download 0.6 GB instead, stop with Ctrl-C and set" \
                "PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu" >&2
        fi
    fi
}

# Every file is checked against the SHA-256 in requirements.lock, which lists all that is needed: no
# resolving, no build environment with unknown tools in it.
install_locked() {
    local locked=(install "$verbosity" --no-deps --require-hashes --only-binary :all:)
    grep '^torch==' requirements.lock | sed "s/^[^ ]*/$torch/" > .venv/torch.lock
    echo "Installing torch (1 of 3)" >&2
    pip "${locked[@]}" --requirement .venv/torch.lock &&
        grep '^setuptools==' requirements.lock > .venv/build.lock &&
        pip "${locked[@]}" --requirement .venv/build.lock &&
        echo "Installing other packages (2 of 3)" >&2 &&
        # jieba has no wheel
        pip "${locked[@]}" --no-binary jieba --no-build-isolation --requirement requirements.lock &&
        if .venv/bin/python scripts/needs_cuda.py; then
            pip "${locked[@]}" --requirement requirements-cuda.lock
        fi &&
        echo "Installing nmt, with kernels in C if there is gcc (3 of 3)" >&2 &&
        pip install "$verbosity" --no-deps --no-build-isolation --editable . && pip check --quiet
}

# The same versions without checksums, for a platform or an index that has other files.
install_unlocked() {
    local pinned=(install "$verbosity" --constraint constraints.txt)
    pip "${pinned[@]}" setuptools
    # torch first: so that nothing else asks for another version of it
    pip "${pinned[@]}" "$torch"
    pip "${pinned[@]}" --no-build-isolation --editable '.[development]'
}

stamp=.venv/installed
wanted="$(cat pyproject.toml setup.py constraints.txt requirements*.lock nmt/ops/native/*.[ch] | sha256sum)"
# A linked environment is somebody else's, who keeps it up to date.
if [ ! -L .venv ] && [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ]; then
    echo "Setting up .venv (a few minutes on a new machine)" >&2
    [ -x .venv/bin/python ] || "$python" -m venv .venv
    choose_torch
    if ! install_locked; then
        if [ "${NMT_REQUIRE_HASHES:-0}" = 1 ]; then
            echo "Not every file matches requirements.lock; NMT_REQUIRE_HASHES=1 allows no other" >&2
            exit 7
        fi
        echo "warning: requirements.lock does not fit this platform or index (see above);" \
            "installing the versions of constraints.txt without checksums" >&2
        install_unlocked
    fi
    echo "$wanted" > "$stamp"
fi
python="$PWD/.venv/bin/python"
export PATH="$PWD/.venv/bin:$PATH"
