// Products of attention: rows of queries with a tile of keys, and of weights with a tile of values. See attention.h.
#pragma once

#include "simd.h"

namespace {

constexpr int64_t TILE = 64;  // keys

// Memory of the tile that comes next, asked for a few lines at a time while this one is multiplied: blocks lie anywhere, and the
// CPU does not prefetch across pages.
struct NextTile {
  const char* begins[2 * TILE];
  int64_t counts[2 * TILE], pieces = 0, piece = 0, line = 0, lines = 0;

  void clear() { pieces = piece = line = lines = 0; }
  void add(const void* begin, int64_t bytes) {
    uintptr_t first = (uintptr_t)begin / 64, last = ((uintptr_t)begin + bytes + 63) / 64;
    begins[pieces] = (const char*)(first * 64), counts[pieces++] = last - first;
    lines += last - first;
  }
  void ask(int64_t n) {
    while (n > 0 && piece < pieces) {
      int64_t stop = line + n < counts[piece] ? line + n : counts[piece];
      n -= stop - line;
      for (; line < stop; line++) soon_in_l2(begins[piece], line * 64);
      if (line == counts[piece]) piece++, line = 0;
    }
  }
};

// ---- two ways to multiply ------------------------------------------------------------------------------------------
// `Unit` is what one lane of a packed operand holds, DEPTH elements along the summed dimension. Of a tile, `count` keys and
// values are packed: nothing reads further.

struct Floats {
  using Unit = float;
  static constexpr int DEPTH = 1;
  // Of `add_values_few`: vectors of pairs at a time for some rows, and numbers in one.
  static constexpr int FEW_NUMBERS = 2 * W;
  static constexpr int FEW_ROWS = 8;  // four at a time; with AVX2, packing a tile takes as long as the products of some ten rows
  static constexpr int few_vectors(int rows) { return W == 16 ? 2 : rows == 1 ? 4 : rows == 2 ? 2 : 1; }
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
  static void pack_keys(Unit* out, const T* const* keys, int64_t count, int64_t head_dim) {
    for (int64_t g = 0; g < count; g += W)
      for (int64_t d = 0; d < head_dim; d += W) {
        F r[W];
        for (int i = 0; i < W; i++) r[i] = keys[g + i] ? load_some(keys[g + i] + d, head_dim - d) : all(0.0f);
        transpose(r);
        for (int i = 0; i < W && d + i < head_dim; i++) store(out + (d + i) * TILE + g, r[i]);
      }
  }
  // values[i] -> out[i][d]
  template <class T>
  static void pack_values(Unit* out, const T* const* values, int64_t count, int64_t head_dim, int64_t padded) {
    for (int64_t i = 0; i < count; i++)
      for (int64_t d = 0; d < padded; d += W)
        store(out + i * padded + d, values[i] && d < head_dim ? load_some(values[i] + d, head_dim - d) : all(0.0f));
  }
};

#if defined(__AVX512BF16__)
inline __m512i load_words(const uint16_t* p, int64_t n) {
  return n >= 32 ? _mm512_loadu_si512(p) : _mm512_maskz_loadu_epi16((__mmask32)((1u << n) - 1), p);
}
struct Pairs {
  using Unit = uint32_t;  // two bf16
  static constexpr int DEPTH = 2;
  static constexpr int FEW_NUMBERS = 32, FEW_ROWS = 4;
  static constexpr int few_vectors(int) { return 2; }
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
  static void pack_keys(Unit* out, const uint16_t* const* keys, int64_t count, int64_t head_dim) {
    int64_t units = (head_dim + 1) / 2;
    for (int64_t g = 0; g < count; g += 16)
      for (int64_t d = 0; d < units; d += 16) {
        F r[16];
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
  static void pack_values(Unit* out, const uint16_t* const* values, int64_t count, int64_t head_dim, int64_t padded) {
    alignas(64) uint16_t low[32], high[32];
    for (int i = 0; i < 16; i++) {
      low[2 * i] = (uint16_t)i, low[2 * i + 1] = (uint16_t)(32 + i);
      high[2 * i] = (uint16_t)(16 + i), high[2 * i + 1] = (uint16_t)(48 + i);
    }
    __m512i pick_low = _mm512_load_si512(low), pick_high = _mm512_load_si512(high), zero = _mm512_setzero_si512();
    for (int64_t i = 0; i < (count + 1) / 2; i++)
      for (int64_t d = 0; d < padded; d += 32) {
        const uint16_t *one = values[2 * i], *two = values[2 * i + 1];
        __m512i a = one ? load_words(one + d, head_dim - d) : zero, b = two ? load_words(two + d, head_dim - d) : zero;
        _mm512_storeu_si512(out + i * padded + d, _mm512_permutex2var_epi16(a, pick_low, b));
        if (d + 16 < padded)
          _mm512_storeu_si512(out + i * padded + d + 16, _mm512_permutex2var_epi16(a, pick_high, b));
      }
  }
};
#endif

// ---- few rows ------------------------------------------------------------------------------------------------------
// A decode has as many rows as query heads share a key head: too few to pay for packing a tile. So may two tokens have. Keys
// are transposed in registers and values are used as they are read; each sum has the same terms in the same order as over a
// packed tile, so the results are the same bit for bit.

#if defined(__AVX512BF16__)
// scores[R][TILE] of `count` keys. queries [R][lda]. Groups of 16 keys go side by side where their sums fit into registers beside
// the keys that are transposed.
template <int R>
inline void score_few(const uint32_t* queries, int64_t lda, const uint16_t* const* keys, int64_t count, int64_t head_dim,
                      float* scores, const uint16_t* const* ahead) {
  constexpr int G = R >= 3 ? 1 : 4;
  for (int64_t from = 0; from < TILE; from += 16 * G) {
    F sum[G][R];
#pragma GCC unroll 4
    for (int g = 0; g < G; g++)
#pragma GCC unroll 4
      for (int r = 0; r < R; r++) sum[g][r] = all(0.0f);
    for (int64_t d = 0; d < head_dim / 2; d += 16) {
#pragma GCC unroll 4
      for (int g = 0; g < G; g++) {
        int64_t at = from + g * 16;
        if (at >= count) continue;
        F t[16];
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++) {
          const uint16_t* key = keys[at + i];
          soon_in_l2(ahead[at + i], 4 * d);
          t[i] = key ? load((const float*)key + d) : all(0.0f);
        }
        transpose(t);
#pragma GCC unroll 16
        for (int j = 0; j < 16; j++)
#pragma GCC unroll 4
          for (int r = 0; r < R; r++) sum[g][r] = Pairs::mul_add(queries + r * lda + d + j, t[j], sum[g][r]);
      }
    }
#pragma GCC unroll 4
    for (int g = 0; g < G; g++)
#pragma GCC unroll 4
      for (int r = 0; r < R; r++) store(scores + r * TILE + from + g * 16, sum[g][r]);
  }
}

// sums[R][padded] = factors[r] sums + weights[R][] values, over `count` values, 64 of head_dim at a time (32 the last).
template <int R, int V>
inline void add_values_few(const uint32_t* weights, const uint16_t* const* values, int64_t count, int64_t at, float* sums,
                           int64_t padded, const float* factors, const uint16_t* const* ahead) {
  // Of 32 numbers, unpacking puts 0-3, 8-11, 16-19 and 24-27 into one vector and the others into the second.
  const __m512i low = _mm512_setr_epi32(0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
  const __m512i high = _mm512_setr_epi32(4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
  const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
  const __m512i second = _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
  F sum[R][2 * V];
#pragma GCC unroll 4
  for (int r = 0; r < R; r++)
#pragma GCC unroll 4
    for (int v = 0; v < V; v++) {
      const float* c = sums + r * padded + at + 32 * v;
      F one = mul(all(factors[r]), load(c)), two = mul(all(factors[r]), load(c + 16));
      sum[r][2 * v] = _mm512_permutex2var_ps(one, low, two);
      sum[r][2 * v + 1] = _mm512_permutex2var_ps(one, high, two);
    }
  for (int64_t i = 0; i < (count + 1) / 2; i++) {
    const uint16_t *a = values[2 * i], *b = values[2 * i + 1];
#pragma GCC unroll 4
    for (int v = 0; v < V; v++) {
      soon_in_l2(ahead[2 * i], 2 * at + 64 * v);
      soon_in_l2(ahead[2 * i + 1], 2 * at + 64 * v);
      __m512i x = a ? _mm512_loadu_si512(a + at + 32 * v) : _mm512_setzero_si512();
      __m512i y = b ? _mm512_loadu_si512(b + at + 32 * v) : _mm512_setzero_si512();
      F one = _mm512_castsi512_ps(_mm512_unpacklo_epi16(x, y)), two = _mm512_castsi512_ps(_mm512_unpackhi_epi16(x, y));
#pragma GCC unroll 4
      for (int r = 0; r < R; r++) {
        sum[r][2 * v] = Pairs::mul_add(weights + r * (TILE / 2) + i, one, sum[r][2 * v]);
        sum[r][2 * v + 1] = Pairs::mul_add(weights + r * (TILE / 2) + i, two, sum[r][2 * v + 1]);
      }
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; r++)
#pragma GCC unroll 4
    for (int v = 0; v < V; v++) {
      float* c = sums + r * padded + at + 32 * v;
      store(c, _mm512_permutex2var_ps(sum[r][2 * v], first, sum[r][2 * v + 1]));
      store(c + 16, _mm512_permutex2var_ps(sum[r][2 * v], second, sum[r][2 * v + 1]));
    }
}
#endif

// As above for weights and queries in float32: of bf16 keys, two numbers of each are transposed as one.
template <int R>
inline void score_few(const float* queries, int64_t lda, const uint16_t* const* keys, int64_t count, int64_t head_dim,
                      float* scores, const uint16_t* const* ahead) {
  constexpr int G = R <= 2 ? 4 : 2;
  static_assert(W * G <= TILE);
  for (int64_t from = 0; from < count; from += W * G) {
    F sum[G][R];
#pragma GCC unroll 8
    for (int g = 0; g < G; g++)
#pragma GCC unroll 4
      for (int r = 0; r < R; r++) sum[g][r] = all(0.0f);
    for (int64_t d = 0; d < head_dim; d += 2 * W) {
#pragma GCC unroll 8
      for (int g = 0; g < G; g++) {
        int64_t at = from + g * W;
        if (at >= count) continue;
        const char* rows[W];
#pragma GCC unroll 16
        for (int i = 0; i < W; i++) {
          rows[i] = keys[at + i] ? (const char*)(keys[at + i] + d) : nullptr;
          if (W == 16 || d % 32 == 0) soon_in_l2(ahead[at + i], 2 * d);
        }
        F t[W];
        load_transposed(rows, t);
#pragma GCC unroll 16
        for (int j = 0; j < W; j++) {
          F one = first_of_pairs(t[j]), two = second_of_pairs(t[j]);
          const float* q = queries + d + 2 * j;
#pragma GCC unroll 4
          for (int r = 0; r < R; r++) sum[g][r] = fma(all(q[r * lda]), one, sum[g][r]);
#pragma GCC unroll 4
          for (int r = 0; r < R; r++) sum[g][r] = fma(all(q[r * lda + 1]), two, sum[g][r]);
        }
      }
    }
#pragma GCC unroll 8
    for (int g = 0; g < G; g++)
#pragma GCC unroll 4
      for (int r = 0; r < R; r++) store(scores + r * TILE + from + g * W, sum[g][r]);
  }
}

// sums[R][padded] = factors[r] sums + weights[R][] values, over `count` values, 2 W V numbers of each from `at` on.
template <int R, int V>
inline void add_values_few(const float* weights, const uint16_t* const* values, int64_t count, int64_t at, float* sums,
                           int64_t padded, const float* factors, const uint16_t* const* ahead) {
  F even[R][V], odd[R][V];
#pragma GCC unroll 4
  for (int r = 0; r < R; r++)
#pragma GCC unroll 4
    for (int v = 0; v < V; v++) {
      const float* c = sums + r * padded + at + 2 * W * v;
      split_pairs(mul(all(factors[r]), load(c)), mul(all(factors[r]), load(c + W)), &even[r][v], &odd[r][v]);
    }
  for (int64_t i = 0; i < count; i++) {
    const uint16_t* from = values[i];
    if (at % 32 == 0) soon_in_l2(ahead[i], 2 * at);
    if (V * W > 16) soon_in_l2(ahead[i], 2 * at + 64);
    if (!from) continue;
#pragma GCC unroll 4
    for (int v = 0; v < V; v++) {
      F x = load((const float*)(from + at + 2 * W * v)), one = first_of_pairs(x), two = second_of_pairs(x);
#pragma GCC unroll 4
      for (int r = 0; r < R; r++) {
        F weight = all(weights[r * TILE + i]);
        even[r][v] = fma(weight, one, even[r][v]), odd[r][v] = fma(weight, two, odd[r][v]);
      }
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; r++)
#pragma GCC unroll 4
    for (int v = 0; v < V; v++) {
      float* c = sums + r * padded + at + 2 * W * v;
      F one, two;
      join_pairs(even[r][v], odd[r][v], &one, &two);
      store(c, one), store(c + W, two);
    }
}

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

}  // namespace
