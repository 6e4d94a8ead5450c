// Attention over paged KV on x86-64 CPUs: one call for all sequences of a step, one layer at a time.
//
//   q, out   [T, heads, head_dim]       k, v [T, kv_heads, head_dim]: of this step, copied to their cells first
//   kv       [2, num_blocks, kv_heads, block_size, head_dim]
//   tables   int32 [n, table_stride]: the blocks of a sequence
//   work     int64 [num_work, 10], see `Work`: up to 128 query rows of a sequence, and a range of splits
//
// Threads take (work, kv head) from a counter. The query heads of a key head are rows of one tile, so keys and values are
// read once for all of them. A tile of TILE keys is packed (keys transposed, values interleaved), then for a few rows at a
// time:   scores = Q K^T   ->   online softmax   ->   O = alpha O + P V.   Both products are one micro-kernel.
//
// Order of sums. Tiles begin at multiples of TILE, splits at multiples of SPLIT, counted from the start of the sequence; a
// row's sums run over head_dim, keys of a tile, tiles of a split, splits, each ascending. Keys a row does not see add
// exactly 0, or nothing. So a row's result does not depend on the other rows, on how a prompt is cut or on the threads.
// Nothing relies on the compiler to contract products and sums: built with -ffp-contract=off.
//
// Online softmax over tiles: Milakov and Gimelshein 2018; splits: Flash-Decoding (Dao et al. 2023).

#include <immintrin.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <atomic>
#include <cmath>

namespace {

constexpr int64_t TILE = 64, SPLIT = 512;
constexpr float LOG2E = 1.44269504088896340736f;

struct Work {
  int64_t row, tokens, pos, item;             // query tokens row..row+tokens, the first at position pos of its sequence
  int64_t split_begin, split_end;             // splits to do here
  int64_t group, slot, group_slot, in_group;  // group < 0: the result is final; else partial results, merged by the last
};

struct Step {
  int64_t dtype, heads, kv_heads, head_dim, block_size, num_blocks, table_stride, window, tokens;
  int64_t num_work, num_groups, max_rows, partial_rows, threads;
  const int32_t* tables;
  const int64_t* work;
  const int64_t* cells;  // [tokens]: where in kv the first head of each token goes, counted in rows of head_dim
  float* partials;       // [slots, kv_heads, partial_rows, padded head_dim + 2]
  int32_t* counters;     // [num_groups, kv_heads]
  float scale, softcap;  // softcap 0: none
};

// ---- vectors of floats ---------------------------------------------------------------------------------------------

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
inline void store_some(float* p, F a, int64_t n) { _mm512_mask_storeu_ps(p, first_of(n), a); }
inline void store_some(uint16_t* p, F a, int64_t n) {
#if defined(__AVX512BF16__)
  __m256i half = (__m256i)_mm512_cvtneps_pbh(a);
#else
  __m512i i = _mm512_castps_si512(a), odd = _mm512_and_si512(_mm512_srli_epi32(i, 16), _mm512_set1_epi32(1));
  i = _mm512_add_epi32(i, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  __m256i half = _mm512_cvtepi32_epi16(_mm512_srli_epi32(i, 16));
#endif
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
inline void store_some(float* p, F a, int64_t n) {
  if (n >= W) return store(p, a);
  float some[W];
  store(some, a);
  memcpy(p, some, n * sizeof *p);
}
inline void store_some(uint16_t* p, F a, int64_t n) {
  __m256i i = _mm256_castps_si256(a), odd = _mm256_and_si256(_mm256_srli_epi32(i, 16), _mm256_set1_epi32(1));
  i = _mm256_srli_epi32(_mm256_add_epi32(i, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
  __m128i half = _mm_packus_epi32(_mm256_castsi256_si128(i), _mm256_extracti128_si256(i, 1));
  if (n >= W) return _mm_storeu_si128((__m128i*)p, half);
  uint16_t some[W];
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
#endif

constexpr int VECTORS = TILE / W;

// 2^x, relative error below 2e-7: 0 below 2^-126, exactly 1 at 0; NaN stays NaN. x up to 126.
inline F exp2f(F x) {
  x = larger(all(-200.0f), x);
  F n = nearest(x), f = sub(x, n);
  F p = all(1.5403530e-4f);
  p = fma(p, f, all(1.3333558e-3f));
  p = fma(p, f, all(9.6181291e-3f));
  p = fma(p, f, all(5.5504109e-2f));
  p = fma(p, f, all(2.4022651e-1f));
  p = fma(p, f, all(6.9314718e-1f));
  p = fma(p, f, all(1.0f));
  return times_pow2(p, n);
}
inline float exp2_one(float x) {
  float lanes[W];
  store(lanes, exp2f(all(x)));
  return lanes[0];
}

inline void soon(const void* p, int64_t offset) { _mm_prefetch((const char*)((uintptr_t)p + offset), _MM_HINT_T0); }

// ---- two ways to multiply ------------------------------------------------------------------------------------------
// `Unit` is what one lane of a packed operand holds, DEPTH elements along the summed dimension. Packing asks for the rows
// that come next, `ahead`, a line at a time: blocks lie anywhere, and the CPU does not prefetch across pages.

struct Floats {
  using Unit = float;
  static constexpr int DEPTH = 1;
  static F mul_add(const Unit* a, F b, F sum) { return fma(all(*a), b, sum); }
  static F load_b(const Unit* p) { return load(p); }
  static F weights(Unit* out, int64_t i, F p) {
    store(out + i, p);
    return p;
  }
  template <class T>
  static void row(Unit* out, const T* in, int64_t n) {
    for (int64_t d = 0; d < n; d += W) store(out + d, load_some(in + d, n - d));
  }
  // keys[i] -> out[d][i]
  template <class T>
  static void pack_keys(Unit* out, const T* const* keys, int64_t head_dim, const T* const* ahead) {
    for (int64_t g = 0; g < TILE; g += W)
      for (int64_t d = 0; d < head_dim; d += W) {
        F r[W];
        for (int i = 0; i < W; i++) soon(ahead[g + i], d * sizeof(T));
        for (int i = 0; i < W; i++) r[i] = keys[g + i] ? load_some(keys[g + i] + d, head_dim - d) : all(0.0f);
        transpose(r);
        for (int i = 0; i < W && d + i < head_dim; i++) store(out + (d + i) * TILE + g, r[i]);
      }
  }
  // values[i] -> out[i][d]
  template <class T>
  static void pack_values(Unit* out, const T* const* values, int64_t head_dim, int64_t padded, const T* const* ahead) {
    for (int64_t i = 0; i < TILE; i++)
      for (int64_t d = 0; d < padded; d += W) {
        soon(ahead[i], d * sizeof(T));
        store(out + i * padded + d, values[i] && d < head_dim ? load_some(values[i] + d, head_dim - d) : all(0.0f));
      }
  }
};

#if defined(__AVX512BF16__)
inline __m512i load_words(const uint16_t* p, int64_t n) {
  return n >= 32 ? _mm512_loadu_si512(p) : _mm512_maskz_loadu_epi16((__mmask32)((1u << n) - 1), p);
}
struct Pairs {
  using Unit = uint32_t;  // two bf16
  static constexpr int DEPTH = 2;
  static F mul_add(const Unit* a, F b, F sum) {
    return _mm512_dpbf16_ps(sum, (__m512bh)_mm512_set1_epi32((int)*a), (__m512bh)_mm512_castps_si512(b));
  }
  static F load_b(const Unit* p) { return _mm512_loadu_ps((const float*)p); }
  // Weights are rounded to bf16; their sum is that of the rounded ones.
  static F weights(Unit* out, int64_t i, F p) {
    __m256i half = (__m256i)_mm512_cvtneps_pbh(p);
    _mm256_storeu_si256((__m256i*)((uint16_t*)out + i), half);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
  }
  static void row(Unit* out, const uint16_t* in, int64_t n) {
    for (int64_t d = 0; d < n; d += 32) _mm512_storeu_si512(out + d / 2, load_words(in + d, n - d));
  }
  static void pack_keys(Unit* out, const uint16_t* const* keys, int64_t head_dim, const uint16_t* const* ahead) {
    int64_t units = (head_dim + 1) / 2;
    for (int64_t g = 0; g < TILE; g += 16)
      for (int64_t d = 0; d < units; d += 16) {
        F r[16];
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++) soon(ahead[g + i], 4 * d);
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++)
          r[i] = keys[g + i] ? _mm512_castsi512_ps(load_words(keys[g + i] + 2 * d, head_dim - 2 * d)) : all(0.0f);
        transpose(r);
        if (d + 16 <= units) {
#pragma GCC unroll 16
          for (int i = 0; i < 16; i++) _mm512_storeu_ps((float*)(out + (d + i) * TILE + g), r[i]);
        } else {
          for (int i = 0; d + i < units; i++) _mm512_storeu_ps((float*)(out + (d + i) * TILE + g), r[i]);
        }
      }
  }
  // values[2 i], values[2 i + 1] -> out[i][d]
  static void pack_values(Unit* out, const uint16_t* const* values, int64_t head_dim, int64_t padded,
                          const uint16_t* const* ahead) {
    alignas(64) uint16_t low[32], high[32];
    for (int i = 0; i < 16; i++) {
      low[2 * i] = (uint16_t)i, low[2 * i + 1] = (uint16_t)(32 + i);
      high[2 * i] = (uint16_t)(16 + i), high[2 * i + 1] = (uint16_t)(48 + i);
    }
    __m512i pick_low = _mm512_load_si512(low), pick_high = _mm512_load_si512(high), zero = _mm512_setzero_si512();
    for (int64_t i = 0; i < TILE / 2; i++)
      for (int64_t d = 0; d < padded; d += 32) {
        soon(ahead[2 * i], 2 * d);
        soon(ahead[2 * i + 1], 2 * d);
        const uint16_t *one = values[2 * i], *two = values[2 * i + 1];
        __m512i a = one ? load_words(one + d, head_dim - d) : zero, b = two ? load_words(two + d, head_dim - d) : zero;
        _mm512_storeu_si512(out + i * padded + d, _mm512_permutex2var_epi16(a, pick_low, b));
        if (d + 16 < padded)
          _mm512_storeu_si512(out + i * padded + d + 16, _mm512_permutex2var_epi16(a, pick_high, b));
      }
  }
};
#endif

// c[R][N vectors] = factors[r] c + a[R][depth] b[depth][N vectors]; without factors c is not read.
template <class Op, int R, int N>
inline void product(const typename Op::Unit* a, int64_t lda, const typename Op::Unit* b, int64_t ldb, float* c,
                    int64_t ldc, int64_t depth, const float* factors) {
  F sum[R][N];
#pragma GCC unroll 6
  for (int r = 0; r < R; r++)
#pragma GCC unroll 4
    for (int n = 0; n < N; n++) sum[r][n] = factors ? mul(all(factors[r]), load(c + r * ldc + n * W)) : all(0.0f);
  for (int64_t k = 0; k < depth; k++) {
    F column[N];
#pragma GCC unroll 4
    for (int n = 0; n < N; n++) column[n] = Op::load_b(b + k * ldb + n * W);
#pragma GCC unroll 6
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
      for (int n = 0; n < N; n++) sum[r][n] = Op::mul_add(a + r * lda + k, column[n], sum[r][n]);
  }
#pragma GCC unroll 6
  for (int r = 0; r < R; r++)
#pragma GCC unroll 4
    for (int n = 0; n < N; n++) store(c + r * ldc + n * W, sum[r][n]);
}

template <class Op, int R>
inline void product_rows(const typename Op::Unit* a, int64_t lda, const typename Op::Unit* b, int64_t ldb, float* c,
                         int64_t ldc, int64_t depth, int64_t vectors, const float* factors) {
  int64_t n = 0;
  for (; n + MAX_N <= vectors; n += MAX_N)
    product<Op, R, MAX_N>(a, lda, b + n * W, ldb, c + n * W, ldc, depth, factors);
  if (MAX_N > 2 && n + 2 <= vectors) {
    product<Op, R, 2>(a, lda, b + n * W, ldb, c + n * W, ldc, depth, factors);
    n += 2;
  }
  if (n < vectors) product<Op, R, 1>(a, lda, b + n * W, ldb, c + n * W, ldc, depth, factors);
}

template <class Op>
inline void multiply(int64_t rows, const typename Op::Unit* a, int64_t lda, const typename Op::Unit* b, int64_t ldb,
                     float* c, int64_t ldc, int64_t depth, int64_t vectors, const float* factors) {
  switch (rows) {
    case 6: return product_rows<Op, 6>(a, lda, b, ldb, c, ldc, depth, vectors, factors);
    case 4: return product_rows<Op, 4>(a, lda, b, ldb, c, ldc, depth, vectors, factors);
    case 2: return product_rows<Op, 2>(a, lda, b, ldb, c, ldc, depth, vectors, factors);
    default: return product_rows<Op, 1>(a, lda, b, ldb, c, ldc, depth, vectors, factors);
  }
}

// ---- softmax -------------------------------------------------------------------------------------------------------

struct Scores {
  float factor, softcap;  // score to exponent of 2; bounded: the factor inside tanh, and softcap times log2(e)
};

// Scores of one row of a tile, scaled, bounded and masked to first..last, in place; returns the highest.
inline float finish_scores(float* scores, int64_t first, int64_t last, Scores how) {
  F x[VECTORS];
  for (int i = 0; i < VECTORS; i++) x[i] = mul(load(scores + i * W), all(how.factor));
  if (how.softcap != 0.0f)  // tanh(y) = 1 - 2 / (e^2y + 1)
    for (int i = 0; i < VECTORS; i++) {
      F e = exp2f(smaller(all(126.0f), x[i]));
      x[i] = mul(sub(all(1.0f), div(all(2.0f), add(e, all(1.0f)))), all(how.softcap));
    }
  if (first > 0 || last < TILE) {
    uint64_t visible = (last < TILE ? (1ull << last) - 1 : ~0ull) & ~((1ull << first) - 1);
    for (int i = 0; i < VECTORS; i++) x[i] = keep(x[i], visible >> (i * W), all(-INFINITY));
  }
  F top = x[0];
  for (int i = 0; i < VECTORS; i++) store(scores + i * W, x[i]), top = larger(top, x[i]);
  return max_of(top);
}

// 2^(score - base) of one row of a tile; returns their sum.
template <class Op>
inline float weigh(const float* scores, typename Op::Unit* weights, float base) {
  F sum = all(0.0f);
  for (int i = 0; i < VECTORS; i++)
    sum = add(sum, Op::weights(weights, i * W, exp2f(sub(load(scores + i * W), all(base)))));
  return sum_of(sum);
}

// ---- one piece of work ---------------------------------------------------------------------------------------------

// Sums of some rows over some keys: O not yet divided by the total.
struct Part {
  float *sums, *maxima, *totals;
};

// a <- a and b, where the keys of b come after those of a.
inline void merge(Part a, Part b, int64_t rows, int64_t padded) {
  for (int64_t r = 0; r < rows; r++) {
    float highest = a.maxima[r] > b.maxima[r] ? a.maxima[r] : b.maxima[r];
    float base = highest == -INFINITY ? 0.0f : highest;
    float one = exp2_one(a.maxima[r] - base), two = exp2_one(b.maxima[r] - base);
    for (int64_t d = 0; d < padded; d += W) {
      float *x = a.sums + r * padded + d, *y = b.sums + r * padded + d;
      store(x, fma(load(y), all(two), mul(load(x), all(one))));
    }
    a.totals[r] = a.totals[r] * one + b.totals[r] * two;
    a.maxima[r] = highest;
  }
}

inline void clear(Part part, int64_t rows, int64_t padded) {
  memset(part.sums, 0, rows * padded * sizeof(float));
  for (int64_t r = 0; r < rows; r++) part.maxima[r] = -INFINITY, part.totals[r] = 0.0f;
}

struct Scratch {
  char *memory = nullptr, *next = nullptr;
  size_t size = 0;
  bool reserve(size_t bytes) {
    if (bytes > size) {
      free(memory);
      memory = (char*)aligned_alloc(64, bytes);
      size = memory ? bytes : 0;
    }
    next = memory;
    return memory != nullptr;
  }
  template <class T>
  T* take(int64_t count) {
    T* begin = (T*)next;
    next += (count * sizeof(T) + 63) / 64 * 64;
    return begin;
  }
};
thread_local Scratch scratch;

template <class T, class Op>
struct Worker {
  using Unit = typename Op::Unit;
  const Step& s;
  const T *kv, *q;
  T* out;
  const std::atomic<int64_t>& next;
  int64_t q_stride, group, padded, depth, lda;
  Unit *queries, *keys, *values, *weights;
  float *scores, *factors;
  Part part, whole;
  const T *key_rows[2][TILE] = {}, *value_rows[2][TILE] = {};

  Worker(const Step& s, const T* kv, const T* q, int64_t q_stride, T* out, const std::atomic<int64_t>& next)
      : s(s), kv(kv), q(q), out(out), next(next), q_stride(q_stride) {
    group = s.heads / s.kv_heads;
    padded = (s.head_dim + 15) / 16 * 16;
    depth = (s.head_dim + Op::DEPTH - 1) / Op::DEPTH;
    lda = (depth + 15) / 16 * 16;
  }

  bool prepare() {
    int64_t rows = s.max_rows;
    size_t units = rows * lda + depth * TILE + TILE * padded + 6 * TILE;
    size_t floats = 6 * TILE + W + 2 * rows * (padded + 2);
    if (!scratch.reserve((units * sizeof(Unit) + floats * sizeof(float) + 1024) / 64 * 64 + 1024)) return false;
    queries = scratch.take<Unit>(rows * lda);
    keys = scratch.take<Unit>(depth * TILE);
    values = scratch.take<Unit>(TILE * padded);
    weights = scratch.take<Unit>(6 * TILE);
    scores = scratch.take<float>(6 * TILE);
    factors = scratch.take<float>(W);
    memset(factors, 0, W * sizeof(float));
    memset(scores, 0, 6 * TILE * sizeof(float));
    part = take_part(rows), whole = take_part(rows);
    return true;
  }

  Part take_part(int64_t rows) {
    float* sums = scratch.take<float>(rows * padded);
    float* maxima = scratch.take<float>(rows);
    return {sums, maxima, scratch.take<float>(rows)};
  }

  Part partial(int64_t head, int64_t slot) {
    float* at = s.partials + (slot * s.kv_heads + head) * s.partial_rows * (padded + 2);
    float* maxima = at + s.partial_rows * padded;
    return {at, maxima, maxima + s.partial_rows};
  }

  void run(const Work& w, int64_t head) {
    int64_t rows = w.tokens * group;
    for (int64_t t = 0; t < w.tokens; t++)
      for (int64_t g = 0; g < group; g++) {
        if (t + 8 < w.tokens)  // rows lie kilobytes apart
          for (int64_t d = 0; d < s.head_dim; d += 64 / (int64_t)sizeof(T))
            soon(q, ((w.row + t + 8) * q_stride + (head * group + g) * s.head_dim + d) * sizeof(T));
        Op::row(queries + (t * group + g) * lda, q + (w.row + t) * q_stride + (head * group + g) * s.head_dim, s.head_dim);
      }
    if (w.group >= 0) {
      split(w, head, w.split_begin, partial(head, w.slot));
      auto* counter = (std::atomic<int32_t>*)&s.counters[w.group * s.kv_heads + head];
      if (counter->fetch_add(1, std::memory_order_acq_rel) + 1 < w.in_group) return;
      clear(whole, rows, padded);
      for (int64_t i = 0; i < w.in_group; i++) merge(whole, partial(head, w.group_slot + i), rows, padded);
      write(w, head, whole);
    } else if (w.split_end - w.split_begin == 1) {
      split(w, head, w.split_begin, part);
      write(w, head, part);
    } else {
      clear(whole, rows, padded);
      for (int64_t i = w.split_begin; i < w.split_end; i++) {
        split(w, head, i, part);
        merge(whole, part, rows, padded);
      }
      write(w, head, whole);
    }
  }

  void write(const Work& w, int64_t head, Part from) {
    for (int64_t t = 0; t < w.tokens; t++)
      for (int64_t g = 0; g < group; g++) {
        int64_t r = t * group + g;
        T* to = out + ((w.row + t) * s.heads + head * group + g) * s.head_dim;
        F inverse = all(1.0f / from.totals[r]);
        for (int64_t d = 0; d < s.head_dim; d += W)
          store_some(to + d, mul(load(from.sums + r * padded + d), inverse), s.head_dim - d);
      }
  }

  int64_t window_begin(const Work& w) const { return s.window && w.pos + 1 > s.window ? w.pos + 1 - s.window : 0; }
  int64_t first_key(const Work& w, int64_t split, int64_t begin) const {
    return split * SPLIT > begin ? split * SPLIT : begin / TILE * TILE;
  }

  // The first tile of what this thread will likely do next.
  void guess(int side) {
    int64_t i = next.load(std::memory_order_relaxed);
    if (i >= s.num_work * s.kv_heads) return;
    const Work& w = ((const Work*)s.work)[i / s.kv_heads];
    int64_t begin = window_begin(w);
    find(w, i % s.kv_heads, first_key(w, w.split_begin, begin), begin, w.pos + w.tokens, side);
  }

  // Where the keys and values of a tile lie; null for keys that no query of this work sees.
  void find(const Work& w, int64_t head, int64_t tile, int64_t begin, int64_t end, int side) {
    const int32_t* table = s.tables + w.item * s.table_stride;
    int64_t plane = s.num_blocks * s.kv_heads * s.block_size * s.head_dim;
    int64_t first = begin > tile ? begin - tile : 0, last = end - tile < TILE ? end - tile : TILE;
    for (int64_t i = 0; i < first; i++) key_rows[side][i] = value_rows[side][i] = nullptr;
    for (int64_t i = last; i < TILE; i++) key_rows[side][i] = value_rows[side][i] = nullptr;
    int64_t block = (tile + first) / s.block_size, offset = (tile + first) % s.block_size;
    for (int64_t i = first; i < last; block++, offset = 0) {
      const T* at = kv + (((int64_t)table[block] * s.kv_heads + head) * s.block_size + offset) * s.head_dim;
      for (; offset < s.block_size && i < last; offset++, i++, at += s.head_dim)
        key_rows[side][i] = at, value_rows[side][i] = at + plane;
    }
  }

  // Keys of one split, into `to`.
  void split(const Work& w, int64_t head, int64_t index, Part to) {
    int64_t rows = w.tokens * group;
    clear(to, rows, padded);
    int64_t begin = window_begin(w), end = w.pos + w.tokens, from = first_key(w, index, begin);
    int64_t until = (index + 1) * SPLIT < end ? (index + 1) * SPLIT : end;
    Scores how = {s.scale * LOG2E, 0.0f};
    if (s.softcap != 0.0f) how = {s.scale / s.softcap * 2.0f * LOG2E, s.softcap * LOG2E};
    int side = 0;
    find(w, head, from, begin, end, side);
    for (int64_t tile = from; tile < until; tile += TILE, side ^= 1) {
      int64_t next = tile + TILE;
      if (next < until || (next < end && index + 1 < w.split_end))
        find(w, head, next, begin, end, side ^ 1);
      else
        guess(side ^ 1);
      Op::pack_keys(keys, key_rows[side], s.head_dim, value_rows[side]);
      Op::pack_values(values, value_rows[side], s.head_dim, padded, key_rows[side ^ 1]);
      // Queries before the tile, and those whose window begins after it, see none of its keys.
      int64_t row = tile > w.pos ? (tile - w.pos) * group : 0, stop = rows;
      if (s.window && tile + TILE + s.window - 1 - w.pos < w.tokens) stop = (tile + TILE + s.window - 1 - w.pos) * group;
      while (row < stop) {
        int64_t left = stop - row, count = left >= 6 && left != 8 ? 6 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
        block(w, tile, row, count, to, how);
        row += count;
      }
    }
  }

  void block(const Work& w, int64_t tile, int64_t row, int64_t count, Part to, Scores how) {
    int64_t seen = w.pos + (row + count - 1) / group - tile + 1;
    if (seen > TILE) seen = TILE;
    multiply<Op>(count, queries + row * lda, lda, keys, TILE, scores, TILE, depth, (seen + W - 1) / W, nullptr);
    float *maxima = to.maxima + row, *totals = to.totals + row, bases[W];
    for (int64_t r = 0; r < count; r++) {
      int64_t pos = w.pos + (row + r) / group;
      int64_t last = pos - tile + 1 < TILE ? pos - tile + 1 : TILE;
      int64_t first = s.window && pos + 1 - s.window > tile ? pos + 1 - s.window - tile : 0;
      float highest = finish_scores(scores + r * TILE, first > last ? last : first, last, how);
      highest = highest > maxima[r] ? highest : maxima[r];
      bases[r] = highest == -INFINITY ? 0.0f : highest;
      factors[r] = maxima[r] - bases[r];
      maxima[r] = highest;
    }
    store(factors, exp2f(load(factors)));
    for (int64_t r = 0; r < count; r++)
      totals[r] = totals[r] * factors[r] + weigh<Op>(scores + r * TILE, weights + r * (TILE / Op::DEPTH), bases[r]);
    multiply<Op>(count, weights, TILE / Op::DEPTH, values, padded, to.sums + row * padded, padded,
                 (seen + Op::DEPTH - 1) / Op::DEPTH, padded / W, factors);
  }
};

// ---- the call ------------------------------------------------------------------------------------------------------

template <class T>
void put(const Step& s, T* kv, const T* k, int64_t k_stride, const T* v, int64_t v_stride, int64_t token) {
  int64_t plane = s.num_blocks * s.kv_heads * s.block_size * s.head_dim;
  for (int64_t h = 0; h < s.kv_heads; h++) {
    T* cell = kv + (s.cells[token] + h * s.block_size) * s.head_dim;
    memcpy(cell, k + token * k_stride + h * s.head_dim, s.head_dim * sizeof(T));
    memcpy(cell + plane, v + token * v_stride + h * s.head_dim, s.head_dim * sizeof(T));
  }
}

template <class T, class Op>
int attend(const Step& s, T* kv, const T* q, int64_t q_stride, const T* k, int64_t k_stride, const T* v,
           int64_t v_stride, T* out) {
  memset(s.counters, 0, s.num_groups * s.kv_heads * sizeof(int32_t));
  std::atomic<int64_t> next{0};
  std::atomic<int> failed{0};
  // Nobody reads before all is written: keys that one sequence computes may be in another's table.
  bool few = s.tokens <= 32;
  for (int64_t t = 0; few && t < s.tokens; t++) put(s, kv, k, k_stride, v, v_stride, t);
#pragma omp parallel num_threads((int)s.threads) if (s.threads > 1)
  {
    if (!few) {
#pragma omp for schedule(static)
      for (int64_t t = 0; t < s.tokens; t++) put(s, kv, k, k_stride, v, v_stride, t);
    }
    Worker<T, Op> worker(s, kv, q, q_stride, out, next);
    if (worker.prepare()) {
      for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < s.num_work * s.kv_heads;)
        worker.run(((const Work*)s.work)[i / s.kv_heads], i % s.kv_heads);
    } else {
      failed = 1;
    }
  }
  return failed;
}

#if defined(__AVX512BF16__)
using Bf16Op = Pairs;
#else
using Bf16Op = Floats;
#endif

}  // namespace

// 0, or 1 where there is no memory. Strides count elements between tokens; heads and head_dim lie densely.
extern "C" int cohort_attend(const Step* s, void* kv, const void* q, int64_t q_stride, const void* k, int64_t k_stride,
                             const void* v, int64_t v_stride, void* out) {
  if (s->dtype == 0)
    return attend<float, Floats>(*s, (float*)kv, (const float*)q, q_stride, (const float*)k, k_stride, (const float*)v,
                                 v_stride, (float*)out);
  using B = uint16_t;
  return attend<B, Bf16Op>(*s, (B*)kv, (const B*)q, q_stride, (const B*)k, k_stride, (const B*)v, v_stride, (B*)out);
}
