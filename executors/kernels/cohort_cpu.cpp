// The library that Python loads: C functions over gemm.h, forward.h, quantize.h, sampling.h and checksum.h. Those of attention
// and of products alone are in cohort_cpu_attention.cpp and cohort_cpu_products.cpp: see parts.h. All arrays are the caller's.

#include "checksum.h"
#include "forward.h"
#include "quantize.h"
#include "sampling.h"

SHARED Scratch& step_workspace() {
  thread_local Scratch workspace;
  return workspace;
}

SHARED void reduce_by_floats(const LoraProduct& lora, const float* x, int64_t inputs, Counter& counter) {
  reduce<float>(lora, x, inputs, counter);
}
SHARED void reduce_by_halves(const LoraProduct& lora, const float* x, int64_t inputs, Counter& counter) {
  reduce<Half>(lora, x, inputs, counter);
}
SHARED void reduce_by_bf16(const LoraProduct& lora, const float* x, int64_t inputs, Counter& counter) {
  reduce<uint16_t>(lora, x, inputs, counter);
}
SHARED void reduce_bf16_by_bf16(const LoraProduct& lora, const uint16_t* x, int64_t inputs, Counter& counter) {
  reduce<uint16_t>(lora, x, inputs, counter);
}

SHARED void expand_floats(const LoraProduct& lora, const Linear& w, int64_t panel, int64_t begin, int64_t count, float* results) {
  expand<float>(lora, w, panel, begin, count, results);
}
SHARED void expand_halves(const LoraProduct& lora, const Linear& w, int64_t panel, int64_t begin, int64_t count, float* results) {
  expand<Half>(lora, w, panel, begin, count, results);
}
SHARED void expand_bf16(const LoraProduct& lora, const Linear& w, int64_t panel, int64_t begin, int64_t count, float* results) {
  expand<uint16_t>(lora, w, panel, begin, count, results);
}

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

int cohort_forward(const Model* m, const Call* c) {
  if (m->dtype != BFLOAT16)
    return m->kind == FP32   ? forward_float(*m, *c)
           : m->kind == FP16 ? forward_half(*m, *c)
           : m->kind == INT8 ? forward_int8_float(*m, *c)
                             : forward_quantized_float(*m, *c);
  return m->kind == BF16   ? forward_bf16(*m, *c)
         : m->kind == INT8 ? forward_int8_bf16(*m, *c)
                           : forward_quantized_bf16(*m, *c);
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
