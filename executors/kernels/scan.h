// Mixers whose layers carry a state from token to token: causal convolutions and the gated delta rule, as
// executors/llm/model/layers/{convolution,gated_delta}.py define them.
//
//   the layer's projection [T][stride]     float32, results replace what they are made of
//     -> convolution                       threads take (item, some channels)
//     -> queries and keys of length 1, rates of forgetting and learning       threads take rows
//     -> delta rule                        threads take (item, head, tile of 2 W value columns), longest items first; heads of
//                                          items of one token as a whole
//     -> norm and gate                     threads take rows
//
//   a state    [kernel - 1][channels] inputs of the convolution, then [heads][key size][value size], both float32
//
// A tile [key size][2 W] stays in the first-level cache while its item's tokens go over it one after the other. A column is
// in a lane of its own, and each sum over keys is in one order: a token's result is the same bits wherever its item is cut,
// in any batch, on any number of threads. States are read from an item's source and written to its destination, which no
// other item reads or writes; those of inner places are written on the way.
//
// One token alone is bound by reading and writing its state, so its heads are taken in whole rows, whose sums are the same: each
// column's go over even keys, odd ones, and both. Meanwhile the next head's rows come into the second level of the cache.
//
// Gated delta rule: Yang et al. 2024, arXiv:2412.06464.
#pragma once

#include <algorithm>

#include "gemm.h"
#include "parts.h"

namespace {

constexpr int64_t MAX_KERNEL = 16;   // of a convolution
constexpr int64_t MAX_KEY_SIZE = 256;
constexpr int64_t CHANNELS = 64;     // of a unit of work of a convolution
constexpr int64_t ROWS_AHEAD = 24;   // keys whose columns are asked for before they are read from a slot
constexpr int WIDE = W == 16 ? 8 : 4;  // vectors of columns that one token alone takes at a time: half of the registers are sums

// Rows of the step, and the slots of the state before and behind them; source below 0: zeros.
struct StateItem {
  int64_t row, rows, source, destination;
};

// A state behind the first `count` rows of an item, which has more.
struct InnerState {
  int64_t item, count, slot;
};

struct StateStep {
  int64_t num_items, num_inner;
  const StateItem* items;   // those with the most rows first
  const InnerState* inner;  // by item, then count
};

// A layer's states: [slots][size].
struct Slots {
  float* memory;
  int64_t size;
  float* of(int64_t slot) const { return memory + slot * size; }
};

struct Convolution {
  int64_t kernel, channels;
  const float* taps;  // [kernel][channels]
  const float* bias;  // [channels], or null
};

// Neighbouring channels whose inputs are neighbours in a row of the projection.
struct ChannelRun {
  int64_t channel, column, count;
};

// Where the parts of a value head lie: of a row of the projection its query, key, value and gate, of a row of rates b and a.
struct DeltaHead {
  int64_t query, key, value, gate, b, a;
};

struct Delta {
  Convolution convolution;
  int64_t num_runs, num_keys, heads, key_size, value_size;
  const ChannelRun* runs;
  const int64_t* keys;  // [num_keys][2]: where in a row the query and the key of each key head begin
  const DeltaHead* places;        // [heads]
  const float *speeds, *dt_bias;  // [heads]: exp(A_log), and what is added to a
  const float* norm;              // [value size]
  float eps;
  int64_t inputs() const { return (convolution.kernel - 1) * convolution.channels; }
};

// The phases before the result, a counter each.
enum DeltaPhase : int64_t { DELTA_CONVOLUTION, DELTA_RATES, DELTA_SCAN, DELTA_PHASES };

// Inner places of an item, which are taken in the order of their counts.
struct Inner {
  const InnerState *next, *end;
  int64_t item;
  Inner(const StateStep& s, int64_t item) : end(s.inner + s.num_inner), item(item) {
    next = std::lower_bound(s.inner, end, item, [](const InnerState& one, int64_t number) { return one.item < number; });
  }
  // The slot that takes the state behind the first `count` rows, below 0 for none.
  int64_t slot(int64_t count) {
    return next < end && next->item == item && next->count == count ? next++->slot : -1;
  }
};

// ---- convolution ---------------------------------------------------------------------------------------------------

// Up to W channels of an item from `channel` on: `read(row)` gives their inputs, `write(row, sums)` takes the results. K: size
// of the kernel, or 0 for that of `c`.
template <int K, class Read, class Write>
inline void convolve(const Convolution& c, const StateStep& s, const Slots& slots, int64_t index, int64_t channel, int64_t left,
                     Read read, Write write) {
  constexpr int64_t MOST = K ? K : MAX_KERNEL;
  const StateItem& item = s.items[index];
  const int64_t before = (K ? K : c.kernel) - 1, channels = c.channels;
  const float* from = item.source < 0 ? nullptr : slots.of(item.source) + channel;
  Inner inner(s, index);
  F past[MOST], taps[MOST], bias = c.bias ? load_some(c.bias + channel, left) : all(0.0f);
  for (int64_t j = 0; j <= before; j++) taps[j] = load_some(c.taps + j * channels + channel, left);
  for (int64_t j = 0; j < before; j++) past[j] = from ? load_some(from + j * channels, left) : all(0.0f);
  auto leave = [&](int64_t slot) {
    for (int64_t j = 0; j < before; j++) store_some(slots.of(slot) + channel + j * channels, past[j], left);
  };
  for (int64_t t = 0; t < item.rows; t++) {
    F now = read(item.row + t), sum = bias;
    for (int64_t j = 0; j < before; j++) sum = fma(past[j], taps[j], sum);
    sum = fma(now, taps[before], sum);
    for (int64_t j = 0; j + 1 < before; j++) past[j] = past[j + 1];
    past[before - 1] = now;
    write(item.row + t, sum);
    int64_t slot = inner.slot(t + 1);
    if (slot >= 0) leave(slot);
  }
  leave(item.destination);
}

// Calls `use` with the size of a kernel that its code is made for.
template <class Use>
inline void with_kernel(int64_t kernel, Use use) {
  if (kernel == 3) return use(std::integral_constant<int, 3>());
  if (kernel == 4) return use(std::integral_constant<int, 4>());
  use(std::integral_constant<int, 0>());
}

// out [T][channels] = c * convolution(b * u) of rows (b, c, u) of x [T][stride], `channels` of each.
template <class T>
inline void short_convolution(const Convolution& c, const StateStep& s, const Slots& slots, const float* x, int64_t stride,
                              T* out, Counter& counter) {
  int64_t n = c.channels, units = (n + CHANNELS - 1) / CHANNELS;
  with_kernel(c.kernel, [&](auto size) {
    for (int64_t unit; (unit = counter.take(1)) < units * s.num_items;) {
      int64_t begin = unit % units * CHANNELS, end = std::min(begin + CHANNELS, n);
      for (int64_t i = begin; i < end; i += W)
        convolve<decltype(size)::value>(
            c, s, slots, unit / units, i, n - i,
            [&](int64_t row) {
              const float* at = x + row * stride + i;
              return mul(load_some(at, n - i), load_some(at + 2 * n, n - i));
            },
            [&](int64_t row, F sum) {
              store_some(out + row * n + i, mul(load_some(x + row * stride + n + i, n - i), sum), n - i);
            });
    }
  });
}

// ---- gated delta rule ----------------------------------------------------------------------------------------------

// Channels of x [T][stride] = silu(convolution of them).
inline void delta_convolution(const Delta& d, const StateStep& s, const Slots& slots, float* x, int64_t stride, Counter& counter) {
  with_kernel(d.convolution.kernel, [&](auto size) {
    for (int64_t unit; (unit = counter.take(1)) < d.num_runs * s.num_items;) {
      const ChannelRun& run = d.runs[unit % d.num_runs];
      for (int64_t i = 0; i < run.count; i += W) {
        float* at = x + run.column + i;
        int64_t left = run.count - i;
        convolve<decltype(size)::value>(
            d.convolution, s, slots, unit / d.num_runs, run.channel + i, left,
            [&](int64_t row) { return load_some(at + row * stride, left); },
            [&](int64_t row, F sum) { store_some(at + row * stride, activate(sum, SILU), left); });
      }
    }
  });
}

// x [n] times `scale` / its length.
inline void set_length(float* x, int64_t n, float scale) {
  F squares = all(0.0f);
  for (int64_t i = 0; i < n; i += W) {
    F a = load_some(x + i, n - i);
    squares = fma(a, a, squares);
  }
  F factor = all(scale / std::sqrt(sum_of(squares) + 1e-6f));
  for (int64_t i = 0; i < n; i += W) store_some(x + i, mul(load_some(x + i, n - i), factor), n - i);
}

// Queries and keys of a row have length 1, queries times the factor of results; b becomes what is learnt, a what is kept.
inline void delta_rates(const Delta& d, float* row, float* rates) {
  float scale = 1.0f / std::sqrt((float)d.key_size);
  for (int64_t h = 0; h < d.num_keys; h++) {
    set_length(row + d.keys[2 * h], d.key_size, scale);
    set_length(row + d.keys[2 * h + 1], d.key_size, 1.0f);
  }
  for (int64_t h = 0; h < d.heads; h++) {
    float &b = rates[d.places[h].b], &a = rates[d.places[h].a], x = a + d.dt_bias[h];
    float softplus = std::max(x, 0.0f) + std::log1p(std::exp(-std::fabs(x)));
    b = 1.0f / (1.0f + std::exp(-b));
    a = std::exp(-d.speeds[h] * softplus);
  }
}

// Sums over the keys of two vectors of columns: those of even keys, those of odd ones, then both.
struct KeySums {
  F of[2][2] = {{all(0.0f), all(0.0f)}, {all(0.0f), all(0.0f)}};
  void add_products(int64_t odd, F factor, F one, F two) {
    of[odd][0] = fma(factor, one, of[odd][0]), of[odd][1] = fma(factor, two, of[odd][1]);
  }
  F sum(int column) const { return add(of[0][column], of[1][column]); }
};

// A state of [key size] rows of 2 W columns.
struct Columns {
  float* at;
  int64_t stride;
  float* row(int64_t key) const { return at + key * stride; }
};

// key^T S of a token, before it is forgotten.
inline KeySums remembered(const Columns& state, int64_t n, const float* key) {
  KeySums sums;
  int64_t i = 0;
  for (; i + 2 <= n; i += 2) {
    // Rows of a slot are too far from each other for the processor to ask for them by itself.
    for (int64_t k = i + ROWS_AHEAD; k < i + ROWS_AHEAD + 2; k++) soon(state.row(k), 0), soon(state.row(k), 64);
    sums.add_products(0, all(key[i]), load(state.row(i)), load(state.row(i) + W));
    sums.add_products(1, all(key[i + 1]), load(state.row(i + 1)), load(state.row(i + 1) + W));
  }
  if (i < n) sums.add_products(0, all(key[i]), load(state.row(i)), load(state.row(i) + W));
  return sums;
}

// to = keep from + key learnt^T; returns query^T to. MORE: `following` becomes that of the next token's key.
template <bool MORE>
inline KeySums learn(const Columns& from, const Columns& to, int64_t n, F keep, F one, F two, const float* key, const float* query,
                     const float* next_key, KeySums& following) {
  KeySums out, next;
  auto step = [&](int64_t i, int64_t odd) {
    F factor = all(key[i]);
    F a = fma(factor, one, mul(keep, load(from.row(i)))), b = fma(factor, two, mul(keep, load(from.row(i) + W)));
    store(to.row(i), a), store(to.row(i) + W, b);
    out.add_products(odd, all(query[i]), a, b);
    if (MORE) next.add_products(odd, all(next_key[i]), a, b);
  };
  int64_t i = 0;
  for (; i + 2 <= n; i += 2) step(i, 0), step(i + 1, 1);
  if (i < n) step(i, 0);
  following = next;
  return out;
}

// Rows of a tile, `left` columns of each, between memory and the tile.
inline void copy_rows(const Columns& to, const Columns& from, int64_t n, int64_t left) {
  for (int64_t i = 0; i < n; i++) {
    store_some(to.row(i), load_some(from.row(i), left), left);
    if (left > W) store_some(to.row(i) + W, load_some(from.row(i) + W, left - W), left - W);
  }
}

// A tile of value columns from `first` on of an item's head. Results replace the values.
inline void scan_tile(const Delta& d, const StateStep& s, const Slots& slots, int64_t index, int64_t head, int64_t first, float* x,
                      int64_t stride, const float* rates) {
  alignas(64) float memory[MAX_KEY_SIZE * 2 * W];
  const StateItem& item = s.items[index];
  const DeltaHead& at = d.places[head];
  const int64_t n = d.key_size, left = std::min<int64_t>(2 * W, d.value_size - first);
  const Columns tile = {memory, 2 * W};
  auto in_slot = [&](int64_t slot) {
    return Columns{slots.of(slot) + d.inputs() + head * n * d.value_size + first, d.value_size};
  };
  // Whole tiles are read from their source by the first token, and written to their destination by the last.
  const bool whole = left == 2 * W;
  Columns state = tile;
  if (item.source < 0 || !whole) memset(memory, 0, n * 2 * W * sizeof(float));
  if (item.source >= 0 && whole) state = in_slot(item.source);
  if (item.source >= 0 && !whole) copy_rows(tile, in_slot(item.source), n, left);
  Inner inner(s, index);
  float* row = x + item.row * stride;
  const float* of_row = rates + item.row * 2 * d.heads;
  KeySums known = remembered(state, n, row + at.key);
  for (int64_t t = 0; t < item.rows; t++, row += stride, of_row += 2 * d.heads) {
    const bool last = t + 1 == item.rows;
    float* value = row + at.value + first;
    F keep = all(of_row[at.a]), rate = all(of_row[at.b]);
    F one = load_some(value, left), two = left > W ? load_some(value + W, left - W) : all(0.0f);
    one = mul(rate, fnma(keep, known.sum(0), one)), two = mul(rate, fnma(keep, known.sum(1), two));
    const float *key = row + at.key, *query = row + at.query;
    KeySums out;
    if (last) {
      out = learn<false>(state, whole ? in_slot(item.destination) : tile, n, keep, one, two, key, query, nullptr, known);
    } else {
      out = learn<true>(state, tile, n, keep, one, two, key, query, key + stride, known);
    }
    state = tile;
    store_some(value, out.sum(0), left);
    if (left > W) store_some(value + W, out.sum(1), left - W);
    int64_t slot = inner.slot(t + 1);
    if (slot >= 0) copy_rows(in_slot(slot), tile, n, left);
  }
  if (!whole) copy_rows(in_slot(item.destination), tile, n, left);
}

// The state that comes after the one at work: rows of it are asked for as its own are gone through, twice for each key.
struct NextState {
  const char* at;
  int64_t bytes;  // asked for at a time
  void some() {
    for (int64_t i = 0; i < bytes; i += 64) soon_in_l2(at, i);
    at += bytes;
  }
};

// WIDE vectors of columns of a head, for one token: from `from` to `to`, which may be the same. The result replaces `value`.
inline void scan_one(const float* from, float* to, int64_t stride, int64_t n, F keep, F rate, const float* key, const float* query,
                     float* value, NextState& next) {
  F sums[2][WIDE], learnt[WIDE];
  auto clear = [&] {
    for (int v = 0; v < WIDE; v++) sums[0][v] = sums[1][v] = all(0.0f);
  };
  auto known = [&](int64_t i, int odd) {
    F factor = all(key[i]);
    for (int v = 0; v < WIDE; v++) sums[odd][v] = fma(factor, load(from + i * stride + v * W), sums[odd][v]);
    next.some();
  };
  auto learn = [&](int64_t i, int odd) {
    F factor = all(key[i]), asked = all(query[i]);
    for (int v = 0; v < WIDE; v++) {
      F a = fma(factor, learnt[v], mul(keep, load(from + i * stride + v * W)));
      store(to + i * stride + v * W, a);
      sums[odd][v] = fma(asked, a, sums[odd][v]);
    }
    next.some();
  };
  clear();
  int64_t i = 0;
  for (; i + 2 <= n; i += 2) known(i, 0), known(i + 1, 1);
  if (i < n) known(i, 0);
  for (int v = 0; v < WIDE; v++) learnt[v] = mul(rate, fnma(keep, add(sums[0][v], sums[1][v]), load(value + v * W)));
  clear();
  for (i = 0; i + 2 <= n; i += 2) learn(i, 0), learn(i + 1, 1);
  if (i < n) learn(i, 0);
  for (int v = 0; v < WIDE; v++) store(value + v * W, add(sums[0][v], sums[1][v]));
}

// Whether an item's state is read and written by one token, in whole vectors.
inline bool takes_heads(const Delta& d, const StateItem& item) {
  return item.rows == 1 && item.source >= 0 && d.value_size % (WIDE * W) == 0;
}

inline const float* matrix_of(const Delta& d, const Slots& slots, int64_t slot, int64_t head) {
  return slots.of(slot) + d.inputs() + head * d.key_size * d.value_size;
}

// A head of an item of one token, and of what is read behind it.
inline void scan_head(const Delta& d, const StateStep& s, const Slots& slots, int64_t index, int64_t head, const float* following,
                      float* x, int64_t stride, const float* rates) {
  const StateItem& item = s.items[index];
  const DeltaHead& at = d.places[head];
  float* row = x + item.row * stride;
  const float* of_row = rates + item.row * 2 * d.heads;
  const float* from = matrix_of(d, slots, item.source, head);
  float* to = (float*)matrix_of(d, slots, item.destination, head);
  NextState next = {(const char*)following, following ? WIDE * W * 2 : 0};
  for (int64_t first = 0; first < d.value_size; first += WIDE * W)
    scan_one(from + first, to + first, d.value_size, d.key_size, all(of_row[at.a]), all(of_row[at.b]), row + at.key, row + at.query,
             row + at.value + first, next);
  Inner inner(s, index);
  int64_t slot = inner.slot(1);
  if (slot >= 0) memcpy((float*)matrix_of(d, slots, slot, head), to, d.key_size * d.value_size * sizeof(float));
}

inline void delta_scan(const Delta& d, const StateStep& s, const Slots& slots, float* x, int64_t stride, const float* rates,
                       Counter& counter, int64_t threads) {
  // Items with the most rows come first, so those of one token are the last.
  int64_t tiles = (d.value_size + 2 * W - 1) / (2 * W), of_item = d.heads * tiles, longer = s.num_items;
  while (longer > 0 && takes_heads(d, s.items[longer - 1])) longer--;
  // Tiles of a head are neighbours in memory: one thread takes them where there are enough heads for all.
  int64_t some = s.num_items * d.heads >= 8 * threads ? tiles : 1;
  int64_t of_longer = longer * of_item / some, units = of_longer + (s.num_items - longer) * d.heads;
  for (int64_t unit = counter.take(1); unit < units;) {
    int64_t following = counter.take(1);  // early: its state is asked for while this one is computed
    if (unit < of_longer) {
      for (int64_t i = unit * some; i < (unit + 1) * some; i++)
        scan_tile(d, s, slots, i / of_item, i % of_item / tiles, i % tiles * 2 * W, x, stride, rates);
    } else {
      int64_t at = unit - of_longer, then = following - of_longer;
      const float* rows = following < units ? matrix_of(d, slots, s.items[longer + then / d.heads].source, then % d.heads) : nullptr;
      scan_head(d, s, slots, longer + at / d.heads, at % d.heads, rows, x, stride, rates);
    }
    unit = following;
  }
}

// The phases before the result, which every thread of the team calls: in x [rows][stride] results of the rule replace values.
// rates [rows][2 heads].
inline void delta_rule(const Delta& d, const StateStep& s, const Slots& slots, float* x, int64_t stride, float* rates,
                       int64_t rows, Counter* counters, Team& team) {
  delta_convolution(d, s, slots, x, stride, counters[DELTA_CONVOLUTION]);
  team.barrier();
  int64_t some = rows > 64 ? 8 : 1;
  for (int64_t i; (i = counters[DELTA_RATES].take(some)) < rows;)
    for (int64_t t = i; t < rows && t < i + some; t++) delta_rates(d, x + t * stride, rates + t * 2 * d.heads);
  team.barrier();
  delta_scan(d, s, slots, x, stride, rates, counters[DELTA_SCAN], team.size);
  team.barrier();
}

// out [heads][value size] = rms(result) * norm * silu(gate) of a row.
template <class T>
inline void delta_result(const Delta& d, const float* row, T* out) {
  int64_t n = d.value_size;
  for (int64_t h = 0; h < d.heads; h++, out += n) {
    const float *result = row + d.places[h].value, *gate = row + d.places[h].gate;
    F squares = all(0.0f);
    for (int64_t i = 0; i < n; i += W) {
      F a = load_some(result + i, n - i);
      squares = fma(a, a, squares);
    }
    F factor = all(1.0f / std::sqrt(sum_of(squares) / (float)n + d.eps));
    for (int64_t i = 0; i < n; i += W) {
      F a = mul(mul(load_some(result + i, n - i), factor), load_some(d.norm + i, n - i));
      store_some(out + i, mul(a, activate(load_some(gate + i, n - i), SILU)), n - i);
    }
  }
}

}  // namespace

// As cohort_cpu_scan.cpp defines them: `delta_rule`, and `short_convolution` of two dtypes.
SHARED void scan_rows(const Delta& d, const StateStep& s, const Slots& slots, float* x, int64_t stride, float* rates, int64_t rows,
                      Counter* counters, Team& team);
SHARED void convolve_to_floats(const Convolution& c, const StateStep& s, const Slots& slots, const float* x, int64_t stride,
                               float* out, Counter& counter);
SHARED void convolve_to_bf16(const Convolution& c, const StateStep& s, const Slots& slots, const float* x, int64_t stride,
                             uint16_t* out, Counter& counter);

namespace {

inline void convolve_to(const Convolution& c, const StateStep& s, const Slots& slots, const float* x, int64_t stride, float* out,
                        Counter& counter) {
  convolve_to_floats(c, s, slots, x, stride, out, counter);
}
inline void convolve_to(const Convolution& c, const StateStep& s, const Slots& slots, const float* x, int64_t stride,
                        uint16_t* out, Counter& counter) {
  convolve_to_bf16(c, s, slots, x, stride, out, counter);
}

}  // namespace
