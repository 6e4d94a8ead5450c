// LoRA (Hu et al., 2021): what an adapter adds to the products of a layer. A row may have one adapter; rows without one are
// computed as if there were none.
//
//   extra = scale * B (A x)      x: the row that the product multiplies, before it is quantized
//
// A row's `extra` is computed by one thread, in one order of sums, before the product, whose last part adds it (`deliver`).
#pragma once

#include "attention.h"

namespace {

// Of one weight of the checkpoint: rows begin..begin+outputs of the layer's merged one.
struct LoraPart {
  const void* a;  // [rank][inputs], of the model's dtype
  const void* b;  // [rank][outputs]: B transposed
  int64_t rank, outputs, begin;
  float scale;
};

// Of a merged weight, `count` parts.
struct LoraWeight {
  const LoraPart* parts;
  int64_t count;
};

enum : int { LORA_QKV, LORA_O, LORA_GATE_UP, LORA_DOWN, LORA_WEIGHTS };

// Of a layer.
struct LoraLayer {
  LoraWeight weights[LORA_WEIGHTS];
};

template <class T>
inline float dot_of(const T* a, const float* x, int64_t n) {
  F one = all(0.0f), two = all(0.0f);
  int64_t i = 0;
  for (; i + 2 * W <= n; i += 2 * W) {
    one = fma(load_some(a + i, W), load(x + i), one);
    two = fma(load_some(a + i + W, W), load(x + i + W), two);
  }
  for (; i < n; i += W) one = fma(load_some(a + i, n - i), load_some(x + i, n - i), one);
  return sum_of(add(one, two));
}

// extra [outputs of the merged weight] of a row x [inputs].
template <class T>
inline void lora_extra(const LoraWeight& w, const float* x, int64_t inputs, float* extra, int64_t outputs) {
  memset(extra, 0, outputs * sizeof(float));
  for (int64_t p = 0; p < w.count; p++) {
    const LoraPart& part = w.parts[p];
    float* to = extra + part.begin;
    for (int64_t r = 0; r < part.rank; r++) {
      F factor = all(part.scale * dot_of((const T*)part.a + r * inputs, x, inputs));
      const T* b = (const T*)part.b + r * part.outputs;
      for (int64_t i = 0; i < part.outputs; i += W) {
        int64_t left = part.outputs - i;
        store_some(to + i, fma(load_some(b + i, left), factor, load_some(to + i, left)), left);
      }
    }
  }
}

}  // namespace
