// The forward of a whole step: all layers of a decoder in one parallel region.
//
//   x = embed[token]                                                                       x: fp32, the residual stream
//   per layer:  norm(x) -> qkv -> norm of heads, rotate, keys and values to their cells -> attention -> o, added to x
//               some families: sigmoid(gate of each head) * attention; or in place of it a mixer with a state, see scan.h
//               norm(x) -> gate and up, activation -> down, added to x; some families norm what is added, some that alone
//               or a mixture of experts of norm(x), added to x, see experts.h; some families have both, in one of them
//               each between norms of its own, the router seeing x itself, and their sum goes through a norm
//               some families: act(gate x) * the layer's input -> projection, its norm added to x; x times a scalar
//   out = norm(x)
//
// Inputs of all layers, computed before the first: (norm(projection x / sqrt(hidden)) + root table[token]) / sqrt(2).
//
// Layers that read the keys and values of another one leave nothing for later tokens. So behind the last layer that writes some,
// or a state, rows that are not wanted end: nothing more is computed of them than their keys and values, or the state.
//
// Phases are separated by barriers; within one, threads take rows, panels or pieces of attention from a counter. Every row
// is computed by itself and in one order of sums, so that its result depends neither on other rows nor on threads.
//
// RMSNorm: Zhang and Sennrich 2019. Rotary embedding: Su et al. 2021, of halves as in Hugging Face's layout or of neighbours.
#pragma once

#include <omp.h>

#include <algorithm>
#include <new>
#include <type_traits>
#include <utility>

#include "attention_int8.h"
#include "experts.h"
#include "rows.h"
#include "scan.h"

namespace {

struct Layer {
  // Of a mixer with a state `qkv` and `o` are the projections around it.
  const Linear *qkv, *o, *gate_up, *down;
  const float *attn_norm, *mlp_norm;  // [hidden], or null
  const float *q_norm, *k_norm;       // [head_dim], or of all heads, or null
  const float *attn_post_norm, *mlp_post_norm;  // [hidden], of what is added to x; or null
  const float* sinks;                 // [heads], see attention.h; or null
  const float* rotary;                // [positions][2][rotary_dim / 2] cosines and sines, or null
  const Experts* experts;             // or null: then there are gate_up and down, which otherwise are null or a shared expert's
  const Linear* gate;                 // one row, whose product's sigmoid scales the shared expert's result; or null
  // Where there is `experts_norm`, experts are beside the MLP, and `mlp_norm` is the MLP's alone. All [hidden], or null:
  const float* router_norm;           // factor of what the router sees
  const float *experts_norm, *experts_post_norm, *dense_post_norm;
  const Linear *input_gate, *input_projection;  // of the layer's inputs: [input_size][hidden] and [hidden][input_size]; or null
  const float* input_norm;                      // [hidden], of what they add to x
  int64_t rotary_dim;
  int64_t neighbours;  // whether elements 2 i and 2 i + 1 are rotated together, not i and i + rotary_dim / 2
  int64_t cache;       // which of `attention` and `kv` is this layer's
  // Parts of `qkv` beside queries: keys and values, or keys that are values as well, or none: then the cells of `cache` are those
  // of an earlier layer, which has written them.
  int64_t kv_parts;
  float scalar;  // of x at the layer's end
  int64_t gated;  // whether `qkv` has behind each head of queries a gate of its result
  // Mixers with a state, which is `slots`'s at `cache`; null where the layer has attention:
  const Convolution* convolution;
  const Delta* delta;
  const Linear* rates;  // of `delta`, a projection of its own format

  bool attends() const { return !convolution && !delta; }
};

struct Model {
  int64_t dtype;  // of embeddings, results, adapters and KV; all else is float where it is float16
  int64_t kind, hidden;
  int64_t inner;  // the largest of the layers' MLPs, shared experts included
  int64_t activation, num_layers;
  int64_t post_norms;  // whether a layer has one
  int64_t norm_last;   // whether heads are normed after they are rotated
  int64_t norm_all;    // whether queries and keys are normed over all heads, not each head alone
  int64_t value_norm;  // whether the heads of values are normed, without a weight
  int64_t input_size;  // of a layer's inputs, 0 without any
  const Layer* layers;
  const float* final_norm;
  const float* query_factors;      // [positions], what queries are multiplied by, or null
  const Linear* layer_projection;  // [num_layers input_size][hidden], of any kind; or null
  const float* layer_norm;         // [input_size]
  float eps, embed_scale;
  float projected_scale, table_scale;  // of `layer_projection`'s results, and of rows of the table
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
  const int64_t* wanted;  // ascending rows of `out` that are needed. Null: all
  int64_t num_wanted;
  int64_t embed_kind;  // FP32, BF16 or FP16, or that of rows quantized as in a file
  const int64_t* adapters;           // [tokens]: which of `loras`, below 0 for none. Null: no token has one
  const LoraLayer* const* loras;     // [num_layers] of each adapter
  int64_t num_loras;
  const void* table;         // [.][num_layers input_size], of which each token's row is a part of its layers' inputs; or null
  int64_t table_kind;        // as `embed_kind`
  const int64_t* table_ids;  // rows of `table`
  const StateStep* states;   // where layers have states
  const Slots* slots;        // [layers with a state]
};

}  // namespace

// The calling thread's memory for a step, whatever model's it is: in cohort_cpu.cpp.
SHARED Scratch& step_workspace();
extern "C" void cohort_dequantize(int64_t kind, const void* in, const int64_t* at, int64_t count, int64_t columns, float* out);

namespace {

template <class Op, class T>
struct Forward {
  using Word = typename Op::Word;
  using Scale = typename Op::Scale;
  const Model& m;
  const Call& c;
  Team team;
  Scratch& workspace = step_workspace();
  Counter* counters;
  int64_t count;  // rows of x
  // `qkv` stays in fp32: keys that are rounded before their norm and once more in their cell are the largest error there is.
  float *x, *few, *qkv, *sublayer;
  float* added;  // [tokens][hidden], what experts beside an MLP make
  bool beside = false;  // whether there are such
  // Where there are adapters:
  float *wide, *sums;       // [tokens][hidden], a normed row; [tokens][sums_stride]
  LoraRows adapted, kept_adapted;  // of all rows and of those that are kept
  int64_t sums_stride = 0;
  bool kept = false;        // rows are those of `wanted`
  Word* words;
  Scale* scales;
  T *queries, *mixed, *inner;
  Mixture<T> mixture;
  float* gates;   // [tokens], of a shared expert
  float* inputs;  // [tokens][num_layers][input_size], of all rows
  OperandSize projected_size;
  Operand projected;  // what `layer_projection` multiplies
  OperandSize rates_size;
  Operand rates_rows;  // what `rates` of a layer multiplies
  float* rates;        // [tokens][rates_columns]
  int64_t rates_columns = 0;
  // The largest of the layers': columns of what `o` multiplies, and of what `qkv` makes.
  int64_t q_size = 0, qkv_size = 0;
  int64_t last_writer = 0;  // the last layer that writes keys and values, or a state
  // Of layers from `last_writer` on: their attention over the rows that are kept, and its pieces.
  Step* kept_steps;
  Work* kept_work;
  int64_t kept_pieces = 0;
  std::atomic<int> failed{0};

  // The counters of a layer: a product after a conversion of its rows has two, and one for a norm behind it; that
  // of queries, keys and values has one a part.
  enum : int64_t {
    NORM, QKV, HEADS = QKV + MAX_PARTS, ATTENTION, O, MLP_NORM = O + 3, GATE_UP, DOWN, LORA = DOWN + 3,
    EXPERTS = LORA + LORA_WEIGHTS, GATE = EXPERTS + Mixture<T>::PHASES, INPUT_GATE, INPUT_ROWS, INPUT_PROJECTION, INPUT_NORM,
    RATES, STATES = RATES + MAX_PARTS, RESULT = STATES + DELTA_PHASES, PHASES
  };
  // Those of a step, before the layers'.
  enum : int64_t { EMBED, FINAL_NORM, KEEP, KEEP_QUERIES, PROJECT, LAYER_INPUTS, FIRST_LAYER };
  // Where the values are what the product reads, nothing is converted.
  static constexpr bool AS_IS =
      !Op::BLOCKS && std::is_same<Word, typename std::conditional<Op::DEPTH == 2, uint32_t, float>::type>::value;

  Forward(const Model& m, const Call& c) : m(m), c(c), mixture(team, m.hidden, m.activation) {
    for (int64_t i = 0; i < m.num_layers; i++) {
      const Layer& layer = m.layers[i];
      if (layer.experts) mixture.measure(*layer.experts);
      beside |= layer.experts_norm != nullptr;
      if (layer.kv_parts || !layer.attends()) last_writer = i;
      q_size = std::max(q_size, layer.o->columns), qkv_size = std::max(qkv_size, qkv_size_of(layer));
      if (!layer.rates) continue;
      rates_size.include<T>(*layer.rates);
      rates_columns = std::max(rates_columns, layer.rates->all_outputs());
    }
    if (m.layer_projection) projected_size.include<T>(*m.layer_projection);
    for (int64_t i = last_writer; keeps() && i < m.num_layers; i++)
      if (m.layers[i].attends() && same_step(i) == i) kept_pieces += original_step(i).num_work + c.num_wanted;
    if (c.adapters) sums_stride = most_ranks();
  }

  bool halves() const { return m.dtype == FLOAT16; }
  // Whether some rows end before the others.
  bool keeps() const { return c.wanted && c.num_wanted < c.tokens; }
  // The row of the step that row t is.
  int64_t row_of(int64_t t) const { return kept ? c.wanted[t] : t; }
  static int64_t q_size_of(const Step& step) { return step.heads * step.head_dim; }
  int64_t qkv_size_of(const Layer& layer) const {
    if (!layer.attends()) return layer.qkv->all_outputs();
    const Step& step = *c.attention[layer.cache];
    return ((layer.gated ? 2 : 1) * step.heads + 2 * step.kv_heads) * step.head_dim;
  }
  const Step& original_step(int64_t index) const { return *c.attention[m.layers[index].cache]; }
  // The first layer from `last_writer` on with the same attention.
  int64_t same_step(int64_t index) const {
    int64_t i = last_writer;
    while (!m.layers[i].attends() || &original_step(i) != &original_step(index)) i++;
    return i;
  }
  int64_t input_columns() const { return m.num_layers * m.input_size; }
  // Of a merged weight of an adapter of the step.
  int64_t most_ranks() const {
    int64_t most = 0;
    for (int64_t a = 0; a < c.num_loras; a++)
      for (int64_t i = 0; i < m.num_layers; i++)
        for (const LoraWeight& weight : c.loras[a][i].weights) most = std::max(most, weight.ranks);
    return most;
  }

  bool prepare() {
    Scratch none;  // counts alone
    place(none);
    if (!workspace.reserve((size_t)none.next)) return false;
    place(workspace);
    for (int64_t i = 0; i < num_counters(); i++) new (counters + i) Counter;
    count = c.tokens;
    if (c.adapters) list_adapters();
    return true;
  }

  int64_t num_counters() const { return PHASES * m.num_layers + FIRST_LAYER; }

  void place(Scratch& memory) {
    int64_t widest = this->widest(), tokens = c.tokens;
    int64_t blocks = Op::BLOCKS ? (widest + BLOCK - 1) / BLOCK : 0;
    int64_t steps = Op::BLOCKS ? blocks * BLOCK_STEPS : (widest + Op::DEPTH - 1) / Op::DEPTH;
    counters = memory.take<Counter>(num_counters());
    x = memory.take<float>(tokens * m.hidden);
    few = memory.take<float>(keeps() ? c.num_wanted * m.hidden : 0);
    scales = memory.take<Scale>(tokens * blocks);
    qkv = memory.take<float>(tokens * std::max(qkv_size, m.input_size));
    sublayer = memory.take<float>(m.post_norms ? tokens * m.hidden : 0);
    added = memory.take<float>(beside ? tokens * m.hidden : 0);
    words = memory.take<Word>(tokens * steps);
    queries = memory.take<T>(tokens * q_size);
    mixed = memory.take<T>(tokens * q_size);
    inner = memory.take<T>(tokens * m.inner);
    gates = memory.take<float>(tokens);
    inputs = memory.take<float>(tokens * input_columns());
    projected = projected_size.take(memory, tokens);
    rates_rows = rates_size.take(memory, tokens);
    rates = memory.take<float>(tokens * rates_columns);
    kept_steps = memory.take<Step>(keeps() ? m.num_layers - last_writer : 0);
    kept_work = memory.take<Work>(kept_pieces);
    mixture.place(memory, tokens, c.threads);
    if (!c.adapters) return;
    wide = memory.take<float>(tokens * m.hidden);
    sums = memory.take<float>(tokens * sums_stride);
    for (LoraRows* rows : {&adapted, &kept_adapted}) {
      rows->count = c.num_loras;
      rows->starts = memory.take<int64_t>(c.num_loras + 1);
      rows->rows = memory.take<int64_t>(rows == &adapted ? tokens : c.num_wanted);
    }
  }

  void list_adapters() {
    adapted.list(c.tokens, [&](int64_t t) { return c.adapters[t]; });
    if (keeps()) kept_adapted.list(c.num_wanted, [&](int64_t t) { return c.adapters[c.wanted[t]]; });
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

  // A thread's `line`: room for a normed row or a row of the table, and behind it for one in another order, or another one.
  int64_t line_floats() const { return (std::max(m.hidden, input_columns()) + 15) / 16 * 16; }
  int64_t widest() const { return std::max({m.hidden, q_size, m.inner, m.input_size}); }

  // Row t of what w multiplies.
  template <class V>
  void convert(const Linear& w, int64_t t, const V* row, float* line) {
    Op::convert(words + t * w.steps(), scales + t * w.blocks(), in_order(w, row, (V*)(line + line_floats())), w.columns);
  }

  // What the adapters of the step add to a product. Its sums are computed here from rows x, if there is an adapter for it.
  template <class X>
  LoraProduct adapt(const Linear& w, const X* x, int64_t index, int which, Counter* counters) {
    LoraProduct lora = {kept ? &kept_adapted : &adapted, c.loras, index, which, sums, sums_stride, nullptr};
    if (!c.adapters || !lora.any()) return {};
    reduce_rows(lora, halves(), (const T*)nullptr, x, w.columns, counters[LORA + which]);
    team.barrier();
    return lora;
  }

  // Rows that `next`, `experts`, or both, multiply, and beside `next` the layer's `beside`.
  void norm_rows(Counter& counter, const float* weight, const Linear* next, const Experts* experts, float* line,
                 const Linear* beside = nullptr) {
    rows(counter, [&](int64_t t) {
      const float* row = x + t * m.hidden;
      float* normed = c.adapters ? wide + t * m.hidden : line;
      if (weight) rms_norm(normed, row, weight, m.hidden, m.eps);
      else if (c.adapters) memcpy(normed, row, m.hidden * sizeof(float));
      if (next) convert(*next, t, weight ? normed : row, line);
      if (beside) rates_rows.convert<T>(*beside, t, in_order(*beside, weight ? normed : row, line + line_floats()));
      if (!experts) return;
      mixture.convert_routed(*experts, t, weight ? normed : row);
      mixture.convert_row(*experts, t, weight ? normed : row);
    });
  }

  // out [rows][outputs of w] of rows that are operands of w, whose product may be another one than that of the other layers. A
  // barrier follows only where there are adapters, whose sums the next product overwrites.
  void product_beside(const Linear& w, const Operand& a, float* out, Counter* counters, const LoraProduct& lora = {}) {
    Target<float> to = {out, w.all_outputs(), nullptr, 0};
    if (lora.rows) to.lora = &lora;
    with_product<T>(w.kind, [&](auto op) {
      using Product = decltype(op);
      multiply<Product, float>(w, a.of<Product>(w), count, to, counters, team.size);
    });
    if (lora.rows) team.barrier();
  }

  template <class Out>
  void product(const Linear& w, const Word* a, Target<Out> to, const LoraProduct& lora, Counter* counters) {
    if (lora.rows) to.lora = &lora;
    multiply<Op, Out>(w, {a, scales, w.steps(), w.blocks()}, count, to, counters, team.size);
    team.barrier();
  }

  // What the last addition to x in a layer does beside: x is multiplied by `scalar`, and converted for `next`, if there is one.
  struct End {
    float scalar = 1.0f;
    const Linear* next = nullptr;
  };

  // Row t of x += line.
  void add_line(int64_t t, const End& end, float* line) {
    float* to = x + t * m.hidden;
    for (int64_t i = 0; i < m.hidden; i += W) {
      F sum = add(load_some(to + i, m.hidden - i), load_some(line + i, m.hidden - i));
      store_some(to + i, mul(sum, all(end.scalar)), m.hidden - i);
    }
    if (end.next) convert(*end.next, t, to, line);
  }

  // x += norm of `sublayer`.
  void add_normed(Counter& counter, const float* norm, const End& end, float* line) {
    rows(counter, [&](int64_t t) {
      rms_norm(line, sublayer + t * m.hidden, norm, m.hidden, m.eps);
      add_line(t, end, line);
    });
  }

  // The product of w and `values`, [tokens][columns of w], with adapters.
  template <class Out>
  void product_of(const Linear& w, const T* values, const Target<Out>& to, float* line, Counter* counters, int64_t first,
                  int64_t index, int which) {
    const Word* a = (const Word*)values;
    if (!AS_IS || w.columns % Op::DEPTH) {
      rows(counters[first], [&](int64_t t) { convert(w, t, values + t * w.columns, line); });
      a = words;
    }
    product(w, a, to, adapt(w, values, index, which, counters), counters + first + 1);
  }

  // x += w values; what is added goes through the norm `post`, or is multiplied by its row's factor, if there is one. `end`: only
  // with `post`.
  void add_product(const Linear& w, const T* values, const float* post, const float* factors, float* line, Counter* counters,
                   int64_t first, int64_t index, int which, const End& end = {}) {
    if (!post) {
      Target<T> to = {nullptr, m.hidden, x, 0};
      to.factors = factors;
      return product_of(w, values, to, line, counters, first, index, which);
    }
    product_of(w, values, Target<float>{sublayer, m.hidden, nullptr, 0}, line, counters, first, index, which);
    add_normed(counters[first + 2], post, end, line);
  }

  // Norm and rotation of a token's query and key heads, in the family's order; keys and values to their cells. A token's row of
  // `qkv` has room for values also where they are its keys.
  void heads(const Layer& layer, const Step& step, void* kv, int64_t t) {
    int64_t size = step.head_dim, q_size = q_size_of(step), kv_heads = layer.kv_parts ? step.kv_heads : 0;
    int64_t position = c.positions[row_of(t)], query_size = layer.gated ? 2 * size : size;
    float* token = qkv + t * qkv_size_of(layer);
    float *keys = token + step.heads * query_size, *values = keys + kv_heads * size;
    const float* raw = layer.kv_parts == 1 ? keys : values;
    const float* table = layer.rotary ? layer.rotary + position * layer.rotary_dim : nullptr;
    if (m.value_norm) {
      for (int64_t h = 0; h < kv_heads; h++) rms_norm(values + h * size, raw + h * size, nullptr, size, m.eps);
    } else if (raw != values) {
      memcpy(values, raw, kv_heads * size * sizeof(float));
    }
    if (m.norm_all) {
      rms_norm(token, token, layer.q_norm, q_size, m.eps);
      if (kv_heads) rms_norm(keys, keys, layer.k_norm, kv_heads * size, m.eps);
    }
    for (int64_t h = 0; h < step.heads + kv_heads; h++) {
      float* head = h < step.heads ? token + h * query_size : keys + (h - step.heads) * size;
      const float* weight = m.norm_all ? nullptr : h < step.heads ? layer.q_norm : layer.k_norm;
      if (weight && !m.norm_last) rms_norm(head, head, weight, size, m.eps);
      if (table) layer.neighbours ? rotate_neighbours(head, table, layer.rotary_dim) : rotate(head, table, layer.rotary_dim);
      if (weight && m.norm_last) rms_norm(head, head, weight, size, m.eps);
      if (h >= step.heads) continue;
      if (m.query_factors)
        for (int64_t i = 0; i < size; i++) head[i] *= m.query_factors[position];
      narrow(queries + t * q_size + h * size, head, size);
    }
    for (int64_t h = 0; h < kv_heads; h++) {
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
    cohort_dequantize(c.embed_kind, c.embed, c.token_ids + t, 1, m.hidden, to);
    for (int64_t i = 0; i < m.hidden; i++) to[i] *= m.embed_scale;
  }

  // ---- inputs of layers --------------------------------------------------------------------------------------------

  template <class Stored>
  void table_row(int64_t t, float* line) {
    widen(line, (const Stored*)c.table + c.table_ids[t] * input_columns(), input_columns());
  }

  // Row t of the table, [num_layers][input_size].
  void look_up(int64_t t, float* line) {
    if (c.table_kind == FP32) return table_row<float>(t, line);
    if (c.table_kind == BF16) return table_row<uint16_t>(t, line);
    if (c.table_kind == FP16) return table_row<Half>(t, line);
    with_layout(c.table_kind, [&](auto layout) {
      using L = decltype(layout);
      dequantize_row<L>((const uint8_t*)c.table + c.table_ids[t] * row_bytes<L>(input_columns()), line, input_columns());
    });
  }

  // `inputs` of rows that are operands in `projected`.
  void compute_inputs(float* line) {
    product_beside(*m.layer_projection, projected, inputs, counters + PROJECT);
    team.barrier();
    rows(counters[LAYER_INPUTS], [&](int64_t t) {
      look_up(t, line);
      F scale = all(m.projected_scale), of_table = all(m.table_scale), root_of_half = all(0.70710678f);
      int64_t n = m.input_size;
      for (int64_t l = 0; l < m.num_layers; l++) {
        float *to = inputs + t * input_columns() + l * n, *row = line + l * n;
        for (int64_t i = 0; i < n; i += W) store_some(to + i, mul(load_some(to + i, n - i), scale), n - i);
        rms_norm(to, to, m.layer_norm, n, m.eps);
        for (int64_t i = 0; i < n; i += W) {
          F sum = fma(load_some(row + i, n - i), of_table, load_some(to + i, n - i));
          store_some(to + i, mul(sum, root_of_half), n - i);
        }
      }
    });
  }

  // Adds what the inputs of a layer make to x, of rows that `input_gate` multiplies, and scales all.
  void add_inputs(const Layer& layer, int64_t index, Counter* counter, float* line) {
    int64_t n = m.input_size;
    product(*layer.input_gate, words, Target<float>{qkv, n, nullptr, 0}, {}, counter + INPUT_GATE);
    rows(counter[INPUT_ROWS], [&](int64_t t) {
      const float *gate = qkv + t * n, *input = inputs + row_of(t) * input_columns() + index * n;
      for (int64_t i = 0; i < n; i += W) {
        F active = activate(load_some(gate + i, n - i), m.activation);
        store_some(line + i, mul(active, load_some(input + i, n - i)), n - i);
      }
      convert(*layer.input_projection, t, line, line);
    });
    product(*layer.input_projection, words, Target<float>{sublayer, m.hidden, nullptr, 0}, {}, counter + INPUT_PROJECTION);
    add_normed(counter[INPUT_NORM], layer.input_norm, {layer.scalar, nullptr}, line);
  }

  // ---- layers ------------------------------------------------------------------------------------------------------

  // A layer's attention over the rows that are kept. A piece whose rows are all kept stays as it is planned; of another one,
  // neighbours that are kept become a piece of their own, which is not cut, as a few rows are little work: its splits are added
  // up in the same order.
  void keep_pieces(Step& to, const Step& from, Work* work) {
    to = from;
    to.work = (const int64_t*)work;
    to.num_work = 0;
    for (int64_t i = 0; i < from.num_work; i++) {
      Work piece = ((const Work*)from.work)[i];
      const int64_t *end = c.wanted + c.num_wanted, *first = std::lower_bound(c.wanted, end, piece.row);
      const int64_t* last = std::lower_bound(first, end, piece.row + piece.tokens);
      if (last - first == piece.tokens) {
        piece.row = first - c.wanted;
        work[to.num_work++] = piece;
        continue;
      }
      if (piece.group >= 0 && piece.slot != piece.group_slot) continue;  // the first of the cut piece stands for all
      while (first < last) {
        const int64_t* next = first + 1;
        while (next < last && *next == next[-1] + 1) next++;
        work[to.num_work++] = run_of(piece, *first, next - first, from.window);
        first = next;
      }
    }
  }

  // `tokens` rows of a piece from row `row` of the step on.
  Work run_of(Work piece, int64_t row, int64_t tokens, int64_t window) const {
    piece.pos += row - piece.row;
    piece.row = std::lower_bound(c.wanted, c.wanted + c.num_wanted, row) - c.wanted;
    piece.tokens = tokens;
    int64_t first_key = window ? std::max<int64_t>(0, piece.pos + 1 - window) : 0;
    piece.split_begin = first_key / SPLIT, piece.split_end = (piece.pos + tokens - 1) / SPLIT + 1;
    piece.group = -1;
    return piece;
  }

  // From here on rows of x are those that are wanted, and those of queries or mixed, [rows][size], which are `from` where there
  // is one; `to` is the other of the two.
  void keep_wanted(const T* from, T* to, int64_t size) {
    if (omp_get_thread_num() == 0) {
      count = c.num_wanted, kept = true;
      Work* work = kept_work;
      for (int64_t i = last_writer; i < m.num_layers; i++) {
        if (!m.layers[i].attends()) continue;
        int64_t same = same_step(i);
        if (same < i) {
          kept_steps[i - last_writer] = kept_steps[same - last_writer];
          continue;
        }
        keep_pieces(kept_steps[i - last_writer], original_step(i), work);
        work += original_step(i).num_work + c.num_wanted;
      }
    }
    team.barrier();
    rows(counters[KEEP], [&](int64_t t) { memcpy(few + t * m.hidden, x + c.wanted[t] * m.hidden, m.hidden * sizeof(float)); });
    if (from) rows(counters[KEEP_QUERIES], [&](int64_t t) { memcpy(to + t * size, from + c.wanted[t] * size, size * sizeof(T)); });
    if (omp_get_thread_num() == 0) {
      x = few;
      if (from) std::swap(queries, mixed);
    }
    team.barrier();
  }

  const Step& step_of(int64_t index) const { return kept ? kept_steps[index - last_writer] : original_step(index); }

  void gate_and_up(const Layer& layer, int64_t index, Counter* counter) {
    product(*layer.gate_up, words, Target<T>{inner, layer.gate_up->outputs(), nullptr, m.activation},
            adapt(*layer.gate_up, wide, index, LORA_GATE_UP, counter), counter + GATE_UP);
  }

  // x += norm(norm(MLP of norm(x)) + norm(experts of norm(x))), where the router sees x.
  void add_both(const Layer& layer, int64_t index, Counter* counter, const End& end, float* line) {
    const Experts& e = *layer.experts;
    rows(counter[MLP_NORM], [&](int64_t t) {
      const float* row = x + t * m.hidden;
      float* normed = c.adapters ? wide + t * m.hidden : line;
      rms_norm(normed, row, layer.mlp_norm, m.hidden, m.eps);
      convert(*layer.gate_up, t, normed, line);
      rms_norm(line, row, layer.router_norm, m.hidden, m.eps);
      mixture.convert_routed(e, t, line);
      rms_norm(line, row, layer.experts_norm, m.hidden, m.eps);
      mixture.convert_row(e, t, line);
      memset(added + t * m.hidden, 0, m.hidden * sizeof(float));
    });
    mixture.add_experts(e, count, added, counter + EXPERTS);
    gate_and_up(layer, index, counter);
    product_of(*layer.down, inner, Target<float>{sublayer, m.hidden, nullptr, 0}, line, counter, DOWN, index, LORA_DOWN);
    rows(counter[DOWN + 2], [&](int64_t t) {
      float* other = line + line_floats();
      rms_norm(line, sublayer + t * m.hidden, layer.dense_post_norm, m.hidden, m.eps);
      rms_norm(other, added + t * m.hidden, layer.experts_post_norm, m.hidden, m.eps);
      for (int64_t i = 0; i < m.hidden; i++) line[i] += other[i];
      rms_norm(line, line, layer.mlp_post_norm, m.hidden, m.eps);
      add_line(t, end, line);
    });
  }

  // Whether rows of a layer that is not wanted are left out behind what it writes.
  bool ends_rows(int64_t index) const { return index == last_writer && keeps(); }
  // The row of `qkv` that row t of a layer's result is of.
  int64_t projected_row(int64_t index, int64_t t) const { return index == last_writer ? row_of(t) : t; }

  // `mixed` of a layer with attention.
  void attend(const Layer& layer, int64_t index, Counter* counter) {
    const Step& all_rows = original_step(index);
    void* kv = c.kv[layer.cache];
    if (omp_get_thread_num() == 0) clear_counters(all_rows);
    rows(counter[HEADS], heads_at_once(all_rows), [&](int64_t t) { heads(layer, all_rows, kv, t); });
    if (ends_rows(index)) keep_wanted(queries, mixed, q_size_of(all_rows));
    const Step& step = step_of(index);
    if (!attend_cells(step, kv, (const T*)queries, q_size_of(step), mixed, layer.sinks, counter[ATTENTION])) failed = 1;
    team.barrier();
    if (layer.gated) rows(counter[RESULT], [&](int64_t t) { gate_heads(layer, step, index, t); });
  }

  // Row t of `mixed` times the sigmoids of its gates.
  void gate_heads(const Layer& layer, const Step& step, int64_t index, int64_t t) {
    int64_t size = step.head_dim;
    const float* gate = qkv + projected_row(index, t) * qkv_size_of(layer) + size;
    T* head = mixed + t * q_size_of(step);
    for (int64_t h = 0; h < step.heads; h++, head += size, gate += 2 * size)
      for (int64_t i = 0; i < size; i += W) {
        F e = exp2f(smaller(all(126.0f), mul(load_some(gate + i, size - i), all(-LOG2E))));
        store_some(head + i, div(load_some(head + i, size - i), add(all(1.0f), e)), size - i);
      }
  }

  // `mixed` of a layer with a state.
  void move_states(const Layer& layer, int64_t index, Counter* counter) {
    int64_t stride = qkv_size_of(layer), columns = layer.o->columns;
    const Slots& slots = c.slots[layer.cache];
    if (layer.convolution) {
      convolve_to(*layer.convolution, *c.states, slots, qkv, stride, mixed, counter[STATES]);
      team.barrier();
      if (ends_rows(index)) keep_wanted(mixed, queries, columns);
      return;
    }
    const Delta& delta = *layer.delta;
    scan_rows(delta, *c.states, slots, qkv, stride, rates, count, counter + STATES, team);
    if (ends_rows(index)) keep_wanted(nullptr, nullptr, 0);
    rows(counter[RESULT], [&](int64_t t) { delta_result(delta, qkv + projected_row(index, t) * stride, mixed + t * columns); });
  }

  void layer(int64_t index, Counter* counter, float* line) {
    const Layer& layer = m.layers[index];
    norm_rows(counter[NORM], layer.attn_norm, layer.qkv, nullptr, line, layer.rates);
    if (layer.rates)
      product_beside(*layer.rates, rates_rows, rates, counter + RATES, adapt(*layer.rates, wide, index, LORA_RATES, counter));
    product(*layer.qkv, words, Target<float>{qkv, qkv_size_of(layer), nullptr, 0},
            adapt(*layer.qkv, wide, index, LORA_QKV, counter), counter + QKV);
    if (layer.attends()) attend(layer, index, counter);
    else move_states(layer, index, counter);
    add_product(*layer.o, mixed, layer.attn_post_norm, nullptr, line, counter, O, index, LORA_O);
    End end = {layer.input_gate ? 1.0f : layer.scalar, layer.input_gate};
    if (layer.experts_norm) {
      add_both(layer, index, counter, end, line);
      if (layer.input_gate) add_inputs(layer, index, counter, line);
      return;
    }
    norm_rows(counter[MLP_NORM], layer.mlp_norm, layer.gate_up, layer.experts, line);
    if (layer.experts) add_experts(mixture, *layer.experts, count, x, counter + EXPERTS);
    if (layer.gate) shared_gate(mixture, *layer.gate, count, gates, counter[GATE]);
    if (!layer.gate_up) return;
    gate_and_up(layer, index, counter);
    add_product(*layer.down, inner, layer.mlp_post_norm, layer.gate ? gates : nullptr, line, counter, DOWN, index, LORA_DOWN, end);
    if (layer.input_gate) add_inputs(layer, index, counter, line);
  }

  void run() {
    team.join(omp_get_num_threads());
    float* line = (float*)aligned_alloc(64, ((line_floats() + widest() + 15) * 4 + 255) / 64 * 64);
    if (!line) failed = 1;
    team.barrier();
    if (failed) return free(line);
    rows(counters[EMBED], [&](int64_t t) {
      if (c.embed_kind >= FIRST_LAYOUT) embed_stored(t);
      else c.embed_kind == FP16 ? embed<Half>(t) : embed<T>(t);
      if (!m.layer_projection) return;
      const float* row = in_order(*m.layer_projection, x + t * m.hidden, line);
      projected.convert<T>(*m.layer_projection, t, row);
    });
    if (m.layer_projection) compute_inputs(line);
    for (int64_t i = 0; i < m.num_layers; i++) layer(i, counters + FIRST_LAYER + i * PHASES, line);
    rows(counters[FINAL_NORM], [&](int64_t t) {
      rms_norm(line, x + t * m.hidden, m.final_norm, m.hidden, m.eps);
      int64_t at = row_of(t) * m.hidden;
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

// `forward`, in cohort_cpu_forward_*.cpp.
SHARED int forward_float(const Model& m, const Call& c);
SHARED int forward_half(const Model& m, const Call& c);
SHARED int forward_bf16(const Model& m, const Call& c);
SHARED int forward_int8_float(const Model& m, const Call& c);
SHARED int forward_int8_bf16(const Model& m, const Call& c);
SHARED int forward_quantized_float(const Model& m, const Call& c);
SHARED int forward_quantized_bf16(const Model& m, const Call& c);
