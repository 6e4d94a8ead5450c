// A mixture of experts (Shazeer et al. 2017): each token goes through the experts that a router chooses for it.
//
//   logits = router x                             float32
//   the top_k of softmax(logits), as they are or scaled to sum to 1; some families have a factor for each expert
//   or of sigmoid(logits), chosen by these and a bias of each expert, as they are or scaled to sum to 1, times a factor
//   pairs of token and expert, those of an expert side by side, tokens ascending
//   inner = act(gate x) * up x    for each pair   threads take some panels of an expert's weight
//   added += share * down inner   for each pair   threads take some panels, of all experts' weights
//
// In the last phase a thread has some columns of the result to itself and goes through the experts in ascending order: a token's
// sum is in one order, the same bits in any batch, and what experts make needs no memory before it is added up. In the phase
// before, a thread copies the rows of an expert side by side, as far as they stay in the cache.
#pragma once

#include <omp.h>

#include "attention.h"  // Scratch
#include "gemm.h"

namespace {

// Of a layer. All of `gate_up`, and all of `down`, are multiplied by the same `Op` and have the same shape.
struct Experts {
  int64_t count, top_k, inner;
  int64_t normalized;  // whether a token's shares are scaled to sum to 1
  const Linear* router;
  const Linear *const *gate_up, *const *down;  // [count]
  const float* factors;  // [count], what shares are multiplied by; or null
  int64_t scored;        // whether shares are of sigmoids, not of a softmax
  const float* choice_bias;  // [count], which counts for the choice of scored experts alone; or null
  float scale;               // factor of scored experts' shares
};

constexpr float LEAST_SHARES = 1e-6f;  // what is added to the sum of scored experts' shares before they are divided by it

// Calls `use(Op())` for the product with weights of that kind in a model of T.
template <class T, class Use>
inline auto with_product(int64_t kind, Use use) {
  if (kind >= FIRST_LAYOUT) return use(QuantProduct());
  if (kind == INT8) return use(Int8Product());
  if constexpr (std::is_same<T, float>::value)
    return kind == FP16 ? use(HalfProduct()) : use(FloatProduct());
  else
    return use(Bf16Product());
}

// Rows as the product with a weight of any kind reads them.
struct Operand {
  char *words, *scales;

  // Bytes of a row's words, or of its scales.
  template <class T>
  static int64_t word_bytes(const Linear& w) {
    return with_product<T>(w.kind, [&](auto op) { return w.steps() * (int64_t)sizeof(typename decltype(op)::Word); });
  }
  template <class T>
  static int64_t scale_bytes(const Linear& w) {
    return with_product<T>(w.kind, [&](auto op) { return w.blocks() * (int64_t)sizeof(typename decltype(op)::Scale); });
  }
  template <class Op>
  Left<Op> of(const Linear& w) const {
    return {(const typename Op::Word*)words, (const typename Op::Scale*)scales, w.steps(), w.blocks()};
  }
  template <class T, class V>
  void convert(const Linear& w, int64_t row, const V* values) const {
    with_product<T>(w.kind, [&](auto op) {
      using Op = decltype(op);
      auto* to = (typename Op::Word*)words + row * w.steps();
      Op::convert(to, (typename Op::Scale*)scales + row * w.blocks(), values, w.columns);
    });
  }
};

// Bytes of rows that are held as operands, and of what is taken for them at a time.
struct OperandSize {
  int64_t words = 0, scales = 0;
  template <class T>
  void include(const Linear& w) {
    words = std::max(words, Operand::word_bytes<T>(w)), scales = std::max(scales, Operand::scale_bytes<T>(w));
  }
  Operand take(Scratch& memory, int64_t rows) const {
    char* at = memory.take<char>(rows * words);
    return {at, memory.take<char>(rows * scales)};
  }
};

// Results of pairs, times their shares, added to rows of a matrix: pair i's to row token[i].
struct Additions {
  float* to;  // [.][stride]
  int64_t stride;
  const int32_t* token;
  const float* share;
};

inline void deliver(const Linear& w, const float* buffer, int64_t pair, int64_t pairs, int64_t panel, const Additions& added) {
  int64_t first = panel * NR, left = w.outputs() - first;
  F bias[2] = {all(0.0f), all(0.0f)};
  if (w.bias) {
    bias[0] = load_some(w.bias + first, left);
    if (left > W) bias[1] = load_some(w.bias + first + W, left - W);
  }
  for (int64_t r = 0; r < pairs; r++, buffer += NR) {
    F share = all(added.share[pair + r]);
    float* at = added.to + added.token[pair + r] * added.stride + first;
    store_some(at, fma(share, add(load(buffer), bias[0]), load_some(at, left)), left);
    if (left <= W) continue;
    store_some(at + W, fma(share, add(load(buffer + W), bias[1]), load_some(at + W, left - W)), left - W);
  }
}

// The experts of a step's tokens, for all layers one after the other. Every thread of the team calls the same functions.
template <class T>
struct Mixture {
  enum : int64_t { ROUTER, CHOICE, GATE_UP, CONVERT, DOWN, PHASES };

  Team& team;
  int64_t hidden, activation;
  // The largest of the layers', 0 without experts:
  int64_t most_experts = 0, most_chosen = 0, most_inner = 0;
  OperandSize routed_size, row_size, inside_size;

  Operand routed, rows, inside;  // of tokens, for the router and for gate and up; of pairs, for down
  Operand copies;                // of an expert's rows, [threads][at_once]
  int64_t at_once = 0;
  float* logits;    // [tokens][experts]
  int32_t* chosen;  // [tokens][top_k]
  float* shares;
  T* inner;  // [pairs][inner]
  // Grouped by expert. An expert's pairs are those from starts[expert] to starts[expert + 1]; `active` lists those that have
  // any, and `units` where each one's units of work begin.
  int64_t *starts, *active, *units;
  int64_t num_active, grab;
  int32_t* token;
  float* share;

  Mixture(Team& team, int64_t hidden, int64_t activation) : team(team), hidden(hidden), activation(activation) {}

  // Takes a layer into account for the memory that a step takes.
  void measure(const Experts& e) {
    most_experts = std::max(most_experts, e.count), most_chosen = std::max(most_chosen, e.top_k);
    most_inner = std::max(most_inner, e.inner);
    routed_size.include<T>(*e.router), row_size.include<T>(**e.gate_up), inside_size.include<T>(**e.down);
  }

  void place(Scratch& memory, int64_t tokens, int64_t threads) {
    if (!most_experts) return;
    int64_t pairs = tokens * most_chosen;
    at_once = std::min<int64_t>(tokens, ROWS + FLOAT_MR);
    routed = routed_size.take(memory, tokens), rows = row_size.take(memory, tokens);
    inside = inside_size.take(memory, pairs), copies = row_size.take(memory, threads * at_once);
    logits = memory.take<float>(tokens * most_experts);
    chosen = memory.take<int32_t>(pairs), shares = memory.take<float>(pairs);
    token = memory.take<int32_t>(pairs), share = memory.take<float>(pairs);
    inner = memory.take<T>(pairs * most_inner);
    starts = memory.take<int64_t>(most_experts + 1), active = memory.take<int64_t>(most_experts);
    units = memory.take<int64_t>(most_experts + 1);
  }

  // Row t of what the router multiplies, and of what experts do.
  void convert_routed(const Experts& e, int64_t t, const float* row) { routed.convert<T>(*e.router, t, row); }
  void convert_row(const Experts& e, int64_t t, const float* row) { rows.convert<T>(**e.gate_up, t, row); }

  // out [tokens] = sigmoid(gate x), of rows that are converted.
  void shared_gate(const Linear& gate, int64_t tokens, float* out, Counter& counter) {
    with_product<T>(gate.kind, [&](auto op) {
      using Op = decltype(op);
      multiply<Op, float>(gate, routed.of<Op>(gate), tokens, {out, 1, nullptr, 0}, &counter, team.size);
    });
    team.barrier();
    if (omp_get_thread_num() == 0)
      for (int64_t t = 0; t < tokens; t++) out[t] = 1.0f / (1.0f + exp2_one(std::min(126.0f, -out[t] * LOG2E)));
    team.barrier();
  }

  // Adds to x [tokens][hidden] what the experts make of the rows that are converted. Counters: PHASES.
  void add_experts(const Experts& e, int64_t tokens, float* x, Counter* counters) {
    with_product<T>(e.router->kind, [&](auto op) {
      using Op = decltype(op);
      multiply<Op, float>(*e.router, routed.of<Op>(*e.router), tokens, {logits, e.count, nullptr, 0}, counters + ROUTER,
                          team.size);
    });
    team.barrier();
    choose(e, tokens, counters[CHOICE]);
    with_product<T>((*e.gate_up)->kind, [&](auto op) {
      using Op = decltype(op);
      if (omp_get_thread_num() == 0) group<Op>(e, tokens);
      team.barrier();
      compute_inner<Op>(e, counters[GATE_UP]);
    });
    team.barrier();
    with_product<T>((*e.down)->kind, [&](auto op) {
      using Op = decltype(op);
      add_down<Op>(e, {x, hidden, token, share}, convert_inner<Op>(e, tokens * e.top_k, counters[CONVERT]), counters[DOWN]);
    });
    team.barrier();
  }

  // ---- the choice --------------------------------------------------------------------------------------------------

  // A barrier follows where other threads than the first choose.
  void choose(const Experts& e, int64_t tokens, Counter& counter) {
    if (tokens < 8) {
      for (int64_t t = 0; t < tokens && omp_get_thread_num() == 0; t++) choose_one(e, t);
      return;
    }
    for (int64_t i; (i = counter.take(8)) < tokens;)
      for (int64_t t = i; t < tokens && t < i + 8; t++) choose_one(e, t);
    team.barrier();
  }

  // The largest logits, of equal ones the first, and their shares.
  void choose_one(const Experts& e, int64_t t) {
    float* row = logits + t * e.count;
    if (e.scored) sigmoids(row, e.count);
    auto rank = [&](int64_t i) { return e.choice_bias ? row[i] + e.choice_bias[i] : row[i]; };
    int32_t* best = chosen + t * e.top_k;
    for (int64_t i = 0, found = 0; i < e.count; i++) {
      if (found == e.top_k && !(rank(i) > rank(best[found - 1]))) continue;
      int64_t at = found < e.top_k ? found++ : found - 1;
      for (; at > 0 && rank(i) > rank(best[at - 1]); at--) best[at] = best[at - 1];
      best[at] = (int32_t)i;
    }
    float top = row[best[0]], sum = 0.0f;
    float* share = shares + t * e.top_k;
    if (e.scored) {
      for (int64_t i = 0; i < e.top_k; i++) sum += share[i] = row[best[i]];
      for (int64_t i = 0; i < e.top_k; i++) share[i] = (e.normalized ? share[i] / (sum + LEAST_SHARES) : share[i]) * e.scale;
      return;
    }
    for (int64_t i = 0; i < e.top_k; i++) sum += share[i] = exp2_one((row[best[i]] - top) * LOG2E);
    if (!e.normalized) sum = sum_of_all(row, e.count, top);
    for (int64_t i = 0; i < e.top_k; i++) share[i] /= sum;
    for (int64_t i = 0; e.factors && i < e.top_k; i++) share[i] *= e.factors[best[i]];
  }

  static void sigmoids(float* row, int64_t n) {
    for (int64_t i = 0; i < n; i += W) {
      F e = exp2f(smaller(all(126.0f), mul(load_some(row + i, n - i), all(-LOG2E))));
      store_some(row + i, div(all(1.0f), add(all(1.0f), e)), n - i);
    }
  }

  static float sum_of_all(const float* row, int64_t n, float top) {
    F sum = all(0.0f);
    for (int64_t i = 0; i < n; i += W) {
      F a = exp2f(mul(sub(load_some(row + i, n - i), all(top)), all(LOG2E)));
      sum = add(sum, n - i < W ? keep(a, (1u << (n - i)) - 1, all(0.0f)) : a);
    }
    return sum_of(sum);
  }

  // Lists pairs by expert, and how the first products are shared out.
  template <class Op>
  void group(const Experts& e, int64_t tokens) {
    for (int64_t i = 0; i <= e.count; i++) starts[i] = 0;
    for (int64_t p = 0; p < tokens * e.top_k; p++) starts[chosen[p] + 1]++;
    for (int64_t i = 0; i < e.count; i++) starts[i + 1] += starts[i];
    // Placing a pair moves its expert's start to the next one's, so that they are moved back behind it.
    for (int64_t p = 0; p < tokens * e.top_k; p++) {
      int64_t at = starts[chosen[p]]++;
      token[at] = (int32_t)(p / e.top_k), share[at] = shares[p];
    }
    for (int64_t i = e.count; i > 0; i--) starts[i] = starts[i - 1];
    starts[0] = 0;
    num_active = 0;
    int64_t chunks = 0, panels = (*e.gate_up)->panels();
    for (int64_t i = 0; i < e.count; i++)
      if (starts[i + 1] > starts[i]) active[num_active++] = i, chunks += chunks_of<Op>(i);
    grab = std::max<int64_t>(1, std::min(panels, chunks * panels / (team.size * 16)));
    units[0] = 0;
    for (int64_t i = 0; i < num_active; i++)
      units[i + 1] = units[i] + chunks_of<Op>(active[i]) * ((panels + grab - 1) / grab);
  }

  int64_t pairs_of(int64_t expert) const { return starts[expert + 1] - starts[expert]; }
  template <class Op>
  int64_t chunks_of(int64_t expert) const {
    int64_t chunk = rows_at_once<Op>(pairs_of(expert));
    return (pairs_of(expert) + chunk - 1) / chunk;
  }

  // ---- gate and up -------------------------------------------------------------------------------------------------

  // Some panels of an expert's weight and some of its pairs.
  struct Unit {
    const Linear* w;
    int64_t begin, count, first, last;
  };

  // Unit `number`; `at` is the place in `active` of an expert whose units do not begin behind it, and is moved there.
  template <class Op>
  Unit unit(const Experts& e, int64_t number, int64_t& at) const {
    while (number >= units[at + 1]) at++;
    const Linear* w = e.gate_up[active[at]];
    int64_t panels = w->panels(), per_chunk = (panels + grab - 1) / grab, local = number - units[at];
    int64_t begin = starts[active[at]], pairs = pairs_of(active[at]), chunk = rows_at_once<Op>(pairs);
    int64_t from = local / per_chunk * chunk, first = local % per_chunk * grab;
    return {w, begin + from, std::min(chunk, pairs - from), first, std::min(first + grab, panels)};
  }

  // The rows of the pairs, side by side. One row is read where it is.
  template <class Op>
  Left<Op> side_by_side(const Linear& w, int64_t begin, int64_t count) const {
    Left<Op> all_rows = rows.of<Op>(w);
    if (count == 1) return all_rows.from(token[begin]);
    int64_t thread = omp_get_thread_num() * at_once;
    auto* words = (typename Op::Word*)(copies.words + thread * row_size.words);
    auto* scales = (typename Op::Scale*)(copies.scales + thread * row_size.scales);
    for (int64_t i = 0; i < count; i++) {
      Left<Op> row = all_rows.from(token[begin + i]);
      memcpy(words + i * row.steps, row.words, row.steps * sizeof *words);
      if (row.blocks) memcpy(scales + i * row.blocks, row.scales, row.blocks * sizeof *scales);
    }
    return {words, scales, all_rows.steps, all_rows.blocks};
  }

  template <class Op>
  __attribute__((noinline)) void compute_inner(const Experts& e, Counter& counter) {
    alignas(64) float buffer[Op::MR * NR];
    int64_t number = counter.take(1), at = 0, copied = -1;
    Left<Op> a = {};
    while (number < units[num_active]) {
      int64_t following = counter.take(1), next_at;
      Unit now = unit<Op>(e, number, at), next = now;
      next_at = at;
      if (following < units[num_active]) next = unit<Op>(e, following, next_at);
      if (copied != now.begin) a = side_by_side<Op>(*now.w, now.begin, now.count);
      copied = now.begin;
      const Panels<Op> each(*now.w);
      Target<T> to = {inner + now.begin * e.inner, e.inner, nullptr, activation};
      for (int64_t p = now.first; p < now.last; p++) {
        bool last = p + 1 == now.last;
        const uint32_t* ahead = last ? next.w->packed + next.first * each.words : each.at(p + 1);
        each.multiply(a, 0, now.count, p, ahead, last || asks_ahead<Op>(now.count), buffer, false,
                      [&](int64_t row, int64_t some) { deliver(*now.w, buffer, row, some, p, to); });
      }
      number = following;
    }
  }

  // ---- down --------------------------------------------------------------------------------------------------------

  // `inner` as `down` multiplies it.
  template <class Op>
  Left<Op> convert_inner(const Experts& e, int64_t pairs, Counter& counter) {
    const Linear& w = **e.down;
    constexpr bool AS_IS = std::is_same<typename Op::Word, uint32_t>::value && Op::DEPTH == 2;
    if (AS_IS && w.columns % 2 == 0) return {(const typename Op::Word*)inner, nullptr, w.steps(), 0};
    for (int64_t i; (i = counter.take(4)) < pairs;)
      for (int64_t p = i; p < pairs && p < i + 4; p++) inside.convert<T>(w, p, inner + p * e.inner);
    team.barrier();
    return inside.of<Op>(w);
  }

  template <class Op>
  __attribute__((noinline)) void add_down(const Experts& e, const Additions& added, const Left<Op>& a, Counter& counter) {
    alignas(64) float buffer[Op::MR * NR];
    int64_t panels = (*e.down)->panels(), some = std::max<int64_t>(1, panels / (team.size * 8));
    int64_t count = (panels + some - 1) / some, number = counter.take(1);
    while (number < count) {
      int64_t following = counter.take(1), first = number * some, last = std::min(first + some, panels);
      for (int64_t i = 0; i < num_active; i++) {
        const Linear& w = *e.down[active[i]];
        const Linear& next = i + 1 < num_active ? *e.down[active[i + 1]] : *e.down[active[0]];
        int64_t next_first = i + 1 < num_active ? first : following < count ? following * some : first;
        const Panels<Op> each(w);
        int64_t end = starts[active[i] + 1], chunk = rows_at_once<Op>(pairs_of(active[i]));
        for (int64_t begin = starts[active[i]]; begin < end; begin += chunk) {
          int64_t pairs = std::min(chunk, end - begin);
          for (int64_t p = first; p < last; p++) {
            bool jump = p + 1 == last;
            const uint32_t* ahead = !jump                   ? each.at(p + 1)
                                    : begin + chunk < end ? each.at(first)
                                                          : next.packed + next_first * each.words;
            each.multiply(a, begin, pairs, p, ahead, jump || asks_ahead<Op>(pairs), buffer, false,
                          [&](int64_t pair, int64_t most) { deliver(w, buffer, pair, most, p, added); });
          }
        }
      }
      number = following;
    }
  }
};

}  // namespace

// Two of `Mixture`, as cohort_cpu_products.cpp defines them.
SHARED void add_experts_to_floats(Mixture<float>& mixture, const Experts& e, int64_t tokens, float* x, Counter* counters);
SHARED void add_experts_to_bf16(Mixture<uint16_t>& mixture, const Experts& e, int64_t tokens, float* x, Counter* counters);
SHARED void shared_gate_of_floats(Mixture<float>& mixture, const Linear& gate, int64_t tokens, float* out, Counter& counter);
SHARED void shared_gate_of_bf16(Mixture<uint16_t>& mixture, const Linear& gate, int64_t tokens, float* out, Counter& counter);

namespace {

inline void add_experts(Mixture<float>& mixture, const Experts& e, int64_t tokens, float* x, Counter* counters) {
  add_experts_to_floats(mixture, e, tokens, x, counters);
}
inline void add_experts(Mixture<uint16_t>& mixture, const Experts& e, int64_t tokens, float* x, Counter* counters) {
  add_experts_to_bf16(mixture, e, tokens, x, counters);
}
inline void shared_gate(Mixture<float>& mixture, const Linear& gate, int64_t tokens, float* out, Counter& counter) {
  shared_gate_of_floats(mixture, gate, tokens, out, counter);
}
inline void shared_gate(Mixture<uint16_t>& mixture, const Linear& gate, int64_t tokens, float* out, Counter& counter) {
  shared_gate_of_bf16(mixture, gate, tokens, out, counter);
}

}  // namespace
