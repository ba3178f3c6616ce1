/* For processors with AVX2 and F16C. A mask is a vector of ones or zeros for each lane. */
#include "rules.h"

#if defined(__x86_64__) && defined(__GNUC__)
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,f16c"))), apply_to = function)
#else
#pragma GCC target("avx2,f16c")
#endif
#include <immintrin.h>

typedef __m256 vec_f;
typedef __m256 mask_f;
enum { lanes_f = 8, lanes_d = 4 };
INLINE vec_f all_f(double number) { return _mm256_set1_ps((float)number); }
INLINE mask_f none_f(void) { return _mm256_setzero_ps(); }
INLINE mask_f less_f(vec_f a, vec_f b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
INLINE mask_f equal_f(vec_f a, vec_f b) { return _mm256_cmp_ps(a, b, _CMP_EQ_OQ); }
INLINE mask_f above_f(vec_f a, vec_f b) { return _mm256_cmp_ps(a, b, _CMP_NLE_UQ); }
INLINE mask_f both_f(mask_f m, mask_f n) { return _mm256_and_ps(m, n); }
INLINE mask_f either_f(mask_f m, mask_f n) { return _mm256_or_ps(m, n); }
INLINE vec_f select_f(mask_f m, vec_f yes, vec_f no) { return _mm256_blendv_ps(no, yes, m); }
INLINE vec_f product_f(vec_f a, vec_f b) { return _mm256_mul_ps(a, b); }
INLINE vec_f times_f(vec_f v, double number) { return _mm256_mul_ps(v, _mm256_set1_ps((float)number)); }
INLINE vec_f plus_f(vec_f a, vec_f b) { return _mm256_add_ps(a, b); }
INLINE vec_f minus_f(vec_f a, vec_f b) { return _mm256_sub_ps(a, b); }
INLINE vec_f over_f(vec_f a, vec_f b) { return _mm256_div_ps(a, b); }
INLINE vec_f clamp_f(vec_f v, vec_f low, vec_f high) { return _mm256_min_ps(high, _mm256_max_ps(low, v)); }
INLINE uint64_t bits_f(mask_f m) { return (uint64_t)_mm256_movemask_ps(m); }
INLINE mask_f from_bits_f(uint64_t word) {
    const __m256i each = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    return _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32((int)(word & 0xFF)), each), each));
}

typedef __m256d vec_d;
typedef __m256d mask_d;
INLINE vec_d all_d(double number) { return _mm256_set1_pd(number); }
INLINE mask_d none_d(void) { return _mm256_setzero_pd(); }
INLINE mask_d less_d(vec_d a, vec_d b) { return _mm256_cmp_pd(a, b, _CMP_LT_OQ); }
INLINE mask_d equal_d(vec_d a, vec_d b) { return _mm256_cmp_pd(a, b, _CMP_EQ_OQ); }
INLINE mask_d above_d(vec_d a, vec_d b) { return _mm256_cmp_pd(a, b, _CMP_NLE_UQ); }
INLINE mask_d both_d(mask_d m, mask_d n) { return _mm256_and_pd(m, n); }
INLINE mask_d either_d(mask_d m, mask_d n) { return _mm256_or_pd(m, n); }
INLINE vec_d select_d(mask_d m, vec_d yes, vec_d no) { return _mm256_blendv_pd(no, yes, m); }
INLINE vec_d product_d(vec_d a, vec_d b) { return _mm256_mul_pd(a, b); }
INLINE vec_d times_d(vec_d v, double number) { return _mm256_mul_pd(v, _mm256_set1_pd(number)); }
INLINE vec_d plus_d(vec_d a, vec_d b) { return _mm256_add_pd(a, b); }
INLINE vec_d minus_d(vec_d a, vec_d b) { return _mm256_sub_pd(a, b); }
INLINE vec_d over_d(vec_d a, vec_d b) { return _mm256_div_pd(a, b); }
INLINE vec_d clamp_d(vec_d v, vec_d low, vec_d high) { return _mm256_min_pd(high, _mm256_max_pd(low, v)); }
INLINE uint64_t bits_d(mask_d m) { return (uint64_t)_mm256_movemask_pd(m); }
INLINE mask_d from_bits_d(uint64_t word) {
    const __m256i each = _mm256_setr_epi64x(1, 2, 4, 8);
    return _mm256_castsi256_pd(_mm256_cmpeq_epi64(_mm256_and_si256(_mm256_set1_epi64x((long long)(word & 0xF)), each), each));
}

INLINE vec_f load_f32(const float *p) { return _mm256_loadu_ps(p); }
INLINE void store_f32(float *p, vec_f v) { _mm256_storeu_ps(p, v); }
INLINE vec_d load_f64(const double *p) { return _mm256_loadu_pd(p); }
INLINE void store_f64(double *p, vec_d v) { _mm256_storeu_pd(p, v); }
INLINE vec_f load_f16(const uint16_t *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }
INLINE void store_f16(uint16_t *p, vec_f v) { _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT)); }
INLINE vec_f load_bf16(const uint16_t *p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16));
}
INLINE void store_bf16(uint16_t *p, vec_f v) {
    __m256i bits = _mm256_castps_si256(v), is_odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i made = _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(is_odd, _mm256_set1_epi32(0x7FFF))), 16);
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    made = _mm256_blendv_epi8(made, _mm256_set1_epi32(0x7FC0), nan);
    made = _mm256_permute4x64_epi64(_mm256_packus_epi32(made, made), 0x08);
    _mm_storeu_si128((__m128i *)p, _mm256_castsi256_si128(made));
}

#include "every_dtype.h"
#ifdef __clang__
#pragma clang attribute pop
#endif
const Loops *const loops_avx2[DTYPES] = {&loops_f16, &loops_bf16, &loops_f32, &loops_f64};
#else
const Loops *const loops_avx2[DTYPES] = {0};
#endif
