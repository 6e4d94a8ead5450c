// Vectors of floats and the little arithmetic that all kernels share: AVX512 where the compiler may use it, else AVX2.
#pragma once

#include <immintrin.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <atomic>
#include <cmath>

namespace {

constexpr float LOG2E = 1.44269504088896340736f;

struct Half {  // float16; bf16 is uint16_t
  uint16_t bits;
};

#if defined(__AVX512F__)
constexpr int W = 16;
constexpr int MAX_N = 4;  // 6 rows x 4 vectors of sums: 24 of 32 registers
using F = __m512;
using M = __mmask16;
inline F load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, F a) { _mm512_storeu_ps(p, a); }
inline F all(float a) { return _mm512_set1_ps(a); }
inline F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
inline F fnma(F a, F b, F c) { return _mm512_fnmadd_ps(a, b, c); }
inline F mul(F a, F b) { return _mm512_mul_ps(a, b); }
inline F add(F a, F b) { return _mm512_add_ps(a, b); }
inline F sub(F a, F b) { return _mm512_sub_ps(a, b); }
inline F div(F a, F b) { return _mm512_div_ps(a, b); }
inline F larger(F a, F b) { return _mm512_max_ps(a, b); }   // b where one of them is NaN
inline F smaller(F a, F b) { return _mm512_min_ps(a, b); }  // likewise
inline F nearest(F a) { return _mm512_roundscale_ps(a, 8); }
inline F times_pow2(F a, F n) { return _mm512_scalef_ps(a, n); }
inline float max_of(F a) { return _mm512_reduce_max_ps(a); }
inline float sum_of(F a) { return _mm512_reduce_add_ps(a); }
inline F keep(F a, uint64_t bits, F other) { return _mm512_mask_mov_ps(other, (M)bits, a); }
inline M first_of(int64_t n) { return n >= W ? (M)0xffff : (M)((1u << n) - 1); }
inline F load_some(const float* p, int64_t n) { return _mm512_maskz_loadu_ps(first_of(n), p); }
inline F load_some(const uint16_t* p, int64_t n) {
  __m256i half = _mm256_maskz_loadu_epi16(first_of(n), p);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}
inline F load_some(const Half* p, int64_t n) {
  if (n >= W) return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p));
  return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first_of(n), p));
}
// Whole vectors go without a mask: masked stores are several times dearer on some CPUs.
inline void store_some(float* p, F a, int64_t n) {
  if (n >= W) return store(p, a);
  _mm512_mask_storeu_ps(p, first_of(n), a);
}
inline void store_some(uint16_t* p, F a, int64_t n) {
#if defined(__AVX512BF16__)
  __m256i half = (__m256i)_mm512_cvtneps_pbh(a);
#else
  __m512i i = _mm512_castps_si512(a), odd = _mm512_and_si512(_mm512_srli_epi32(i, 16), _mm512_set1_epi32(1));
  i = _mm512_add_epi32(i, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  i = _mm512_srli_epi32(i, 16);
  i = _mm512_mask_mov_epi32(i, _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), _mm512_set1_epi32(0x7fc0));  // NaN stays NaN
  __m256i half = _mm512_cvtepi32_epi16(i);
#endif
  if (n >= W) return _mm256_storeu_si256((__m256i*)p, half);
  _mm256_mask_storeu_epi16(p, first_of(n), half);
}
inline void store_some(Half* p, F a, int64_t n) {
  __m256i half = _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  if (n >= W) return _mm256_storeu_si256((__m256i*)p, half);
  _mm256_mask_storeu_epi16(p, first_of(n), half);
}
inline void transpose(F* f) {
  __m512i r[16], t[16];
  for (int i = 0; i < 16; i++) r[i] = _mm512_castps_si512(f[i]);
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  // Quarter c of r[4 i + j] now is column 4 c + j of rows 4 i .. 4 i + 3.
#pragma GCC unroll 4
  for (int j = 0; j < 4; j++) {
    __m512i a = _mm512_shuffle_i32x4(r[j], r[4 + j], 0x88), b = _mm512_shuffle_i32x4(r[j], r[4 + j], 0xdd);
    __m512i c = _mm512_shuffle_i32x4(r[8 + j], r[12 + j], 0x88), d = _mm512_shuffle_i32x4(r[8 + j], r[12 + j], 0xdd);
    f[j] = _mm512_castsi512_ps(_mm512_shuffle_i32x4(a, c, 0x88));
    f[4 + j] = _mm512_castsi512_ps(_mm512_shuffle_i32x4(b, d, 0x88));
    f[8 + j] = _mm512_castsi512_ps(_mm512_shuffle_i32x4(a, c, 0xdd));
    f[12 + j] = _mm512_castsi512_ps(_mm512_shuffle_i32x4(b, d, 0xdd));
  }
}
// Two bf16 in each lane: the first and the second of each as floats.
inline F first_of_pairs(F a) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(a), 16)); }
inline F second_of_pairs(F a) {
  return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(a), _mm512_set1_epi32((int)0xffff0000)));
}
// The even and the odd ones of 2 W numbers, and back.
inline void split_pairs(F a, F b, F* even, F* odd) {
  const __m512i e = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  *even = _mm512_permutex2var_ps(a, e, b), *odd = _mm512_permutex2var_ps(a, _mm512_add_epi32(e, _mm512_set1_epi32(1)), b);
}
inline void join_pairs(F even, F odd, F* a, F* b) {
  const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  *a = _mm512_permutex2var_ps(even, low, odd), *b = _mm512_permutex2var_ps(even, _mm512_add_epi32(low, _mm512_set1_epi32(8)), odd);
}
// out[j], lane i: word j of the 4 W bytes at from[i]; 0 where that is null.
inline void load_transposed(const char* const* from, F* out) {
#pragma GCC unroll 16
  for (int i = 0; i < W; i++) out[i] = from[i] ? load((const float*)from[i]) : all(0.0f);
  transpose(out);
}
#else
constexpr int W = 8;
constexpr int MAX_N = 2;  // 6 x 2: 12 of 16 registers
using F = __m256;
inline F load(const float* p) { return _mm256_loadu_ps(p); }
inline void store(float* p, F a) { _mm256_storeu_ps(p, a); }
inline F all(float a) { return _mm256_set1_ps(a); }
inline F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
inline F fnma(F a, F b, F c) { return _mm256_fnmadd_ps(a, b, c); }
inline F mul(F a, F b) { return _mm256_mul_ps(a, b); }
inline F add(F a, F b) { return _mm256_add_ps(a, b); }
inline F sub(F a, F b) { return _mm256_sub_ps(a, b); }
inline F div(F a, F b) { return _mm256_div_ps(a, b); }
inline F larger(F a, F b) { return _mm256_max_ps(a, b); }
inline F smaller(F a, F b) { return _mm256_min_ps(a, b); }
inline F nearest(F a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline F times_pow2(F a, F n) {  // n in -200..126; 0 below the normal numbers
  __m256i e = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
  F tiny = _mm256_cmp_ps(n, all(-126.0f), _CMP_LT_OQ);
  // Where n is NaN so is a, and times anything it stays NaN.
  return _mm256_andnot_ps(tiny, mul(a, _mm256_castsi256_ps(e)));
}
inline float max_of(F a) {
  __m128 h = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  h = _mm_max_ps(h, _mm_movehl_ps(h, h));
  return _mm_cvtss_f32(_mm_max_ss(h, _mm_shuffle_ps(h, h, 1)));
}
inline float sum_of(F a) {
  __m128 h = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  h = _mm_add_ps(h, _mm_movehl_ps(h, h));
  return _mm_cvtss_f32(_mm_add_ss(h, _mm_shuffle_ps(h, h, 1)));
}
inline F keep(F a, uint64_t bits, F other) {
  __m256i each = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  __m256i on = _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32((int)(bits & 255)), each), each);
  return _mm256_blendv_ps(other, a, _mm256_castsi256_ps(on));
}
inline F load_some(const float* p, int64_t n) {
  if (n >= W) return load(p);
  float some[W] = {};
  memcpy(some, p, n * sizeof *p);
  return load(some);
}
inline F load_some(const uint16_t* p, int64_t n) {
  uint16_t some[W] = {};
  if (n < W) memcpy(some, p, n * sizeof *p);
  __m128i half = _mm_loadu_si128((const __m128i*)(n < W ? some : p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}
inline F load_some(const Half* p, int64_t n) {
  Half some[W] = {};
  if (n < W) memcpy(some, p, n * sizeof *p);
  return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(n < W ? some : p)));
}
inline void store_some(float* p, F a, int64_t n) {
  if (n >= W) return store(p, a);
  float some[W];
  store(some, a);
  memcpy(p, some, n * sizeof *p);
}
inline void store_some(uint16_t* p, F a, int64_t n) {
  __m256i i = _mm256_castps_si256(a), odd = _mm256_and_si256(_mm256_srli_epi32(i, 16), _mm256_set1_epi32(1));
  i = _mm256_srli_epi32(_mm256_add_epi32(i, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
  __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));  // NaN stays NaN
  i = _mm256_blendv_epi8(i, _mm256_set1_epi32(0x7fc0), nan);
  __m128i half = _mm_packus_epi32(_mm256_castsi256_si128(i), _mm256_extracti128_si256(i, 1));
  if (n >= W) return _mm_storeu_si128((__m128i*)p, half);
  uint16_t some[W];
  _mm_storeu_si128((__m128i*)some, half);
  memcpy(p, some, n * sizeof *p);
}
inline void store_some(Half* p, F a, int64_t n) {
  __m128i half = _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT);
  if (n >= W) return _mm_storeu_si128((__m128i*)p, half);
  Half some[W];
  _mm_storeu_si128((__m128i*)some, half);
  memcpy(p, some, n * sizeof *p);
}
inline void transpose(F* r) {
  F t[8], u[8];
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    u[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
    u[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
    u[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    u[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
  }
  for (int i = 0; i < 4; i++) {
    r[i] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x20);
    r[i + 4] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x31);
  }
}
inline F first_of_pairs(F a) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(a), 16)); }
inline F second_of_pairs(F a) { return _mm256_and_ps(a, _mm256_castsi256_ps(_mm256_set1_epi32((int)0xffff0000))); }
inline F quarters_in_order(F a) { return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(a), 0xd8)); }
inline void split_pairs(F a, F b, F* even, F* odd) {
  *even = quarters_in_order(_mm256_shuffle_ps(a, b, 0x88)), *odd = quarters_in_order(_mm256_shuffle_ps(a, b, 0xdd));
}
inline void join_pairs(F even, F odd, F* a, F* b) {
  F low = _mm256_unpacklo_ps(even, odd), high = _mm256_unpackhi_ps(even, odd);
  *a = _mm256_permute2f128_ps(low, high, 0x20), *b = _mm256_permute2f128_ps(low, high, 0x31);
}
// Halves are put together as they are read: it takes no shuffle on Intel's CPUs, and eight operations of a Zen 1 to do later.
inline void load_transposed(const char* const* from, F* out) {
  F t[8], u[8];
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++)
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++) {
      const float *a = (const float*)from[i] + 4 * half, *b = (const float*)from[i + 4] + 4 * half;
      __m128 low = from[i] ? _mm_loadu_ps(a) : _mm_setzero_ps();
      t[i + 4 * half] = _mm256_insertf128_ps(_mm256_castps128_ps256(low), from[i + 4] ? _mm_loadu_ps(b) : _mm_setzero_ps(), 1);
    }
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4) {
    u[i] = _mm256_unpacklo_ps(t[i], t[i + 1]), u[i + 1] = _mm256_unpackhi_ps(t[i], t[i + 1]);
    u[i + 2] = _mm256_unpacklo_ps(t[i + 2], t[i + 3]), u[i + 3] = _mm256_unpackhi_ps(t[i + 2], t[i + 3]);
    out[i] = _mm256_shuffle_ps(u[i], u[i + 2], 0x44), out[i + 1] = _mm256_shuffle_ps(u[i], u[i + 2], 0xee);
    out[i + 2] = _mm256_shuffle_ps(u[i + 1], u[i + 3], 0x44), out[i + 3] = _mm256_shuffle_ps(u[i + 1], u[i + 3], 0xee);
  }
}
#endif

// 2^x, relative error below 1e-7: 0 below 2^-126, exactly 1 at 0; NaN stays NaN. x up to 126. The polynomial's largest
// relative error on [-1/2, 1/2] is 2e-9, the least that one of degree 6 can have with p(0) = 1.
inline F exp2f(F x) {
  x = larger(all(-200.0f), x);
  F n = nearest(x), f = sub(x, n);
  F p = all(1.5353362e-4f);
  p = fma(p, f, all(1.3398875e-3f));
  p = fma(p, f, all(9.6184374e-3f));
  p = fma(p, f, all(5.5503325e-2f));
  p = fma(p, f, all(2.4022648e-1f));
  p = fma(p, f, all(6.9314720e-1f));
  p = fma(p, f, all(1.0f));
  return times_pow2(p, n);
}
inline float exp2_one(float x) {
  float lanes[W];
  store(lanes, exp2f(all(x)));
  return lanes[0];
}

inline bool has_nan(F a) {
#if defined(__AVX512F__)
  return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q) != 0;
#else
  return _mm256_movemask_ps(_mm256_cmp_ps(a, a, _CMP_UNORD_Q)) != 0;
#endif
}

inline void soon(const void* p, int64_t offset) { _mm_prefetch((const char*)((uintptr_t)p + offset), _MM_HINT_T0); }
// Into the second level of the cache: for more than the first holds until it is read. A Zen 4 core reads scattered pieces of
// 8 KiB at 19 GB/s this way and at 10 GB/s by `soon`, whose lines take places that the first level has few of.
inline void soon_in_l2(const void* p, int64_t offset) { _mm_prefetch((const char*)((uintptr_t)p + offset), _MM_HINT_T1); }

}  // namespace
