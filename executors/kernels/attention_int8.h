// Attention over keys and values in int8, each token's and head's with a float scale of its own. See attention.h.
//
//   kv      [2, num_blocks, kv_heads] heads of a block; strides count bytes:
//   keys    int8 [block_size / 16][even / 2][16][2]   16 tokens side by side, two numbers of a token together; then scales
//   values  int8 [block_size / 2][even][2]            two tokens together; then scales
//   scales  float [block_size]                        of these tokens
//
// `even`: head_dim, rounded up to an even number. block_size is a multiple of 16.
//
// Keys lie as their product with a query reads them, and values as theirs with weights, so nothing is packed: bytes widen to
// 16 bits on their way from memory, and both products are of 16-bit integers. A row of queries is rounded to 16 bits with one
// scale; so are a row's weights of a tile, times the scales of the values. Sums of integers are exact: 512 products of a query
// with a key, 64 of weights with values, each of 15 bits by 7, fit into 32 bits; queries of more numbers are rounded to fewer
// integers. So results are the same on all instruction sets but for the sums of weights.
//
// A scale is NaN where a number is not finite; then so is the result.
#pragma once

#include "attention.h"
#include "operands.h"
#include "parts.h"

namespace {

constexpr int BESIDE = 16;  // tokens whose keys lie side by side
constexpr float LEAST = 1e-30f;  // numbers below it are stored as 0: the inverse of their scale might not be finite

// ---- numbers to integers -------------------------------------------------------------------------------------------

// The largest magnitude of n numbers; NaN where one is not finite.
template <class T>
inline float largest_of(const T* x, int64_t n) {
  F top = all(0.0f), zero = all(0.0f);  // zero: NaN where x is not finite
  for (int64_t i = 0; i < n; i += W) {
    F a = load_some(x + i, n - i);
    top = larger(top, larger(a, sub(all(0.0f), a)));
    zero = add(zero, sub(a, a));
  }
  return has_nan(zero) ? NAN : max_of(top);
}

// Multiplying a number by `inverse` gives an integer of at most `limit`, and the integer times `scale` the number.
struct Rounding {
  float scale, inverse;
  Rounding(float largest, float limit) {
    bool none = largest < LEAST;
    scale = none ? 0.0f : largest / limit, inverse = none ? 0.0f : limit / largest;
  }
};

#if defined(__AVX512F__)
inline void store_shorts(int16_t* out, F x) { _mm256_storeu_si256((__m256i*)out, _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(x))); }
inline void store_bytes(int8_t* out, F x) { _mm_storeu_si128((__m128i*)out, _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(x))); }
inline I widen_bytes(const int8_t* p) { return _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i*)p)); }
#else
inline __m128i shorts_of(F x) {
  __m256i i = _mm256_cvtps_epi32(x);
  return _mm_packs_epi32(_mm256_castsi256_si128(i), _mm256_extracti128_si256(i, 1));
}
inline void store_shorts(int16_t* out, F x) { _mm_storeu_si128((__m128i*)out, shorts_of(x)); }
inline void store_bytes(int8_t* out, F x) { _mm_storel_epi64((__m128i*)out, _mm_packs_epi16(shorts_of(x), shorts_of(x))); }
inline I widen_bytes(const int8_t* p) { return _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)p)); }
#endif

// sum + a b, where lanes hold two numbers of 16 bits.
inline I dot_shorts(I a, I b, I sum) {
#if defined(__AVX512VNNI__)
  // Not the intrinsic: with it GCC 12 keeps an array of sums in memory and stores each after its product.
  asm("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
  return sum;
#else
  return add_words(sum, madd(a, b));
#endif
}

// ---- cells ---------------------------------------------------------------------------------------------------------

// A head of a block, of keys or of values.
struct Int8Cells {
  int64_t even, block_size;
  explicit Int8Cells(const Step& s) : even((s.head_dim + 1) / 2 * 2), block_size(s.block_size) {}
  int64_t bytes() const { return block_size * (even + (int64_t)sizeof(float)); }
  // Of both keys and values: where the group of `token` of the block begins, and the scale of a token.
  int64_t group(int64_t token) const { return token / BESIDE * BESIDE * even; }
  int64_t scale(int64_t token) const { return block_size * even + token * (int64_t)sizeof(float); }
};

// int8 [n, rounded up to W] and their scale.
template <class T>
inline float to_int8(int8_t* codes, const T* x, int64_t n) {
  Rounding how(largest_of(x, n), 127.0f);
  for (int64_t i = 0; i < n; i += W) store_bytes(codes + i, mul(load_some(x + i, n - i), all(how.inverse)));
  return how.scale;
}

constexpr int64_t MAX_CODES = 576 + 64;

// The largest integer of a query of n numbers, whose products with n integers of a key add up to 31 bits at most.
inline float largest_code(int64_t n) { return n <= 512 ? 32767.0f : (float)(0x7fffffff / (127 * n)); }

// Every second byte of `out` from `odd` on becomes one of n codes. The bytes between are other tokens', perhaps written now.
inline void put_apart(int8_t* out, const int8_t* codes, int64_t n, int64_t odd) {
#if defined(__AVX512F__)
  for (int64_t i = 0; i < n; i += 16) {
    __m256i pairs = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i*)(codes + i)));
    if (odd) pairs = _mm256_slli_epi16(pairs, 8);
    uint32_t first = n - i < 16 ? (1u << (2 * (n - i))) - 1 : ~0u;
    _mm256_mask_storeu_epi8(out + 2 * i, first & (odd ? 0xaaaaaaaau : 0x55555555u), pairs);
  }
#else
  for (int64_t i = 0; i < n; i++) out[2 * i + odd] = codes[i];
#endif
}

// Stores a token's key and value of one head. Other threads may store other tokens of the block at the same time.
template <class T>
inline void put_int8(const Step& s, int8_t* kv, const T* k, const T* v, int64_t token, int64_t kv_head) {
  Int8Cells cells(s);
  alignas(64) int8_t codes[MAX_CODES];
  int64_t block = s.cells[token] / s.block_size, offset = s.cells[token] % s.block_size;
  int8_t* keys = kv + block * s.block_stride + kv_head * s.head_stride;
  int8_t* values = keys + s.side_stride;
  float scale = to_int8(codes, k, s.head_dim);
  memcpy(keys + cells.scale(offset), &scale, sizeof scale);
  int8_t* to = keys + cells.group(offset) + offset % BESIDE * 2;
  for (int64_t d = 0; d < cells.even; d += 2) memcpy(to + d * BESIDE, codes + d, 2);
  scale = to_int8(codes, v, s.head_dim);
  memcpy(values + cells.scale(offset), &scale, sizeof scale);
  put_apart(values + offset / 2 * 2 * cells.even, codes, s.head_dim, offset % 2);
}

// ---- products ------------------------------------------------------------------------------------------------------

// scores[R][TILE] of N vectors of keys. keys[n]: the first two numbers of the keys of vector n; `ahead`: lines wanted next.
template <int R, int N>
inline void score_int8(const int32_t* queries, int64_t lda, const float* query_scales, const int8_t* const* keys,
                       const float* const* key_scales, int64_t steps, float* scores, const int8_t* const* ahead) {
  I sum[R][N];
#pragma GCC unroll 6
  for (int r = 0; r < R; r++)
#pragma GCC unroll 4
    for (int n = 0; n < N; n++) sum[r][n] = zero_words();
  for (int64_t k = 0; k < steps; k++) {
    I column[N];
#pragma GCC unroll 4
    for (int n = 0; n < N; n++) column[n] = widen_bytes(keys[n] + k * 2 * BESIDE);
    if (ahead && k % 2 == 0)
#pragma GCC unroll 4
      for (int n = 0; n < N; n++) soon_in_l2(ahead[n], k * 2 * BESIDE);
#pragma GCC unroll 6
    for (int r = 0; r < R; r++) {
      I a = all_words((uint32_t)queries[r * lda + k]);
#pragma GCC unroll 4
      for (int n = 0; n < N; n++) sum[r][n] = dot_shorts(a, column[n], sum[r][n]);
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < R; r++)
#pragma GCC unroll 4
    for (int n = 0; n < N; n++)
      store(scores + r * TILE + n * W, mul(from_words(sum[r][n]), mul(load(key_scales[n]), all(query_scales[r]))));
}

// sums[R][padded] = factors[r] sums + scales[r] weights[R][] values, N vectors of head_dim from `at` on.
template <int R, int N>
inline void add_values_int8(const int32_t* weights, const float* scales, const int8_t* const* values, int64_t first,
                            int64_t last, int64_t even, int64_t at, float* sums, int64_t padded, const float* factors,
                            const int8_t* const* ahead) {
  I sum[R][N];
#pragma GCC unroll 6
  for (int r = 0; r < R; r++)
#pragma GCC unroll 4
    for (int n = 0; n < N; n++) sum[r][n] = zero_words();
  for (int64_t g = first; g < last; g++)
    for (int64_t i = 0; i < BESIDE / 2; i++) {
      int64_t offset = i * 2 * even + 2 * at;
      I column[N];
#pragma GCC unroll 4
      for (int n = 0; n < N; n++) column[n] = widen_bytes(values[g] + offset + n * 2 * W);
      if (ahead)
#pragma GCC unroll 2
        for (int n = 0; n < N * W * 2; n += 64) soon_in_l2(ahead[g], offset + n);
#pragma GCC unroll 6
      for (int r = 0; r < R; r++) {
        I a = all_words((uint32_t)weights[r * (TILE / 2) + g * (BESIDE / 2) + i]);
#pragma GCC unroll 4
        for (int n = 0; n < N; n++) sum[r][n] = dot_shorts(a, column[n], sum[r][n]);
      }
    }
#pragma GCC unroll 6
  for (int r = 0; r < R; r++)
#pragma GCC unroll 4
    for (int n = 0; n < N; n++) {
      float* c = sums + r * padded + at + n * W;
      store(c, fma(from_words(sum[r][n]), all(scales[r]), mul(load(c), all(factors[r]))));
    }
}

// ---- one piece of work ---------------------------------------------------------------------------------------------

template <class T>
struct Int8Worker : Pieces<Int8Worker<T>, T> {
  using Base = Pieces<Int8Worker<T>, T>;
  using Base::factors, Base::padded, Base::s, Base::scores;
  static constexpr int TILE_GROUPS = TILE / BESIDE, HALVES = BESIDE / W;  // of a tile; vectors of a group

  const int8_t* kv;
  Int8Cells cells;
  int64_t lda;
  int32_t *queries, *weights;  // two numbers each: [max_rows][lda], [6][TILE / 2]
  float *query_scales, *weight_scales;
  // By side: of each group of a tile, null where no query of this work sees it.
  struct Tile {
    const int8_t *keys[TILE_GROUPS] = {}, *values[TILE_GROUPS] = {};
    const float *key_scales[TILE_GROUPS] = {}, *value_scales[TILE_GROUPS] = {};
    int64_t first = 0;  // group that is seen
  } tiles[2];

  Int8Worker(const Step& s, const int8_t* kv, const T* q, int64_t q_stride, T* out, const float* sinks,
             const std::atomic<int64_t>& next)
      : Base(s, q, q_stride, out, sinks, next), kv(kv), cells(s), lda(padded / 2) {}

  bool prepare() {
    size_t words = s.max_rows * (lda + 1) + 6 * TILE;
    if (!scratch.reserve((words * sizeof(int32_t) + this->sums_bytes() + 1024) / 64 * 64 + 1024)) return false;
    queries = scratch.take<int32_t>(s.max_rows * lda);
    weights = scratch.take<int32_t>(6 * (TILE / 2));
    query_scales = scratch.take<float>(s.max_rows);
    weight_scales = scratch.take<float>(6);
    this->take_sums();
    return true;
  }

  void load_row(int64_t r, const T* from) {
    Rounding how(largest_of(from, s.head_dim), largest_code(s.head_dim));
    query_scales[r] = how.scale;
    int16_t* to = (int16_t*)(queries + r * lda);
    for (int64_t d = 0; d < padded; d += W) {
      F x = d < s.head_dim ? load_some(from + d, s.head_dim - d) : all(0.0f);
      store_shorts(to + d, mul(x, all(how.inverse)));
    }
  }

  // Where the groups of a tile lie. Scales lie apart from the numbers: they are asked for here.
  void find(const Work& w, int64_t head, int64_t tile, int64_t begin, int64_t end, int side) {
    const int32_t* table = s.tables + w.item * s.table_stride;
    Tile& to = tiles[side];
    to.first = begin > tile ? (begin - tile) / BESIDE : 0;
    for (int64_t g = 0; g < TILE_GROUPS; g++) {
      int64_t token = tile + g * BESIDE;
      to.keys[g] = to.values[g] = nullptr;
      if (g < to.first || token >= end) continue;
      int64_t offset = token % s.block_size;
      const int8_t* at = kv + table[token / s.block_size] * s.block_stride + head * s.head_stride;
      to.keys[g] = at + cells.group(offset), to.values[g] = at + s.side_stride + cells.group(offset);
      to.key_scales[g] = (const float*)(at + cells.scale(offset));
      to.value_scales[g] = (const float*)(at + s.side_stride + cells.scale(offset));
      soon_in_l2(to.key_scales[g], 0);
      soon_in_l2(to.value_scales[g], 0);
    }
    blocks_soon(s, table, kv + head * s.head_stride, tile + TILE, end);
  }

  // Adds a tile to the sums of rows row..stop.
  void tile(const Work& w, int64_t tile, int64_t row, int64_t stop, int64_t, int side, Part to, Scores how) {
    const Tile* ahead = &tiles[side ^ 1];
    while (row < stop) {
      int64_t left = stop - row, count = left == 7 || left == 8 ? 4 : left < 6 ? left : 6;
      switch (count) {
        case 1: block<1>(w, tile, row, tiles[side], ahead, to, how); break;
        case 2: block<2>(w, tile, row, tiles[side], ahead, to, how); break;
        case 3: block<3>(w, tile, row, tiles[side], ahead, to, how); break;
        case 4: block<4>(w, tile, row, tiles[side], ahead, to, how); break;
        case 5: block<5>(w, tile, row, tiles[side], ahead, to, how); break;
        default: block<6>(w, tile, row, tiles[side], ahead, to, how);
      }
      row += count;
      ahead = nullptr;
    }
  }

  template <int R>
  void block(const Work& w, int64_t tile, int64_t row, const Tile& from, const Tile* ahead, Part to, Scores how) {
    int64_t last = (this->most_seen(w, tile, row, R) + BESIDE - 1) / BESIDE;
    const int8_t *keys[TILE / W], *next[TILE / W];
    const float* scales[TILE / W];
    for (int64_t n = from.first * HALVES; n < last * HALVES; n++) {
      int64_t half = n % HALVES * W;
      keys[n] = from.keys[n / HALVES] + 2 * half, scales[n] = from.key_scales[n / HALVES] + half;
      next[n] = ahead ? ahead->keys[n / HALVES] + 2 * half : nullptr;
    }
    int64_t n = from.first * HALVES, vectors = last * HALVES;
    for (; n + MAX_N <= vectors; n += MAX_N) score<R, MAX_N>(row, n, keys, scales, ahead ? next : nullptr);
    if (MAX_N > 2 && n + 2 <= vectors) {
      score<R, 2>(row, n, keys, scales, ahead ? next : nullptr);
      n += 2;
    }
    if (n < vectors) score<R, 1>(row, n, keys, scales, ahead ? next : nullptr);

    weigh_rows<R>(w, tile, row, from, last, to, how);

    int64_t at = 0;
    for (; at + MAX_N * W <= padded; at += MAX_N * W) add_values<R, MAX_N>(row, from, last, at, to, ahead);
    if (MAX_N > 2 && at + 2 * W <= padded) {
      add_values<R, 2>(row, from, last, at, to, ahead);
      at += 2 * W;
    }
    if (at < padded) add_values<R, 1>(row, from, last, at, to, ahead);
  }

  template <int R, int N>
  void score(int64_t row, int64_t n, const int8_t* const* keys, const float* const* scales, const int8_t* const* ahead) {
    score_int8<R, N>(queries + row * lda, lda, query_scales + row, keys + n, scales + n, cells.even / 2, scores + n * W,
                     ahead ? ahead + n : nullptr);
  }

  template <int R, int N>
  void add_values(int64_t row, const Tile& from, int64_t last, int64_t at, Part to, const Tile* ahead) {
    add_values_int8<R, N>(weights, weight_scales, from.values, from.first, last, cells.even, at, to.sums + row * padded,
                          padded, factors, ahead ? ahead->values : nullptr);
  }

  // Scores of some rows become weights times scales of values, as integers, and a scale for each row.
  template <int R>
  void weigh_rows(const Work& w, int64_t tile, int64_t row, const Tile& from, int64_t last, Part to, Scores how) {
    float bases[W], *totals = to.totals + row;
    this->rebase(w, tile, row, R, to, how, bases);
    for (int r = 0; r < R; r++) {
      typename Base::Visible keys = this->visible(w, tile, row + r);
      uint64_t seen = seen_keys(keys.first, keys.last);
      F x[VECTORS], sum = all(0.0f), top = all(0.0f), zero = all(0.0f);
      for (int i = 0; i < VECTORS; i++) {
        F p = exp2f(sub(load(scores + r * TILE + i * W), all(bases[r])));
        sum = add(sum, p);
        // A scale that is not a key's of this row may be anything.
        bool there = i >= from.first * HALVES && i < last * HALVES;
        x[i] = there ? mul(p, load(from.value_scales[i / HALVES] + i % HALVES * W)) : all(0.0f);
        x[i] = keep(x[i], seen >> (i * W), all(0.0f));
        top = larger(top, x[i]);
        zero = add(zero, sub(x[i], x[i]));
      }
      totals[r] = totals[r] * factors[r] + sum_of(sum);
      Rounding round(has_nan(zero) ? NAN : max_of(top), 32767.0f);
      weight_scales[r] = round.scale;
      for (int i = 0; i < VECTORS; i++)
        store_shorts((int16_t*)(weights + r * (TILE / 2)) + i * W, mul(x[i], all(round.inverse)));
    }
  }
};

// ---- cells of either kind ------------------------------------------------------------------------------------------

template <class T>
inline void narrow(T* out, const float* in, int64_t n) {
  for (int64_t i = 0; i < n; i += W) store_some(out + i, load_some(in + i, n - i), n - i);
}

// Stores a token's key and value of a head, each [head_dim], as they are or narrower.
template <class Cell, class V>
inline void put_cell_as(const Step& s, void* kv, const V* k, const V* v, int64_t token, int64_t head) {
  Cell* cell = key_cell(s, (Cell*)kv, token, head);
  if constexpr (std::is_same<Cell, V>::value) {
    memcpy(cell, k, s.head_dim * sizeof(V));
    memcpy(cell + s.side_stride, v, s.head_dim * sizeof(V));
  } else {
    narrow(cell, k, s.head_dim);
    narrow(cell + s.side_stride, v, s.head_dim);
  }
}
template <class V>
inline void put_cell(const Step& s, void* kv, const V* k, const V* v, int64_t token, int64_t head) {
  if constexpr (std::is_same<V, float>::value) {
    if (s.dtype == FLOAT16) return put_cell_as<Half>(s, kv, k, v, token, head);
    if (s.dtype == FLOAT32) return put_cell_as<float>(s, kv, k, v, token, head);
  }
  put_cell_as<uint16_t>(s, kv, k, v, token, head);
}

// Stores a token's keys and values, each [kv_heads, head_dim].
template <class T>
inline void put_token(const Step& s, void* kv, const T* k, const T* v, int64_t token) {
  for (int64_t h = 0; h < s.kv_heads; h++, k += s.head_dim, v += s.head_dim) {
    if (s.int8) {
      put_int8(s, (int8_t*)kv, k, v, token, h);
    } else {
      put_cell(s, kv, k, v, token, h);
    }
  }
}

// One thread's share of attention, over cells of either kind. See `attend`.
template <class T>
bool attend_any(const Step& s, const void* kv, const T* q, int64_t q_stride, T* out, const float* sinks, Counter& counter) {
  if (s.int8) return attend<Int8Worker<T>>(s, (const int8_t*)kv, q, q_stride, out, sinks, counter);
  if constexpr (std::is_same<T, float>::value)
    if (s.dtype == FLOAT16)
      return attend<Worker<T, Floats, Half>>(s, (const Half*)kv, q, q_stride, out, sinks, counter);
  return attend<Worker<T, OpOf<T>>>(s, (const T*)kv, q, q_stride, out, sinks, counter);
}

}  // namespace

// `attend_any` as cohort_cpu_attention.cpp defines it.
SHARED bool attend_floats(const Step& s, const void* kv, const float* q, int64_t q_stride, float* out, const float* sinks,
                          Counter& counter);
SHARED bool attend_bf16(const Step& s, const void* kv, const uint16_t* q, int64_t q_stride, uint16_t* out, const float* sinks,
                        Counter& counter);

namespace {

inline bool attend_cells(const Step& s, const void* kv, const float* q, int64_t q_stride, float* out, const float* sinks,
                         Counter& counter) {
  return attend_floats(s, kv, q, q_stride, out, sinks, counter);
}
inline bool attend_cells(const Step& s, const void* kv, const uint16_t* q, int64_t q_stride, uint16_t* out,
                         const float* sinks, Counter& counter) {
  return attend_bf16(s, kv, q, q_stride, out, sinks, counter);
}

}  // namespace
