/* A kernel on a device, for one plan and one dtype. Each thread computes a block of eight neighbours, which are a byte of each plane. Threads
do not communicate, so as plain C++ the same source computes one block after the other; tests compare its results with the CPU's.

cuda.c writes constants in front of this: KIND and the other fields of a Plan; RULE, with FACTOR(k) for a factor that is an argument; SCALES:
is there such a factor?; PLANES: how many?; and the definitions of blocks.h for the dtype. */
#define WORD uint32_t
#define BLOCK 8
#include "kernels.h"
#include "number.h"
#include "blocks.h"

#ifdef __CUDACC__
typedef uint4 Sixteen; /* 16 bytes, which a thread reads or writes at once */
#else
typedef struct {
    uint32_t x, y, z, w;
} Sixteen;
#endif
#define LOCAL __attribute__((aligned(16)))

/* --- memory ----------------------------------------------------------------------------------------------------------- */

template <typename Number> INLINE void read_dense(const void *memory, int64_t start, int count, Number *block) {
    const int each = sizeof(Sixteen) / sizeof(Number);
    const Number *from = (const Number *)memory + start;
    if (count == BLOCK) {
        UNROLLED for (int k = 0; k < BLOCK / each; k++) {
            Sixteen part = ((const Sixteen *)from)[k];
            memcpy(block + k * each, &part, sizeof(part));
        }
    } else {
        UNROLLED for (int k = 0; k < BLOCK; k++) block[k] = k < count ? from[k] : (Number)0;
    }
}

#if WALKS
template <typename Index> INLINE int64_t offset_of(const Walk &walk, Index at) {
    int64_t offset = 0;
    for (int d = (int)walk.dim - 1; d > 0; d--) {
        Index size = (Index)walk.sizes[d];
        offset += (int64_t)(at % size) * walk.strides[d], at /= size;
    }
    return offset + (int64_t)at * walk.strides[0];
}

static __attribute__((noinline)) int64_t offset_in(const Walk &walk, int64_t at) {
    return at >> 32 ? offset_of<uint64_t>(walk, (uint64_t)at) : offset_of<uint32_t>(walk, (uint32_t)at);
}

template <typename Number> INLINE void read(const Arguments &, const Walk *walks, int input, int64_t start, int count, Number *block) {
    const Walk &walk = walks[input];
    if (walk.is_linear) return read_dense(walk.memory, start, count, block);
    const Number *from = (const Number *)walk.memory;
    int inner = (int)walk.dim - 1;
    if (!inner || walk.sizes[inner] % BLOCK == 0) { /* neighbours in one row */
        int64_t first = count ? offset_in(walk, start) : 0;
        UNROLLED for (int k = 0; k < BLOCK; k++) block[k] = k < count ? from[first + k * walk.strides[inner]] : (Number)0;
    } else {
        UNROLLED for (int k = 0; k < BLOCK; k++) block[k] = k < count ? from[offset_in(walk, start + k)] : (Number)0;
    }
}
#else
template <typename Number> INLINE void read(const Arguments &a, const Walk *, int input, int64_t start, int count, Number *block) {
    read_dense(a.inputs[input], start, count, block);
}
#endif

template <typename Number> INLINE void write(void *memory, int64_t start, int count, const Number *block) {
    const int each = sizeof(Sixteen) / sizeof(Number);
    Number *to = (Number *)memory + start;
    if (count == BLOCK && (!WALKS || !((uintptr_t)memory % sizeof(Sixteen)))) {
        UNROLLED for (int k = 0; k < BLOCK / each; k++) {
            uint32_t words[4];
            memcpy(words, block + k * each, sizeof(words));
            Sixteen part = {words[0], words[1], words[2], words[3]};
            ((Sixteen *)to)[k] = part;
        }
    } else {
        UNROLLED for (int k = 0; k < BLOCK; k++)
            if (k < count) to[k] = block[k];
    }
}

/* --- a block ------------------------------------------------------------------------------------------------------------ */

INLINE void stand(const T *x, const T *lows, const T *highs, T *y, V low, V high, Rule rule, uint8_t *code) {
    WORD words[REGIONS];
    stand_block(x, lows, highs, y, low, high, !lows || HAS_LOW, !highs || HAS_HIGH, words);
    UNROLLED for (int plane = 0; plane < PLANES; plane++) {
        WORD word = 0;
        UNROLLED for (int region = 0; region < REGIONS; region++)
            if (rule.sets[plane] >> region & 1) word |= words[region];
        code[plane] = (uint8_t)word;
    }
}

INLINE void pull_standing(const T *grad, const uint8_t *code, T *out, Rule rule) {
    V slopes[1 << MOST_PLANES];
    WORD words[MOST_PLANES];
    UNROLLED for (int k = 0; k < 1 << PLANES; k++) slopes[k] = LANE(all)(rule.slopes[k]);
    UNROLLED for (int plane = 0; plane < PLANES; plane++) words[plane] = code[plane];
    pull_standing_block(grad, words, out, slopes, PLANES, SCALES);
}

INLINE void compute(const Arguments &a, const Walk *walks, int64_t block) {
#define FACTOR(k) a.factors[k]
    const Rule rule = RULE;
    const int64_t start = block * BLOCK, left = a.numel - start;
    const int count = left >= BLOCK ? BLOCK : left > 0 ? (int)left : 0;
    const V min = LANE(all)(a.min), max = LANE(all)(a.max);
    LOCAL T grad[BLOCK], x[BLOCK], low[BLOCK], high[BLOCK], out[BLOCK];
    LOCAL LANE(number) behind_x[2][BLOCK], to_sum[BLOCK];
    uint8_t code[MOST_PLANES] = {0, 0, 0};

    if (KIND == PULL_CODE || KIND == PULL_X || KIND == FORMULA) read(a, walks, OF_GRAD, start, count, grad);
    if (KIND != PULL_CODE) read(a, walks, OF_X, start, count, x);
    if (HAS_TENSORS) {
        if (HAS_LOW) read(a, walks, OF_LOW, start, count, low);
        else UNROLLED for (int k = 0; k < BLOCK; k++) STORE(low + k, min);
        if (HAS_HIGH) read(a, walks, OF_HIGH, start, count, high);
        else UNROLLED for (int k = 0; k < BLOCK; k++) STORE(high + k, max);
    }
    if (KIND == FORMULA && HAS_LOW) read(a, walks, OF_LOW, start, count, behind_x[0]);
    if (KIND == FORMULA && HAS_HIGH) read(a, walks, OF_HIGH, start, count, behind_x[1]);
    const T *lows = HAS_TENSORS ? low : 0, *highs = HAS_TENSORS ? high : 0;

    if (KIND == ENCODE) {
        if (rule.kind == STANDING) stand(x, 0, 0, out, min, max, rule, code);
        else encode_block(x, out, code, code + (rule.first != 0), min, max, rule);
    } else if (KIND == ENCODE_BETWEEN) {
        Rule no_plane = {0};
        if (rule.kind == STANDING) stand(x, lows, highs, 0, min, max, rule, code);
        if (HAS_Y) encode_between_block(x, low, high, out, code, code + (rule.first != 0), rule.kind == STANDING ? no_plane : rule);
    } else if (KIND == PULL_CODE) {
        UNROLLED for (int plane = 0; plane < PLANES; plane++) code[plane] = a.planes[plane * a.apart + block];
        if (rule.kind == STANDING) pull_standing(grad, code, out, rule);
        else pull_code_block(grad, code, code + (rule.first != 0), out, rule);
    } else if (KIND == PULL_X) {
        if (rule.kind == STANDING) {
            stand(x, lows, highs, 0, min, max, rule, code);
            pull_standing(grad, code, out, rule);
        } else if (!HAS_TENSORS && rule.kind >= TENT && rule.kind <= CUSP) {
            UNROLLED for (int k = 0; k < BLOCK; k++) STORE(out + k, times_slope(LOAD(grad + k), LOAD(x + k), max, max, rule));
        } else {
            pull_x_block(grad, x, lows, highs, out, min, max, rule);
        }
    } else if (KIND == STEPS) {
        V thresholds[SLOPES];
        uint8_t *const each[MOST_PLANES] = {code, code + 1, code + 2};
        UNROLLED for (int t = 0; t < (1 << PLANES) - 1; t++) thresholds[t] = LANE(all)(a.factors[t]);
        step_block(x, each, 0, thresholds, PLANES);
    } else if (KIND == FORMULA) {
        void *made = is_to_sum(rule.formula) ? (void *)to_sum : out;
        formula_block(grad, x, HAS_LOW ? behind_x[0] : 0, HAS_HIGH ? behind_x[1] : 0, made, min, max, rule);
    } else if (KIND == QUANTIZE) {
        quantize_block(x, out, min, max, rule);
    } else {
        inside_block(x, code, min, max, HAS_LOW, HAS_HIGH);
    }

    if (KIND == FORMULA && is_to_sum(rule.formula)) write(a.out, start, count, to_sum);
    else if (KIND == PULL_CODE || KIND == PULL_X || HAS_Y) write(a.out, start, count, out);
    if (KIND != PULL_CODE && KIND != PULL_X && KIND != FORMULA) {
        UNROLLED for (int plane = 0; plane < PLANES; plane++) a.planes[plane * a.apart + block] = (uint8_t)(code[plane] & ((1u << count) - 1));
    }
}

#ifndef __CUDACC__
extern "C" void pseudograd(const Arguments *a, const Walks *walks, int64_t block) { compute(*a, walks->inputs, block); }
#elif WALKS
extern "C" __global__ void __launch_bounds__(THREADS) pseudograd(const __grid_constant__ Arguments a, const __grid_constant__ Walks walks) {
    int64_t block = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (block < a.blocks) compute(a, walks.inputs, block);
}
#else
extern "C" __global__ void __launch_bounds__(THREADS) pseudograd(const __grid_constant__ Arguments a) {
    int64_t block = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (block < a.blocks) compute(a, 0, block);
}
#endif
