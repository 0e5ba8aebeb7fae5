# shellcheck shell=bash
# Sourced by the other scripts: finds or makes the environment in which the commands run.
# An environment that is active (venv, conda, module, container) is used when nmt and torch can be
# imported there. Otherwise it is .venv in the project, which is made anew when what it is made from
# changes. NMT_ENVIRONMENT=active allows only the first, NMT_ENVIRONMENT=project only the second.
# The interpreter is in $python. With the argument --without-packages it finds the code, but perhaps
# no package, and nothing is set up.

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 2

python="${PYTHON:-python3}"
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "$python is older than 3.11; set PYTHON to a newer interpreter" >&2
    exit 2
fi
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

pip() {
    .venv/bin/python -m pip "$@"
}

# Every file is checked against the SHA-256 in requirements.lock, which lists all that is needed: no
# resolving, no build environment with unknown tools in it.
install_locked() {
    local locked=(install --quiet --no-deps --require-hashes --only-binary :all:)
    # Where pip knows of a torch without CUDA, by PIP_FIND_LINKS say, that one is enough.
    grep '^torch==' requirements.lock | sed 's/ /+cpu /' > .venv/torch.lock
    pip "${locked[@]}" --requirement .venv/torch.lock 2> /dev/null || true
    grep '^setuptools==' requirements.lock > .venv/build.lock &&
        pip "${locked[@]}" --requirement .venv/build.lock &&
        # jieba has no wheel
        pip "${locked[@]}" --no-binary jieba --no-build-isolation --requirement requirements.lock &&
        if .venv/bin/python scripts/needs_cuda.py; then
            pip "${locked[@]}" --requirement requirements-cuda.lock
        fi &&
        pip install --quiet --no-deps --no-build-isolation --editable . && pip check --quiet
}

# The same versions without checksums, for a platform or an index that has other files.
install_unlocked() {
    local pinned=(install --quiet --constraint constraints.txt)
    pip "${pinned[@]}" setuptools
    # torch first: so that nothing else asks for another version of it
    pip "${pinned[@]}" torch
    pip "${pinned[@]}" --no-build-isolation --editable '.[development]'
}

stamp=.venv/installed
wanted="$(cat pyproject.toml setup.py constraints.txt requirements*.lock nmt/ops/native/*.[ch] | sha256sum)"
# A linked environment is somebody else's, who keeps it up to date.
if [ ! -L .venv ] && [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ]; then
    echo "Setting up .venv (a few minutes on a new machine)" >&2
    [ -x .venv/bin/python ] || "$python" -m venv .venv
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
