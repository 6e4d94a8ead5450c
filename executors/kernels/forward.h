// The forward of a whole step: all layers of a decoder in one parallel region.
//
//   x = embed[token]                                                                       x: fp32, the residual stream
//   per layer:  norm(x) -> qkv -> norm of heads, rotate, keys and values to their cells -> attention -> o, added to x
//               norm(x) -> gate and up, activation -> down, added to x; some families norm what is added, some that alone
//               or a mixture of experts of norm(x), added to x, see experts.h; some families have both
//   out = norm(x)
//
// Phases are separated by barriers; within one, threads take rows, panels or pieces of attention from a counter. Every row
// is computed by itself and in one order of sums, so that its result depends neither on other rows nor on threads.
//
// RMSNorm: Zhang and Sennrich 2019. Rotary embedding: Su et al. 2021, of halves as in Hugging Face's layout or of neighbours.
#pragma once

#include <omp.h>

#include <new>
#include <type_traits>

#include "attention_int8.h"
#include "experts.h"

namespace {

struct Layer {
  const Linear *qkv, *o, *gate_up, *down;
  const float *attn_norm, *mlp_norm;  // [hidden], or null
  const float *q_norm, *k_norm;       // [head_dim], or of all heads, or null
  const float *attn_post_norm, *mlp_post_norm;  // [hidden], of what is added to x; or null
  const float* sinks;                 // [heads], see attention.h; or null
  const float* rotary;                // [positions][2][rotary_dim / 2] cosines and sines, or null
  const Experts* experts;             // or null: then there are gate_up and down, which otherwise are null or a shared expert's
  const Linear* gate;                 // one row, whose product's sigmoid scales the shared expert's result; or null
};

struct Model {
  int64_t dtype;  // of embeddings, results, adapters and KV; all else is float where it is float16
  int64_t kind, hidden, heads, kv_heads, head_dim, rotary_dim;
  int64_t inner;  // the largest of the layers' MLPs, shared experts included
  int64_t activation, num_layers;
  int64_t post_norms;  // whether a layer has one
  int64_t neighbours;  // whether elements 2 i and 2 i + 1 are rotated together, not i and i + rotary_dim / 2
  int64_t norm_last;   // whether heads are normed after they are rotated
  int64_t norm_all;    // whether queries and keys are normed over all heads, not each head alone
  const Layer* layers;
  const float* final_norm;
  const float* query_factors;  // [positions], what queries are multiplied by, or null
  float eps, embed_scale;
};

// What differs from step to step. Attention's `Step`, keys and values are per layer.
struct Call {
  int64_t tokens, threads;
  const int64_t* token_ids;  // rows of `embed`
  const int64_t* positions;
  const Step* const* attention;
  void* const* kv;
  const void* embed;      // [vocabulary][hidden], of the model's dtype or as `embed_kind` says
  void* out;              // [tokens][hidden]
  const int64_t* wanted;  // ascending rows of `out` that are needed; the last layer computes no others. Null: all
  int64_t num_wanted;
  int64_t embed_kind;  // FP32, BF16 or FP16, or that of rows quantized as in a file
  const int64_t* adapters;           // [tokens]: which of `loras`, below 0 for none. Null: no token has one
  const LoraLayer* const* loras;     // [num_layers] of each adapter
  int64_t num_loras;
};

thread_local Scratch workspace;

// out = x / rms(x) * weight.
inline void rms_norm(float* out, const float* x, const float* weight, int64_t n, float eps) {
  F squares = all(0.0f);
  for (int64_t i = 0; i < n; i += W) {
    F a = load_some(x + i, n - i);
    squares = fma(a, a, squares);
  }
  F factor = all(1.0f / std::sqrt(sum_of(squares) / (float)n + eps));
  for (int64_t i = 0; i < n; i += W)
    store_some(out + i, mul(mul(load_some(x + i, n - i), factor), load_some(weight + i, n - i)), n - i);
}

// x rotated by a row of the table, in place; what lies behind `dim` stays.
inline void rotate(float* x, const float* table, int64_t dim) {
  int64_t half = dim / 2;
  for (int64_t i = 0; i < half; i += W) {
    int64_t left = half - i;
    F one = load_some(x + i, left), two = load_some(x + half + i, left);
    F cosine = load_some(table + i, left), sine = load_some(table + half + i, left);
    F a = sub(mul(one, cosine), mul(two, sine)), b = fma(one, sine, mul(two, cosine));
    store_some(x + i, a, left);
    store_some(x + half + i, b, left);
  }
}

// The same for elements that are neighbours.
inline void rotate_neighbours(float* x, const float* table, int64_t dim) {
  int64_t half = dim / 2;
  for (int64_t i = 0; i < half; i++) {
    float one = x[2 * i], two = x[2 * i + 1], cosine = table[i], sine = table[half + i];
    x[2 * i] = one * cosine - two * sine;
    x[2 * i + 1] = one * sine + two * cosine;
  }
}

template <class Op, class T>
struct Forward {
  using Word = typename Op::Word;
  using Scale = typename Op::Scale;
  const Model& m;
  const Call& c;
  Team team;
  Counter* counters;
  int64_t count;  // rows of x
  // `qkv` stays in fp32: keys that are rounded before their norm and once more in their cell are the largest error there is.
  float *x, *few, *qkv, *sublayer;
  // Where there are adapters:
  float *wide, *sums;       // [tokens][hidden], a normed row; [tokens][most_ranks()]
  LoraRows adapted, kept_adapted;  // of all rows and of those that are kept
  int64_t sums_stride;
  bool kept = false;        // rows are those of `wanted`
  Word* words;
  Scale* scales;
  T *queries, *mixed, *inner;
  Mixture<T> mixture;
  float* gates;  // [tokens], of a shared expert
  std::atomic<int> failed{0};

  // The counters of a layer: a product after a conversion of its rows has two, and one for a norm behind it; that
  // of queries, keys and values has one a part.
  enum : int64_t {
    NORM, QKV, HEADS = QKV + MAX_PARTS, ATTENTION, O, MLP_NORM = O + 3, GATE_UP, DOWN, LORA = DOWN + 3,
    EXPERTS = LORA + LORA_WEIGHTS, GATE = EXPERTS + Mixture<T>::PHASES, PHASES
  };
  // Where the values are what the product reads, nothing is converted.
  static constexpr bool AS_IS =
      !Op::BLOCKS && std::is_same<Word, typename std::conditional<Op::DEPTH == 2, uint32_t, float>::type>::value;

  Forward(const Model& m, const Call& c) : m(m), c(c), mixture(team, m.hidden, m.activation) {
    for (int64_t i = 0; i < m.num_layers; i++)
      if (m.layers[i].experts) mixture.measure(*m.layers[i].experts);
  }

  bool halves() const { return m.dtype == FLOAT16; }
  int64_t q_size() const { return m.heads * m.head_dim; }
  int64_t qkv_size() const { return (m.heads + 2 * m.kv_heads) * m.head_dim; }
  // Of a merged weight of an adapter of the step.
  int64_t most_ranks() const {
    int64_t most = 0;
    for (int64_t a = 0; a < c.num_loras; a++)
      for (int64_t i = 0; i < m.num_layers; i++)
        for (const LoraWeight& weight : c.loras[a][i].weights) most = std::max(most, weight.ranks);
    return most;
  }

  bool prepare() {
    int64_t widest = this->widest(), tokens = c.tokens, ranks = c.adapters ? most_ranks() : 0;
    int64_t blocks = Op::BLOCKS ? (widest + BLOCK - 1) / BLOCK : 0, phases = PHASES * m.num_layers + 3;
    int64_t steps = Op::BLOCKS ? blocks * BLOCK_STEPS : (widest + Op::DEPTH - 1) / Op::DEPTH;
    size_t bytes = phases * sizeof(Counter) + (tokens + c.num_wanted) * m.hidden * 4 +
                   tokens * (steps * sizeof(Word) + blocks * sizeof(Scale)) + tokens * qkv_size() * 4 +
                   tokens * (2 * q_size() + m.inner) * sizeof(T) + (m.post_norms ? tokens * m.hidden * 4 : 0) +
                   (c.adapters ? tokens * (m.hidden + ranks) * 4 + (tokens + c.num_wanted + 2 * (c.num_loras + 1)) * 8 : 0) +
                   mixture.bytes(tokens, c.threads) + tokens * 4 + 1024 + 9 * 64;
    if (!workspace.reserve(bytes / 64 * 64 + 64)) return false;
    counters = workspace.take<Counter>(phases);
    for (int64_t i = 0; i < phases; i++) new (counters + i) Counter;
    count = tokens;
    x = workspace.take<float>(tokens * m.hidden);
    few = workspace.take<float>(c.num_wanted * m.hidden);
    scales = workspace.take<Scale>(tokens * blocks);
    qkv = workspace.take<float>(tokens * qkv_size());
    sublayer = workspace.take<float>(m.post_norms ? tokens * m.hidden : 0);
    words = workspace.take<Word>(tokens * steps);
    queries = workspace.take<T>(tokens * q_size());
    mixed = workspace.take<T>(tokens * q_size());
    inner = workspace.take<T>(tokens * m.inner);
    gates = workspace.take<float>(tokens);
    mixture.place(workspace, tokens, c.threads);
    if (c.adapters) list_adapters(ranks);
    return true;
  }

  void list_adapters(int64_t ranks) {
    wide = workspace.take<float>(c.tokens * m.hidden);
    sums = workspace.take<float>(c.tokens * ranks);
    sums_stride = ranks;
    for (LoraRows* rows : {&adapted, &kept_adapted}) {
      rows->count = c.num_loras;
      rows->starts = workspace.take<int64_t>(c.num_loras + 1);
      rows->rows = workspace.take<int64_t>(rows == &adapted ? c.tokens : c.num_wanted);
    }
    adapted.list(c.tokens, [&](int64_t t) { return c.adapters[t]; });
    if (c.wanted) kept_adapted.list(c.num_wanted, [&](int64_t t) { return c.adapters[c.wanted[t]]; });
  }

  // Threads take rows, `some` at a time; `row` is called for each.
  template <class Each>
  void rows(Counter& counter, Each row) {
    rows(counter, count > 64 ? 8 : 1, row);
  }
  template <class Each>
  void rows(Counter& counter, int64_t some, Each row) {
    for (int64_t i; (i = counter.take(some)) < count;)
      for (int64_t t = i; t < count && t < i + some; t++) row(t);
    team.barrier();
  }

  // A thread's `line`: room for a normed row, and behind it for one in another order.
  int64_t line_floats() const { return ((m.hidden > m.head_dim ? m.hidden : m.head_dim) + 15) / 16 * 16; }
  int64_t widest() const {
    int64_t size = m.hidden > q_size() ? m.hidden : q_size();
    return size > m.inner ? size : m.inner;
  }

  // Row t of what w multiplies.
  template <class V>
  void convert(const Linear& w, int64_t t, const V* row, float* line) {
    Op::convert(words + t * w.steps(), scales + t * w.blocks(), in_order(w, row, (V*)(line + line_floats())), w.columns);
  }

  // What the adapters of the step add to a product. Its sums are computed here from rows x, if there is an adapter for it.
  template <class X>
  LoraProduct adapt(const Linear& w, const X* x, int64_t index, int which, Counter* counters) {
    LoraProduct lora = {kept ? &kept_adapted : &adapted, c.loras, index, which, sums, sums_stride, expand<T>};
    if (!c.adapters || !lora.any()) return {};
    if (halves()) {
      lora.expand = expand<Half>;
      reduce<Half>(lora, x, w.columns, counters[LORA + which]);
    } else {
      reduce<T>(lora, x, w.columns, counters[LORA + which]);
    }
    team.barrier();
    return lora;
  }

  // Rows that `next`, `experts`, or both, multiply.
  void norm_rows(Counter& counter, const float* weight, const Linear* next, const Experts* experts, float* line) {
    rows(counter, [&](int64_t t) {
      const float* row = x + t * m.hidden;
      float* normed = c.adapters ? wide + t * m.hidden : line;
      if (weight) rms_norm(normed, row, weight, m.hidden, m.eps);
      else if (c.adapters) memcpy(normed, row, m.hidden * sizeof(float));
      if (next) convert(*next, t, weight ? normed : row, line);
      if (experts) mixture.convert(*experts, t, weight ? normed : row);
    });
  }

  template <class Out>
  void product(const Linear& w, const Word* a, Target<Out> to, const LoraProduct& lora, Counter* counters) {
    if (lora.rows) to.lora = &lora;
    multiply<Op, Out>(w, {a, scales, w.steps(), w.blocks()}, count, to, counters, team.size);
    team.barrier();
  }

  // x += w values, [tokens][columns of w]; what is added goes through the norm `post`, or is multiplied by its row's factor, if
  // there is one.
  void add_product(const Linear& w, const T* values, const float* post, const float* factors, float* line, Counter* counters,
                   int64_t first, int64_t index, int which) {
    Counter* counter = counters + first;
    const Word* a = (const Word*)values;
    if (!AS_IS || w.columns % Op::DEPTH) {
      rows(counter[0], [&](int64_t t) { convert(w, t, values + t * w.columns, line); });
      a = words;
    }
    LoraProduct lora = adapt(w, values, index, which, counters);
    if (!post) {
      Target<T> to = {nullptr, m.hidden, x, 0};
      to.factors = factors;
      return product(w, a, to, lora, counter + 1);
    }
    product(w, a, Target<float>{sublayer, m.hidden, nullptr, 0}, lora, counter + 1);
    rows(counter[2], [&](int64_t t) {
      rms_norm(line, sublayer + t * m.hidden, post, m.hidden, m.eps);
      float* to = x + t * m.hidden;
      for (int64_t i = 0; i < m.hidden; i += W)
        store_some(to + i, add(load_some(to + i, m.hidden - i), load_some(line + i, m.hidden - i)), m.hidden - i);
    });
  }

  // Norm and rotation of a token's query and key heads, in the family's order; keys and values to their cells.
  void heads(const Layer& layer, const Step& step, void* kv, int64_t t) {
    float* token = qkv + t * qkv_size();
    float *keys = token + q_size(), *values = keys + m.kv_heads * m.head_dim;
    int64_t size = m.head_dim;
    const float* table = layer.rotary ? layer.rotary + c.positions[t] * m.rotary_dim : nullptr;
    if (m.norm_all) {
      rms_norm(token, token, layer.q_norm, q_size(), m.eps);
      rms_norm(keys, keys, layer.k_norm, m.kv_heads * size, m.eps);
    }
    for (int64_t h = 0; h < m.heads + m.kv_heads; h++) {
      float* head = token + h * size;
      const float* weight = m.norm_all ? nullptr : h < m.heads ? layer.q_norm : layer.k_norm;
      if (weight && !m.norm_last) rms_norm(head, head, weight, size, m.eps);
      if (table) m.neighbours ? rotate_neighbours(head, table, m.rotary_dim) : rotate(head, table, m.rotary_dim);
      if (weight && m.norm_last) rms_norm(head, head, weight, size, m.eps);
      if (h >= m.heads) continue;
      if (m.query_factors)
        for (int64_t i = 0; i < size; i++) head[i] *= m.query_factors[c.positions[t]];
      narrow(queries + t * q_size() + h * size, head, size);
    }
    for (int64_t h = 0; h < m.kv_heads; h++) {
      const float *k = keys + h * size, *v = values + h * size;
      if (step.int8) {
        put_int8(step, (int8_t*)kv, k, v, t, h);
      } else {
        put_cell(step, kv, k, v, t, h);
      }
    }
  }

  // How many tokens a thread takes at a time to compute their heads. Cells in int8 share lines with those of their block's
  // other tokens: a block is then mostly one thread's.
  int64_t heads_at_once(const Step& step) const {
    int64_t share = (count + team.size - 1) / team.size;
    return !step.int8 ? count > 64 ? 8 : 1 : share < BESIDE ? share : BESIDE;
  }

  template <class Stored>
  void embed(int64_t t) {
    const Stored* from = (const Stored*)c.embed + c.token_ids[t] * m.hidden;
    for (int64_t i = 0; i < m.hidden; i += W)
      store_some(x + t * m.hidden + i, mul(load_some(from + i, m.hidden - i), all(m.embed_scale)), m.hidden - i);
  }
  void embed_stored(int64_t t) {
    float* to = x + t * m.hidden;
    with_layout(c.embed_kind, [&](auto layout) {
      using L = decltype(layout);
      dequantize_row<L>((const uint8_t*)c.embed + c.token_ids[t] * row_bytes<L>(m.hidden), to, m.hidden);
    });
    for (int64_t i = 0; i < m.hidden; i++) to[i] *= m.embed_scale;
  }

  // From here on x and attention's results are those of the wanted rows. Results are moved in place by one thread: where
  // few rows are wanted it is a little, and where many are their order allows nothing else.
  void keep_wanted(Counter& counter) {
    if (omp_get_thread_num() == 0) count = c.num_wanted, kept = true;
    team.barrier();
    rows(counter, [&](int64_t t) { memcpy(few + t * m.hidden, x + c.wanted[t] * m.hidden, m.hidden * sizeof(float)); });
    if (omp_get_thread_num() == 0) {
      x = few;
      for (int64_t t = 0; t < count; t++) memmove(mixed + t * q_size(), mixed + c.wanted[t] * q_size(), q_size() * sizeof(T));
    }
    team.barrier();
  }

  void layer(int64_t index, Counter* counter, float* line) {
    const Layer& layer = m.layers[index];
    const Step& step = *c.attention[index];
    void* kv = c.kv[index];
    norm_rows(counter[NORM], layer.attn_norm, layer.qkv, nullptr, line);
    product(*layer.qkv, words, Target<float>{qkv, qkv_size(), nullptr, 0},
            adapt(*layer.qkv, wide, index, LORA_QKV, counter), counter + QKV);
    if (omp_get_thread_num() == 0) clear_counters(step);
    rows(counter[HEADS], heads_at_once(step), [&](int64_t t) { heads(layer, step, kv, t); });
    if (!attend_cells(step, kv, (const T*)queries, q_size(), mixed, layer.sinks, counter[ATTENTION])) failed = 1;
    team.barrier();
    if (index == m.num_layers - 1 && c.wanted) keep_wanted(counters[2]);
    add_product(*layer.o, mixed, layer.attn_post_norm, nullptr, line, counter, O, index, LORA_O);
    norm_rows(counter[MLP_NORM], layer.mlp_norm, layer.gate_up, layer.experts, line);
    if (layer.experts) mixture.add_experts(*layer.experts, count, x, counter + EXPERTS);
    if (layer.gate) mixture.shared_gate(*layer.gate, count, gates, counter[GATE]);
    if (!layer.gate_up) return;
    product(*layer.gate_up, words, Target<T>{inner, layer.gate_up->outputs(), nullptr, m.activation},
            adapt(*layer.gate_up, wide, index, LORA_GATE_UP, counter), counter + GATE_UP);
    add_product(*layer.down, inner, layer.mlp_post_norm, layer.gate ? gates : nullptr, line, counter, DOWN, index, LORA_DOWN);
  }

  void run() {
    team.join(omp_get_num_threads());
    float* line = (float*)aligned_alloc(64, ((line_floats() + widest() + 15) * 4 + 255) / 64 * 64);
    if (!line) failed = 1;
    team.barrier();
    if (failed) return free(line);
    rows(counters[0], [&](int64_t t) {
      if (c.embed_kind >= FIRST_LAYOUT) return embed_stored(t);
      c.embed_kind == FP16 ? embed<Half>(t) : embed<T>(t);
    });
    for (int64_t i = 0; i < m.num_layers; i++) layer(i, counters + 3 + i * PHASES, line);
    rows(counters[1], [&](int64_t t) {
      rms_norm(line, x + t * m.hidden, m.final_norm, m.hidden, m.eps);
      int64_t at = (c.wanted ? c.wanted[t] : t) * m.hidden;
      halves() ? narrow((Half*)c.out + at, line, m.hidden) : narrow((T*)c.out + at, line, m.hidden);
    });
    free(line);
  }
};

template <class Op, class T>
int forward(const Model& m, const Call& c) {
  Forward<Op, T> all_layers(m, c);
  if (!all_layers.prepare()) return 1;
#pragma omp parallel num_threads((int)c.threads) if (c.threads > 1)
  all_layers.run();
  return all_layers.failed;
}

}  // namespace
