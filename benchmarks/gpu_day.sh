#!/usr/bin/env bash
# What osf says against what a GPU does, at most ten minutes on a bare machine with a driver and Python 3.10 or later:
#     benchmarks/gpu_day.sh FOLDER            # kernels, profiles, steps, memory, ranks, traces: FOLDER/gpu-day.md
#     benchmarks/gpu_day.sh FOLDER --small    # a minute on a CPU, in the environment that is active
# With PYTHON set, or --small, nothing is installed; else PyTorch and osfmodel go into FOLDER/venv.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:?give a folder for what is measured}
shift
mkdir -p "$folder"
python=${PYTHON:-python}
if [ -z "${PYTHON:-}" ] && [[ " $* " != *" --small "* ]]; then
    python3 -m venv "$folder/venv"
    "$folder/venv/bin/pip" install --quiet torch .
    python=$folder/venv/bin/python
fi
if [[ " $* " == *" --small "* ]]; then
    export OMP_NUM_THREADS=1 CUDA_VISIBLE_DEVICES=
fi
export OSFMODEL_NO_CONFIG=1 PYTHONPATH=$PWD
exec "$python" benchmarks/gpu_day.py "$folder" "$@"
