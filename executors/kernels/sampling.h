// Sampling: maxima of blocks of logits, sums of weights of blocks, and the token of a row.
#pragma once

#include <algorithm>
#include <vector>

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
  if (rows * pieces == 1) threads = 1;  // a region costs more than a few thousand tokens
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

// ---- the token of a row --------------------------------------------------------------------------------------------
// What it is, executors/contract/reference_sampler.py defines: the first id, in vocabulary order, at which the cumulative
// weight exceeds u times the total, after top-k, min-p and top-p have taken weights away. Candidates are looked for in the
// blocks with the largest maxima: the C largest logits lie in the C blocks with the largest maxima. A row reads all of its
// logits only if their whole weight matters.

// How to choose a row's token. Temperature 0: the largest. top_k: the width for no limit. Numbers in float64.
struct Choice {
  int64_t row, top_k;
  double temperature, top_p, min_p, u;
};

struct Candidate {
  float value;
  int64_t id;
  double weight;
};

struct Chooser {
  const float* logits;  // [width] of the row
  const float* maxima;  // [blocks], of runs of `size`
  int64_t width, size, blocks;
  float best;
  std::vector<Candidate> found;
  std::vector<float> order;

  double weight_of(float value, double temperature) const { return std::exp((double)(value - best) / temperature); }

  int64_t greedy() const {
    for (int64_t b = 0; b < blocks; b++)
      if (maxima[b] == best)
        for (int64_t i = b * size; i < width && i < (b + 1) * size; i++)
          if (logits[i] == best) return i;
    return 0;
  }

  // Ids whose logits are at least `least`, ascending.
  void collect(float least, double temperature) {
    found.clear();
    for (int64_t b = 0; b < blocks; b++)
      if (maxima[b] >= least)
        for (int64_t i = b * size; i < width && i < (b + 1) * size; i++)
          if (logits[i] >= least) found.push_back({logits[i], i, weight_of(logits[i], temperature)});
  }

  // A bound that at least `count` logits reach, -inf for all.
  float bound_of(int64_t count) {
    if (count >= blocks) return -INFINITY;
    order.assign(maxima, maxima + blocks);
    std::nth_element(order.begin(), order.begin() + (count - 1), order.end(), std::greater<float>());
    return order[count - 1];
  }

  static bool before(const Candidate& a, const Candidate& b) {
    return a.value > b.value || (a.value == b.value && a.id < b.id);
  }

  // The first of `found` at which the cumulative weight exceeds u times the total; ids ascend.
  int64_t inverse(double u) {
    std::sort(found.begin(), found.end(), [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
    double total = 0.0, sum = 0.0;
    int64_t last = found[0].id;
    for (const Candidate& one : found) total += one.weight;
    double target = std::min(u * total, std::nextafter(total, 0.0));
    for (const Candidate& one : found) {
      if (one.weight > 0.0) last = one.id;
      if ((sum += one.weight) > target) return one.id;
    }
    return last;
  }

  // From the whole softmax; `sums` of blocks of `run` tokens.
  int64_t plain(const Choice& how, double temperature, const float* sums, int64_t run) {
    int64_t runs = (width + run - 1) / run, chosen = 0;
    double total = 0.0, before = 0.0, sum = 0.0;
    for (int64_t b = 0; b < runs; b++) total += sums[b];
    double target = std::min(how.u * total, std::nextafter(total, 0.0));
    for (int64_t b = 0; b < runs; b++) {
      if (sum + sums[b] > target) {
        chosen = b, before = sum;
        break;
      }
      sum += sums[b];
    }
    found.clear();
    for (int64_t i = chosen * run; i < width && i < (chosen + 1) * run; i++)
      found.push_back({logits[i], i, weight_of(logits[i], temperature)});
    double inside = 0.0, own = 0.0;
    for (const Candidate& one : found) own += one.weight;
    double rest = std::min(target - before, std::nextafter(own, 0.0));
    for (const Candidate& one : found)
      if ((inside += one.weight) > rest) return one.id;
    return found.back().id;
  }

  // Keeps of `found`, the most likely first, what top-k, min-p and top-p leave. `mass`: the weight of the whole vocabulary, for a
  // row without top-k and min-p. False if the limit may lie behind the last candidate; `all`: there are no others.
  bool limit(const Choice& how, double mass, bool all) {
    bool prefix = how.top_k < width || how.min_p > 0.0;
    size_t kept = found.size();
    if (how.top_k < width) {
      if (!all && how.top_k > (int64_t)kept) return false;
      float kth = found[std::min<int64_t>(how.top_k, kept) - 1].value;
      while (found[kept - 1].value < kth) kept--;
    }
    if (how.min_p > 0.0)
      while (found[kept - 1].weight < how.min_p) kept--;
    double total = mass, sum = 0.0;
    if (prefix) {
      total = 0.0;
      for (size_t i = 0; i < kept; i++) total += found[i].weight;
    }
    if (how.top_p < 1.0) {
      size_t i = 0;
      for (; i < kept && (i == 0 || sum < how.top_p * total); i++) sum += found[i].weight;
      if (i == kept && !prefix && !all && sum < how.top_p * total) return false;
      kept = i;
    }
    found.resize(kept);
    return true;
  }

  int64_t limited(const Choice& how, double temperature, double mass) {
    // Where min-p alone limits, a bound on the logits is known; the slack keeps what rounding may let pass.
    bool by_min_p = how.min_p > 0.0 && how.top_k >= width;
    int64_t count = how.top_k < width ? how.top_k : 64;
    for (;; count *= 8) {
      float least = by_min_p ? best + (float)(temperature * std::log(how.min_p) * 1.0001) - 1e-3f : bound_of(count);
      collect(least, temperature);
      std::sort(found.begin(), found.end(), before);
      if (limit(how, mass, by_min_p || least == -INFINITY)) return inverse(how.u);
    }
  }
};

// tokens[m]: those of rows of float32 logits, of which `maxima` [rows][blocks] are the largest of each `size`. Rows must be
// finite where they are largest.
void choose(const float* logits, int64_t width, int64_t stride, const float* maxima, int64_t size, const Choice* how, int64_t m,
            double min_temperature, int64_t* tokens, int threads) {
  constexpr int64_t RUN = 512;
  int64_t blocks = (width + size - 1) / size, runs = (width + RUN - 1) / RUN;
  std::vector<float> best(m), scale(m), sums;
  std::vector<int64_t> whole, rows;  // those whose whole weight matters: their numbers, and their rows
  for (int64_t i = 0; i < m; i++) {
    const float* own = maxima + how[i].row * blocks;
    best[i] = *std::max_element(own, own + blocks);
    bool prefix = how[i].top_k < width || how[i].min_p > 0.0;
    if (how[i].temperature > 0.0 && !prefix) whole.push_back(i), rows.push_back(how[i].row);
  }
  std::vector<float> of_best, of_scale;
  std::vector<int64_t> place(m, -1);
  for (size_t j = 0; j < whole.size(); j++) {
    place[whole[j]] = (int64_t)j;
    of_best.push_back(best[whole[j]]);
    of_scale.push_back((float)std::max(how[whole[j]].temperature, min_temperature));
  }
  sums.resize(whole.size() * runs);
  if (!whole.empty())
    block_weights(logits, rows.data(), (int64_t)rows.size(), width, stride, RUN, of_best.data(), of_scale.data(), sums.data(),
                  threads);
  Counter counter;
#pragma omp parallel num_threads(threads) if (threads > 1 && m > 1)
  {
    Chooser row;
    for (int64_t i; (i = counter.take(1)) < m;) {
      const Choice& one = how[i];
      row.logits = logits + one.row * stride, row.maxima = maxima + one.row * blocks;
      row.width = width, row.size = size, row.blocks = blocks, row.best = best[i];
      double temperature = std::max(one.temperature, min_temperature), mass = 0.0;
      const float* own = place[i] < 0 ? nullptr : sums.data() + place[i] * runs;
      for (int64_t b = 0; own && b < runs; b++) mass += own[b];
      bool limits = one.top_k < width || one.min_p > 0.0 || one.top_p < 1.0;
      tokens[i] = one.temperature <= 0.0 ? row.greedy()
                  : limits              ? row.limited(one, temperature, mass)
                                        : row.plain(one, temperature, own, RUN);
    }
  }
}

}  // namespace
