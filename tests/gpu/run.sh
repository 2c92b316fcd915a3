#!/usr/bin/env bash
# On a machine with a CUDA device, torch, gcc, CMake and numba, and no network: builds hpcomm, runs the cases of
# hpcomm.torch on the device with 1, 2 and 4 ranks, and bench.torch_gpu, in 8 minutes at most. Wheels that the machine
# lacks (cffi and pycparser) may lie in .whl. JSON goes to $OUT, else to build/gpu.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

OUT=${OUT:-build/gpu}
mkdir -p "$OUT"
status=0

python3 -c 'import torch; assert torch.cuda.is_available(), "torch finds no CUDA device"'
if [ -d .whl ]; then
    python3 -m pip install -q --no-index --find-links .whl --no-deps .whl/*.whl
fi
python3 -m pip install -q --no-build-isolation --no-deps --no-index -e .
export OMP_NUM_THREADS=1
for ranks in 1 2 4; do
    timeout 90 python3 -m torch.distributed.run --standalone --nproc-per-node "$ranks" tests/gpu/cases.py \
        "$OUT/cases_$ranks.json" || status=1
done
timeout 200 python3 -m bench.torch_gpu -J "$OUT/torch_gpu.json" || status=1
exit "$status"
