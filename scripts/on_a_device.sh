#!/bin/sh
# Builds the kernels, compares them with the CPU and measures them on a CUDA device, in at most eight minutes.
#
#   sh scripts/on_a_device.sh [folder for the results]
#
# It is expected to print, and each part ends with its exit status, which must be 0:
#   doctor   a line "cuda  active  NVRTC 13.0 for NVIDIA H100 80GB HBM3 (sm_90), for ... on CUDA"
#   values   some hundred tests passed, none failed: forward as torch has it there, gradients as on the CPU, in every dtype
#   settings streams, graphs, threads, no memory, compiled, forked, sharded, diagnosed: passed
#   memcheck "ERROR SUMMARY: 0 errors", where compute-sanitizer is installed
#   speed    a line for each op and dtype, with what is aimed at
#   steps    a line for each training and each diagnosis, where transformers and torchvision are installed
set -u
cd "$(dirname "$0")/.." || exit 1
out=${1:-build/on_a_device}
mkdir -p "$out"
export PYTHONPATH="$PWD/src${PYTHONPATH:+:$PYTHONPATH}"

part() { # name, seconds, command
    name=$1 seconds=$2
    shift 2
    timeout "$seconds" "$@" >"$out/$name.txt" 2>&1
    status=$?
    echo "== $name: $status"
    tail -n 25 "$out/$name.txt"
}

part build 150 python setup.py -q build_ext --inplace
part doctor 60 python -m pseudograd doctor
part values 150 python -m pytest -q -x -n 8 -p no:cacheprovider -p no:benchmark tests/contract/test_on_a_device.py
part settings 120 python -m pytest -q -n 4 -p no:cacheprovider -p no:benchmark tests/kernels/test_settings_of_cuda.py
command -v compute-sanitizer >/dev/null && part memcheck 60 compute-sanitizer --tool memcheck python -c "
import torch, pseudograd as pg
for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
    for size in (1, 7, 65, 5000, 100_003):
        for rule in ('inward', 'zero', 'leaky', 'elastic'):
            x = torch.randn(size, device='cuda', dtype=dtype, requires_grad=True)
            pg.clamp(x, -1.0, 1.0, rule=rule).sum().backward()
            pg.clamp(x[::2], torch.zeros_like(x[::2]), torch.ones_like(x[::2])).sum().backward()
            pg.gelu(x, rule='fewbit').backward(torch.ones_like(x))
torch.cuda.synchronize()"
part speed 120 python benchmarks/on_cuda.py --write
part steps 150 python benchmarks/steps_on_cuda.py --write
cp docs/speed_on_cuda.md "$out" 2>/dev/null
