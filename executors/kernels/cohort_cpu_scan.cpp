// Layers with states: `cohort_delta` and `cohort_short_convolution` for one layer, and what forwards of all layers call.

#include <omp.h>

#include "scan.h"

namespace {

template <class T>
void delta_alone(const Delta& d, const StateStep& s, const Slots& slots, float* x, int64_t stride, float* rates, int64_t rows,
                 T* out, int threads) {
  Counter counters[DELTA_PHASES], last;
  Team team;
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    team.join(omp_get_num_threads());
    delta_rule(d, s, slots, x, stride, rates, rows, counters, team);
    for (int64_t t; (t = last.take(1)) < rows;) delta_result(d, x + t * stride, out + t * d.heads * d.value_size);
  }
}

template <class T>
void short_convolution_alone(const Convolution& c, const StateStep& s, const Slots& slots, const float* x, int64_t stride, T* out,
                             int threads) {
  Counter counter;
#pragma omp parallel num_threads(threads) if (threads > 1)
  short_convolution(c, s, slots, x, stride, out, counter);
}

}  // namespace

SHARED void scan_rows(const Delta& d, const StateStep& s, const Slots& slots, float* x, int64_t stride, float* rates, int64_t rows,
                      Counter* counters, Team& team) {
  delta_rule(d, s, slots, x, stride, rates, rows, counters, team);
}

SHARED void convolve_to_floats(const Convolution& c, const StateStep& s, const Slots& slots, const float* x, int64_t stride,
                               float* out, Counter& counter) {
  short_convolution(c, s, slots, x, stride, out, counter);
}

SHARED void convolve_to_bf16(const Convolution& c, const StateStep& s, const Slots& slots, const float* x, int64_t stride,
                             uint16_t* out, Counter& counter) {
  short_convolution(c, s, slots, x, stride, out, counter);
}

extern "C" {

// A layer between its projections: x [rows][stride] and rates [rows][2 heads] are overwritten, out [rows][heads][value size] is of
// `dtype`, 0 float or 1 bf16.
void cohort_delta(const Delta* d, const StateStep* s, const Slots* slots, float* x, int64_t stride, float* rates, int64_t rows,
                  int64_t dtype, void* out, int64_t threads) {
  if (dtype == 0) return delta_alone(*d, *s, *slots, x, stride, rates, rows, (float*)out, (int)threads);
  delta_alone(*d, *s, *slots, x, stride, rates, rows, (uint16_t*)out, (int)threads);
}

// The same of a short convolution: x [rows][stride], out [rows][channels].
void cohort_short_convolution(const Convolution* c, const StateStep* s, const Slots* slots, const float* x, int64_t stride,
                              int64_t dtype, void* out, int64_t threads) {
  if (dtype == 0) return short_convolution_alone(*c, *s, *slots, x, stride, (float*)out, (int)threads);
  short_convolution_alone(*c, *s, *slots, x, stride, (uint16_t*)out, (int)threads);
}
}
