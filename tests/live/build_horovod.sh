#!/usr/bin/env bash
# Build Horovod 0.28.1 over gloo for the PyTorch of this Python, and install it; a wheel that was built before is used.
#
#     tests/live/build_horovod.sh [--if-built] [FOLDER]
#
# With --if-built nothing is built: without a wheel it fails at once.
# FOLDER keeps the wheel; without it ${XDG_CACHE_HOME:-$HOME/.cache}/osfmodel does. PYTHON says which Python, else the
# one that is active. Needs g++, make and some minutes the first time: Horovod asks for C++14, which headers of PyTorch
# no longer are, so the compiler is told C++17 behind its back.
set -euo pipefail

if_built=false
if [ "${1:-}" = --if-built ]; then
    if_built=true
    shift
fi
horovod=0.28.1
python=${PYTHON:-python}
cache=${1:-${XDG_CACHE_HOME:-$HOME/.cache}/osfmodel}

fail() {
    printf 'build_horovod: %s\n' "$*" >&2
    exit 1
}

torch=$("$python" -c 'import torch; print(torch.__version__)' 2>/dev/null) ||
    fail "$python has no PyTorch to build for: pip install torch==2.13.0"
# Tags of the name alone cannot tell builds for different versions of torch apart, so each has a folder.
tag=$("$python" -c 'import platform, sys; print(f"cp{sys.version_info[0]}{sys.version_info[1]}-{platform.machine()}")')
folder=$cache/horovod-$horovod-torch-$torch-$tag

works() {
    "$python" -c 'import horovod.torch as hvd; assert hvd.gloo_built()' >/dev/null 2>&1
}

build() {
    command -v g++ >/dev/null || fail "needs g++: apt-get install g++"
    command -v make >/dev/null || fail "needs make: apt-get install make"
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    printf '#!/bin/sh\nexec g++ "$@" -std=c++17\n' >"$work/g++-17"
    chmod +x "$work/g++-17"
    "$python" -m pip install --quiet 'cmake<4' setuptools wheel packaging cloudpickle psutil pyyaml cffi
    # CMake is a program of the environment, which need not be activated.
    PATH=$("$python" -c 'import sysconfig; print(sysconfig.get_path("scripts"))'):$PATH \
        CXX=$work/g++-17 HOROVOD_WITH_PYTORCH=1 HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1 \
        HOROVOD_WITHOUT_MPI=1 HOROVOD_WITH_GLOO=1 MAKEFLAGS=-j2 TMPDIR=$work \
        "$python" -m pip wheel --no-build-isolation --no-deps --no-cache-dir --wheel-dir "$work/wheel" \
        "horovod==$horovod" >"$work/log" 2>&1 || {
        tail -n 40 "$work/log" >&2
        fail "Horovod $horovod could not be built for torch $torch: above are the last lines of what pip said"
    }
    mkdir -p "$folder"
    for wheel in "$work"/wheel/horovod-*.whl; do # whole or not at all, also where two build at once
        cp "$wheel" "$folder/.unfinished.$$"
        mv "$folder/.unfinished.$$" "$folder/$(basename "$wheel")"
    done
}

if ! compgen -G "$folder/horovod-*.whl" >/dev/null; then
    ! $if_built || fail "no wheel in $folder"
    echo "building Horovod $horovod for torch $torch into $folder: some minutes" >&2
    build
fi
"$python" -m pip install --quiet cloudpickle psutil pyyaml cffi packaging
"$python" -m pip install --quiet --no-deps --force-reinstall "$folder"/horovod-*.whl
works || fail "the Horovod in $folder does not work with torch $torch: delete that folder and build again"
echo "Horovod $horovod with torch $torch is installed; the wheel stays in $folder" >&2
