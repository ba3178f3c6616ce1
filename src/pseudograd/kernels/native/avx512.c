/* For processors with AVX-512 (F, BW, VL, DQ). */
#include "rules.h"

#if defined(__x86_64__) && defined(__GNUC__)
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx2,f16c"))), apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx2,f16c")
#endif
#include <immintrin.h>

/* A mask as a number. gcc 12 widens one on its way to memory by storing its own two bytes and reading eight, so that what was there before
   is in the number; through a register of 32 bits it does not. */
INLINE uint64_t widened(uint32_t mask) {
#ifndef __clang__
    __asm__("" : "+r"(mask));
#endif
    return mask;
}

typedef __m512 vec_f;
typedef __mmask16 mask_f;
enum { lanes_f = 16, lanes_d = 8 };
INLINE vec_f all_f(double number) { return _mm512_set1_ps((float)number); }
INLINE mask_f none_f(void) { return 0; }
INLINE mask_f less_f(vec_f a, vec_f b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
INLINE mask_f equal_f(vec_f a, vec_f b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
INLINE mask_f above_f(vec_f a, vec_f b) { return _mm512_cmp_ps_mask(a, b, _CMP_NLE_UQ); }
INLINE mask_f both_f(mask_f m, mask_f n) { return m & n; }
INLINE mask_f either_f(mask_f m, mask_f n) { return m | n; }
INLINE vec_f select_f(mask_f m, vec_f yes, vec_f no) { return _mm512_mask_mov_ps(no, m, yes); }
INLINE vec_f product_f(vec_f a, vec_f b) { return _mm512_mul_ps(a, b); }
INLINE vec_f times_f(vec_f v, double number) { return _mm512_mul_ps(v, _mm512_set1_ps((float)number)); }
INLINE vec_f plus_f(vec_f a, vec_f b) { return _mm512_add_ps(a, b); }
INLINE vec_f minus_f(vec_f a, vec_f b) { return _mm512_sub_ps(a, b); }
INLINE vec_f over_f(vec_f a, vec_f b) { return _mm512_div_ps(a, b); }
INLINE vec_f clamp_f(vec_f v, vec_f low, vec_f high) { return _mm512_min_ps(high, _mm512_max_ps(low, v)); }
INLINE uint64_t bits_f(mask_f m) { return widened(m); }
INLINE mask_f from_bits_f(uint64_t word) { return (mask_f)word; }

typedef __m512d vec_d;
typedef __mmask8 mask_d;
INLINE vec_d all_d(double number) { return _mm512_set1_pd(number); }
INLINE mask_d none_d(void) { return 0; }
INLINE mask_d less_d(vec_d a, vec_d b) { return _mm512_cmp_pd_mask(a, b, _CMP_LT_OQ); }
INLINE mask_d equal_d(vec_d a, vec_d b) { return _mm512_cmp_pd_mask(a, b, _CMP_EQ_OQ); }
INLINE mask_d above_d(vec_d a, vec_d b) { return _mm512_cmp_pd_mask(a, b, _CMP_NLE_UQ); }
INLINE mask_d both_d(mask_d m, mask_d n) { return m & n; }
INLINE mask_d either_d(mask_d m, mask_d n) { return m | n; }
INLINE vec_d select_d(mask_d m, vec_d yes, vec_d no) { return _mm512_mask_mov_pd(no, m, yes); }
INLINE vec_d product_d(vec_d a, vec_d b) { return _mm512_mul_pd(a, b); }
INLINE vec_d times_d(vec_d v, double number) { return _mm512_mul_pd(v, _mm512_set1_pd(number)); }
INLINE vec_d plus_d(vec_d a, vec_d b) { return _mm512_add_pd(a, b); }
INLINE vec_d minus_d(vec_d a, vec_d b) { return _mm512_sub_pd(a, b); }
INLINE vec_d over_d(vec_d a, vec_d b) { return _mm512_div_pd(a, b); }
INLINE vec_d clamp_d(vec_d v, vec_d low, vec_d high) { return _mm512_min_pd(high, _mm512_max_pd(low, v)); }
INLINE uint64_t bits_d(mask_d m) { return widened(m); }
INLINE mask_d from_bits_d(uint64_t word) { return (mask_d)word; }

INLINE vec_f load_f32(const float *p) { return _mm512_loadu_ps(p); }
INLINE void store_f32(float *p, vec_f v) { _mm512_storeu_ps(p, v); }
INLINE vec_d load_f64(const double *p) { return _mm512_loadu_pd(p); }
INLINE void store_f64(double *p, vec_d v) { _mm512_storeu_pd(p, v); }
INLINE vec_f load_f16(const uint16_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
INLINE void store_f16(uint16_t *p, vec_f v) { _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT)); }
INLINE vec_f load_bf16(const uint16_t *p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16));
}
INLINE void store_bf16(uint16_t *p, vec_f v) {
    __m512i bits = _mm512_castps_si512(v), is_odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i made = _mm512_srli_epi32(_mm512_add_epi32(bits, _mm512_add_epi32(is_odd, _mm512_set1_epi32(0x7FFF))), 16);
    made = _mm512_mask_mov_epi32(made, _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), _mm512_set1_epi32(0x7FC0));
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(made));
}

#include "every_dtype.h"
#ifdef __clang__
#pragma clang attribute pop
#endif
const Loops *const loops_avx512[DTYPES] = {&loops_f16, &loops_bf16, &loops_f32, &loops_f64};
#else
const Loops *const loops_avx512[DTYPES] = {0};
#endif
