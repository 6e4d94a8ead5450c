// Products with weights of every kind: `cohort_linear` for one of them, and mixtures of experts.

#include "experts.h"

namespace {

// One product on its own, with its left operand as it comes.
template <class Op, class T, class U>
bool multiply_alone(const Linear& w, const T* a, int64_t m, const Target<U>& to, int threads) {
  int64_t steps = w.steps();
  Scratch memory;
  int64_t blocks = w.blocks();
  int64_t spare = w.order ? threads * w.columns : 0;
  size_t bytes = m * (steps * sizeof(typename Op::Word) + blocks * sizeof(typename Op::Scale)) + spare * sizeof(T) + 256;
  if (!memory.reserve(bytes)) return false;
  auto* words = memory.take<typename Op::Word>(m * steps);
  auto* scales = memory.take<typename Op::Scale>(m * blocks);
  T* lines = memory.take<T>(spare);
  Counter rows, panels[MAX_PARTS];
  Team team;
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    team.join(omp_get_num_threads());
    for (int64_t i; (i = rows.take(4)) < m;)
      for (int64_t r = i; r < m && r < i + 4; r++) {
        const T* row = in_order(w, a + r * w.columns, lines + omp_get_thread_num() * w.columns);
        Op::convert(words + r * steps, scales + r * blocks, row, w.columns);
      }
    team.barrier();
    multiply<Op, U>(w, {words, scales, steps, blocks}, m, to, panels, threads);
  }
  return true;
}

template <class T, class U>
bool multiply_any(const Linear& w, const T* a, int64_t m, U* out, int64_t activation, float* maxima,
                  const float* const* extra, int threads) {
  Target<U> to = {out, w.all_outputs(), nullptr, activation, maxima, extra};
  if (w.kind == FP32) return multiply_alone<FloatProduct>(w, a, m, to, threads);
  if (w.kind == FP16) return multiply_alone<HalfProduct>(w, a, m, to, threads);
  if (w.kind == BF16) return multiply_alone<Bf16Product>(w, a, m, to, threads);
  if (w.kind == INT8) return multiply_alone<Int8Product>(w, a, m, to, threads);
  return multiply_alone<QuantProduct>(w, a, m, to, threads);
}

}  // namespace

SHARED void add_experts_to_floats(Mixture<float>& mixture, const Experts& e, int64_t tokens, float* x, Counter* counters) {
  mixture.add_experts(e, tokens, x, counters);
}

SHARED void add_experts_to_bf16(Mixture<uint16_t>& mixture, const Experts& e, int64_t tokens, float* x, Counter* counters) {
  mixture.add_experts(e, tokens, x, counters);
}

SHARED void shared_gate_of_floats(Mixture<float>& mixture, const Linear& gate, int64_t tokens, float* out, Counter& counter) {
  mixture.shared_gate(gate, tokens, out, counter);
}

SHARED void shared_gate_of_bf16(Mixture<uint16_t>& mixture, const Linear& gate, int64_t tokens, float* out, Counter& counter) {
  mixture.shared_gate(gate, tokens, out, counter);
}

extern "C" {

// out [m][outputs] of `out_dtype`: a's, or float; a [m][columns] of `dtype`; maxima [m][panels] of a plain product, or null;
// extra [m] -> [rows of w] added before the activation, or null.
int cohort_linear(const Linear* w, int64_t dtype, const void* a, int64_t m, int64_t out_dtype, void* out, int64_t activation,
                  float* maxima, const float* const* extra, int64_t threads) {
  if (dtype == 0) return !multiply_any(*w, (const float*)a, m, (float*)out, activation, maxima, extra, (int)threads);
  const uint16_t* in = (const uint16_t*)a;
  if (out_dtype == 0) return !multiply_any(*w, in, m, (float*)out, activation, maxima, extra, (int)threads);
  return !multiply_any(*w, in, m, (uint16_t*)out, activation, maxima, extra, (int)threads);
}
}
