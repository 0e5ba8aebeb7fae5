#!/usr/bin/env bash
# Builds the kernels in C for aarch64 and runs their tests in an emulator, on Linux on x86-64:
#   bash scripts/test_aarch64.sh [DIR] [pytest arguments]
# DIR (default: runs/aarch64) keeps a Python for aarch64 with torch, about 1 GB, that is made once. On Debian, the
# tools are gcc-aarch64-linux-gnu, libc6-dev-arm64-cross, qemu-user, unzip and dpkg; Debian's arm64 packages must be known to apt:
#   dpkg --add-architecture arm64 && apt-get update
# The tests take a few minutes of one core per build. Those that start processes are left out: qemu-user emulates one.
set -euo pipefail
cd "$(dirname "$0")/.."
place="$(realpath --canonicalize-missing "${1:-runs/aarch64}")"
shift || true
tests=(tests/unit/ops/test_border.py tests/unit/ops/test_rows.py tests/behaviour/test_random_kernels.py
    tests/behaviour/test_engine.py)
[ $# -gt 0 ] || set -- "${tests[@]}" -k "not refused_is_an_error and not take_the_stack and not many and not needs_no_torch"

for tool in aarch64-linux-gnu-gcc qemu-aarch64 unzip dpkg-deb apt-get; do
    command -v "$tool" > /dev/null || { echo "$tool: not found; this script says what to install" >&2; exit 2; }
done

debian=(python3.11-minimal libpython3.11-minimal libpython3.11-stdlib libc6 libgomp1 libgcc-s1 libstdc++6 zlib1g
    libexpat1 libffi8 libssl3 liblzma5 libbz2-1.0 libsqlite3-0 libuuid1)
compiled=(torch==2.10.0 numpy safetensors sentencepiece pyyaml markupsafe regex)
plain=(pytest pytest-timeout iniconfig pluggy packaging pygments hypothesis==6.100.0 attrs sortedcontainers filelock
    typing-extensions sympy mpmath networkx jinja2 fsspec tqdm sacrebleu portalocker colorama tabulate sacremoses
    joblib click subword-nmt mock)
if [ ! -e "$place/made" ]; then
    rm -rf "$place"
    mkdir -p "$place"/{packages,root,wheels,site}
    (cd "$place/packages" && apt-get download --quiet "${debian[@]/%/:arm64}")
    for package in "$place"/packages/*.deb; do dpkg-deb --extract "$package" "$place/root"; done
    fetch=(python -m pip download --quiet --no-deps --only-binary :all: --dest "$place/wheels")
    "${fetch[@]}" --python-version 3.11 --abi cp311 --abi abi3 --platform manylinux_2_28_aarch64 \
        --platform manylinux_2_27_aarch64 --platform manylinux_2_17_aarch64 --platform manylinux2014_aarch64 \
        "${compiled[@]}"
    "${fetch[@]}" --python-version 3.11 --platform any "${plain[@]}"
    for wheel in "$place"/wheels/*.whl; do unzip -qo "$wheel" -d "$place/site"; done
    rm -rf "$place/packages" "$place/wheels"
    touch "$place/made"
fi

mkdir -p "$place/kernels"
python - > "$place/flags" << 'END'
import runpy
setup = runpy.run_path("setup.py")
for name, flags in setup["INSTRUCTIONS_BY_MACHINE"]["aarch64"].items():
    print(name, *setup["FLAGS"], *flags)
END
export PYTHONPATH="$place/site:$PWD" PYTHONDONTWRITEBYTECODE=1 NMT_KERNELS="$place/kernels" OMP_NUM_THREADS=1
while read -r name flags; do
    # shellcheck disable=SC2086
    aarch64-linux-gnu-gcc $flags -Wall -Wextra -Werror -shared -fPIC nmt/ops/native/*.c -o "$place/kernels/$name.so" -lm
done < "$place/flags"
while read -r name _; do
    echo "$name:" >&2
    NMT_NATIVE="$name" qemu-aarch64 -L "$place/root" "$place/root/usr/bin/python3.11" -m pytest -q --timeout 3000 \
        -p no:cacheprovider "$@" < /dev/null
done < "$place/flags"
