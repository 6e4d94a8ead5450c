// Linear layers: out[m][n] = sum over k of a[m][k] w[n][k], w packed once at load.
//
//   packed   [panels][steps][NR] words of 32 bits: NR = 2 W rows of w side by side, DEPTH elements of k in a word
//            (1 float, 2 bf16 or 4 int8); where w is a gate and an up projection, a panel holds W rows of each
//   a        [m][steps] in the form that an `Op` wants its left operand in, see `Op::convert`
//
// A tile of up to MR rows times one panel is summed in registers, in ascending order of k, whatever m is: a row's result
// does not depend on the other rows. Threads take panels from a counter. Decoding is bound by reading w once, so
// the panel that comes next is asked for while this one is multiplied.
//
// int8: w = q * scale of its row, symmetric; a likewise per token, when it is converted ("dynamic"). Products and sums are
// exact in int32 and the same on every CPU.
#pragma once

#include <type_traits>

#include "operands.h"
#include "team.h"

namespace {

constexpr int64_t ROWS = 112;  // rows that are multiplied with a panel at a time: they should stay in the cache
constexpr int64_t STRETCH = 128;  // float32: steps that are summed in one register, a multiple of 16

// ---- packing -------------------------------------------------------------------------------------------------------

// Rows first..first+W of a panel's half, each [steps] words, to the panel. `words` [W][steps].
inline void pack_group(uint32_t* panel, int64_t column, const uint32_t* words, int64_t steps) {
  for (int64_t k = 0; k < steps; k += W) {
    F r[W];
    for (int i = 0; i < W; i++) r[i] = load_some((const float*)words + i * steps + k, steps - k);
    transpose(r);
    for (int i = 0; i < W && k + i < steps; i++) store((float*)panel + (k + i) * NR + column, r[i]);
  }
}

template <class T>
inline void to_words(const Linear& w, const T* in, uint32_t* out, float* scale, int32_t* sum) {
  int64_t n = w.columns, steps = w.steps();
  memset(out + steps - 1, 0, 4);
  if (w.kind == FP32) {
    widen((float*)out, in, n);
  } else if (w.kind == BF16) {
    for (int64_t i = 0; i < n; i += W) store_some((uint16_t*)out + i, load_some(in + i, n - i), n - i);
  } else {
    int8_t* to = (int8_t*)out;
    int32_t total = 0;
    *scale = quantize(in, n, [&](int64_t i, int32_t q) { to[i] = (int8_t)q, total += to[i]; });
    *sum = 128 * total;
  }
}

// Rows begin..begin+count of w, `in` [count][columns] of T, to their panels: W at a time where they fill half a panel.
template <class T>
int pack(const Linear& w, const T* in, int64_t begin, int64_t count, int threads) {
  int64_t steps = w.steps(), groups = (count + 2 * W - 1) / W;
  std::atomic<int> failed{0};
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    uint32_t* words = (uint32_t*)aligned_alloc(64, (W * steps * 4 + 63) / 64 * 64);
    if (!words) failed = 1;
#pragma omp for schedule(dynamic, 4)
    for (int64_t g = 0; g < groups; g++) {
      // Groups begin at multiples of W, counted from the first row of w (of gate, of up).
      int64_t half = w.form == GATED ? w.outputs() : w.rows, base = begin / half * half;
      int64_t lead = (begin - base) % W, from = g * W - lead < 0 ? 0 : g * W - lead, until = (g + 1) * W - lead;
      if (until > count) until = count;
      if (from >= until || !words) continue;
      float scales[W];
      int32_t sums[W];
      for (int64_t i = from; i < until; i++)
        to_words(w, in + i * w.columns, words + (i - from) * steps, scales + (i - from), sums + (i - from));
      int64_t panel, column;
      w.place(begin + from, &panel, &column);
      if (until - from == W && column % W == 0 && (w.form == PLAIN || begin % half + count <= half)) {
        pack_group(w.packed + panel * steps * NR, column, words, steps);
      } else {
        for (int64_t i = from; i < until; i++) {
          w.place(begin + i, &panel, &column);
          for (int64_t k = 0; k < steps; k++)
            w.packed[(panel * steps + k) * NR + column] = words[(i - from) * steps + k];
        }
      }
      for (int64_t i = from; w.kind == INT8 && i < until; i++) {
        w.place(begin + i, &panel, &column);
        w.scales[panel * NR + column] = scales[i - from], w.sums[panel * NR + column] = sums[i - from];
      }
    }
    free(words);
  }
  return failed;
}

// ---- multiplying ---------------------------------------------------------------------------------------------------

// buffer[R][NR] = a[R][steps] panel[steps][NR], plus what is there if `onto`. `ahead`: lines to ask for meanwhile,
// `per_block` of them every 16 steps.
template <class Op, int R>
void tile(const typename Op::Word* a, int64_t lda, const uint32_t* panel, int64_t steps, const float* row_scales,
          const float* scales, const int32_t* sums, float* buffer, const char* ahead, int64_t per_block, bool onto) {
  typename Op::Sum sum[R][2];
#pragma GCC unroll 14
  for (int r = 0; r < R; r++) sum[r][0] = sum[r][1] = Op::zero();
  for (int64_t block = 0; block < steps; block += 16) {
    for (int64_t i = 0; i < per_block; i++, ahead += 64) _mm_prefetch(ahead, _MM_HINT_T0);
    int64_t end = block + 16 < steps ? block + 16 : steps;
    for (int64_t k = block; k < end; k++) {
      I one = Op::load_b(panel + k * NR), two = Op::load_b(panel + k * NR + W);
#pragma GCC unroll 14
      for (int r = 0; r < R; r++) {
        sum[r][0] = Op::mul_add(a + r * lda + k, one, sum[r][0]);
        sum[r][1] = Op::mul_add(a + r * lda + k, two, sum[r][1]);
      }
    }
  }
#pragma GCC unroll 14
  for (int r = 0; r < R; r++) {
    F one = Op::finish(sum[r][0], row_scales[r], scales, sums);
    F two = Op::finish(sum[r][1], row_scales[r], scales + W, sums + W);
    if (onto) one = add(load(buffer + r * NR), one), two = add(load(buffer + r * NR + W), two);
    store(buffer + r * NR, one);
    store(buffer + r * NR + W, two);
  }
}

template <class Op, int R>
inline void tile_of(int64_t rows, const typename Op::Word* a, int64_t lda, const uint32_t* panel, int64_t steps,
                    const float* row_scales, const float* scales, const int32_t* sums, float* buffer, const char* ahead,
                    int64_t per_block) {
  if constexpr (R > 0) {
    if (rows == R) {
      // The rounding error of one long sum in float32 grows with its length, so that sums of stretches are added up. The
      // other products round their operands far more coarsely, and do without.
      int64_t stretch = std::is_same<Op, FloatProduct>::value ? STRETCH : steps;
      for (int64_t k = 0; k < steps; k += stretch)
        tile<Op, R>(a + k, lda, panel + k * NR, k + stretch < steps ? stretch : steps - k, row_scales, scales, sums,
                    buffer, ahead + k / 16 * per_block * 64, per_block, k > 0);
    } else
      tile_of<Op, R - 1>(rows, a, lda, panel, steps, row_scales, scales, sums, buffer, ahead, per_block);
  }
}

enum Activation : int64_t { SILU = 0, GELU_TANH = 1 };

// x * sigmoid(z): z = x is SiLU; 2 sqrt(2/pi) (x + 0.044715 x^3) the tanh form of GELU (Hendrycks and Gimpel 2016).
inline F activate(F x, int64_t how) {
  F z = how == SILU ? x : mul(all(1.5957691216f), fma(mul(all(0.044715f), x), mul(x, x), x));
  F e = exp2f(smaller(all(126.0f), mul(z, all(-LOG2E))));
  return div(x, add(all(1.0f), e));
}

// Where results go: one of `values` [m][outputs] of T (rounded), `added` [m][outputs] (added to what is there). With
// `values` of a plain product, `maxima` [m][panels] may take the largest of each panel, NaN where one of it is.
template <class T>
struct Target {
  T* values;
  int64_t stride;
  float* added;
  int64_t activation;
  float* maxima = nullptr;
};

inline float rounded(float a, const float*) { return a; }
inline float rounded(float a, const uint16_t*) {
  uint32_t bits;
  memcpy(&bits, &a, 4);
  bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000;  // to nearest, ties to even
  memcpy(&a, &bits, 4);
  return a;
}

// The largest of the first `left` of two vectors, as it is when rounded to T: rounding keeps the order.
template <class T>
inline float max_of_two(F one, F two, int64_t left) {
  if (left < 2 * W) {
    if (left < W) one = keep(one, (1u << left) - 1, all(-INFINITY));
    two = keep(two, left > W ? (1u << (left - W)) - 1 : 0, all(-INFINITY));
  }
  return has_nan(one) || has_nan(two) ? NAN : rounded(max_of(larger(one, two)), (const T*)nullptr);
}

template <class T>
inline void deliver(const Linear& w, const float* buffer, int64_t row, int64_t rows, int64_t panel, const Target<T>& to) {
  int64_t first = panel * w.per_panel(), left = w.outputs() - first;
  for (int64_t r = 0; r < rows; r++) {
    F one = load(buffer + r * NR), two = load(buffer + r * NR + W);
    if (w.form == GATED) {
      if (w.bias) {
        one = add(one, load_some(w.bias + first, left));
        two = add(two, load_some(w.bias + w.outputs() + first, left));
      }
      store_some(to.values + (row + r) * to.stride + first, mul(activate(one, to.activation), two), left);
      continue;
    }
    if (w.bias) {
      one = add(one, load_some(w.bias + first, left));
      if (left > W) two = add(two, load_some(w.bias + first + W, left - W));
    }
    if (to.added) {
      float* at = to.added + (row + r) * to.stride + first;
      store_some(at, add(load_some(at, left), one), left);
      if (left > W) store_some(at + W, add(load_some(at + W, left - W), two), left - W);
    } else {
      T* at = to.values + (row + r) * to.stride + first;
      if (to.maxima) to.maxima[(row + r) * w.panels() + panel] = max_of_two<T>(one, two, left);
      store_some(at, one, left);
      if (left > W) store_some(at + W, two, left - W);
    }
  }
}

// One thread's share of a product of m rows; `a` [m][lda] words, `row_scales` [m]. The counter is 0 at first.
template <class Op, class T>
void multiply(const Linear& w, const typename Op::Word* a, int64_t lda, const float* row_scales, int64_t m,
              const Target<T>& to, Counter& counter, int threads) {
  int64_t panels = w.panels(), steps = w.steps(), chunks = (m + ROWS - 1) / ROWS;
  int64_t grab = panels / (threads * 16) > 0 ? panels / (threads * 16) : 1;
  int64_t per_chunk = (panels + grab - 1) / grab;
  alignas(64) float buffer[MR * NR];
  static const float none[NR] = {};
  int64_t unit = counter.take(1);
  while (unit < chunks * per_chunk) {
    int64_t following = counter.take(1);  // early: its first panel is asked for while the last one here is multiplied
    int64_t begin = unit / per_chunk * ROWS, count = m - begin < ROWS ? m - begin : ROWS;
    int64_t first = unit % per_chunk * grab, last = first + grab < panels ? first + grab : panels;
    int64_t tiles = (count + MR - 1) / MR;
    for (int64_t p = first; p < last; p++) {
      const uint32_t* panel = w.packed + p * steps * NR;
      int64_t next = p + 1 < last ? p + 1 : following < chunks * per_chunk ? following % per_chunk * grab : p;
      const char* ahead = (const char*)(w.packed + next * steps * NR);
      int64_t per_block = (NR + tiles - 1) / tiles;  // 16 steps of a panel are NR lines of 64 bytes
      const float* scales = w.scales ? w.scales + p * NR : none;
      const int32_t* sums = w.sums ? w.sums + p * NR : (const int32_t*)none;
      int64_t row = begin;
      for (int64_t t = 0; t < tiles; t++) {
        int64_t rows = (begin + count - row + tiles - t - 1) / (tiles - t);
        // Many rows: the next panel takes a part of the tiles; few: lines are asked for as this panel's are used.
        int64_t lines = per_block * ((steps + 15) / 16);
        const char* at = ahead + t * lines * 64;
        tile_of<Op, MR>(rows, a + row * lda, lda, panel, steps, row_scales + row, scales, sums, buffer, at,
                        t * per_block < NR ? per_block : 0);
        deliver(w, buffer, row, rows, p, to);
        row += rows;
      }
    }
    unit = following;
  }
}

}  // namespace
