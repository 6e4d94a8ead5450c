// Encoders: all layers of a step of whole texts in one call, without padding; each text attends to itself in both directions.
//
//   x = embed_norm(embed_scale * words + positions + types)
//   each layer: x = sum_norm(x + out_norm(attention(in_norm(x)))); the MLP likewise; a model has some of these norms
//   x = final_norm(x); then each text's first row, its last one or the mean of all, or all rows
//
// Threads take groups of texts of about a hundred rows, whose values stay in a core's cache, and compute all layers of a group alone:
// no thread waits for another one before the end. Where there are too few groups for that, all threads share the rows, panels and
// heads of one group, which is the whole step, and wait for each other after each phase. A row's sums have the same order either
// way, and a text's attention reads its own rows alone: a vector's bits depend neither on other texts nor on threads.
//
// Attention: for some rows of queries all scores, their softmax, then the sum of values, in bf16 where the products are no wider.
// Tiles of keys begin at multiples of TILE; keys that a row does not see add exactly 0.
#pragma once

#include <omp.h>

#include <algorithm>
#include <new>
#include <type_traits>

#include "attention.h"  // Scratch
#include "gemm.h"
#include "rows.h"

namespace {

enum EncoderActivation : int64_t { ENCODER_SILU = 0, ENCODER_GELU_TANH = 1, ENCODER_RELU = 2, ENCODER_GELU = 3 };
enum Pooling : int64_t { FIRST_ROW = 0, LAST_ROW = 1, MEAN_OF_ROWS = 2 };

// LayerNorm, or RMS norm; `weight` null: none.
struct EncoderNorm {
  const float *weight, *bias;
  int64_t rms;
  float eps;
};

struct EncoderLayer {
  const Linear *qkv, *out, *up, *down;  // `up` is GATED where the MLP is
  EncoderNorm attention_in, attention_out, attention_sum, mlp_in, mlp_out, mlp_sum;
  EncoderNorm q_norm, k_norm;  // of each head
  const float* rotary;         // [positions][2][rotary_dim / 2] cosines and sines, or null
  int64_t rotary_dim;
  int64_t reach;               // the most positions between two tokens that see each other; below 0: all do
};

struct EncoderModel {
  int64_t kind, hidden, inner, heads, kv_heads, head_dim, activation, num_layers;
  const EncoderLayer* layers;
  const void* words;       // [vocabulary][hidden], FP32, BF16 or FP16 as `word_kind` says
  const float* positions;  // [positions][hidden], or null
  const float* types;      // [types][hidden], or null
  int64_t word_kind, first_position;
  EncoderNorm embed_norm, final_norm;
  float score_scale, embed_scale;
};

struct EncoderCall {
  int64_t texts, threads;
  const int64_t* starts;    // [texts + 1]: rows of each text
  const int32_t *ids, *types;  // [rows]
  const int64_t* poolings;  // [texts]; null: all rows
  float* out;               // [texts][hidden], or [rows][hidden]
};

constexpr int64_t GROUP_ROWS = ROWS, FEWEST_ROWS = 56;  // of a group of several texts
constexpr int64_t GROUPS_OF_THREAD = 16;  // of smaller ones, where a step has few rows
constexpr int64_t MOST_THREADS = 128;   // that take groups
constexpr float MOST_IMBALANCE = 1.1f;  // of the threads' rows: the largest number, divided by the mean
constexpr int64_t QUERY_CHUNK = 512;    // of a text, whose attention is one thread's
constexpr int64_t MOST_ROWS = 6;        // of queries at a time: of `multiply` in attention_tiles.h

struct FloatHeads : Floats {
  using Stored = float;
  static F power(F x) { return exp2f(x); }
};
#if defined(__AVX512BF16__)
struct NarrowHeads : Pairs {
  using Stored = uint16_t;
  // 2^x for x of at most 0, relative error below 8e-5, where bf16 has one of 2e-3: 0 below 2^-126; NaN stays NaN.
  static F power(F x) {
    x = larger(all(-200.0f), x);
    F n = nearest(x), f = sub(x, n);
    F p = fma(all(5.5171664e-2f), f, all(2.4261112e-1f));
    p = fma(p, f, all(6.9326099e-1f));
    p = fma(p, f, all(9.9992807e-1f));
    return times_pow2(p, n);
  }
};
#else
using NarrowHeads = FloatHeads;
#endif

inline F encoder_activation(F x, int64_t how) {
  if (how == ENCODER_GELU) return gelu(x);
  return how == ENCODER_RELU ? larger(all(0.0f), x) : activate(x, how);
}

inline void normalize(const EncoderNorm& norm, float* out, const float* x, int64_t n) {
  norm.rms ? rms_norm(out, x, norm.weight, n, norm.eps) : layer_norm(out, x, norm.weight, norm.bias, n, norm.eps);
}

inline int64_t rounded_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// A group of texts, and what its threads share.
template <class Op, class Heads>
struct Encode {
  using Word = typename Op::Word;
  using Scale = typename Op::Scale;
  using T = typename Heads::Stored;
  using Unit = typename Heads::Unit;
  const EncoderModel& m;
  const EncoderCall& c;
  Team& team;
  const int64_t* texts;  // [num_texts], which of the call's
  int64_t num_texts;
  int64_t rows = 0;
  Counter* counters;
  int64_t *begins, *units;  // [num_texts + 1]: first row, and first unit of attention, of each text
  float *x, *sublayer, *wide, *mixed;
  T* qkv;
  Word *words, *inner_words;
  Scale *scales, *inner_scales;
  float* inner;

  enum : int64_t { NORM, QKV, HEADS, ATTENTION, MIXED, OUT, MLP, UP, INNER, DOWN, SUM, PHASES };
  enum : int64_t { EMBED, POOL, FIRST_LAYER };

  int64_t qkv_size() const { return (m.heads + 2 * m.kv_heads) * m.head_dim; }
  int64_t mixed_size() const { return m.heads * m.head_dim; }
  int64_t num_counters() const { return FIRST_LAYER + PHASES * m.num_layers; }
  int64_t length_of(int64_t text) const { return c.starts[texts[text] + 1] - c.starts[texts[text]]; }
  static bool adds_normed(const EncoderLayer& layer) { return layer.attention_out.weight || layer.mlp_out.weight; }
  // Whether queries and keys are changed before they attend: then they are float32 until that is done.
  static bool turns(const EncoderLayer& layer) { return layer.rotary || layer.q_norm.weight; }
  // Whether a panel's columns are whole blocks of what `down` multiplies: then they are converted as they are made.
  static bool converts_inner(const Linear& up) { return !Op::BLOCKS || up.per_panel() % BLOCK == 0; }

  Encode(const EncoderModel& m, const EncoderCall& c, Team& team, const int64_t* texts, int64_t num_texts)
      : m(m), c(c), team(team), texts(texts), num_texts(num_texts) {
    for (int64_t i = 0; i < num_texts; i++) rows += length_of(i);
  }

  static int64_t steps_of(int64_t columns) {
    return Op::BLOCKS ? rounded_up(columns, BLOCK) / 4 : (columns + Op::DEPTH - 1) / Op::DEPTH;
  }
  static int64_t blocks_of(int64_t columns) { return Op::BLOCKS ? (columns + BLOCK - 1) / BLOCK : 0; }

  void place(Scratch& memory) {
    bool normed = false, turned = false, apart = false;
    for (int64_t i = 0; i < m.num_layers; i++) {
      const EncoderLayer& layer = m.layers[i];
      normed |= adds_normed(layer), turned |= turns(layer), apart |= !converts_inner(*layer.up);
    }
    int64_t widest = std::max(m.hidden, mixed_size());
    counters = memory.take<Counter>(num_counters());
    begins = memory.take<int64_t>(num_texts + 1);
    units = memory.take<int64_t>(num_texts + 1);
    x = memory.take<float>(rows * m.hidden);
    sublayer = memory.take<float>(normed ? rows * m.hidden : 0);
    wide = memory.take<float>(turned ? rows * qkv_size() : 0);
    mixed = memory.take<float>(rows * mixed_size());
    qkv = memory.take<T>(rows * qkv_size() + 32);
    words = memory.take<Word>(rows * steps_of(widest) + 16);
    scales = memory.take<Scale>(rows * blocks_of(widest));
    inner_words = memory.take<Word>(rows * steps_of(m.inner) + 16);
    inner_scales = memory.take<Scale>(rows * blocks_of(m.inner));
    inner = memory.take<float>(apart ? rows * m.inner : 0);
  }

  // What has to be there before the threads begin. False where there is no memory.
  bool prepare(Scratch& memory) {
    Scratch none;  // counts alone
    place(none);
    if (!memory.reserve((size_t)none.next)) return false;
    place(memory);
    for (int64_t i = 0; i < num_counters(); i++) new (counters + i) Counter;
    begins[0] = units[0] = 0;
    for (int64_t i = 0; i < num_texts; i++) {
      begins[i + 1] = begins[i] + length_of(i);
      units[i + 1] = units[i] + (length_of(i) + QUERY_CHUNK - 1) / QUERY_CHUNK * m.kv_heads;
    }
    return true;
  }

  // Floats of a thread's own memory: a row, what `spare` gives to attention, and pointers to a tile's rows.
  int64_t row_floats() const { return rounded_up(std::max({m.hidden, mixed_size(), m.inner}), 16); }
  int64_t padded() const { return rounded_up(m.head_dim, W); }
  int64_t query_units() const { return rounded_up((m.head_dim + Heads::DEPTH - 1) / Heads::DEPTH, 16); }
  int64_t most_keys() const {
    int64_t most = 0;
    for (int64_t i = 0; i < num_texts; i++) most = std::max(most, length_of(i));
    return rounded_up(most, TILE);
  }
  struct Own {
    float *line, *scores, *sums;
    Unit *queries, *keys, *values, *weights;
  };
  Own own(Scratch& memory) const {
    int64_t keys = most_keys(), depth = (m.head_dim + Heads::DEPTH - 1) / Heads::DEPTH;
    Own o;
    o.line = memory.take<float>(row_floats());
    o.scores = memory.take<float>(MOST_ROWS * keys);
    o.sums = memory.take<float>(MOST_ROWS * padded());
    o.queries = memory.take<Unit>(MOST_ROWS * query_units() + 16);
    o.keys = memory.take<Unit>(keys * depth + 16);
    o.values = memory.take<Unit>(keys / Heads::DEPTH * padded() + 16);
    o.weights = memory.take<Unit>(MOST_ROWS * keys / Heads::DEPTH + 16);
    return o;
  }
  size_t own_bytes() const {
    Scratch none;
    own(none);
    return (size_t)none.next;
  }

  // Threads take rows, `some` at a time; `each` is called for each.
  template <class Each>
  void each_row(Counter& counter, Each each) {
    int64_t some = team.size == 1 ? rows : rows > 64 ? 8 : 1;
    for (int64_t i; (i = counter.take(some)) < rows;)
      for (int64_t t = i; t < rows && t < i + some; t++) each(t);
    team.barrier();
  }

  void convert(const Linear& w, int64_t t, const float* row) {
    Op::convert(words + t * w.steps(), scales + t * w.blocks(), row, w.columns);
  }

  // `give(row, some, column, left, buffer, one_bias, two_bias)` takes a tile's results [some][NR], to which the biases of the two halves
  // are to be added; `left` columns of w from `column` on. GATED: W of gate and W of up. There is room for whole fours of rows.
  template <class Give>
  void product_tiles(const Linear& w, const Left<Op>& a, Counter& counter, Give give) {
    const Panels<Op> each(w);
    int64_t panels = w.panels(), chunk = rows_at_once<Op>(rows), chunks = (rows + chunk - 1) / chunk;
    alignas(64) float buffer[(Op::MR + 3) * NR];
    memset(buffer, 0, sizeof buffer);
    int64_t unit = counter.take(1);
    while (unit < chunks * panels) {
      int64_t following = counter.take(1);
      int64_t begin = unit / panels * chunk, count = std::min(rows - begin, chunk), p = unit % panels;
      int64_t next = following < chunks * panels ? following % panels : p, first = p * w.per_panel();
      int64_t left = w.outputs() - first;
      F one_bias = all(0.0f), two_bias = one_bias;
      if (w.bias) {
        one_bias = load_some(w.bias + first, left);
        if (w.form == GATED) two_bias = load_some(w.bias + w.outputs() + first, left);
        else if (left > W) two_bias = load_some(w.bias + first + W, left - W);
      }
      each.multiply(a, begin, count, p, each.at(next), asks_ahead<Op>(count), buffer, false, [&](int64_t row, int64_t some) {
        give(row, some, first, left, buffer, one_bias, two_bias);
      });
      unit = following;
    }
    team.barrier();
  }
  // The same row by row, with the biases: `give(row, column, left, one, two)`.
  template <class Give>
  void product(const Linear& w, const Left<Op>& a, Counter& counter, Give give) {
    product_tiles(w, a, counter, [&](int64_t row, int64_t some, int64_t column, int64_t left, const float* buffer, F one, F two) {
      for (int64_t r = 0; r < some; r++)
        give(row + r, column, left, add(load(buffer + r * NR), one), add(load(buffer + r * NR + W), two));
    });
  }
  Left<Op> operand(const Linear& w) const { return {words, scales, w.steps(), w.blocks()}; }

  // Stores up to 2 W values.
  template <class To>
  static void put(To* to, int64_t left, F one, F two) {
    store_some(to, one, left);
    if (left > W) store_some(to + W, two, left - W);
  }

  // x, or what is normed before it is added to x, of a product.
  void add_product(const Linear& w, const Left<Op>& a, const EncoderNorm& norm, Counter& counter) {
    product(w, a, counter, [&](int64_t t, int64_t column, int64_t left, F one, F two) {
      float* to = (norm.weight ? sublayer : x) + t * m.hidden + column;
      if (!norm.weight) {
        one = add(load_some(to, left), one);
        if (left > W) two = add(load_some(to + W, left - W), two);
      }
      put(to, left, one, two);
    });
  }

  // The end of a sublayer for row t, whose norms are `out` and `sum`, and what the next one multiplies by w behind its norm `in`.
  void pass_on(int64_t t, const EncoderNorm* out, const EncoderNorm* sum, const EncoderNorm* in, const Linear* w, float* line) {
    float* row = x + t * m.hidden;
    if (out && out->weight) {
      normalize(*out, line, sublayer + t * m.hidden, m.hidden);
      for (int64_t i = 0; i < m.hidden; i += W)
        store_some(row + i, add(load_some(row + i, m.hidden - i), load_some(line + i, m.hidden - i)), m.hidden - i);
    }
    if (sum && sum->weight) normalize(*sum, row, row, m.hidden);
    if (!w) return;
    if (in->weight) normalize(*in, line, row, m.hidden);
    convert(*w, t, in->weight ? line : row);
  }

  template <class Stored>
  void embed(float* to, const Stored* word, int64_t position, int64_t type) {
    const float* place = m.positions ? m.positions + (m.first_position + position) * m.hidden : nullptr;
    const float* kind = m.types ? m.types + type * m.hidden : nullptr;
    for (int64_t i = 0; i < m.hidden; i += W) {
      int64_t left = m.hidden - i;
      F sum = mul(load_some(word + i, left), all(m.embed_scale));
      if (place) sum = add(sum, load_some(place + i, left));
      if (kind) sum = add(sum, load_some(kind + i, left));
      store_some(to + i, sum, left);
    }
    if (m.embed_norm.weight) normalize(m.embed_norm, to, to, m.hidden);
  }
  void embed_row(int64_t text, int64_t t, float* line) {
    int64_t position = t - begins[text], at = c.starts[texts[text]] + position, id = c.ids[at];
    float* to = x + t * m.hidden;
    if (m.word_kind == BF16) embed(to, (const uint16_t*)m.words + id * m.hidden, position, c.types[at]);
    else if (m.word_kind == FP16) embed(to, (const Half*)m.words + id * m.hidden, position, c.types[at]);
    else embed(to, (const float*)m.words + id * m.hidden, position, c.types[at]);
    if (m.num_layers) pass_on(t, nullptr, nullptr, &m.layers[0].attention_in, m.layers[0].qkv, line);
  }

  int64_t text_of(int64_t row) const { return std::upper_bound(begins, begins + num_texts, row) - begins - 1; }

  // Row t of `qkv`: heads of queries and keys normed and rotated.
  void turn(const EncoderLayer& layer, int64_t t) {
    float* row = wide + t * qkv_size();
    const float* table = layer.rotary ? layer.rotary + (t - begins[text_of(t)]) * layer.rotary_dim : nullptr;
    for (int64_t h = 0; h < m.heads + m.kv_heads; h++) {
      float* head = row + h * m.head_dim;
      const EncoderNorm& norm = h < m.heads ? layer.q_norm : layer.k_norm;
      if (norm.weight) normalize(norm, head, head, m.head_dim);
      if (table) rotate(head, table, layer.rotary_dim);
    }
    T* to = qkv + t * qkv_size();
    for (int64_t i = 0; i < qkv_size(); i += W) store_some(to + i, load_some(row + i, qkv_size() - i), qkv_size() - i);
  }

  // The weights of a row's keys from `low` to `high` of the `keys` scores, which are in place; returns 1 / their sum.
  float soften(float* scores, Unit* weights, int64_t low, int64_t high, int64_t keys) {
    float factor = m.score_scale * LOG2E;
    F top = all(-INFINITY);
    for (int64_t i = 0; i < keys; i += W) {
      F s = load(scores + i);
      if (i < low || i + W > high) {
        s = keep(s, seen_lanes(low - i, high - i), all(-INFINITY));
        store(scores + i, s);
      }
      top = larger(top, s);
    }
    F scale = all(factor), base = all(max_of(top) * factor), sum = all(0.0f);
    for (int64_t i = 0; i < keys; i += W)
      sum = add(sum, Heads::weights(weights, i, Heads::power(sub(mul(load(scores + i), scale), base))));
    return 1.0f / sum_of(sum);
  }
  // Bits of the lanes from `low` to `high` of a vector.
  static uint64_t seen_lanes(int64_t low, int64_t high) {
    low = std::min<int64_t>(std::max<int64_t>(low, 0), W), high = std::min<int64_t>(std::max<int64_t>(high, 0), W);
    return low >= high ? 0 : ((1ull << high) - 1) & ~((1ull << low) - 1);
  }

  // Values [some][NR], `left` of each row, as words and scales of rows that lie `steps` and `blocks` apart. Those of whole blocks are
  // converted together: several rows' largest values are found at once.
  static void convert_tile(Word* to, Scale* to_scales, int64_t steps, int64_t blocks, int64_t some, int64_t left, const float* buffer) {
    if constexpr (Op::BLOCKS && NR == BLOCK) {
      if (left >= NR) {
        constexpr int64_t STEPS = NR / Op::DEPTH;
        alignas(64) Word together[(Op::MR + 3) * STEPS];
        Scale their_scales[Op::MR + 3];
        Op::convert(together, their_scales, buffer, rounded_up(some, 4) * NR);
        for (int64_t r = 0; r < some; r++) {
          memcpy(to + r * steps, together + r * STEPS, STEPS * sizeof(Word));
          to_scales[r * blocks] = their_scales[r];
        }
        return;
      }
    }
    for (int64_t r = 0; r < some; r++) Op::convert(to + r * steps, to_scales + r * blocks, buffer + r * NR, left);
  }

  // Attention of a chunk of a text's queries with the head of keys, for all heads of queries that share it.
  void attend(const EncoderLayer& layer, int64_t text, int64_t kv_head, int64_t chunk, const Own& o) {
    int64_t length = begins[text + 1] - begins[text], group = m.heads / m.kv_heads, size = m.head_dim, row_size = qkv_size();
    int64_t reach = layer.reach < 0 ? length : layer.reach, first = chunk * QUERY_CHUNK, last = std::min(length, first + QUERY_CHUNK);
    int64_t begin = std::max<int64_t>(0, first - reach) / TILE * TILE, end = std::min(length, last + reach);
    int64_t depth = (size + Heads::DEPTH - 1) / Heads::DEPTH, wide_size = padded(), stride = most_keys();
    const T* base = qkv + begins[text] * row_size;
    const T *keys = base + (m.heads + kv_head) * size, *values = base + (m.heads + m.kv_heads + kv_head) * size;
    for (int64_t tile = begin; tile < end; tile += TILE) {
      const T *key_rows[TILE], *value_rows[TILE];
      int64_t count = std::min(end - tile, TILE);
      for (int64_t i = 0; i < TILE; i++) {
        key_rows[i] = i < count ? keys + (tile + i) * row_size : nullptr;
        value_rows[i] = i < count ? values + (tile + i) * row_size : nullptr;
      }
      Heads::pack_keys(o.keys + (tile - begin) * depth, key_rows, rounded_up(count, W), size);
      Heads::pack_values(o.values + (tile - begin) / Heads::DEPTH * wide_size, value_rows, rounded_up(count, W), size, wide_size);
    }
    for (int64_t h = kv_head * group; h < (kv_head + 1) * group; h++)
      for (int64_t row = first, count; row < last; row += count) {
        int64_t left = last - row;
        count = left >= 6 ? 6 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
        int64_t from = std::max<int64_t>(0, row - reach) / TILE * TILE, until = std::min(length, row + count + reach);
        int64_t seen = rounded_up(until - from, W);
        for (int64_t r = 0; r < count; r++)
          Heads::row(o.queries + r * query_units(), base + (row + r) * row_size + h * size, size);
        for (int64_t tile = from; tile < until; tile += TILE)
          multiply<Heads>(count, o.queries, query_units(), o.keys + (tile - begin) * depth, TILE, o.scores + tile - from, stride, depth,
                          (std::min(until - tile, TILE) + W - 1) / W, nullptr);
        float factors[MOST_ROWS];
        for (int64_t r = 0; r < count; r++) {
          int64_t low = std::max<int64_t>(0, row + r - reach) - from, high = std::min(length, row + r + reach + 1) - from;
          factors[r] = soften(o.scores + r * stride, o.weights + r * (stride / Heads::DEPTH), low, high, seen);
        }
        multiply<Heads>(count, o.weights, stride / Heads::DEPTH, o.values + (from - begin) / Heads::DEPTH * wide_size, wide_size, o.sums,
                        wide_size, seen / Heads::DEPTH, wide_size / W, nullptr);
        for (int64_t r = 0; r < count; r++) {
          float* to = mixed + (begins[text] + row + r) * mixed_size() + h * size;
          for (int64_t i = 0; i < size; i += W)
            store_some(to + i, mul(load(o.sums + r * wide_size + i), all(factors[r])), size - i);
        }
      }
  }

  void attend_all(const EncoderLayer& layer, Counter& counter, const Own& o) {
    for (int64_t unit; (unit = counter.take(1)) < units[num_texts];) {
      int64_t text = std::upper_bound(units, units + num_texts, unit) - units - 1, within = unit - units[text];
      attend(layer, text, within % m.kv_heads, within / m.kv_heads, o);
    }
    team.barrier();
  }

  // What `down` multiplies: act(up), or act(gate) * up.
  void inner_rows(const EncoderLayer& layer, Counter* counter) {
    const Linear &up = *layer.up, &down = *layer.down;
    int64_t steps = down.steps(), blocks = down.blocks(), gated = up.form == GATED;
    bool at_once = converts_inner(up);
    product_tiles(up, operand(up), counter[UP], [&](int64_t t, int64_t some, int64_t column, int64_t left, float* buffer, F one_bias,
                                                    F two_bias) {
      left = std::min(left, up.per_panel());
      for (int64_t r = 0; r < some; r++) {
        F one = encoder_activation(add(load(buffer + r * NR), one_bias), m.activation);
        F two = add(load(buffer + r * NR + W), two_bias);
        if (gated) one = mul(one, two);
        else two = encoder_activation(two, m.activation);
        store(buffer + r * NR, one), store(buffer + r * NR + W, two);
        if (!at_once) put(inner + (t + r) * m.inner + column, left, one, two);
      }
      if (at_once) convert_tile(inner_words + t * steps + column / Op::DEPTH, inner_scales + t * blocks + column / BLOCK, steps, blocks,
                                some, left, buffer);
    });
    if (at_once) return;
    each_row(counter[INNER], [&](int64_t t) {
      Op::convert(inner_words + t * steps, inner_scales + t * blocks, inner + t * m.inner, m.inner);
    });
  }

  void layer(int64_t index, Counter* counter, const Own& o) {
    const EncoderLayer& layer = m.layers[index];
    const EncoderLayer* next = index + 1 < m.num_layers ? &layer + 1 : nullptr;
    bool turned = turns(layer);
    product(*layer.qkv, operand(*layer.qkv), counter[QKV], [&](int64_t t, int64_t column, int64_t left, F one, F two) {
      turned ? put(wide + t * qkv_size() + column, left, one, two) : put(qkv + t * qkv_size() + column, left, one, two);
    });
    if (turned) each_row(counter[HEADS], [&](int64_t t) { turn(layer, t); });
    attend_all(layer, counter[ATTENTION], o);
    each_row(counter[MIXED], [&](int64_t t) { convert(*layer.out, t, mixed + t * mixed_size()); });
    add_product(*layer.out, operand(*layer.out), layer.attention_out, counter[OUT]);
    each_row(counter[MLP], [&](int64_t t) {
      pass_on(t, &layer.attention_out, &layer.attention_sum, &layer.mlp_in, layer.up, o.line);
    });
    inner_rows(layer, counter);
    const Linear& down = *layer.down;
    add_product(down, {inner_words, inner_scales, down.steps(), down.blocks()}, layer.mlp_out, counter[DOWN]);
    each_row(counter[SUM], [&](int64_t t) {
      pass_on(t, &layer.mlp_out, &layer.mlp_sum, next ? &next->attention_in : nullptr, next ? next->qkv : nullptr, o.line);
    });
  }

  // The result of a text.
  void give(int64_t text) {
    int64_t begin = begins[text], length = begins[text + 1] - begin, n = m.hidden;
    if (m.final_norm.weight)
      for (int64_t t = begin; t < begin + length; t++) normalize(m.final_norm, x + t * n, x + t * n, n);
    if (!c.poolings) {
      memcpy(c.out + c.starts[texts[text]] * n, x + begin * n, length * n * sizeof(float));
      return;
    }
    float* to = c.out + texts[text] * n;
    int64_t how = c.poolings[texts[text]];
    if (how != MEAN_OF_ROWS) {
      memcpy(to, x + (how == FIRST_ROW ? begin : begin + length - 1) * n, n * sizeof(float));
      return;
    }
    for (int64_t i = 0; i < n; i += W) {
      F sum = all(0.0f);
      for (int64_t t = begin; t < begin + length; t++) sum = add(sum, load_some(x + t * n + i, n - i));
      store_some(to + i, mul(sum, all(1.0f / (float)length)), n - i);
    }
  }

  // What each thread of the team does.
  void run(Scratch& memory) {
    Own o = own(memory);
    each_row(counters[EMBED], [&](int64_t t) { embed_row(text_of(t), t, o.line); });
    for (int64_t i = 0; i < m.num_layers; i++) layer(i, counters + FIRST_LAYER + i * PHASES, o);
    for (int64_t i; (i = counters[POOL].take(1)) < num_texts;) give(i);
  }
};

thread_local Scratch encoder_rows, encoder_own;

// Texts of a step, in groups for single threads.
struct Groups {
  int64_t *texts, *begins;  // [texts], longest first; [groups + 1]
  int64_t count = 0;

  static size_t bytes(const EncoderCall& c) { return (2 * c.texts + 1) * sizeof(int64_t) + 256; }

  Groups(const EncoderCall& c, Scratch& memory) : texts(memory.take<int64_t>(c.texts)), begins(memory.take<int64_t>(c.texts + 1)) {
    auto length = [&](int64_t i) { return c.starts[i + 1] - c.starts[i]; };
    for (int64_t i = 0; i < c.texts; i++) texts[i] = i;
    std::stable_sort(texts, texts + c.texts, [&](int64_t a, int64_t b) { return length(a) > length(b); });
    int64_t rows = 0, most = c.starts[c.texts] / (c.threads * GROUPS_OF_THREAD);
    most = std::min(std::max(most, FEWEST_ROWS), GROUP_ROWS);
    for (int64_t i = 0; i < c.texts; i++) {
      if (!count || rows + length(texts[i]) > most) begins[count++] = i, rows = 0;
      rows += length(texts[i]);
    }
    begins[count] = c.texts;
  }

  int64_t rows(const EncoderCall& c, int64_t group) const {
    int64_t sum = 0;
    for (int64_t i = begins[group]; i < begins[group + 1]; i++) sum += c.starts[texts[i] + 1] - c.starts[texts[i]];
    return sum;
  }

  // Whether threads that take whole groups are done at nearly the same time: each takes the next group when it is done with one.
  bool fill(const EncoderCall& c) const {
    if (c.threads == 1) return true;
    int64_t loads[MOST_THREADS] = {};
    if (c.threads > MOST_THREADS || count < c.threads) return false;
    for (int64_t g = 0; g < count; g++) *std::min_element(loads, loads + c.threads) += rows(c, g);
    return *std::max_element(loads, loads + c.threads) * c.threads <= MOST_IMBALANCE * c.starts[c.texts];
  }
};

template <class Op, class Heads>
int encode(const EncoderModel& m, const EncoderCall& c) {
  Scratch memory;
  if (!memory.reserve(Groups::bytes(c))) return 1;
  Groups groups(c, memory);
  std::atomic<int> failed{0};
  if (groups.fill(c)) {
    Counter next;
#pragma omp parallel num_threads((int)c.threads) if (c.threads > 1)
    {
      Team alone;
      for (int64_t g; !failed && (g = next.take(1)) < groups.count;) {
        Encode<Op, Heads> group(m, c, alone, groups.texts + groups.begins[g], groups.begins[g + 1] - groups.begins[g]);
        if (!group.prepare(encoder_rows) || !encoder_own.reserve(group.own_bytes())) failed = 1;
        else group.run(encoder_own);
      }
    }
    return failed;
  }
  Team team;
  Encode<Op, Heads> step(m, c, team, groups.texts, c.texts);
  if (!step.prepare(encoder_rows)) return 1;
#pragma omp parallel num_threads((int)c.threads) if (c.threads > 1)
  {
    team.join(omp_get_num_threads());
    if (!encoder_own.reserve(step.own_bytes())) failed = 1;
    team.barrier();
    if (!failed) step.run(encoder_own);
  }
  return failed;
}

}  // namespace
