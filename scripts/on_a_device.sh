#!/bin/sh
# Builds the kernels, compares them with the CPU and measures them on a CUDA device, in at most eight minutes.
#
#   sh scripts/on_a_device.sh [folder for the results]        BUDGET=300 for fewer seconds than 470
#
# Each part has a time of its own and prints its exit status. What fails, or takes longer, stops no other part; a part for which no time is
# left prints "no time". It is expected to print, each with status 0:
#   build    nothing
#   doctor   a line "cuda  active  NVRTC 13.0 for NVIDIA H100 80GB HBM3 (sm_90), for ... on CUDA"
#   values   some hundred tests passed, none failed: forward as torch has it there, gradients as on the CPU, in every dtype
#   settings streams, graphs, threads, no memory, compiled, forked, sharded, diagnosed: passed; where one device is, 7 of two skipped
#   memcheck "ERROR SUMMARY: 0 errors", of one pass over the kernels; without compute-sanitizer, 127 and "not found"
#   speed    a line for each op and dtype, with what is aimed at; "0 figures above their aim" and "wrote speed_on_cuda.md"
#   steps    a line for each training and each diagnosis, where transformers and torchvision are installed; bold is above the aim
# The tables are then in docs/speed_on_cuda.md, and all of it in the folder.
set -u
cd "$(dirname "$0")/.." || exit 1
out=${1:-build/on_a_device}
end=$(($(date +%s) + ${BUDGET:-470}))
mkdir -p "$out"
export PYTHONPATH="$PWD/src${PYTHONPATH:+:$PYTHONPATH}"

part() { # name, seconds, command
    name=$1 seconds=$2 left=$((end - $(date +%s)))
    shift 2
    if [ "$left" -lt 5 ]; then
        echo "== $name: no time"
        return
    fi
    timeout -k 5 "$((left < seconds ? left : seconds))" "$@" >"$out/$name.txt" 2>&1
    status=$?
    echo "== $name: $status"
    tail -n 25 "$out/$name.txt"
}

part build 100 python setup.py -q build_ext --inplace
part doctor 30 python -m pseudograd doctor
part values 90 python -m pytest -q --maxfail=20 -n 8 -p no:cacheprovider -p no:benchmark tests/contract/test_on_a_device.py
part settings 70 python -m pytest -q -n 4 -p no:cacheprovider -p no:benchmark tests/kernels/test_settings_of_cuda.py
part memcheck 50 compute-sanitizer --tool memcheck python -c "
import torch, pseudograd as pg
net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()).cuda()
with pg.diagnose(net):
    for _ in range(3):
        net(torch.randn(4, 8, device='cuda')).sum().backward()
for size in (1, 65, 5003):
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        x = torch.randn(size, device='cuda', dtype=dtype, requires_grad=True)
        a = torch.rand(size, device='cuda', dtype=dtype, requires_grad=True)
        for y in (
            *(pg.clamp(x, -1.0, 1.0, rule=rule) for rule in ('inward', 'zero', 'leaky', 'elastic', 'inverting')),
            pg.clamp(x[::2], torch.zeros_like(x[::2]), torch.ones_like(x[::2])), pg.clamp(x, x.detach() - a, a),
            pg.clamp_(x * 1, -1.0, 1.0), pg.relu(x), pg.gelu(x, rule='fewbit'), pg.sign(x), pg.sign(x, rule='triangle'), pg.abs(x),
            pg.fake_quantize(x, 0.1), pg.fake_quantize(x, a), pg.jumprelu(x, a, bandwidth=0.5), pg.policy.loss(x, a.detach()),
            pg.fake_quantize(x, a.float()), pg.jumprelu(x, a.float(), bandwidth=0.5), pg.jumprelu(x, a, bandwidth=0.5, rule='sigmoid'),
            pg.sign(x, rule='gaussian'), pg.clamp(x, x.detach() - a, a, rule='inverting'), pg.policy.loss(x, a, space='log', ceiling=3.0),
        ):
            y.sum().backward()
torch.cuda.synchronize()"
part speed 110 python benchmarks/on_cuda.py --rounds 3 --seconds 85 --write
part steps 120 python benchmarks/steps_on_cuda.py --rounds 2 --seconds 85 --write
cp docs/speed_on_cuda.md "$out" 2>/dev/null
