// LoRA (Hu et al., 2021): what an adapter adds to the products of a layer.
//
//   result of a row += scale * B (A x)      x: the row that the product multiplies, before it is quantized
//
// Rows are listed by adapter, so that a part of A or B is read once for several of them:
//
//   reduce   sums = scale * A x: threads take four rows of A and some rows x of an adapter      before the product
//   expand   adds B sums to a panel's results, while they are in the cache                      in the product
//
// Every number of a row is one sum in ascending order, whatever other rows there are. Rows without an adapter stay as they are.
#pragma once

#include <algorithm>

#include "operands.h"
#include "parts.h"
#include "team.h"

namespace {

constexpr int64_t LORA_GROUP = 16;  // columns of B that lie side by side, on every CPU

// Of one weight of the checkpoint: rows begin..begin+outputs of the layer's merged one.
struct LoraPart {
  const void* a;  // [rank][inputs], of the model's dtype
  const void* b;  // [groups][rank][LORA_GROUP]: B transposed, zeros behind `outputs`
  int64_t rank, outputs, begin;
  int64_t at;  // where its numbers begin in a row's sums
  float scale;
};

// Of a merged weight, `count` parts, whose ranks are `ranks` together.
struct LoraWeight {
  const LoraPart* parts;
  int64_t count, ranks;
};

enum : int { LORA_QKV, LORA_O, LORA_GATE_UP, LORA_DOWN, LORA_RATES, LORA_WEIGHTS };

// Of a layer.
struct LoraLayer {
  LoraWeight weights[LORA_WEIGHTS];
};

// The rows of each adapter: starts [count + 1], and `rows`, ascending in each.
struct LoraRows {
  int64_t count;
  int64_t *starts, *rows;

  // `of(t)`: the adapter of row t of n, below 0 for none.
  template <class Of>
  void list(int64_t n, Of of) {
    for (int64_t a = 0; a <= count; a++) starts[a] = 0;
    for (int64_t t = 0; t < n; t++)
      if (of(t) >= 0) starts[of(t) + 1]++;
    for (int64_t a = 0; a < count; a++) starts[a + 1] += starts[a];
    // Placing a row moves its adapter's start to the next one's, so that they are moved back behind it.
    for (int64_t t = 0; t < n; t++)
      if (of(t) >= 0) rows[starts[of(t)]++] = t;
    for (int64_t a = count; a > 0; a--) starts[a] = starts[a - 1];
    starts[0] = 0;
  }
};

// What adapters add to one product of a layer. `sums` [rows of x][stride].
struct LoraProduct {
  const LoraRows* rows;
  const LoraLayer* const* loras;  // [num_layers] of each adapter
  int64_t layer;
  int which;
  float* sums;
  int64_t stride;
  void (*expand)(const LoraProduct&, const Linear&, int64_t panel, int64_t begin, int64_t count, float* results);

  const LoraWeight& weight(int64_t adapter) const { return loras[adapter][layer].weights[which]; }
  // Whether an adapter of the step changes this weight.
  bool any() const {
    for (int64_t a = 0; a < rows->count; a++)
      if (weight(a).count) return true;
    return false;
  }
};

// ---- reduce --------------------------------------------------------------------------------------------------------

constexpr int LORA_RANKS = 4;                     // rows of A at a time
constexpr int LORA_SHARE = W == 16 ? 4 : 2;       // rows x that share them: 16 + 4 + 1 registers of 32, or 8 + 4 + 1 of 16
constexpr int64_t LORA_BLOCK = 16 * LORA_SHARE;   // rows x of a unit of work: they stay in the cache beside A

template <class T, class X, int R>
inline void reduce_tile(const LoraPart& part, int64_t first, const X* x, int64_t inputs, const int64_t* rows, float* sums,
                        int64_t stride) {
  const T* a[LORA_RANKS];
  const X* in[R];
  F sum[R][LORA_RANKS];
  for (int q = 0; q < LORA_RANKS; q++)  // behind the last row of A that one again, for nothing
    a[q] = (const T*)part.a + (first + q < part.rank ? first + q : part.rank - 1) * inputs;
#pragma GCC unroll 4
  for (int r = 0; r < R; r++) {
    in[r] = x + rows[r] * inputs;
#pragma GCC unroll 4
    for (int q = 0; q < LORA_RANKS; q++) sum[r][q] = all(0.0f);
  }
  auto step = [&](int64_t i, int64_t left) {
    F factor[LORA_RANKS];
#pragma GCC unroll 4
    for (int q = 0; q < LORA_RANKS; q++) factor[q] = load_some(a[q] + i, left);
#pragma GCC unroll 4
    for (int r = 0; r < R; r++) {
      F value = load_some(in[r] + i, left);
#pragma GCC unroll 4
      for (int q = 0; q < LORA_RANKS; q++) sum[r][q] = fma(value, factor[q], sum[r][q]);
    }
  };
  int64_t i = 0;
  for (; i + W <= inputs; i += W) step(i, W);
  if (i < inputs) step(i, inputs - i);
  for (int r = 0; r < R; r++)
    for (int q = 0; q < LORA_RANKS && first + q < part.rank; q++)
      sums[rows[r] * stride + part.at + first + q] = part.scale * sum_of(sum[r][q]);
}

template <class T, class X, int R = LORA_SHARE>
inline void reduce_some(int64_t count, const LoraPart& part, int64_t first, const X* x, int64_t inputs, const int64_t* rows,
                        float* sums, int64_t stride) {
  if constexpr (R > 0) {
    if (count != R) return reduce_some<T, X, R - 1>(count, part, first, x, inputs, rows, sums, stride);
    reduce_tile<T, X, R>(part, first, x, inputs, rows, sums, stride);
  }
}

// A thread's share of the sums of rows x [.][inputs]. The counter is 0 at first; a barrier must follow.
template <class T, class X>
__attribute__((noinline)) void reduce(const LoraProduct& lora, const X* x, int64_t inputs, Counter& counter) {
  const LoraRows& rows = *lora.rows;
  int64_t next = counter.take(1), unit = 0;
  for (int64_t a = 0; a < rows.count; a++) {
    const LoraWeight& weight = lora.weight(a);
    for (int64_t begin = rows.starts[a]; begin < rows.starts[a + 1]; begin += LORA_BLOCK) {
      int64_t end = begin + LORA_BLOCK < rows.starts[a + 1] ? begin + LORA_BLOCK : rows.starts[a + 1];
      for (int64_t p = 0; p < weight.count; p++) {
        const LoraPart& part = weight.parts[p];
        for (int64_t first = 0; first < part.rank; first += LORA_RANKS, unit++) {
          if (unit != next) continue;
          next = counter.take(1);
          for (int64_t r = begin; r < end; r += LORA_SHARE)
            reduce_some<T, X>(end - r < LORA_SHARE ? end - r : LORA_SHARE, part, first, x, inputs, rows.rows + r, lora.sums,
                              lora.stride);
        }
      }
    }
  }
}

// ---- expand --------------------------------------------------------------------------------------------------------

constexpr int LORA_TILE = 8;  // rows that share what is read of B

// results[r][0..left] += sums[r] B for R rows; b [rank], a row of B every `step` elements.
template <class T, int R>
inline void expand_tile(const T* b, int64_t step, int64_t rank, const float* const* sums, float* const* results, int64_t left) {
  F sum[R];
#pragma GCC unroll 8
  for (int r = 0; r < R; r++) sum[r] = all(0.0f);
  for (int64_t k = 0; k < rank; k++) {
    F factor = load_some(b + k * step, left);
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) sum[r] = fma(all(sums[r][k]), factor, sum[r]);
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; r++) store_some(results[r], add(load_some(results[r], left), sum[r]), left);
}

template <class T, int R = LORA_TILE>
inline void expand_some(int64_t count, const T* b, int64_t step, int64_t rank, const float* const* sums,
                        float* const* results, int64_t left) {
  if constexpr (R > 0) {
    if (count != R) return expand_some<T, R - 1>(count, b, step, rank, sums, results, left);
    expand_tile<T, R>(b, step, rank, sums, results, left);
  }
}

// Rows `rows` [count] of results [.][NR], which begin at row `begin`: what a part adds to columns `column`.. of a panel, which
// are outputs first..first+left of the part.
template <class T>
inline void expand_part(const LoraProduct& lora, const LoraPart& part, const int64_t* rows, int64_t count, int64_t begin,
                        int64_t column, int64_t first, int64_t left, float* results) {
  const T* b = (const T*)part.b + first / LORA_GROUP * part.rank * LORA_GROUP + first % LORA_GROUP;
  for (int64_t i = 0; i < count; i += LORA_TILE) {
    int64_t some = count - i < LORA_TILE ? count - i : LORA_TILE;
    const float* sums[LORA_TILE];
    float* to[LORA_TILE];
    for (int64_t r = 0; r < some; r++) {
      sums[r] = lora.sums + rows[i + r] * lora.stride + part.at;
      to[r] = results + (rows[i + r] - begin) * NR + column;
    }
    expand_some<T>(some, b, LORA_GROUP, part.rank, sums, to, left);
  }
}

// Rows begin..begin+count of a panel's results [count][NR].
template <class T>
__attribute__((noinline)) void expand(const LoraProduct& lora, const Linear& w, int64_t panel, int64_t begin, int64_t count,
                                      float* results) {
  const LoraRows& all_rows = *lora.rows;
  for (int64_t a = 0; a < all_rows.count; a++) {
    const LoraWeight& weight = lora.weight(a);
    if (!weight.count) continue;
    const int64_t *from = all_rows.rows + all_rows.starts[a], *until = all_rows.rows + all_rows.starts[a + 1];
    from = std::lower_bound(from, until, begin);
    until = std::lower_bound(from, until, begin + count);
    if (from == until) continue;
    for (int64_t p = 0; p < weight.count; p++) {
      const LoraPart& part = weight.parts[p];
      for (int half = 0; half < 2; half++) {
        // Outputs of the merged weight in this half of the panel, and those of them that the part has.
        int64_t at = panel * w.per_panel() + (w.form == GATED ? 0 : half * W), left = w.outputs() - at;
        int64_t output = w.first + at + (w.form == GATED ? half * w.outputs() : 0);
        int64_t first = output - part.begin, end = first + (left < W ? left : W);
        if (end > part.outputs) end = part.outputs;
        int64_t column = half * W;
        if (first < 0) column -= first, first = 0;
        // A vector of B lies in one group. Where a weight's first output lies askew in a panel, there are two.
        while (first < end) {
          int64_t some = LORA_GROUP - first % LORA_GROUP < end - first ? LORA_GROUP - first % LORA_GROUP : end - first;
          expand_part<T>(lora, part, from, until - from, begin, column, first, some, results);
          first += some, column += some;
        }
      }
    }
  }
}

}  // namespace

// `reduce` and `expand` of adapters in float, float16 and bf16, as cohort_cpu.cpp defines them.
SHARED void reduce_by_floats(const LoraProduct& lora, const float* x, int64_t inputs, Counter& counter);
SHARED void reduce_by_halves(const LoraProduct& lora, const float* x, int64_t inputs, Counter& counter);
SHARED void reduce_by_bf16(const LoraProduct& lora, const float* x, int64_t inputs, Counter& counter);
SHARED void reduce_bf16_by_bf16(const LoraProduct& lora, const uint16_t* x, int64_t inputs, Counter& counter);
SHARED void expand_floats(const LoraProduct& lora, const Linear& w, int64_t panel, int64_t begin, int64_t count, float* results);
SHARED void expand_halves(const LoraProduct& lora, const Linear& w, int64_t panel, int64_t begin, int64_t count, float* results);
SHARED void expand_bf16(const LoraProduct& lora, const Linear& w, int64_t panel, int64_t begin, int64_t count, float* results);

namespace {

// Sums of rows x in a model of T, and what adds them; `halves`: its adapters are in float16.
inline void reduce_rows(LoraProduct& lora, bool halves, const float*, const float* x, int64_t inputs, Counter& counter) {
  lora.expand = halves ? expand_halves : expand_floats;
  halves ? reduce_by_halves(lora, x, inputs, counter) : reduce_by_floats(lora, x, inputs, counter);
}
inline void reduce_rows(LoraProduct& lora, bool, const uint16_t*, const float* x, int64_t inputs, Counter& counter) {
  lora.expand = expand_bf16;
  reduce_by_bf16(lora, x, inputs, counter);
}
inline void reduce_rows(LoraProduct& lora, bool, const uint16_t*, const uint16_t* x, int64_t inputs, Counter& counter) {
  lora.expand = expand_bf16;
  reduce_bf16_by_bf16(lora, x, inputs, counter);
}

}  // namespace
