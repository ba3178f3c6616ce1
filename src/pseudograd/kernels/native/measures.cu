/* Counts several gradients for a diagnosis in one launch. A group of threads takes a part of one gradient, and adds its counts to the row of
the gradient. cuda.c compiles it once. As plain C++, the first thread of a group does the work of all. */
#include "kernels.h"
#include "number.h"

#ifdef __CUDACC__
enum { TOGETHER = THREADS };
#else
enum { TOGETHER = 1 };
#endif

template <typename V> INLINE V load(const void *memory, int dtype, int64_t at) {
    switch (dtype) {
        case F16: return (V)load_f16((const uint16_t *)memory + at);
        case BF16: return (V)load_bf16((const uint16_t *)memory + at);
        case F32: return (V)((const float *)memory)[at];
        default: return (V)((const double *)memory)[at];
    }
}

/* V sums at most PART / THREADS numbers. */
template <typename V> INLINE void measure_part(const Entry &entry, int64_t start, int64_t end, int thread, double *sums) {
    int arrived = 0, cut = 0, left = 0, nonfinite = 0;
    double squares = 0;
#ifdef __CUDACC__
    V size = 0, cut_size = 0, left_size = 0;
#else
    double size = 0, cut_size = 0, left_size = 0;
#endif
    for (int64_t at = start + thread; at < end; at += TOGETHER) {
        V g = load<V>(entry.grad, entry.dtype, at), magnitude = g < 0 ? -g : g;
        int is_some = g != 0, leaves = 0;
        for (int k = 0; k < entry.lefts; k++) {
            V l = load<V>(entry.left[k], entry.left_dtypes[k], at);
            leaves |= l != 0, left_size += l < 0 ? -l : l;
        }
        int is_cut = is_some && !leaves;
        arrived += is_some, cut += is_cut, left += leaves, nonfinite += !(g - g == 0);
        size += magnitude, cut_size += is_cut ? magnitude : 0;
        if (entry.kind == SQUARES) squares += (double)g * (double)g;
    }
    if (entry.kind == CALL) {
        sums[0] = arrived, sums[1] = cut, sums[2] = left, sums[3] = nonfinite;
        sums[5] = size, sums[6] = cut_size, sums[7] = left_size;
    } else if (entry.kind == ELSEWHERE) {
        sums[4] = arrived;
    } else {
        sums[0] = squares, sums[1] = arrived;
    }
}

INLINE const Entry &measure_group(const Measures &m, int64_t group, int thread, double *sums) {
    int k = 0;
    while (k + 1 < m.count && m.entries[k + 1].first <= group) k++;
    const Entry &entry = m.entries[k];
    const int64_t start = (group - entry.first) * PART, end = start + PART < entry.numel ? start + PART : entry.numel;
    for (int column = 0; column < MEASURED; column++) sums[column] = 0;
    if (entry.dtype == F64) measure_part<double>(entry, start, end, thread, sums);
    else measure_part<float>(entry, start, end, thread, sums);
    return entry;
}

#ifndef __CUDACC__
extern "C" void pseudograd(const Arguments *a, const Walks *, int64_t block) {
    double sums[MEASURED];
    if (block % THREADS) return;
    const Entry &entry = measure_group(*(const Measures *)a, block / THREADS, 0, sums);
    for (int column = 0; column < MEASURED; column++)
        if (sums[column] != 0) entry.row[column] += sums[column];
}
#else
extern "C" __global__ void __launch_bounds__(THREADS) pseudograd(const __grid_constant__ Measures m) {
    __shared__ double shared[THREADS / 32][MEASURED];
    double sums[MEASURED];
    const Entry &entry = measure_group(m, blockIdx.x, (int)threadIdx.x, sums);
    UNROLLED for (int column = 0; column < MEASURED; column++) {
        for (int apart = 16; apart > 0; apart /= 2) sums[column] += __shfl_down_sync(0xFFFFFFFFu, sums[column], apart);
        if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32][column] = sums[column];
    }
    __syncthreads();
    if (threadIdx.x < MEASURED) {
        double sum = 0;
        for (int warp = 0; warp < THREADS / 32; warp++) sum += shared[warp][threadIdx.x];
        if (sum != 0) atomicAdd(entry.row + threadIdx.x, sum);
    }
}
#endif
