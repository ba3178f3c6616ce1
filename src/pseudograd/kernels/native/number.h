/* Lanes of one number, and their loads and stores: for any processor, and for a thread of a device. */
#pragma once
#include "rules.h"

typedef float vec_f;
typedef int mask_f;
enum { lanes_f = 1, lanes_d = 1 };
INLINE vec_f all_f(double number) { return (float)number; }
INLINE mask_f none_f(void) { return 0; }
INLINE mask_f less_f(vec_f a, vec_f b) { return a < b; }
INLINE mask_f equal_f(vec_f a, vec_f b) { return a == b; }
INLINE mask_f above_f(vec_f a, vec_f b) { return !(a <= b); }
INLINE vec_f select_f(mask_f m, vec_f yes, vec_f no) { return m ? yes : no; }
INLINE mask_f up_f(vec_f v) { return v > 0; }
INLINE mask_f down_f(vec_f v) { return v < 0; }
INLINE vec_f inward_f(vec_f v, mask_f first, mask_f second) { return (first & (v > 0)) | (second & (v < 0)) ? 0 : v; }
#ifdef __CUDACC__
INLINE vec_f clamp_f(vec_f v, vec_f low, vec_f high) { return v == v ? fminf(fmaxf(v, low), high) : v; } /* zeros have the signs that torch gives them there */
#else
INLINE vec_f clamp_f(vec_f v, vec_f low, vec_f high) {
    v = low > v ? low : v; /* as vector instructions do: of two zeros, or if one is NaN, the second */
    return high < v ? high : v;
}
#endif
INLINE vec_f whole_f(vec_f v) { return rintf(v); }
INLINE vec_f times_single_f(vec_f v, float factor) { return v * factor; }
INLINE uint64_t bits_f(mask_f m) { return (uint64_t)m; }
INLINE mask_f from_bits_f(uint64_t word, int i) { return (mask_f)(word >> i & 1); }

typedef double vec_d;
typedef int mask_d;
INLINE vec_d all_d(double number) { return number; }
INLINE mask_d none_d(void) { return 0; }
INLINE mask_d less_d(vec_d a, vec_d b) { return a < b; }
INLINE mask_d equal_d(vec_d a, vec_d b) { return a == b; }
INLINE mask_d above_d(vec_d a, vec_d b) { return !(a <= b); }
INLINE vec_d select_d(mask_d m, vec_d yes, vec_d no) { return m ? yes : no; }
INLINE mask_d up_d(vec_d v) { return v > 0; }
INLINE mask_d down_d(vec_d v) { return v < 0; }
INLINE vec_d inward_d(vec_d v, mask_d first, mask_d second) { return (first & (v > 0)) | (second & (v < 0)) ? 0 : v; }
#ifdef __CUDACC__
INLINE vec_d clamp_d(vec_d v, vec_d low, vec_d high) { return v == v ? fmin(fmax(v, low), high) : v; }
#else
INLINE vec_d clamp_d(vec_d v, vec_d low, vec_d high) {
    v = low > v ? low : v;
    return high < v ? high : v;
}
#endif
INLINE vec_d whole_d(vec_d v) { return rint(v); }
INLINE vec_d times_single_d(vec_d v, float factor) { return (double)((float)v * factor); }
INLINE uint64_t bits_d(mask_d m) { return (uint64_t)m; }
INLINE mask_d from_bits_d(uint64_t word, int i) { return (mask_d)(word >> i & 1); }

INLINE uint32_t bits_of(float v) {
    uint32_t bits;
    memcpy(&bits, &v, 4);
    return bits;
}
INLINE float float_of(uint32_t bits) {
    float v;
    memcpy(&v, &bits, 4);
    return v;
}

INLINE vec_f load_f32(const float *p) { return *p; }
INLINE void store_f32(float *p, vec_f v) { *p = v; }
INLINE vec_d load_f64(const double *p) { return *p; }
INLINE void store_f64(double *p, vec_d v) { *p = v; }
INLINE vec_f load_bf16(const uint16_t *p) { return float_of((uint32_t)*p << 16); }
INLINE void store_bf16(uint16_t *p, vec_f v) {
    uint32_t bits = bits_of(v);
    *p = (bits & 0x7FFFFFFF) > 0x7F800000 ? 0x7FC0 : (uint16_t)((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}
#ifdef __CUDACC__
INLINE vec_f load_f16(const uint16_t *p) {
    float v;
    asm("cvt.f32.f16 %0, %1;" : "=f"(v) : "h"(*p));
    return v;
}
INLINE void store_f16(uint16_t *p, vec_f v) {
    uint16_t half;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(v));
    *p = half;
}
#else
/* Computed with integers, so that a processor that flushes subnormals meets no subnormal of float32. */
INLINE vec_f load_f16(const uint16_t *p) {
    uint32_t sign = (uint32_t)(*p & 0x8000) << 16, size = *p & 0x7FFF;
    if (size >= 0x7C00) return float_of(sign | 0x7F800000 | (size & 0x3FF) << 13);
    if (size >= 0x0400) return float_of(sign | ((size << 13) + 0x38000000));
    if (!size) return float_of(sign);
    uint32_t exponent = 113; /* a subnormal of float16 is a normal number of float32 */
    while (!(size & 0x0400)) size <<= 1, exponent--;
    return float_of(sign | exponent << 23 | (size & 0x3FF) << 13);
}
INLINE void store_f16(uint16_t *p, vec_f v) {
    uint32_t bits = bits_of(v), size = bits & 0x7FFFFFFF;
    uint16_t sign = (uint16_t)((bits >> 16) & 0x8000);
    if (size > 0x7F800000) *p = sign | 0x7E00 | (uint16_t)((size >> 13) & 0x3FF);
    else if (size >= 0x477FF000) *p = sign | 0x7C00; /* 65520 and more */
    else if (size >= 0x38800000) *p = sign | (uint16_t)((size - 0x38000000 + 0xFFF + ((size >> 13) & 1)) >> 13);
    else if (size < 0x33000000) *p = sign; /* less than half of the smallest */
    else {
        uint32_t shift = 126 - (size >> 23), whole = (size & 0x7FFFFF) | 0x800000, half = (uint32_t)1 << (shift - 1);
        uint32_t made = whole >> shift, rest = whole & ((half << 1) - 1);
        *p = sign | (uint16_t)(made + (rest > half || (rest == half && (made & 1))));
    }
}
#endif
