# Sourced by the other scripts: makes the project's virtual environment, or brings it up to date.
# The environment is .venv in the project; it is made anew when what it is made from changes.

cd "$(dirname "${BASH_SOURCE[0]}")/.."

python="${PYTHON:-python3}"
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "$python is older than 3.11; set PYTHON to a newer interpreter" >&2
    exit 2
fi

stamp=.venv/installed
wanted="$(cat pyproject.toml setup.py constraints.txt nmt/native/*.[ch] | sha256sum)"
# A linked environment is somebody else's, who keeps it up to date.
if [ ! -L .venv ] && [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ]; then
    echo "Setting up .venv (a few minutes on a new machine)" >&2
    [ -x .venv/bin/python ] || "$python" -m venv .venv
    # torch first: so that nothing else asks for another version of it
    .venv/bin/python -m pip install --quiet --constraint constraints.txt torch
    .venv/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[chinese,development]'
    echo "$wanted" > "$stamp"
fi
export PATH="$PWD/.venv/bin:$PATH"
