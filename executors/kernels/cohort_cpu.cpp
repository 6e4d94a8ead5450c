// The library that Python loads: C functions over attention.h, gemm.h, forward.h and sampling.h. All arrays are the caller's.

#include "checksum.h"
#include "forward.h"
#include "quantize.h"
#include "sampling.h"

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

// Each returns 0, or 1 where there is no memory.
extern "C" {

int cohort_nr() { return NR; }

// `dtype` of `in` and rows: 0 float, 1 bf16.
int cohort_pack(const Linear* w, int64_t dtype, const void* in, int64_t begin, int64_t count, int64_t threads) {
  if (dtype == 0) return pack(*w, (const float*)in, begin, count, (int)threads);
  return pack(*w, (const uint16_t*)in, begin, count, (int)threads);
}

// Rows quantized as in a file, [count][bytes of a row].
void cohort_pack_blocks(const Linear* w, const void* in, int64_t begin, int64_t count, int64_t threads) {
  with_layout(w->kind, [&](auto layout) {
    pack_rows<decltype(layout)>(*w, (const uint8_t*)in, begin, count, (int)threads);
  });
}

// Rows `at` [count] of `in`, quantized as in a file: float32 [count][columns].
void cohort_dequantize(int64_t kind, const void* in, const int64_t* at, int64_t count, int64_t columns, float* out) {
  with_layout(kind, [&](auto layout) {
    using L = decltype(layout);
    for (int64_t i = 0; i < count; i++)
      dequantize_row<L>((const uint8_t*)in + at[i] * row_bytes<L>(columns), out + i * columns, columns);
  });
}

// Rows [count][columns] of `dtype`, 0 float or 1 bf16, to rows of Q4_1 as a file has them; `columns` is a multiple of 32.
void cohort_quantize(int64_t dtype, const void* in, int64_t count, int64_t columns, void* out, int64_t threads) {
  if (dtype == 0) return quantize_rows((const float*)in, count, columns, (uint8_t*)out, (int)threads);
  quantize_rows((const uint16_t*)in, count, columns, (uint8_t*)out, (int)threads);
}

// What `packed` takes.
int64_t cohort_packed_bytes(int64_t kind, int64_t form, int64_t rows, int64_t columns) {
  Linear w = {kind, form, rows, columns, nullptr, nullptr, nullptr, 0, nullptr};
  return w.panels() * w.panel_words() * 4;
}

// out [m][outputs] of `out_dtype`: a's, or float; a [m][columns] of `dtype`; maxima [m][panels] of a plain product, or null;
// extra [m] -> [rows of w] added before the activation, or null.
int cohort_linear(const Linear* w, int64_t dtype, const void* a, int64_t m, int64_t out_dtype, void* out, int64_t activation,
                  float* maxima, const float* const* extra, int64_t threads) {
  if (dtype == 0) return !multiply_any(*w, (const float*)a, m, (float*)out, activation, maxima, extra, (int)threads);
  const uint16_t* in = (const uint16_t*)a;
  if (out_dtype == 0) return !multiply_any(*w, in, m, (float*)out, activation, maxima, extra, (int)threads);
  return !multiply_any(*w, in, m, (uint16_t*)out, activation, maxima, extra, (int)threads);
}

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

int cohort_forward(const Model* m, const Call* c) {
  if (m->dtype != BFLOAT16)
    return m->kind == FP32   ? forward<FloatProduct, float>(*m, *c)
           : m->kind == FP16 ? forward<HalfProduct, float>(*m, *c)
           : m->kind == INT8 ? forward<Int8Product, float>(*m, *c)
                             : forward<QuantProduct, float>(*m, *c);
  return m->kind == BF16   ? forward<Bf16Product, uint16_t>(*m, *c)
         : m->kind == INT8 ? forward<Int8Product, uint16_t>(*m, *c)
                           : forward<QuantProduct, uint16_t>(*m, *c);
}

void cohort_block_maxima(int64_t dtype, const void* logits, int64_t rows, int64_t width, int64_t stride, int64_t size,
                         float* out, int64_t threads) {
  if (dtype == 0) return block_maxima((const float*)logits, rows, width, stride, size, out, (int)threads);
  block_maxima((const uint16_t*)logits, rows, width, stride, size, out, (int)threads);
}

void cohort_block_weights(int64_t dtype, const void* logits, const int64_t* at, int64_t m, int64_t width, int64_t stride,
                          int64_t size, const float* best, const float* scale, float* out, int64_t threads) {
  if (dtype == 0)
    return block_weights((const float*)logits, at, m, width, stride, size, best, scale, out, (int)threads);
  block_weights((const uint16_t*)logits, at, m, width, stride, size, best, scale, out, (int)threads);
}

// Tokens of rows of float32 logits: `choose` of sampling.h.
int cohort_choose(const void* logits, int64_t width, int64_t stride, const float* maxima, int64_t size, const Choice* how,
                  int64_t m, double min_temperature, int64_t* tokens, int64_t threads) {
  try {
    choose((const float*)logits, width, stride, maxima, size, how, m, min_temperature, tokens, (int)threads);
    return 0;
  } catch (const std::bad_alloc&) {
    return 1;
  }
}

// out [count]: checksums of blocks of memory, see `checksums` of checksum.h.
void cohort_checksums(const void* base, int64_t stride, int64_t bytes, const int32_t* at, int64_t count, uint64_t seed,
                      uint64_t* out, int64_t threads) {
  checksums((const uint8_t*)base, stride, bytes, at, count, seed, out, (int)threads);
}

// Makes bytes real memory, whatever others write there meanwhile: adding nothing is a write too.
void cohort_touch(void* memory, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 4096) asm volatile("lock orb $0, %0" : "+m"(((char*)memory)[i]));
}
}
