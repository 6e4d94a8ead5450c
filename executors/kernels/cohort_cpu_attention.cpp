// Attention: `cohort_attend` for one layer, and what forwards of all layers call.

#include "attention_int8.h"

#include <omp.h>

namespace {

// Writes keys and values of a step, then computes its attention. Strides count elements between tokens.
template <class T>
int attend_alone(const Step& s, void* kv, const T* q, int64_t q_stride, const T* k, int64_t k_stride, const T* v,
                 int64_t v_stride, T* out, const float* sinks) {
  clear_counters(s);
  Counter tokens, work;
  Team team;
  std::atomic<int> failed{0};
#pragma omp parallel num_threads((int)s.threads) if (s.threads > 1)
  {
    team.join(omp_get_num_threads());
    for (int64_t i; (i = tokens.take(32)) < s.tokens;)
      for (int64_t t = i; t < s.tokens && t < i + 32; t++) put_token(s, kv, k + t * k_stride, v + t * v_stride, t);
    team.barrier();  // keys that one sequence computes may be in another's table
    if (!attend_cells(s, kv, q, q_stride, out, sinks, work)) failed = 1;
  }
  return failed;
}

}  // namespace

SHARED bool attend_floats(const Step& s, const void* kv, const float* q, int64_t q_stride, float* out, const float* sinks,
                          Counter& counter) {
  return attend_any(s, kv, q, q_stride, out, sinks, counter);
}

SHARED bool attend_bf16(const Step& s, const void* kv, const uint16_t* q, int64_t q_stride, uint16_t* out, const float* sinks,
                        Counter& counter) {
  return attend_any(s, kv, q, q_stride, out, sinks, counter);
}

extern "C" {

// q, k, v, out: [T][heads][head_dim], a token's heads in one piece, float where keys and values are float16; sinks [heads], or
// null.
int cohort_attend(const Step* s, void* kv, const void* q, int64_t q_stride, const void* k, int64_t k_stride, const void* v,
                  int64_t v_stride, void* out, const float* sinks) {
  if (s->dtype != BFLOAT16)
    return attend_alone(*s, kv, (const float*)q, q_stride, (const float*)k, k_stride, (const float*)v, v_stride, (float*)out,
                        sinks);
  using B = uint16_t;
  return attend_alone(*s, kv, (const B*)q, q_stride, (const B*)k, k_stride, (const B*)v, v_stride, (B*)out, sinks);
}
}
