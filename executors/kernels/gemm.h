// Linear layers: out[m][n] = sum over k of a[m][k] w[n][k], w packed once at load.
//
//   packed   [panels][steps][NR] words of 32 bits: NR = 2 W rows of w side by side, DEPTH elements of k in a word
//            (1 float, 2 bf16 or 4 int8); where w is a gate and an up projection, a panel holds W rows of each.
//            float16: [panels][steps][NR] of 16 bits, an element of k each
//            int8: behind every BLOCK_STEPS steps the NR scales of those 32 values of k, in bf16
//   a        [m][steps] in the form that an `Op` wants its left operand in, see `Op::convert`; int8: and scales [m][blocks]
//
// A tile of up to MR rows times one panel is summed in registers, in ascending order of k, whatever m is: a row's result
// does not depend on the other rows. Threads take panels from a counter. Decoding is bound by reading w once, so
// the panel that comes next is asked for while this one is multiplied; on AMD's CPUs not for few rows, see `asks_ahead`. One row
// is multiplied with two panels of eight-bit blocks in turn: a core reads two streams of memory faster than one.
//
// int8: w and a are whole numbers times a scale, which 32 values of k share. With one scale a row of a, as here before, a
// single large value takes the others' digits: one best token in seven of real models was another than float32's (decision
// 99). A block's sum of products is exact in int32; sums over blocks are float32, in the same order on every CPU.
#pragma once

#include <algorithm>
#include <type_traits>

#include "quantized_tiles.h"
#include "lora.h"
#include "team.h"

namespace {

constexpr int64_t ROWS = 140;  // rows that are multiplied with a panel at a time: they should stay in the cache
constexpr int64_t STRETCH = 128;  // float32: steps that are summed in one register, a multiple of 16

// ---- packing -------------------------------------------------------------------------------------------------------

// Where step k of a panel begins.
inline int64_t step_at(const Linear& w, int64_t k) {
  return w.kind == INT8 ? k / BLOCK_STEPS * BLOCK_WORDS + k % BLOCK_STEPS * NR : k * w.step_words();
}

// W words of step k, or one, from `column` on. float16: they come as floats.
inline void put_words(const Linear& w, uint32_t* panel, int64_t k, int64_t column, F words) {
  uint32_t* step = panel + step_at(w, k);
  if (w.kind == FP16) return store_some((Half*)step + column, words, W);
  store((float*)step + column, words);
}
inline void put_word(const Linear& w, uint32_t* panel, int64_t k, int64_t column, uint32_t word) {
  uint32_t* step = panel + step_at(w, k);
  if (w.kind == FP16) return store_some((Half*)step + column, as_float(all_words(word)), 1);
  step[column] = word;
}

// W rows, each [steps] words, to the columns of a panel from `column` on. `words` [W][steps].
inline void pack_group(const Linear& w, uint32_t* panel, int64_t column, const uint32_t* words, int64_t steps) {
  for (int64_t k = 0; k < steps; k += W) {
    F r[W];
    for (int i = 0; i < W; i++) r[i] = load_some((const float*)words + i * steps + k, steps - k);
    transpose(r);
    for (int i = 0; i < W && k + i < steps; i++) put_words(w, panel, k + i, column, r[i]);
  }
}

// A row's words [steps] and, of int8, scales [blocks].
template <class T>
inline void to_words(const Linear& w, const T* in, uint32_t* out, uint16_t* scales) {
  int64_t n = w.columns, steps = w.steps();
  memset(out + steps - 1, 0, 4);
  if (w.kind == FP32 || w.kind == FP16) {
    widen((float*)out, in, n);
  } else if (w.kind == BF16) {
    for (int64_t i = 0; i < n; i += W) store_some((uint16_t*)out + i, load_some(in + i, n - i), n - i);
  } else {
    quantize_weights(in, n, (int8_t*)out, scales);
    for (int64_t k = 0; k < steps; k++) out[k] ^= Int8Product::FLIP;
  }
}

// Rows begin..begin+count of w, `in` [count][columns] of T, to their panels: W at a time where they fill half a panel.
template <class T>
int pack(const Linear& w, const T* in, int64_t begin, int64_t count, int threads) {
  int64_t steps = w.steps(), blocks = w.blocks(), groups = (count + 2 * W - 1) / W;
  std::atomic<int> failed{0};
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    uint32_t* words = (uint32_t*)aligned_alloc(64, (W * (steps * 4 + blocks * 2) + 63) / 64 * 64);
    uint16_t* scales = (uint16_t*)(words + W * steps);
    if (!words) failed = 1;
#pragma omp for schedule(dynamic, 4)
    for (int64_t g = 0; g < groups; g++) {
      // Groups begin at multiples of W, counted from the first row of w (of gate, of up).
      int64_t half = w.form == GATED ? w.outputs() : w.rows, base = begin / half * half;
      int64_t lead = (begin - base) % W, from = g * W - lead < 0 ? 0 : g * W - lead, until = (g + 1) * W - lead;
      if (until > count) until = count;
      if (from >= until || !words) continue;
      for (int64_t i = from; i < until; i++)
        to_words(w, in + i * w.columns, words + (i - from) * steps, scales + (i - from) * blocks);
      int64_t panel, column;
      w.place(begin + from, &panel, &column);
      if (until - from == W && column % W == 0 && (w.form == PLAIN || begin % half + count <= half)) {
        pack_group(w, w.packed + panel * w.panel_words(), column, words, steps);
      } else {
        for (int64_t i = from; i < until; i++) {
          w.place(begin + i, &panel, &column);
          for (int64_t k = 0; k < steps; k++)
            put_word(w, w.packed + panel * w.panel_words(), k, column, words[(i - from) * steps + k]);
        }
      }
      for (int64_t i = from; w.kind == INT8 && i < until; i++) {
        w.place(begin + i, &panel, &column);
        for (int64_t b = 0; b < blocks; b++)
          scales_of(w.packed + panel * w.panel_words() + b * BLOCK_WORDS)[column] = scales[(i - from) * blocks + b];
      }
    }
    free(words);
  }
  return failed;
}

// ---- multiplying ---------------------------------------------------------------------------------------------------

// Steps after which a tile asks for more of the next panel. A step of a whole model with 10 to 16 rows of bf16 took 0.79 to 0.84 of
// the time with 4 instead of 16, with 12 to 32 of int8 0.84 to 0.89 with 4 instead of 8: what is asked for at once waits where it is
// more than a core has in flight (Zen 4).
constexpr int64_t ROUND_STEPS = 4;
// How many of them stand one after the other in the code: with all of a round two rows of bf16 took 0.71 of the time of a loop, three
// 0.85, others as long (Zen 1). Not tried with AVX-512.
constexpr int UNROLLED = W == 8 ? ROUND_STEPS : 1;

// buffer[R][NR] = a[R][steps] panel[steps][NR] over the steps from `begin` to `end`, plus what is there if `begin` is not 0.
template <class Op, int R>
void tile(const Left<Op>& a, const uint32_t* panel, int64_t begin, int64_t end, float* buffer, Ahead& ahead) {
  const typename Op::Word* words = a.words;
  int64_t lda = a.steps;
  typename Op::Sum sum[R][2];
#pragma GCC unroll 14
  for (int r = 0; r < R; r++) sum[r][0] = sum[r][1] = Op::zero();
  for (int64_t block = begin; block < end; block += ROUND_STEPS) {
    ahead.round();
    auto step = [&](int64_t k) {
      auto one = Op::load_b(panel + k * Op::STEP), two = Op::load_b(panel + k * Op::STEP + Op::STEP / 2);
#pragma GCC unroll 14
      for (int r = 0; r < R; r++) {
        sum[r][0] = Op::mul_add(words + r * lda + k, one, sum[r][0]);
        sum[r][1] = Op::mul_add(words + r * lda + k, two, sum[r][1]);
      }
    };
    if (block + ROUND_STEPS <= end) {
#pragma GCC unroll UNROLLED
      for (int64_t i = 0; i < ROUND_STEPS; i++) step(block + i);
    } else {
      for (int64_t k = block; k < end; k++) step(k);
    }
  }
#pragma GCC unroll 14
  for (int r = 0; r < R; r++) {
    F one = sum[r][0], two = sum[r][1];
    if (begin) one = add(load(buffer + r * NR), one), two = add(load(buffer + r * NR + W), two);
    store(buffer + r * NR, one);
    store(buffer + r * NR + W, two);
  }
}

#if defined(__AVX512VNNI__)
template <int R>
void tile_of_blocks(const Left<Int8Product>& a, const uint32_t* panel, float* buffer, Ahead ahead) {
  F total[R][2];
#pragma GCC unroll 7
  for (int r = 0; r < R; r++) total[r][0] = total[r][1] = all(0.0f);
  const auto* scales = a.scales;
  const uint32_t* words = a.words;
  for (int64_t b = 0; b < a.blocks; b++, panel += BLOCK_WORDS, words += BLOCK_STEPS, scales++) {
    I sum[R][2];
#pragma GCC unroll 7
    for (int r = 0; r < R; r++) sum[r][0] = sum[r][1] = all_words((uint32_t)scales[r * a.blocks].start);
#pragma GCC unroll 8
    for (int k = 0; k < BLOCK_STEPS; k++) {
      if (k % ROUND_STEPS == 0) ahead.round();
      I one = load_words(panel + k * NR), two = load_words(panel + k * NR + W);
#pragma GCC unroll 7
      for (int r = 0; r < R; r++) {
        add_products(sum[r][0], one, words + r * a.steps + k);
        add_products(sum[r][1], two, words + r * a.steps + k);
      }
    }
    F one = load_some(scales_of(panel), W), two = load_some(scales_of(panel) + W, W);
#pragma GCC unroll 7
    for (int r = 0; r < R; r++) {
      F scale = all(scales[r * a.blocks].scale);
      total[r][0] = fma(from_words(sum[r][0]), mul(scale, one), total[r][0]);
      total[r][1] = fma(from_words(sum[r][1]), mul(scale, two), total[r][1]);
    }
  }
#pragma GCC unroll 7
  for (int r = 0; r < R; r++) {
    store(buffer + r * NR, total[r][0]);
    store(buffer + r * NR + W, total[r][1]);
  }
}
#else
// Sums over blocks are kept in the buffer, which leaves registers for more rows.
template <int R>
void tile_of_blocks(const Left<Int8Product>& a, const uint32_t* panel, float* buffer, Ahead ahead) {
  const auto* scales = a.scales;
  const uint32_t* words = a.words;
  for (int64_t b = 0; b < a.blocks; b++, panel += BLOCK_WORDS, words += BLOCK_STEPS, scales++) {
    I sum[R][2];
#pragma GCC unroll 14
    for (int r = 0; r < R; r++) sum[r][0] = sum[r][1] = zero_words();
#pragma GCC unroll 8
    for (int k = 0; k < BLOCK_STEPS; k++) {
      if (k % ROUND_STEPS == 0) ahead.round();
      add_pairs<R, true>(sum, load_words(panel + k * NR), load_words(panel + k * NR + W), words + k, a.steps);
    }
    F one = load_some(scales_of(panel), W), two = load_some(scales_of(panel) + W, W);
#pragma GCC unroll 14
    for (int r = 0; r < R; r++) {
      F scale = all(scales[r * a.blocks].scale);
      float* at = buffer + r * NR;
      store(at, fma(from_words(sum[r][0]), mul(scale, one), b ? load(at) : all(0.0f)));
      store(at + W, fma(from_words(sum[r][1]), mul(scale, two), b ? load(at + W) : all(0.0f)));
    }
  }
}
#endif

// A tile of `rows`, which are R at most.
template <class Op, int R>
inline void tile_of(int64_t rows, const Left<Op>& a, const uint32_t* panel, float* buffer, Ahead ahead) {
  if constexpr (R > 0) {
    if (rows != R) {
      tile_of<Op, R - 1>(rows, a, panel, buffer, ahead);
    } else if constexpr (std::is_same<Op, Int8Product>::value) {
      tile_of_blocks<R>(a, panel, buffer, ahead);
    } else {
      // The rounding error of one long sum in float32 grows with its length, so that sums of stretches are added up. bf16
      // rounds its operands far more coarsely, and does without.
      int64_t stretch = std::is_base_of<FloatProduct, Op>::value ? STRETCH : a.steps;
      for (int64_t k = 0; k < a.steps; k += stretch)
        tile<Op, R>(a, panel, k, k + stretch < a.steps ? k + stretch : a.steps, buffer, ahead);
    }
  }
}

enum Activation : int64_t { SILU = 0, GELU_TANH = 1, CLAMPED_SWIGLU = 2 };

// x * sigmoid(z): z = x is SiLU; 2 sqrt(2/pi) (x + 0.044715 x^3) the tanh form of GELU (Hendrycks and Gimpel 2016).
inline F activate(F x, int64_t how) {
  F z = how == SILU ? x : mul(all(1.5957691216f), fma(mul(all(0.044715f), x), mul(x, x), x));
  F e = exp2f(smaller(all(126.0f), mul(z, all(-LOG2E))));
  return div(x, add(all(1.0f), e));
}

// What `down` multiplies. CLAMPED_SWIGLU: (u + 1) g sigmoid(alpha g) of g and u that are within the limit (gpt-oss). NaN stays.
inline F gated(const Linear& w, F gate, F up, int64_t how) {
  if (how != CLAMPED_SWIGLU) return mul(activate(gate, how), up);
  F limit = all(w.limit);
  gate = smaller(limit, gate), up = larger(all(-w.limit), smaller(limit, up));
  F e = exp2f(smaller(all(126.0f), mul(gate, all(-LOG2E * w.alpha))));
  return mul(add(up, all(1.0f)), div(gate, add(all(1.0f), e)));
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
  // What is added to a row's result, [rows of w], before the activation: a pointer for each row, null for none. Or null.
  const float* const* extra = nullptr;
  // Adapters of the rows, whose sums are known; or null.
  const LoraProduct* lora = nullptr;
  // What each row is multiplied by before it is added; or null.
  const float* factors = nullptr;
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
    const float* extra = to.extra ? to.extra[row + r] : nullptr;
    if (extra) {
      extra += w.first + first;
      one = add(one, load_some(extra, left));
      if (w.form == GATED)
        two = add(two, load_some(extra + w.outputs(), left));
      else if (left > W)
        two = add(two, load_some(extra + W, left - W));
    }
    if (w.form == GATED) {
      if (w.bias) {
        one = add(one, load_some(w.bias + first, left));
        two = add(two, load_some(w.bias + w.outputs() + first, left));
      }
      store_some(to.values + (row + r) * to.stride + first, gated(w, one, two, to.activation), left);
      continue;
    }
    if (w.bias) {
      one = add(one, load_some(w.bias + first, left));
      if (left > W) two = add(two, load_some(w.bias + first + W, left - W));
    }
    if (to.added) {
      float* at = to.added + (row + r) * to.stride + first;
      if (to.factors) one = mul(one, all(to.factors[row + r])), two = mul(two, all(to.factors[row + r]));
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

// Whether to ask for the next panel where one tile has all `rows`. AMD's CPUs follow a panel by themselves, and with what is
// asked for beside that, one to seven rows of bf16 took 1.05 to 1.14 times as long, one to three of int8 1.02 to 1.13, one of 4
// bits 1.08 (Zen 4). More rows keep the core so busy that it falls behind: 14 rows of bf16 took 0.75 of the time with asking, 4 of
// int8 0.89. With float16 one row took as long, four 0.83 of the time, eight 0.69 and fourteen 0.53 (Zen 5). With AVX2 a row takes
// twice the instructions, and a Zen 1 falls behind with the first: one row of bf16 took 0.75 of a step's time with asking, four 0.89,
// one of int8 0.77, of 4 bits 0.98.
template <class Op>
inline bool asks_ahead(int64_t rows) {
  static const bool amd = (__builtin_cpu_init(), __builtin_cpu_is("amd"));
  if (!amd || W == 8 || std::is_same<Op, HalfProduct>::value) return true;
  return rows >= (std::is_same<Op, QuantProduct>::value ? 2 : std::is_same<Op, Int8Product>::value ? 4 : 9);
}

// The largest panel that is asked for into the first level of the cache, in bytes: one that leaves room there for the panel that is
// multiplied. 16 rows of bf16, whose panel has twice the level's size, took 0.69 of the time when they asked for the second level
// instead, 8 rows of int8 0.62, while int4's 20 KiB took 1.01 to 1.05 (Zen 4, 1,024 columns).
constexpr int64_t NEAR_BYTES = 24 << 10;

// A weight's panels, one after the other; what does not change from one to the next is found once.
template <class Op>
struct Panels {
  const Linear& w;
  const TileOfLayout* layout_tiles;
  int64_t words, rounds, lines;  // of a panel; in which as much is asked for of the next one, and how much
  bool small, one_row_asks = false;

  explicit Panels(const Linear& w) : w(w), layout_tiles(tiles_of(w)), words(w.panel_words()) {
    rounds = std::is_same<Op, QuantProduct>::value ? QuantProduct::ROUNDS * w.blocks() : (w.steps() + ROUND_STEPS - 1) / ROUND_STEPS;
    lines = (words / 16 + rounds - 1) / rounds;
    small = words * 4 <= NEAR_BYTES;
    if constexpr (std::is_same<Op, QuantProduct>::value)
      one_row_asks = with_layout(w.kind, [](auto layout) { return decltype(layout)::ONE_ROW_ASKS; });
  }

  const uint32_t* at(int64_t panel) const { return w.packed + panel * words; }

  // Rows begin..begin+count of a times a panel, tile by tile: `give(row, rows)` takes each tile's results, which are in `buffer`;
  // those of row r `apart` r - begin rows from its start, or else the tile's own from there on. Meanwhile asks for `ahead`.
  template <class Give>
  inline void multiply(const Left<Op>& a, int64_t begin, int64_t count, int64_t panel, const uint32_t* ahead, bool asks,
                       float* buffer, bool apart, Give give) const {
    int64_t tiles = (count + Op::MR - 1) / Op::MR;
    // Many rows: each tile asks for a part of what comes next, as long as there is some of it.
    int64_t per_tile = tiles == 1 && !asks ? 0 : (lines + tiles - 1) / tiles;
    int64_t row = begin;
    for (int64_t t = 0; t < tiles; t++) {
      int64_t rows = (begin + count - row + tiles - t - 1) / (tiles - t);
      Ahead some = {(const char*)ahead + t * per_tile * rounds * 64, t * per_tile < lines ? per_tile : 0,
                    small && tiles > 1};
      float* results = apart ? buffer + (row - begin) * NR : buffer;
      if constexpr (std::is_same<Op, QuantProduct>::value)
        layout_tiles[rows](a.from(row), at(panel), results, some);
      else
        tile_of<Op, Op::MR>(rows, a.from(row), at(panel), results, some);
      give(row, rows);
      row += rows;
    }
  }

  bool takes_two() const {
    if constexpr (std::is_same<Op, QuantProduct>::value) return layout_tiles[0] != nullptr;
    return false;
  }

  // Multiplies a single row with a panel and the next one, if there is one before `last`: results in `buffer` [2][NR]. Returns
  // whether it did.
  bool multiply_two(const Left<Op>& a, int64_t row, int64_t panel, int64_t last, float* buffer) const {
    if constexpr (std::is_same<Op, QuantProduct>::value) {
      if (panel + 1 >= last || !takes_two()) return false;
      layout_tiles[0](a.from(row), at(panel), buffer, {(const char*)at(panel + 1), 0});
      return true;
    }
    return false;
  }
};

// How many of m rows are multiplied with a panel at a time: as many in each chunk, in whole tiles.
template <class Op>
inline int64_t rows_at_once(int64_t m) {
  int64_t chunks = (m + ROWS - 1) / ROWS;
  return m ? ((m + chunks - 1) / chunks + Op::MR - 1) / Op::MR * Op::MR : 1;
}

// One thread's share of a product of m rows. The counter is 0 at first.
template <class Op, class T>
__attribute__((noinline)) void multiply_panels(const Linear& w, const Left<Op>& a, int64_t m, const Target<T>& to,
                                               Counter& counter, int threads) {
  const Panels<Op> each(w);
  int64_t panels = w.panels(), chunk = rows_at_once<Op>(m);
  int64_t chunks = (m + chunk - 1) / chunk;  // ROWS may be no multiple of MR: then whole tiles make fewer
  int64_t grab = std::max<int64_t>(panels / (threads * 16), m == 1 && each.takes_two() ? 2 : 1);
  int64_t per_chunk = (panels + grab - 1) / grab;
  // Results of a tile; with adapters of all rows, so that what an adapter adds to several of them is computed together.
  alignas(64) float buffer[(ROWS + Op::MR) * NR];
  int64_t unit = counter.take(1);
  while (unit < chunks * per_chunk) {
    int64_t following = counter.take(1);  // early: its first panel is asked for while the last one here is multiplied
    int64_t begin = unit / per_chunk * chunk, count = m - begin < chunk ? m - begin : chunk;
    int64_t first = unit % per_chunk * grab, last = first + grab < panels ? first + grab : panels;
    for (int64_t p = first; p < last; p++) {
      if (count == 1 && !to.lora && each.multiply_two(a, begin, p, last, buffer)) {
        deliver(w, buffer, begin, 1, p, to);
        deliver(w, buffer + NR, begin, 1, ++p, to);
        continue;
      }
      int64_t next = p + 1 < last ? p + 1 : following < chunks * per_chunk ? following % per_chunk * grab : p;
      each.multiply(a, begin, count, p, each.at(next), each.one_row_asks || asks_ahead<Op>(count), buffer, to.lora != nullptr,
                    [&](int64_t row, int64_t rows) {
                      if (!to.lora) deliver(w, buffer, row, rows, p, to);
                    });
      if (to.lora) {
        to.lora->expand(*to.lora, w, p, begin, count, buffer);
        deliver(w, buffer, begin, count, p, to);
      }
    }
    unit = following;
  }
}

// The same for all parts of a weight, each with a counter of its own.
template <class Op, class T>
void multiply(const Linear& whole, const Left<Op>& a, int64_t m, const Target<T>& to, Counter* counters, int threads) {
  if constexpr (std::is_same<Op, QuantProduct>::value) {
    for (const Linear* w = &whole; w; w = w->next) {
      Target<T> part = to;
      if (to.values) part.values += w->first;
      if (to.added) part.added += w->first;
      multiply_panels<Op>(*w, a, m, part, *counters++, threads);
    }
  } else {
    multiply_panels<Op>(whole, a, m, to, *counters, threads);
  }
}

}  // namespace
