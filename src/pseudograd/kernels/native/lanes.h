/* The lanes of one level of processors, in vector extensions of the compiler, and the loops for every dtype. Who includes this has defined
   LOOPS, the name of the loops, and LEVEL: 0 for every x86-64 (SSE2) and every ARM of 64 bits (NEON), 1 for AVX2 and F16C, 2 for AVX-512
   (F, BW, VL, DQ).

   Kinds of lanes: _f and _d compute in float32 and float64. _h and _b only compare float16 and bfloat16, as the 16-bit integers that they
   are in memory: a rule that chooses between numbers needs no more. A mask is a vector with zeros or ones for each lane; with AVX-512 it is
   a number with a bit for each. blocks.h lists the functions of each kind. */
#include "rules.h"

#if LEVEL && !defined(__x86_64__)
const Loops *const LOOPS[TABLES] = {0};
#else
#ifdef __x86_64__
#if LEVEL == 1 && defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,f16c"))), apply_to = function)
#elif LEVEL == 1
#pragma GCC target("avx2,f16c")
#elif LEVEL == 2 && defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx2,f16c"))), apply_to = function)
#elif LEVEL == 2
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx2,f16c")
#endif
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#else
#error "no lanes for this processor: the plain formula is faster than loops over one number at a time"
#endif

enum { WIDTH = 16 << LEVEL };
#define VECTOR(number, name) typedef number name __attribute__((vector_size(WIDTH)))
VECTOR(float, vec_f);
VECTOR(double, vec_d);
VECTOR(int16_t, int16s);
VECTOR(uint16_t, uint16s);
VECTOR(int32_t, int32s);
VECTOR(int64_t, int64s);
VECTOR(uint32_t, uint32s);
typedef int16s vec_h, vec_b;
enum { lanes_f = WIDTH / 4, lanes_d = WIDTH / 8, lanes_h = WIDTH / 2, lanes_b = WIDTH / 2 };

#if LEVEL == 2
#define X86(name) _mm512_##name
typedef __m256i packed; /* lanes in half precision */
typedef __mmask16 mask_f;
typedef __mmask8 mask_d;
typedef __mmask32 mask_h, mask_b;
INLINE mask_f less_f(vec_f a, vec_f b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
INLINE mask_d less_d(vec_d a, vec_d b) { return _mm512_cmp_pd_mask(a, b, _CMP_LT_OQ); }
INLINE mask_h less_int16s(vec_h a, vec_h b) { return _mm512_cmplt_epi16_mask((__m512i)a, (__m512i)b); }
INLINE mask_f equal_f(vec_f a, vec_f b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
INLINE mask_d equal_d(vec_d a, vec_d b) { return _mm512_cmp_pd_mask(a, b, _CMP_EQ_OQ); }
INLINE mask_h equal_int16s(vec_h a, vec_h b) { return _mm512_cmpeq_epi16_mask((__m512i)a, (__m512i)b); }
INLINE mask_f above_f(vec_f a, vec_f b) { return _mm512_cmp_ps_mask(a, b, _CMP_NLE_UQ); }
INLINE mask_d above_d(vec_d a, vec_d b) { return _mm512_cmp_pd_mask(a, b, _CMP_NLE_UQ); }
INLINE vec_f select_f(mask_f m, vec_f yes, vec_f no) { return _mm512_mask_mov_ps(no, m, yes); }
INLINE vec_d select_d(mask_d m, vec_d yes, vec_d no) { return _mm512_mask_mov_pd(no, m, yes); }
INLINE vec_h select_h(mask_h m, vec_h yes, vec_h no) { return (vec_h)_mm512_mask_mov_epi16((__m512i)no, m, (__m512i)yes); }
INLINE mask_f from_bits_f(uint64_t word, int i) { return (mask_f)(word >> i); }
INLINE mask_d from_bits_d(uint64_t word, int i) { return (mask_d)(word >> i); }
INLINE mask_h from_bits_h(uint64_t word, int i) { return (mask_h)(word >> i); }
/* gcc 12 widens a mask on its way to memory by storing its own two bytes and reading eight, so that what was there before is in the
   number; through a register of 32 bits it does not. */
INLINE uint64_t bits_h(uint32_t mask) {
#ifndef __clang__
    __asm__("" : "+r"(mask));
#endif
    return mask;
}
INLINE uint64_t bits_f(mask_f m) { return bits_h(m); }
INLINE uint64_t bits_d(mask_d m) { return bits_h(m); }
#else
typedef int32s mask_f;
typedef int64s mask_d;
typedef int16s mask_h, mask_b;
/* The bit of each lane. Lanes of 64 bits are compared as two of 32, because SSE2 cannot compare 64 bits. */
static const int32_t powers_f[] = {1, 2, 4, 8, 16, 32, 64, 128}, powers_d[] = {1, 1, 2, 2, 4, 4, 8, 8};
static const int16_t powers_h[] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, -32768};
#define MASKS(k, ints, turn_most)                                                                                                      \
    INLINE vec_##k select_##k(mask_##k m, vec_##k yes, vec_##k no) { return (vec_##k)((m & (mask_##k)yes) | (~m & (mask_##k)no)); }    \
    INLINE mask_##k from_bits_##k(uint64_t word, int i) {                                                                              \
        ints##s each;                                                                                                                  \
        memcpy(&each, powers_##k, WIDTH);                                                                                              \
        each <<= (ints##_t)(i & turn_most);                                                                                            \
        return (mask_##k)((((ints##s){0} + (ints##_t)(word >> (i & ~turn_most))) & each) == each);                                     \
    }
MASKS(f, int32, 31)
MASKS(d, int32, 31)
MASKS(h, int16, (15 & ~(lanes_h - 1)))
INLINE mask_f less_f(vec_f a, vec_f b) { return a < b; }
INLINE mask_d less_d(vec_d a, vec_d b) { return a < b; }
INLINE mask_h less_int16s(vec_h a, vec_h b) { return a < b; }
INLINE mask_f equal_f(vec_f a, vec_f b) { return a == b; }
INLINE mask_d equal_d(vec_d a, vec_d b) { return a == b; }
INLINE mask_h equal_int16s(vec_h a, vec_h b) { return a == b; }
INLINE mask_f above_f(vec_f a, vec_f b) { return ~(a <= b); }
INLINE mask_d above_d(vec_d a, vec_d b) { return ~(a <= b); }
#endif

#if LEVEL == 1
#define X86(name) _mm256_##name
typedef __m128i packed;
INLINE uint64_t bits_h(mask_h m) {
    __m256i all = (__m256i)m;
    return (uint64_t)_mm_movemask_epi8(_mm_packs_epi16(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1)));
}
#elif LEVEL == 0 && defined(__x86_64__)
#define X86(name) _mm_##name
INLINE uint64_t bits_h(mask_h m) { return (uint64_t)_mm_movemask_epi8(_mm_packs_epi16((__m128i)m, _mm_setzero_si128())); }
#endif
#if LEVEL < 2 && defined(__x86_64__)
INLINE uint64_t bits_f(mask_f m) { return (uint64_t)X86(movemask_ps)((vec_f)m); }
INLINE uint64_t bits_d(mask_d m) { return (uint64_t)X86(movemask_pd)((vec_d)m); }
#elif defined(__aarch64__)
INLINE uint64_t bits_f(mask_f m) { return vaddvq_u32((uint32x4_t)m & vld1q_u32((const uint32_t *)powers_f)); }
INLINE uint64_t bits_d(mask_d m) { return (uint64_t)((m[0] & 1) | (m[1] & 2)); }
INLINE uint64_t bits_h(mask_h m) { return vaddvq_u16((uint16x8_t)m & vld1q_u16((const uint16_t *)powers_h)); }
#endif

INLINE vec_f all_f(double number) {
    float single = (float)number;
    int32_t bits;
    memcpy(&bits, &single, 4); /* as bits, which a processor that flushes subnormals does not change */
    return (vec_f)((int32s){0} + bits);
}
INLINE vec_d all_d(double number) {
    int64_t bits;
    memcpy(&bits, &number, 8);
    return (vec_d)((int64s){0} + bits);
}

/* v if both are zeros or one is NaN; high if low and high are crossed. */
#define CHOICE(k)                                                                                                                      \
    INLINE vec_##k clamp_##k(vec_##k v, vec_##k low, vec_##k high) {                                                                   \
        mask_##k below = less_##k(v, low), above = less_##k(high, v) | (below & less_##k(high, low));                                  \
        return select_##k(above, high, select_##k(below, low, v));                                                                     \
    }
#ifdef __x86_64__
INLINE vec_f clamp_f(vec_f v, vec_f low, vec_f high) { return X86(min_ps)(high, X86(max_ps)(low, v)); }
INLINE vec_d clamp_d(vec_d v, vec_d low, vec_d high) { return X86(min_pd)(high, X86(max_pd)(low, v)); }
#else
CHOICE(f)
CHOICE(d)
#endif

/* Rounds halves to the even number: from `last` on, every number is whole. A zero may have either sign. */
#define WHOLE(k, last)                                                                                                                 \
    INLINE vec_##k whole_##k(vec_##k v) {                                                                                              \
        vec_##k zero = {0}, least = zero + last;                                                                                       \
        vec_##k up = (v + least) - least, down = (v - least) + least;                                                                  \
        vec_##k found = select_##k(less_##k(v, zero), down, up);                                                                       \
        return select_##k(less_##k(v, least) & less_##k(zero - least, v), found, v);                                                   \
    }
WHOLE(f, 0x1p23f)
WHOLE(d, 0x1p52)
typedef float singles_d __attribute__((vector_size(WIDTH / 2)));
INLINE vec_f times_single_f(vec_f v, float factor) { return v * all_f(factor); }
INLINE vec_d times_single_d(vec_d v, float factor) {
    return __builtin_convertvector(__builtin_convertvector(v, singles_d) * factor, vec_d);
}

/* --- from and to memory --------------------------------------------------------------------------------------------- */

#define MEMORY(k, type, dtype)                                                                                                         \
    INLINE vec_##k load_##dtype(const type *p) {                                                                                       \
        vec_##k v;                                                                                                                     \
        memcpy(&v, p, WIDTH);                                                                                                          \
        return v;                                                                                                                      \
    }                                                                                                                                  \
    INLINE void store_##dtype(type *p, vec_##k v) { memcpy(p, &v, WIDTH); }
MEMORY(f, float, f32)
MEMORY(d, double, f64)
MEMORY(h, uint16_t, h)
MEMORY(b, uint16_t, b)

/* Widens numbers of 16 bits to 32, and takes the low halves of these back. */
#if LEVEL
INLINE uint32s load_halves(const uint16_t *p) {
    packed halves;
    memcpy(&halves, p, sizeof(halves));
    return (uint32s)X86(cvtepu16_epi32)(halves);
}
#elif defined(__x86_64__)
INLINE uint32s load_halves(const uint16_t *p) { return (uint32s)_mm_unpacklo_epi16(_mm_loadl_epi64((const __m128i *)p), _mm_setzero_si128()); }
#else
INLINE uint32s load_halves(const uint16_t *p) { return (uint32s)vmovl_u16(vld1_u16(p)); }
#endif
INLINE void store_halves(uint16_t *p, uint32s v) {
#if LEVEL == 2
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16((__m512i)v));
#elif LEVEL == 1
    __m256i packed_twice = _mm256_packus_epi32((__m256i)(v & 0xFFFF), (__m256i)v);
    _mm_storeu_si128((__m128i *)p, _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed_twice, 0x08)));
#elif defined(__x86_64__)
    __m128i low = (__m128i)((int32s)(v << 16) >> 16);
    _mm_storel_epi64((__m128i *)p, _mm_packs_epi32(low, low));
#else
    vst1_u16(p, vmovn_u32((uint32x4_t)v));
#endif
}

INLINE uint32s choose_uints(mask_f m, uint32s yes, uint32s no) { return (uint32s)select_f(m, (vec_f)yes, (vec_f)no); }

INLINE vec_f load_bf16(const uint16_t *p) { return (vec_f)(load_halves(p) << 16); }
INLINE void store_bf16(uint16_t *p, vec_f v) {
    uint32s bits = (uint32s)v, none = {0};
    bits += ((bits >> 16) & 1) + 0x7FFF;
    store_halves(p, choose_uints(equal_f(v, v), bits >> 16, none + 0x7FC0));
}

#if LEVEL
INLINE vec_f load_f16(const uint16_t *p) {
    packed halves;
    memcpy(&halves, p, sizeof(halves));
    return X86(cvtph_ps)(halves);
}
INLINE void store_f16(uint16_t *p, vec_f v) {
    packed halves = X86(cvtps_ph)(v, _MM_FROUND_TO_NEAREST_INT);
    memcpy(p, &halves, sizeof(halves));
}
#elif defined(__x86_64__)
/* A subnormal of float16 is a multiple of 2**-24. No step of the conversion has a subnormal of float32, which a processor may flush. */
INLINE vec_f load_f16(const uint16_t *p) {
    uint32s bits = load_halves(p), size = bits & 0x7FFF, sign = (bits & 0x8000) << 16, made = (size << 13) + 0x38000000;
    made += (uint32s)(size > 0x7BFF) & 0x38000000;
    vec_f small = (vec_f)_mm_cvtepi32_ps((__m128i)size) * all_f(0x1p-24);
    return (vec_f)(choose_uints((mask_f)(size < 0x400), (uint32s)small, made) | sign);
}
INLINE void store_f16(uint16_t *p, vec_f v) {
    uint32s size = (uint32s)v & 0x7FFFFFFF, sign = ((uint32s)v >> 16) & 0x8000, none = {0};
    uint32s made = (size - 0x38000000 + 0xFFF + ((size >> 13) & 1)) >> 13;
    uint32s small = (uint32s)((vec_f)size + all_f(0.5)) - 0x3F000000, nan = 0x7E00 | (size >> 13 & 0x3FF);
    made = choose_uints((mask_f)(size < 0x38800000), small, made);
    made = choose_uints((mask_f)(size > 0x477FEFFF), none + 0x7C00, made); /* 65520 and more */
    store_halves(p, choose_uints(equal_f(v, v), made, nan) | sign);
}
#else
INLINE vec_f load_f16(const uint16_t *p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
INLINE void store_f16(uint16_t *p, vec_f v) { vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(v))); }
#endif

/* --- comparisons of halves ------------------------------------------------------------------------------------------ */

/* Integers in the order of the numbers. Both zeros are 0. A NaN, whose size is more than `infinity`, is beyond the infinities. */
INLINE int16s ranks(int16s v) {
    int16s sign = v >> 15;
    return ((v & 0x7FFF) ^ sign) - sign;
}
#define HALVES(k, dtype, infinity)                                                                                                     \
    INLINE mask_h known_##k(int16s v) { return less_int16s(v & 0x7FFF, (int16s){0} + (int16_t)(infinity + 1)); }                       \
    INLINE mask_h less_##k(vec_h a, vec_h b) { return less_int16s(ranks(a), ranks(b)) & known_##k(a) & known_##k(b); }                 \
    INLINE mask_h equal_##k(vec_h a, vec_h b) { return equal_int16s(ranks(a), ranks(b)) & known_##k(a); }                              \
    INLINE mask_h above_##k(vec_h a, vec_h b) { return less_##k(b, a) | (mask_h)~(known_##k(a) & known_##k(b)); }                      \
    INLINE vec_h all_##k(double number) {                                                                                              \
        uint16_t held[lanes_f];                                                                                                        \
        store_##dtype(held, all_f(number));                                                                                            \
        return (int16s){0} + (int16_t)held[0];                                                                                         \
    }
HALVES(h, f16, 0x7C00)
HALVES(b, bf16, 0x7F80)
#define SIGNS(k, is_up, is_down)                                                                                                       \
    INLINE mask_##k up_##k(vec_##k v) { return is_up; }                                                                                \
    INLINE mask_##k down_##k(vec_##k v) { return is_down; }
/* Beyond the two zeros and up to an infinity, each in one comparison without overflow. */
#define SIGNS_OF_HALVES(k, infinity)                                                                                                   \
    SIGNS(k, less_int16s((int16s)((uint16s)v + 0x7FFF), (int16s){0} + (int16_t)(infinity - 0x8000)),                                   \
          less_int16s((int16s)((uint16s)v - 1), (int16s){0} + (int16_t)(infinity - 0x8000)))
SIGNS(f, less_f((vec_f){0}, v), less_f(v, (vec_f){0}))
SIGNS(d, less_d((vec_d){0}, v), less_d(v, (vec_d){0}))
SIGNS_OF_HALVES(h, 0x7C00)
SIGNS_OF_HALVES(b, 0x7F80)
#define select_b select_h
#define bits_b bits_h
#define from_bits_b from_bits_h
CHOICE(h)
CHOICE(b)

/* v, but 0 where it is in the first mask and above 0, or in the second and below. */
#define INWARD(k)                                                                                                                      \
    INLINE vec_##k inward_##k(vec_##k v, mask_##k first, mask_##k second) {                                                            \
        return select_##k((first & up_##k(v)) | (second & down_##k(v)), (vec_##k){0}, v);                                              \
    }
#if LEVEL == 2 /* of which a NaN and a zero come back as v has them */
INLINE vec_f inward_f(vec_f v, mask_f first, mask_f second) {
    vec_f zero = {0}, down = _mm512_mask_min_ps(v, first, zero, v);
    return _mm512_mask_max_ps(down, second, zero, down);
}
INLINE vec_d inward_d(vec_d v, mask_d first, mask_d second) {
    vec_d zero = {0}, down = _mm512_mask_min_pd(v, first, zero, v);
    return _mm512_mask_max_pd(down, second, zero, down);
}
#else
INWARD(f)
INWARD(d)
#endif
INWARD(h)
INWARD(b)

INLINE mask_f none_f(void) { return (mask_f){0}; }
INLINE mask_d none_d(void) { return (mask_d){0}; }
INLINE mask_h none_h(void) { return (mask_h){0}; }
#define none_b none_h

/* --- the loops ------------------------------------------------------------------------------------------------------ */

#include "every_dtype.h"

#define T uint16_t
#define NAME(x) x##_h
#define LANE(x) x##_h
#define COMPUTED(x) x##_f16
#include "loops.h"

#define T uint16_t
#define NAME(x) x##_b
#define LANE(x) x##_b
#define COMPUTED(x) x##_bf16
#include "loops.h"

#if LEVEL
const Loops *const LOOPS[TABLES] = {&loops_h, &loops_b, &loops_f32, &loops_f64};
#else
const Loops *const LOOPS[TABLES] = {&loops_h, &loops_b, &loops_f32, &loops_f64, &loops_bf16};
#endif
#if LEVEL && defined(__clang__)
#pragma clang attribute pop
#endif
#endif
