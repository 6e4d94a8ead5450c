// From floats to Q4_1: for every 32 values a scale and a minimum in float16 and codes from 0 to 15.
//
// A block's scale and minimum are those, of a few, whose weights have the least squared error. First the block's range in 15
// steps; then ranges of 14 to 16.5 steps, each with the scale and minimum that fit its codes best (least squares), as ggml's
// `make_qkx2_quants` searches. Every candidate is judged as it is stored, rounded to float16 and with the codes that are nearest
// then: no block is worse than by its range alone. All sums have one order, so that every instruction set finds the same.
#pragma once

#include "quantized_layouts.h"

namespace {

constexpr int BLOCK_VECTORS = BLOCK / W;
constexpr int TRIALS = 21;

// Value i and value 16 + i first, whatever W is.
inline float sum_of_block(const F* x) {
#if defined(__AVX512F__)
  F half = add(x[0], x[1]);
  __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(half), _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(half), 1)));
#else
  __m256 eight = add(add(x[0], x[2]), add(x[1], x[3]));
#endif
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(four, _mm_shuffle_ps(four, four, 1)));
}

inline uint16_t float_to_half(float a) { return _cvtss_sh(a, _MM_FROUND_TO_NEAREST_INT); }

inline F to_code(F x) { return smaller(larger(nearest(x), all(0.0f)), all(15.0f)); }

struct Quantized {
  uint16_t scale, minimum;
  float error;
  F codes[BLOCK_VECTORS];
};

// The block with this scale and minimum, as stored.
inline Quantized quantized(const F* x, float scale, float minimum) {
  Quantized to;
  to.scale = float_to_half(scale), to.minimum = float_to_half(minimum);
  float step = half_to_float(to.scale), least = half_to_float(to.minimum), inverse = step > 0.0f ? 1.0f / step : 0.0f;
  F squares[BLOCK_VECTORS];
  for (int v = 0; v < BLOCK_VECTORS; v++) {
    to.codes[v] = to_code(mul(sub(x[v], all(least)), all(inverse)));
    F off = sub(fma(all(step), to.codes[v], all(least)), x[v]);
    squares[v] = mul(off, off);
  }
  to.error = sum_of_block(squares);
  return to;
}

// The scale and minimum with the least squared error for the codes that the range in `steps` steps gives; no scale: 0.
inline void fit(const F* x, float sum, float low, float high, float steps, float* scale, float* minimum) {
  F codes[BLOCK_VECTORS], squares[BLOCK_VECTORS], products[BLOCK_VECTORS], inverse = all(steps / (high - low));
  for (int v = 0; v < BLOCK_VECTORS; v++) {
    codes[v] = to_code(mul(sub(x[v], all(low)), inverse));
    squares[v] = mul(codes[v], codes[v]), products[v] = mul(codes[v], x[v]);
  }
  float ones = sum_of_block(codes), twos = sum_of_block(squares), with = sum_of_block(products);
  float determinant = BLOCK * twos - ones * ones;
  *scale = determinant > 0.0f ? (BLOCK * with - sum * ones) / determinant : 0.0f;
  *minimum = determinant > 0.0f ? (twos * sum - ones * with) / determinant : 0.0f;
}

template <class T>
inline void quantize_block(const T* in, uint8_t* out) {
  F x[BLOCK_VECTORS];
  float top = load_block(x, in, BLOCK);
  Quantized best;
  if (top < INFINITY) {
    F low = x[0], high = x[0];
    for (int v = 1; v < BLOCK_VECTORS; v++) low = smaller(low, x[v]), high = larger(high, x[v]);
    float most = max_of(high), least = -max_of(sub(all(0.0f), low)), sum = sum_of_block(x);
    best = quantized(x, (most - least) / 15.0f, least);
    for (int i = 0; i < TRIALS && most > least; i++) {
      float scale, minimum;
      fit(x, sum, least, most, 14.0f + 0.125f * (float)i, &scale, &minimum);
      if (!(scale > 0.0f)) continue;
      Quantized other = quantized(x, scale, minimum);
      if (other.error < best.error) best = other;
    }
  } else {
    best.scale = best.minimum = 0x7e00;  // NaN: every result of the row is one
    for (F& codes : best.codes) codes = all(0.0f);
  }
  float codes[BLOCK];
  for (int v = 0; v < BLOCK_VECTORS; v++) store(codes + v * W, best.codes[v]);
  memcpy(out, &best.scale, 2);
  memcpy(out + 2, &best.minimum, 2);
  for (int i = 0; i < 16; i++) out[4 + i] = (uint8_t)((int)codes[i] | (int)codes[i + 16] << 4);
}

// `in` [count][columns], `out` [count][columns / 32 * 20].
template <class T>
void quantize_rows(const T* in, int64_t count, int64_t columns, uint8_t* out, int threads) {
  int64_t blocks = columns / BLOCK;
#pragma omp parallel for num_threads(threads) schedule(dynamic, 8) if (threads > 1)
  for (int64_t r = 0; r < count; r++)
    for (int64_t b = 0; b < blocks; b++) quantize_block(in + r * columns + b * BLOCK, out + (r * blocks + b) * 20);
}

}  // namespace
