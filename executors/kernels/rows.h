// What forwards do with a row: norms, rotations and activations.
//
// RMSNorm: Zhang and Sennrich 2019. LayerNorm: Ba et al. 2016. Rotary embedding: Su et al. 2021. GELU: Hendrycks and Gimpel 2016.
#pragma once

#include "simd.h"

namespace {

// out = x / rms(x) * weight, or without a weight where it is null.
inline void rms_norm(float* out, const float* x, const float* weight, int64_t n, float eps) {
  F squares = all(0.0f);
  for (int64_t i = 0; i < n; i += W) {
    F a = load_some(x + i, n - i);
    squares = fma(a, a, squares);
  }
  F factor = all(1.0f / std::sqrt(sum_of(squares) / (float)n + eps));
  for (int64_t i = 0; i < n; i += W) {
    F a = mul(load_some(x + i, n - i), factor);
    store_some(out + i, weight ? mul(a, load_some(weight + i, n - i)) : a, n - i);
  }
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

// out = (x - mean) / deviation * weight + bias, or without a bias where it is null.
inline void layer_norm(float* out, const float* x, const float* weight, const float* bias, int64_t n, float eps) {
  F sum = all(0.0f), squares = all(0.0f);
  for (int64_t i = 0; i < n; i += W) sum = add(sum, load_some(x + i, n - i));
  float mean = sum_of(sum) / (float)n;
  for (int64_t i = 0; i < n; i += W) {
    F a = sub(load_some(x + i, n - i), all(mean));
    if (n - i < W) a = keep(a, (1u << (n - i)) - 1, all(0.0f));
    squares = fma(a, a, squares);
  }
  F factor = all(1.0f / std::sqrt(sum_of(squares) / (float)n + eps));
  for (int64_t i = 0; i < n; i += W) {
    F a = mul(mul(sub(load_some(x + i, n - i), all(mean)), factor), load_some(weight + i, n - i));
    store_some(out + i, bias ? add(a, load_some(bias + i, n - i)) : a, n - i);
  }
}

// 1 / x of x from 1 on, relative error below 2e-7: the estimate with 14 bits, improved once, takes a third of a division's time.
inline F inverse_of(F x) {
#if defined(__AVX512F__)
  F guess = _mm512_rcp14_ps(x);
  return mul(guess, fnma(x, guess, all(2.0f)));
#else
  return div(all(1.0f), x);
#endif
}

// x Phi(x), with the complement of the error function by formula 7.1.26 of Abramowitz and Stegun (1964), which is off by 1.5e-7
// at most. NaN stays.
inline F gelu(F x) {
  F size = mul(larger(sub(all(0.0f), x), x), all(0.70710678118f));
  F t = inverse_of(fma(size, all(0.3275911f), all(1.0f)));
  F p = all(1.061405429f);
  p = fma(p, t, all(-1.453152027f));
  p = fma(p, t, all(1.421413741f));
  p = fma(p, t, all(-0.284496736f));
  p = fma(p, t, all(0.254829592f));
  F e = exp2f(mul(mul(size, size), all(-LOG2E)));
  F half_tail = mul(mul(mul(p, t), e), mul(size, all(0.70710678118f)));  // |x| / 2 times the complement
  return sub(larger(all(0.0f), x), half_tail);
}

}  // namespace
