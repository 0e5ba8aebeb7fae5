# Sourced by the other scripts: makes the project's virtual environment, or brings it up to date.
# The environment is .venv in the project; it is made anew when what it is made from changes.

cd "$(dirname "${BASH_SOURCE[0]}")/.."

python="${PYTHON:-python3}"
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "$python is older than 3.11; set PYTHON to a newer interpreter" >&2
    exit 2
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
    pip "${pinned[@]}" --no-build-isolation --editable '.[chinese,development]'
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
export PATH="$PWD/.venv/bin:$PATH"
