// What a packed weight is, and the ways to multiply with one: how a left operand is held and one step of a sum.
#pragma once

#include "simd.h"

namespace {

constexpr int NR = 2 * W;
#if defined(__AVX512F__)
constexpr int MR = 14;  // 14 x 2 sums, 2 columns, 1 row: 31 of 32 registers
#else
constexpr int MR = 6;
#endif

enum Kind : int64_t { FP32 = 0, BF16 = 1, INT8 = 2 };
enum Form : int64_t { PLAIN = 0, GATED = 1 };

struct Linear {
  int64_t kind, form, rows, columns;  // rows: of w, gate and up together
  uint32_t* packed;
  const float* bias;  // [rows] or null; gate, then up
  float* scales;      // int8: [panels * NR], in the order of the panels
  int32_t* sums;      // int8: 128 times the sum of q, likewise

  int64_t outputs() const { return form == GATED ? rows / 2 : rows; }
  int64_t per_panel() const { return form == GATED ? W : NR; }
  int64_t panels() const { return (outputs() + per_panel() - 1) / per_panel(); }
  int64_t depth() const { return kind == FP32 ? 1 : kind == BF16 ? 2 : 4; }
  int64_t steps() const { return (columns + depth() - 1) / depth(); }
  // Where row n of w lies: the panel and the column in it.
  void place(int64_t n, int64_t* panel, int64_t* column) const {
    int64_t half = form == GATED && n >= outputs(), at = half ? n - outputs() : n;
    *panel = at / per_panel(), *column = at % per_panel() + half * W;
  }
};

inline float to_float(uint16_t a) {
  uint32_t bits = (uint32_t)a << 16;
  float f;
  memcpy(&f, &bits, 4);
  return f;
}
inline float to_float(float a) { return a; }

// ---- left operands and products ------------------------------------------------------------------------------------
// `Word`: what one step takes of a row of a. `Sum`: a vector of sums. `finish` turns sums into floats.

#if defined(__AVX512F__)
using I = __m512i;
inline I load_words(const uint32_t* p) { return _mm512_loadu_si512(p); }
inline I all_words(uint32_t a) { return _mm512_set1_epi32((int)a); }
inline F as_float(I a) { return _mm512_castsi512_ps(a); }
inline I high_half(I a) { return _mm512_and_si512(a, _mm512_set1_epi32((int)0xffff0000)); }
inline I low_half(I a) { return _mm512_slli_epi32(a, 16); }
inline I add_words(I a, I b) { return _mm512_add_epi32(a, b); }
inline I sub_words(I a, I b) { return _mm512_sub_epi32(a, b); }
inline I madd(I a, I b) { return _mm512_madd_epi16(a, b); }
inline I odd_bytes(I a) { return _mm512_srai_epi16(a, 8); }
inline I even_bytes(I a) { return _mm512_srai_epi16(_mm512_slli_epi16(a, 8), 8); }
inline F from_words(I a) { return _mm512_cvtepi32_ps(a); }
inline I zero_words() { return _mm512_setzero_si512(); }
#else
using I = __m256i;
inline I load_words(const uint32_t* p) { return _mm256_loadu_si256((const __m256i*)p); }
inline I all_words(uint32_t a) { return _mm256_set1_epi32((int)a); }
inline F as_float(I a) { return _mm256_castsi256_ps(a); }
inline I high_half(I a) { return _mm256_and_si256(a, _mm256_set1_epi32((int)0xffff0000)); }
inline I low_half(I a) { return _mm256_slli_epi32(a, 16); }
inline I add_words(I a, I b) { return _mm256_add_epi32(a, b); }
inline I sub_words(I a, I b) { return _mm256_sub_epi32(a, b); }
inline I madd(I a, I b) { return _mm256_madd_epi16(a, b); }
inline I odd_bytes(I a) { return _mm256_srai_epi16(a, 8); }
inline I even_bytes(I a) { return _mm256_srai_epi16(_mm256_slli_epi16(a, 8), 8); }
inline F from_words(I a) { return _mm256_cvtepi32_ps(a); }
inline I zero_words() { return _mm256_setzero_si256(); }
#endif

template <class T>
inline void widen(float* out, const T* in, int64_t n) {
  for (int64_t i = 0; i < n; i += W) store_some(out + i, load_some(in + i, n - i), n - i);
}

struct FloatProduct {
  using Word = float;
  using Sum = F;
  static constexpr int DEPTH = 1;
  static Sum zero() { return all(0.0f); }
  static I load_b(const uint32_t* p) { return load_words(p); }
  static Sum mul_add(const Word* a, I b, Sum sum) { return fma(all(*a), as_float(b), sum); }
  static F finish(Sum sum, float, const float*, const int32_t*) { return sum; }
  template <class T>
  static float convert(Word* out, const T* in, int64_t n) {
    widen(out, in, n);
    return 1.0f;
  }
};

#if defined(__AVX512BF16__)
struct Bf16Product {
  using Word = uint32_t;  // two bf16
  using Sum = F;
  static constexpr int DEPTH = 2;
  static Sum zero() { return all(0.0f); }
  static I load_b(const uint32_t* p) { return load_words(p); }
  static Sum mul_add(const Word* a, I b, Sum sum) {
    return _mm512_dpbf16_ps(sum, (__m512bh)all_words(*a), (__m512bh)b);
  }
  static F finish(Sum sum, float, const float*, const int32_t*) { return sum; }
  template <class T>
  static float convert(Word* out, const T* in, int64_t n) {
    if (n % 2) out[n / 2] = 0;
    for (int64_t i = 0; i < n; i += W) store_some((uint16_t*)out + i, load_some(in + i, n - i), n - i);
    return 1.0f;
  }
};
#else
struct Bf16Product {  // weights are widened here, a when it is converted
  struct Word {
    float one, two;
  };
  using Sum = F;
  static constexpr int DEPTH = 2;
  static Sum zero() { return all(0.0f); }
  static I load_b(const uint32_t* p) { return load_words(p); }
  static Sum mul_add(const Word* a, I b, Sum sum) {
    return fma(all(a->two), as_float(high_half(b)), fma(all(a->one), as_float(low_half(b)), sum));
  }
  static F finish(Sum sum, float, const float*, const int32_t*) { return sum; }
  template <class T>
  static float convert(Word* out, const T* in, int64_t n) {
    if (n % 2) out[n / 2].two = 0.0f;
    widen((float*)out, in, n);
    return 1.0f;
  }
};
#endif

template <class T>
inline float largest(const T* in, int64_t n) {
  F top = all(0.0f), sign = all(-0.0f);
  for (int64_t i = 0; i < n; i += W) {
    F x = load_some(in + i, n - i);
    top = larger(top, larger(x, sub(sign, x)));
  }
  return max_of(top);
}

inline int32_t nearest_one(float x) { return _mm_cvtss_si32(_mm_set_ss(x)); }

// Symmetric int8 of a row: returns the scale. A row that is not finite gets a NaN scale, so that its results are NaN too.
template <class T, class Put>
inline float quantize(const T* in, int64_t n, Put put) {
  float top = 0.0f, check = 0.0f;
  for (int64_t i = 0; i < n; i++) check += to_float(in[i]) * 0.0f;
  top = largest(in, n);
  float inverse = top > 0.0f ? 127.0f / top : 0.0f;
  for (int64_t i = 0; i < n; i++) put(i, nearest_one(to_float(in[i]) * inverse));
  return check == 0.0f ? top / 127.0f : NAN;
}

#if defined(__AVX512VNNI__)
struct Int8Product {
  using Word = uint32_t;  // four bytes, 128 added: the instruction wants one side unsigned
  using Sum = I;
  static constexpr int DEPTH = 4;
  static Sum zero() { return zero_words(); }
  static I load_b(const uint32_t* p) { return load_words(p); }
  static Sum mul_add(const Word* a, I b, Sum sum) { return _mm512_dpbusd_epi32(sum, all_words(*a), b); }
  static F finish(Sum sum, float scale, const float* scales, const int32_t* sums) {
    return mul(from_words(sub_words(sum, load_words((const uint32_t*)sums))), mul(all(scale), load(scales)));
  }
  template <class T>
  static float convert(Word* out, const T* in, int64_t n) {
    float top = largest(in, n), inverse = top > 0.0f ? 127.0f / top : 0.0f;
    F check = all(0.0f);
    uint8_t* to = (uint8_t*)out;
    for (int64_t i = 0; i < n; i += W) {
      F x = load_some(in + i, n - i);
      check = fma(x, all(0.0f), check);
      __m128i bytes = _mm512_cvtepi32_epi8(_mm512_add_epi32(_mm512_cvtps_epi32(mul(x, all(inverse))), _mm512_set1_epi32(128)));
      _mm_mask_storeu_epi8(to + i, first_of(n - i), bytes);
    }
    for (int64_t i = n; i % 4; i++) to[i] = 128;
    return sum_of(check) == 0.0f ? top / 127.0f : NAN;
  }
};
#else
struct Int8Product {  // the same sums with 16-bit products
  struct Word {
    int16_t even[2], odd[2];
  };
  using Sum = I;
  static constexpr int DEPTH = 4;
  static Sum zero() { return zero_words(); }
  static I load_b(const uint32_t* p) { return load_words(p); }
  static Sum mul_add(const Word* a, I b, Sum sum) {
    uint32_t even, odd;
    memcpy(&even, a->even, 4);
    memcpy(&odd, a->odd, 4);
    return add_words(add_words(sum, madd(all_words(even), even_bytes(b))), madd(all_words(odd), odd_bytes(b)));
  }
  static F finish(Sum sum, float scale, const float* scales, const int32_t*) {
    return mul(from_words(sum), mul(all(scale), load(scales)));
  }
  template <class T>
  static float convert(Word* out, const T* in, int64_t n) {
    memset(out, 0, (n + 3) / 4 * sizeof *out);
    return quantize(in, n, [out](int64_t i, int32_t q) {
      Word& word = out[i / 4];
      (i % 2 ? word.odd : word.even)[i % 4 / 2] = (int16_t)q;
    });
  }
};
#endif

}  // namespace
