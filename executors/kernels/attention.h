// Attention over paged KV on x86-64 CPUs: one call for all sequences of a step, one layer at a time.
//
//   q, out   [T, heads, head_dim]       k, v [T, kv_heads, head_dim]: of this step, copied to their cells first
//   dtype    of q, k, v, out and kv; float16 is that of kv alone, and the others are float
//   kv       [2, num_blocks, kv_heads, block_size, head_dim]: a head's keys of a block in one piece, so are its values; in int8:
//            see attention_int8.h. Blocks lie `block_stride` elements apart, heads `head_stride`, values `side_stride` behind
//            their keys
//   tables   int32 [n, table_stride]: the blocks of a sequence
//   work     int64 [num_work, 10], see `Work`: up to 128 query rows of a sequence, and a range of splits
//   sinks    [heads], or null: a logit of each head, which takes a share of the softmax and has no value
//
// Threads take (work, kv head) from a counter. The query heads of a key head are rows of one tile, so keys and values are
// read once for all of them. A tile of TILE keys is packed (keys transposed, values interleaved), then for a few rows at a
// time:   scores = Q K^T   ->   online softmax   ->   O = alpha O + P V.   Both products are one micro-kernel. Between them the
// memory of the next tile is asked for, so that reading it takes no time of its own.
//
// Order of sums. Tiles begin at multiples of TILE, splits at multiples of SPLIT, counted from the start of the sequence; a
// row's sums run over head_dim, keys of a tile, tiles of a split, splits, each ascending. Keys a row does not see add
// exactly 0, or nothing. So a row's result does not depend on the other rows, on how a prompt is cut or on the threads.
// A row's sink is added to its total once, behind its last key, however its keys were cut. Nothing relies on the compiler to
// contract products and sums: built with -ffp-contract=off.
//
// Online softmax over tiles: Milakov and Gimelshein 2018; splits: Flash-Decoding (Dao et al. 2023).

#pragma once

#include <type_traits>

#include "attention_tiles.h"
#include "team.h"

namespace {

constexpr int64_t SPLIT = 512;

struct Work {
  int64_t row, tokens, pos, item;             // query tokens row..row+tokens, the first at position pos of its sequence
  int64_t split_begin, split_end;             // splits to do here
  int64_t group, slot, group_slot, in_group;  // group < 0: the result is final; else partial results, merged by the last
};

enum Dtype : int64_t { FLOAT32 = 0, BFLOAT16 = 1, FLOAT16 = 2 };

struct Step {
  int64_t dtype, int8, heads, kv_heads, head_dim, block_size, block_stride, side_stride, head_stride, table_stride, window, tokens;
  int64_t num_work, num_groups, max_rows, partial_rows, threads;
  const int32_t* tables;
  const int64_t* work;
  const int64_t* cells;  // [tokens]: block * block_size + place in the block, of each token's key and value
  float* partials;       // [slots, kv_heads, partial_rows, padded head_dim + 2]
  int32_t* counters;     // [num_groups, kv_heads]
  float scale, softcap;  // softcap 0: none
};

constexpr int VECTORS = TILE / W;

// ---- softmax -------------------------------------------------------------------------------------------------------

struct Scores {
  float factor, softcap;  // score to exponent of 2; bounded: the factor inside tanh, and softcap times log2(e)
};

// Bits first..last of a tile's keys.
inline uint64_t seen_keys(int64_t first, int64_t last) {
  return (last < TILE ? (1ull << last) - 1 : ~0ull) & ~((1ull << first) - 1);
}

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
    uint64_t visible = seen_keys(first, last);
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
  Scratch() = default;
  Scratch(const Scratch&) = delete;
  ~Scratch() { free(memory); }
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

// What one thread does, whatever the cells hold. `Self` adds: load_row, which takes a row of queries; find, which looks up a
// tile of keys; tile, which adds a tile's keys to the sums of some rows.
template <class Self, class T>
struct Pieces {
  const Step& s;
  const T* q;
  T* out;
  const float* sinks;
  const std::atomic<int64_t>& next;
  int64_t q_stride, group, padded;
  float *scores, *factors;
  Part part, whole;

  Pieces(const Step& s, const T* q, int64_t q_stride, T* out, const float* sinks, const std::atomic<int64_t>& next)
      : s(s), q(q), out(out), sinks(sinks), next(next), q_stride(q_stride) {
    group = s.heads / s.kv_heads;
    padded = (s.head_dim + 15) / 16 * 16;
  }

  Self& self() { return *static_cast<Self*>(this); }

  // Bytes of what `take_sums` takes.
  size_t sums_bytes() const { return (6 * TILE + W + 2 * s.max_rows * (padded + 2)) * sizeof(float) + 1024; }

  void take_sums() {
    scores = scratch.take<float>(6 * TILE);
    factors = scratch.take<float>(W);
    memset(factors, 0, W * sizeof(float));
    memset(scores, 0, 6 * TILE * sizeof(float));
    part = take_part(s.max_rows), whole = take_part(s.max_rows);
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
        self().load_row(t * group + g, q + (w.row + t) * q_stride + (head * group + g) * s.head_dim);
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
        F inverse = all(sinks ? share(from.maxima[r], from.totals[r], sinks[head * group + g]) : 1.0f / from.totals[r]);
        for (int64_t d = 0; d < s.head_dim; d += W)
          store_some(to + d, mul(load(from.sums + r * padded + d), inverse), s.head_dim - d);
      }
  }

  // What a row's sums are multiplied with where its head has a sink: `total` is the sum of 2^(score - highest) over its keys.
  // Not inlined: with it GCC 12 gave the loops over keys other registers for AVX2, and int8 decodes took 17% longer.
  __attribute__((noinline)) static float share(float highest, float total, float sink) {
    float logit = sink * LOG2E, base = highest > logit ? highest : logit;
    float keys = exp2_one(highest - base);
    return keys / (total * keys + exp2_one(logit - base));
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
    self().find(w, i % s.kv_heads, first_key(w, w.split_begin, begin), begin, w.pos + w.tokens, side);
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
    self().find(w, head, from, begin, end, side);
    for (int64_t tile = from; tile < until; tile += TILE, side ^= 1) {
      int64_t next = tile + TILE;
      if (next < until || (next < end && index + 1 < w.split_end))
        self().find(w, head, next, begin, end, side ^ 1);
      else
        guess(side ^ 1);
      int64_t count = end - tile < TILE ? end - tile : TILE;
      // Queries before the tile, and those whose window begins after it, see none of its keys.
      int64_t row = tile > w.pos ? (tile - w.pos) * group : 0, stop = rows;
      if (s.window && tile + TILE + s.window - 1 - w.pos < w.tokens) stop = (tile + TILE + s.window - 1 - w.pos) * group;
      self().tile(w, tile, row, stop, count, side, to, how);
    }
  }

  // What a row sees of a tile: its keys first..last.
  struct Visible {
    int64_t first, last;
  };
  Visible visible(const Work& w, int64_t tile, int64_t row) const {
    int64_t pos = w.pos + row / group;
    int64_t last = pos - tile + 1 < TILE ? pos - tile + 1 : TILE;
    int64_t first = s.window && pos + 1 - s.window > tile ? pos + 1 - s.window - tile : 0;
    return {first > last ? last : first, last};
  }

  // How many keys of a tile the last of some rows sees.
  int64_t most_seen(const Work& w, int64_t tile, int64_t row, int64_t count) const {
    int64_t seen = w.pos + (row + count - 1) / group - tile + 1;
    return seen > TILE ? TILE : seen;
  }

  // Finishes the scores of some rows and moves their maxima; `factors` are what sums so far have to be multiplied with, and
  // `bases` [W] what is to be subtracted from the scores.
  void rebase(const Work& w, int64_t tile, int64_t row, int64_t count, Part to, Scores how, float* bases) {
    float* maxima = to.maxima + row;
    for (int64_t r = 0; r < count; r++) {
      Visible keys = visible(w, tile, row + r);
      float highest = finish_scores(scores + r * TILE, keys.first, keys.last, how);
      highest = highest > maxima[r] ? highest : maxima[r];
      bases[r] = highest == -INFINITY ? 0.0f : highest;
      factors[r] = maxima[r] - bases[r];
      maxima[r] = highest;
    }
    store(factors, exp2f(load(factors)));
  }
};

// Asks for the beginnings of the blocks of a tile, a tile before their numbers are asked for: blocks lie on pages of their own,
// and where pages are small, looking up the address of one takes as long as reading it. `heads`: a head of block 0.
template <class Cell>
inline void blocks_soon(const Step& s, const int32_t* table, const Cell* heads, int64_t tile, int64_t end) {
  int64_t stop = end < tile + TILE ? end : tile + TILE;
  for (int64_t at = tile; at < stop; at += s.block_size) {
    const Cell* keys = heads + table[at / s.block_size] * s.block_stride;
    soon_in_l2(keys, 0);
    soon_in_l2(keys + s.side_stride, 0);
  }
}

// Keys and values are Cells.
template <class T, class Op, class Cell = T>
struct Worker : Pieces<Worker<T, Op, Cell>, T> {
  using Base = Pieces<Worker<T, Op, Cell>, T>;
  using Unit = typename Op::Unit;
  using Base::factors, Base::group, Base::padded, Base::s, Base::scores;
  const Cell* kv;
  int64_t depth, lda;
  static constexpr int64_t PACKED = 16;       // keys that are packed at a time
  static constexpr int64_t PACKING_ROWS = 8;  // rows whose products take about as long as packing a tile
  Unit *queries, *keys, *values, *weights;
  const Cell *key_rows[2][TILE] = {}, *value_rows[2][TILE] = {};
  NextTile lines[2];

  Worker(const Step& s, const Cell* kv, const T* q, int64_t q_stride, T* out, const float* sinks,
         const std::atomic<int64_t>& next)
      : Base(s, q, q_stride, out, sinks, next), kv(kv) {
    depth = (s.head_dim + Op::DEPTH - 1) / Op::DEPTH;
    lda = (depth + 15) / 16 * 16;
  }

  bool prepare() {
    size_t units = s.max_rows * lda + depth * TILE + TILE * padded + 6 * TILE;
    if (!scratch.reserve((units * sizeof(Unit) + this->sums_bytes() + 1024) / 64 * 64 + 1024)) return false;
    queries = scratch.take<Unit>(s.max_rows * lda);
    keys = scratch.take<Unit>(depth * TILE);
    values = scratch.take<Unit>(TILE * padded);
    weights = scratch.take<Unit>(6 * TILE);
    this->take_sums();
    return true;
  }

  void load_row(int64_t r, const T* from) { Op::row(queries + r * lda, from, s.head_dim); }

  // Where the keys and values of a tile lie; null for keys that no query of this work sees.
  void find(const Work& w, int64_t head, int64_t tile, int64_t begin, int64_t end, int side) {
    const int32_t* table = s.tables + w.item * s.table_stride;
    int64_t first = begin > tile ? begin - tile : 0, last = end - tile < TILE ? end - tile : TILE;
    for (int64_t i = 0; i < first; i++) key_rows[side][i] = value_rows[side][i] = nullptr;
    for (int64_t i = last; i < TILE; i++) key_rows[side][i] = value_rows[side][i] = nullptr;
    int64_t block = (tile + first) / s.block_size, offset = (tile + first) % s.block_size;
    lines[side].clear();
    for (int64_t i = first; i < last; block++, offset = 0) {
      const Cell* at = kv + table[block] * s.block_stride + head * s.head_stride + offset * s.head_dim;
      int64_t cells = s.block_size - offset < last - i ? s.block_size - offset : last - i;
      lines[side].add(at, cells * s.head_dim * sizeof(Cell));
      lines[side].add(at + s.side_stride, cells * s.head_dim * sizeof(Cell));
      for (; offset < s.block_size && i < last; offset++, i++, at += s.head_dim)
        key_rows[side][i] = at, value_rows[side][i] = at + s.side_stride;
    }
    blocks_soon(s, table, kv + head * s.head_stride, tile + TILE, end);
  }

  // Adds a tile of `count` keys to the sums of rows row..stop.
  void tile(const Work& w, int64_t tile, int64_t row, int64_t stop, int64_t count, int side, Part to, Scores how) {
    if constexpr (std::is_same<Cell, uint16_t>::value)
      if (few_rows(w, tile, row, stop - row, count, side, to, how)) return;
    // The next tile is asked for evenly over the time that this one takes: of lines asked for at once, a CPU keeps some 48 in
    // mind and waits for the others.
    NextTile& next = lines[side ^ 1];
    int64_t rows = stop - row, asked = next.lines * PACKING_ROWS / (rows + PACKING_ROWS);
    int64_t ask = (asked * PACKED + 2 * count - 1) / (2 * count);
    for (int64_t i = 0; i < count; i += PACKED) {
      int64_t some = count - i < PACKED ? count - i : PACKED;
      next.ask(ask);
      Op::pack_keys(keys + i, key_rows[side] + i, some, s.head_dim);
      next.ask(ask);
      Op::pack_values(values + i / Op::DEPTH * padded, value_rows[side] + i, some, s.head_dim, padded);
    }
    while (row < stop) {
      int64_t left = stop - row, count = left >= 6 && left != 8 ? 6 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
      int64_t due = next.lines - next.lines * (left - count) / (rows + PACKING_ROWS);
      block(w, tile, row, count, to, how, next, (due - asked + 2) / 3);
      row += count, asked = due;
    }
  }

  // Three times, `third` lines of the next tile are asked for.
  void block(const Work& w, int64_t tile, int64_t row, int64_t count, Part to, Scores how, NextTile& next, int64_t third) {
    int64_t seen = this->most_seen(w, tile, row, count);
    next.ask(third);
    multiply<Op>(count, queries + row * lda, lda, keys, TILE, scores, TILE, depth, (seen + W - 1) / W, nullptr);
    next.ask(third);
    weigh_rows(w, tile, row, count, to, how);
    next.ask(third);
    multiply<Op>(count, weights, TILE / Op::DEPTH, values, padded, to.sums + row * padded, padded,
                 (seen + Op::DEPTH - 1) / Op::DEPTH, padded / W, factors);
  }

  // Scores of some rows become weights.
  void weigh_rows(const Work& w, int64_t tile, int64_t row, int64_t count, Part to, Scores how) {
    float bases[W], *totals = to.totals + row;
    this->rebase(w, tile, row, count, to, how, bases);
    for (int64_t r = 0; r < count; r++)
      totals[r] = totals[r] * factors[r] + weigh<Op>(scores + r * TILE, weights + r * (TILE / Op::DEPTH), bases[r]);
  }

  // R rows over one tile that is not packed. Keys that some of them do not see have the weight 0.
  template <int R>
  void few(const Work& w, int64_t tile, int64_t row, int64_t count, int side, Part to, Scores how) {
    score_few<R>(queries + row * lda, lda, key_rows[side], count, s.head_dim, scores, key_rows[side ^ 1]);
    weigh_rows(w, tile, row, R, to, how);
    constexpr int V = Op::few_vectors(R), STEP = Op::FEW_NUMBERS;
    float* sums = to.sums + row * padded;
    int64_t d = 0;
    for (; d + V * STEP <= s.head_dim; d += V * STEP)
      add_values_few<R, V>(weights, value_rows[side], count, d, sums, padded, factors, value_rows[side ^ 1]);
    for (; d < s.head_dim; d += STEP)
      add_values_few<R, 1>(weights, value_rows[side], count, d, sums, padded, factors, value_rows[side ^ 1]);
  }

  bool few_rows(const Work& w, int64_t tile, int64_t row, int64_t rows, int64_t count, int side, Part to, Scores how) {
    if (rows > Op::FEW_ROWS || s.head_dim % 32) return false;
    for (; rows > 0; row += 4, rows -= 4)
      switch (rows) {
        case 1: few<1>(w, tile, row, count, side, to, how); break;
        case 2: few<2>(w, tile, row, count, side, to, how); break;
        case 3: few<3>(w, tile, row, count, side, to, how); break;
        default: few<4>(w, tile, row, count, side, to, how);
      }
    return true;
  }
};

// ---- as a phase of a team ----------------------------------------------------------------------------------------

template <class T>
inline T* key_cell(const Step& s, T* kv, int64_t token, int64_t kv_head) {
  int64_t block = s.cells[token] / s.block_size, place = s.cells[token] % s.block_size;
  return kv + block * s.block_stride + kv_head * s.head_stride + place * s.head_dim;
}

// One thread's share. `counter` and s.counters are 0 at first, and all keys and values of this step are in their cells.
template <class Worker, class Cell, class T>
bool attend(const Step& s, const Cell* kv, const T* q, int64_t q_stride, T* out, const float* sinks, Counter& counter) {
  Worker worker(s, kv, q, q_stride, out, sinks, counter.next);
  if (!worker.prepare()) return false;
  for (int64_t i; (i = counter.take(1)) < s.num_work * s.kv_heads;)
    worker.run(((const Work*)s.work)[i / s.kv_heads], i % s.kv_heads);
  return true;
}

inline void clear_counters(const Step& s) { memset(s.counters, 0, s.num_groups * s.kv_heads * sizeof(int32_t)); }

#if defined(__AVX512BF16__)
using Bf16Op = Pairs;
#else
using Bf16Op = Floats;
#endif
// The products over keys and values of type T.
template <class T>
using OpOf = typename std::conditional<std::is_same<T, float>::value, Floats, Bf16Op>::type;

}  // namespace
