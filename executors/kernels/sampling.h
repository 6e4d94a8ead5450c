// What sampling reads whole rows of logits for: maxima of blocks, and sums of weights of blocks.
#pragma once

#include "gemm.h"

namespace {

// The first `n` lanes; -inf behind them.
template <class T>
inline F load_padded(const T* p, int64_t n) {
  return n >= W ? load_some(p, n) : keep(load_some(p, n), (1u << n) - 1, all(-INFINITY));
}

// The largest of n > 0 numbers; NaN where one of them is.
template <class T>
inline float max_of_run(const T* in, int64_t n) {
  F top = load_padded(in, n);
  bool nan = has_nan(top);
  for (int64_t i = W; i < n; i += W) {
    F x = load_padded(in + i, n - i);
    nan |= has_nan(x);
    top = larger(top, x);
  }
  return nan ? NAN : max_of(top);
}

// Sum of exp((x - best) / scale) over n numbers. The largest becomes exactly 0 before it is divided.
template <class T>
inline float weight_of_run(const T* in, int64_t n, float best, float scale) {
  F sum = all(0.0f);
  for (int64_t i = 0; i < n; i += W) {
    F exponent = div(sub(load_padded(in + i, n - i), all(best)), all(scale));
    sum = add(sum, exp2f(mul(exponent, all(LOG2E))));
  }
  return sum_of(sum);
}

// Calls each(row, block) for all, on some threads.
template <class Each>
void for_blocks(int64_t rows, int64_t blocks, int threads, Each each) {
  const int64_t some = 64;
  int64_t pieces = (blocks + some - 1) / some;
  Counter counter;
#pragma omp parallel num_threads(threads) if (threads > 1)
  for (int64_t i; (i = counter.take(1)) < rows * pieces;)
    for (int64_t b = i % pieces * some; b < blocks && b < (i % pieces + 1) * some; b++) each(i / pieces, b);
}

// out[rows][blocks]: maxima of runs of `size`.
template <class T>
void block_maxima(const T* logits, int64_t rows, int64_t width, int64_t stride, int64_t size, float* out, int threads) {
  int64_t blocks = (width + size - 1) / size;
  for_blocks(rows, blocks, threads, [&](int64_t row, int64_t b) {
    int64_t left = width - b * size;
    out[row * blocks + b] = max_of_run(logits + row * stride + b * size, left < size ? left : size);
  });
}

// out[m][blocks]: sums of weights over runs of `size` of the rows at[m], of which best[m] are the largest logits.
template <class T>
void block_weights(const T* logits, const int64_t* at, int64_t m, int64_t width, int64_t stride, int64_t size,
                   const float* best, const float* scale, float* out, int threads) {
  int64_t blocks = (width + size - 1) / size;
  for_blocks(m, blocks, threads, [&](int64_t i, int64_t b) {
    int64_t left = width - b * size;
    out[i * blocks + b] = weight_of_run(logits + at[i] * stride + b * size, left < size ? left : size, best[i], scale[i]);
  });
}

}  // namespace
