// What a packed weight is, and the ways to multiply with one: how a left operand is held and one step of a sum.
#pragma once

#include "simd.h"

namespace {

constexpr int MAX_PARTS = 3;  // of a weight: queries, keys and values
constexpr int NR = 2 * W;
#if defined(__AVX512F__)
constexpr int FLOAT_MR = 14;  // rows of a tile: 14 x 2 sums, 2 columns, 1 row: 31 of 32 registers
#else
constexpr int FLOAT_MR = 6;
#endif
// int8: values of k that share a scale, the steps they take, and the words of a panel for them with their scales behind.
constexpr int BLOCK = 32, BLOCK_STEPS = BLOCK / 4, BLOCK_WORDS = BLOCK_STEPS * NR + NR / 2;

// From FIRST_LAYOUT on: quantized as in a file, see quantized_layouts.h.
enum Kind : int64_t { FP32 = 0, BF16 = 1, INT8 = 2, FP16 = 3, FIRST_LAYOUT = 16 };
enum Form : int64_t { PLAIN = 0, GATED = 1 };

struct Linear {
  int64_t kind, form, rows, columns;  // rows: of w, gate and up together
  uint32_t* packed;
  const float* bias;  // [rows] or null; gate, then up
  // Weights that are quantized as in a file may be of several parts, one below the other and each of its own kind: the part
  // that follows, and the output that this one begins at. Parts are PLAIN.
  const Linear* next;
  int64_t first;
  // Which of a row's values column k multiplies, [columns]; null: value k. Of parts that of the first.
  const int64_t* order;
  float alpha, limit;  // of CLAMPED_SWIGLU

  int64_t outputs() const { return form == GATED ? rows / 2 : rows; }
  int64_t all_outputs() const { return next ? next->all_outputs() : first + outputs(); }
  int64_t per_panel() const { return form == GATED ? W : NR; }
  int64_t panels() const { return (outputs() + per_panel() - 1) / per_panel(); }
  bool quantized() const { return kind >= FIRST_LAYOUT; }
  bool in_blocks() const { return kind == INT8 || quantized(); }
  int64_t blocks() const { return in_blocks() ? (columns + BLOCK - 1) / BLOCK : 0; }
  int64_t steps() const { return in_blocks() ? blocks() * BLOCK_STEPS : kind == BF16 ? (columns + 1) / 2 : columns; }
  int64_t step_words() const { return kind == FP16 ? NR / 2 : NR; }  // of a panel
  int64_t panel_words() const;
  // Where row n of w lies: the panel and the column in it.
  void place(int64_t n, int64_t* panel, int64_t* column) const {
    int64_t half = form == GATED && n >= outputs(), at = half ? n - outputs() : n;
    *panel = at / per_panel(), *column = at % per_panel() + half * W;
  }
};

// The scales [NR] behind a block's words.
inline uint16_t* scales_of(uint32_t* block) { return (uint16_t*)(block + BLOCK_STEPS * NR); }
inline const uint16_t* scales_of(const uint32_t* block) { return (const uint16_t*)(block + BLOCK_STEPS * NR); }

inline float to_float(uint16_t a) {
  uint32_t bits = (uint32_t)a << 16;
  float f;
  memcpy(&f, &bits, 4);
  return f;
}
inline float to_float(float a) { return a; }

// ---- left operands and products ------------------------------------------------------------------------------------
// `Word`: what one step takes of a row of a. `Sum`: a vector of sums.

// Of int8, per row and block (of the others nothing): what its numbers are to be multiplied by, and where their sum of products begins.
struct BlockScale {
  float scale;
  int32_t start;
};

#if defined(__AVX512F__)
using I = __m512i;
inline I load_words(const uint32_t* p) { return _mm512_loadu_si512(p); }
inline I all_words(uint32_t a) { return _mm512_set1_epi32((int)a); }
inline F as_float(I a) { return _mm512_castsi512_ps(a); }
inline I high_half(I a) { return _mm512_and_si512(a, _mm512_set1_epi32((int)0xffff0000)); }
inline I low_half(I a) { return _mm512_slli_epi32(a, 16); }
inline I add_words(I a, I b) { return _mm512_add_epi32(a, b); }
inline I madd(I a, I b) { return _mm512_madd_epi16(a, b); }
inline I ones() { return _mm512_set1_epi16(1); }
// Products of unsigned and of signed bytes with signed ones, those of two bytes beside each other added up, with saturation.
inline I pair_products(I codes, I a) { return _mm512_maddubs_epi16(codes, a); }
inline I signed_pair_products(I codes, I a) {
  return _mm512_maddubs_epi16(_mm512_abs_epi8(codes), _mm512_mask_sub_epi8(a, _mm512_movepi8_mask(codes), _mm512_setzero_si512(), a));
}
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
inline I madd(I a, I b) { return _mm256_madd_epi16(a, b); }
inline I ones() { return _mm256_set1_epi16(1); }
inline I pair_products(I codes, I a) { return _mm256_maddubs_epi16(codes, a); }
inline I signed_pair_products(I codes, I a) { return _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(a, codes)); }
inline F from_words(I a) { return _mm256_cvtepi32_ps(a); }
inline I zero_words() { return _mm256_setzero_si256(); }
#endif

template <class T>
inline void widen(float* out, const T* in, int64_t n) {
  for (int64_t i = 0; i < n; i += W) store_some(out + i, load_some(in + i, n - i), n - i);
}

// STEP: words of a panel's step.
struct FloatProduct {
  using Word = float;
  using Scale = BlockScale;
  using Sum = F;
  static constexpr int DEPTH = 1, MR = FLOAT_MR, BLOCKS = 0, STEP = NR;
  static Sum zero() { return all(0.0f); }
  static F load_b(const uint32_t* p) { return load((const float*)p); }
  static Sum mul_add(const Word* a, F b, Sum sum) { return fma(all(*a), b, sum); }
  template <class T>
  static void convert(Word* out, BlockScale*, const T* in, int64_t n) {
    widen(out, in, n);
  }
};

// Weights in float16, which are widened as they are read: the same sums, bit for bit, as of those weights in float32.
struct HalfProduct : FloatProduct {
  static constexpr int STEP = NR / 2;
  static F load_b(const uint32_t* p) { return load_some((const Half*)p, W); }
};

#if defined(__AVX512BF16__)
struct Bf16Product {
  using Word = uint32_t;  // two bf16
  using Scale = BlockScale;
  using Sum = F;
  static constexpr int DEPTH = 2, MR = FLOAT_MR, BLOCKS = 0, STEP = NR;
  static Sum zero() { return all(0.0f); }
  static I load_b(const uint32_t* p) { return load_words(p); }
  static Sum mul_add(const Word* a, I b, Sum sum) {
    return _mm512_dpbf16_ps(sum, (__m512bh)all_words(*a), (__m512bh)b);
  }
  template <class T>
  static void convert(Word* out, BlockScale*, const T* in, int64_t n) {
    if (n % 2) out[n / 2] = 0;
    for (int64_t i = 0; i < n; i += W) store_some((uint16_t*)out + i, load_some(in + i, n - i), n - i);
  }
};
#else
struct Bf16Product {  // weights are widened here, a when it is converted
  struct Word {
    float one, two;
  };
  using Scale = BlockScale;
  using Sum = F;
  static constexpr int DEPTH = 2, MR = FLOAT_MR, BLOCKS = 0, STEP = NR;
  static Sum zero() { return all(0.0f); }
  static I load_b(const uint32_t* p) { return load_words(p); }
  static Sum mul_add(const Word* a, I b, Sum sum) {
    return fma(all(a->two), as_float(high_half(b)), fma(all(a->one), as_float(low_half(b)), sum));
  }
  template <class T>
  static void convert(Word* out, BlockScale*, const T* in, int64_t n) {
    if (n % 2) out[n / 2].two = 0.0f;
    widen((float*)out, in, n);
  }
};
#endif

// ---- int8 ----------------------------------------------------------------------------------------------------------
// A block's numbers are whole multiples, -127 to 127, of its scale: what is farthest from 0 is 127. Where a value is not
// finite neither is the scale, so that every result of its row is not finite either. Values below TINY are 0: the inverse
// of their scale would be infinite.

constexpr float TINY = 1e-30f;

// Magnitudes are compared as whole numbers, in whose order NaN is the largest.
#if defined(__AVX512F__)
inline I to_magnitude(F a) { return _mm512_and_si512(_mm512_castps_si512(a), _mm512_set1_epi32(0x7fffffff)); }
inline I larger_words(I a, I b) { return _mm512_max_epi32(a, b); }
inline int32_t max_of_words(I a) { return _mm512_reduce_max_epi32(a); }
inline I nearest_words(F a) { return _mm512_cvtps_epi32(a); }
inline int32_t sum_of_words(I a) { return _mm512_reduce_add_epi32(a); }
inline void store_bytes(int8_t* p, I a) { _mm_storeu_si128((__m128i*)p, _mm512_cvtepi32_epi8(a)); }
#else
inline I to_magnitude(F a) { return _mm256_and_si256(_mm256_castps_si256(a), _mm256_set1_epi32(0x7fffffff)); }
inline I larger_words(I a, I b) { return _mm256_max_epi32(a, b); }
inline int32_t max_of_words(I a) {
  __m128i h = _mm_max_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
  h = _mm_max_epi32(h, _mm_shuffle_epi32(h, 0x4e));
  return _mm_cvtsi128_si32(_mm_max_epi32(h, _mm_shuffle_epi32(h, 0xb1)));
}
inline I nearest_words(F a) { return _mm256_cvtps_epi32(a); }
inline int32_t sum_of_words(I a) {
  __m128i h = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
  h = _mm_add_epi32(h, _mm_shuffle_epi32(h, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(h, _mm_shuffle_epi32(h, 0xb1)));
}
inline void store_bytes(int8_t* p, I a) {
  __m128i half = _mm_packs_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
  _mm_storel_epi64((__m128i*)p, _mm_packs_epi16(half, half));
}
#endif

// Up to 32 values, zeros behind them, and the largest magnitude.
template <class T>
inline float load_block(F* x, const T* in, int64_t n) {
  I top = zero_words();
#pragma GCC unroll 4
  for (int i = 0; i < BLOCK / W; i++) {
    x[i] = n > i * W ? load_some(in + i * W, n - i * W) : all(0.0f);
    top = larger_words(top, to_magnitude(x[i]));
  }
  int32_t bits = max_of_words(top);
  float found;
  memcpy(&found, &bits, 4);
  return found;
}

inline float scale_of(float top) { return top < TINY ? 0.0f : top / 127.0f; }

// A weight's scale is held in bf16, rounded up so that no number is beyond 127.
inline uint16_t bf16_scale_of(float top) {
  float scale = scale_of(top);
  uint32_t bits;
  memcpy(&bits, &scale, 4);
  return (uint16_t)(scale < INFINITY ? (bits + 0xffff) >> 16 : 0x7fc0);
}

// A row of weights: numbers [steps * 4], zeros behind `n`, and scales [blocks] in bf16.
template <class T>
inline void quantize_weights(const T* in, int64_t n, int8_t* numbers, uint16_t* scales) {
  for (int64_t i = 0; i < n; i += BLOCK) {
    F x[BLOCK / W];
    uint16_t scale = bf16_scale_of(load_block(x, in + i, n - i));
    float inverse = to_float(scale) > 0.0f ? 1.0f / to_float(scale) : 0.0f;
    scales[i / BLOCK] = scale;
    for (int v = 0; v < BLOCK / W; v++) store_bytes(numbers + i + v * W, nearest_words(mul(x[v], all(inverse))));
  }
}

#if defined(__AVX512VNNI__)
// What `combine` makes of the eight lanes of each of four vectors: in this lane, of that vector.
template <class Combine>
inline __m128i reduce_four(const __m256i* v, Combine combine) {
  __m256i one = combine(_mm256_unpacklo_epi32(v[0], v[1]), _mm256_unpackhi_epi32(v[0], v[1]));
  __m256i two = combine(_mm256_unpacklo_epi32(v[2], v[3]), _mm256_unpackhi_epi32(v[2], v[3]));
  __m256i all = combine(_mm256_unpacklo_epi64(one, two), _mm256_unpackhi_epi64(one, two));
  __m256i swapped = _mm256_permute2x128_si256(all, all, 1);
  return _mm256_castsi256_si128(combine(all, swapped));
}

// Four blocks of a row as whole numbers, `out` [4 * BLOCK], and their scales: their largest values are found together.
template <class T>
inline __m128 numbers_of_four(int8_t* out, const T* in) {
  F x[8];
  __m256i halves[4];
  for (int b = 0; b < 4; b++) {
    x[2 * b] = load_some(in + b * BLOCK, W), x[2 * b + 1] = load_some(in + b * BLOCK + W, W);
    I top = larger_words(to_magnitude(x[2 * b]), to_magnitude(x[2 * b + 1]));
    halves[b] = _mm256_max_epi32(_mm512_castsi512_si256(top), _mm512_extracti64x4_epi64(top, 1));
  }
  __m128i bits = reduce_four(halves, [](__m256i a, __m256i b) { return _mm256_max_epi32(a, b); });
  __m128 top = _mm_castsi128_ps(bits), most = _mm_set1_ps(127.0f);
  __m128 tiny = _mm_cmplt_ps(top, _mm_set1_ps(TINY));  // not NaN
  alignas(16) float inverse[4];
  _mm_store_ps(inverse, _mm_andnot_ps(tiny, _mm_div_ps(most, top)));
  for (int b = 0; b < 4; b++) {
    F factor = all(inverse[b]);
    store_bytes(out + b * BLOCK, nearest_words(mul(x[2 * b], factor)));
    store_bytes(out + b * BLOCK + W, nearest_words(mul(x[2 * b + 1], factor)));
  }
  return _mm_andnot_ps(tiny, _mm_div_ps(top, most));
}

// The instruction wants one side unsigned. That is the weight, with 128 added: 128 times the sum of a row's block, from
// which a sum begins, is known per row, while for an unsigned row every column would need its own.
struct Int8Product {
  using Word = uint32_t;  // four bytes
  using Scale = BlockScale;
  using Sum = I;
  static constexpr int DEPTH = 4, MR = 7, BLOCKS = 1;  // 7 x 2 sums of a block and 7 x 2 of all: 28 of 32 registers
  static constexpr uint32_t FLIP = 0x80808080;         // what a word of a panel is xored with
  template <class T>
  static void convert(Word* out, BlockScale* scales, const T* in, int64_t n) {
    int64_t i = 0;
    for (; i + 4 * BLOCK <= n; i += 4 * BLOCK) convert_four((int8_t*)out + i, scales + i / BLOCK, in + i);
    for (; i < n; i += BLOCK) {
      F x[BLOCK / W];
      float top = load_block(x, in + i, n - i), inverse = top < TINY ? 0.0f : 127.0f / top;
      I one = nearest_words(mul(x[0], all(inverse))), two = nearest_words(mul(x[1], all(inverse)));
      store_bytes((int8_t*)out + i, one);
      store_bytes((int8_t*)out + i + W, two);
      scales[i / BLOCK] = {scale_of(top), -128 * sum_of_words(add_words(one, two))};
    }
  }
  template <class T>
  static void convert_four(int8_t* out, BlockScale* scales, const T* in) {
    __m128i scale = _mm_castps_si128(numbers_of_four(out, in));
    __m256i sums[4];
    for (int b = 0; b < 4; b++) {
      __m256i bytes = _mm256_loadu_si256((const __m256i*)(out + b * BLOCK));
      sums[b] = _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_set1_epi8((char)128), bytes);
    }
    __m128i sum = reduce_four(sums, [](__m256i a, __m256i b) { return _mm256_add_epi32(a, b); });
    __m128i start = _mm_sub_epi32(_mm_setzero_si128(), sum);
    _mm_storeu_si128((__m128i*)scales, _mm_unpacklo_epi32(scale, start));
    _mm_storeu_si128((__m128i*)(scales + 2), _mm_unpackhi_epi32(scale, start));
  }
};
#else
struct Int8Product {  // the same sums by products of pairs
  using Word = uint32_t;  // four bytes
  using Scale = BlockScale;
  using Sum = I;
  static constexpr int DEPTH = 4, MR = W == 16 ? 8 : 5, BLOCKS = 1;
  static constexpr uint32_t FLIP = 0;
  template <class T>
  static void convert(Word* out, BlockScale* scales, const T* in, int64_t n) {
    for (int64_t i = 0; i < n; i += BLOCK) {
      F x[BLOCK / W];
      float top = load_block(x, in + i, n - i), inverse = top < TINY ? 0.0f : 127.0f / top;
      for (int v = 0; v < BLOCK / W; v++) store_bytes((int8_t*)out + i + v * W, nearest_words(mul(x[v], all(inverse))));
      scales[i / BLOCK] = {scale_of(top), 0};
    }
  }
};
#endif

// ---- weights quantized as in a file --------------------------------------------------------------------------------
// A row's numbers are those of int8, a byte each. Beside its scale a block has what the zero of weights and their minimum are
// to be multiplied by: the sum of its numbers, negated because that is how it is used; also of the first 16, because scales of
// some formats are for 16 weights.

struct QuantScale {
  float scale, weighted;  // weighted = scale * negated
  int32_t negated, negated_first;
};

#if defined(__AVX512VNNI__)
constexpr int QUANT_MR = 7;
constexpr uint32_t QUANT_FLIP = 0x80808080;  // weights are the unsigned side, as for int8
#elif defined(__AVX512F__)
constexpr int QUANT_MR = 7;
constexpr uint32_t QUANT_FLIP = 0;
#else
constexpr int QUANT_MR = 4;
constexpr uint32_t QUANT_FLIP = 0;
#endif

struct QuantProduct {
  using Word = uint32_t;  // four bytes
  using Scale = QuantScale;
  using Sum = I;
  static constexpr int DEPTH = 4, MR = QUANT_MR, BLOCKS = 1;
  static constexpr uint32_t FLIP = QUANT_FLIP;
  // Rounds of a block in which the next panel is asked for. In two of half as many lines, steps of 2 to 32 rows took 0.91 to 0.98 of
  // the time where one instruction multiplies bytes; without it four rows took 1.16 (Zen 4, Q4_K_M).
#if defined(__AVX512VNNI__)
  static constexpr int ROUNDS = 2;
#else
  static constexpr int ROUNDS = 1;
#endif
  template <class T>
  static void convert(Word* out, QuantScale* scales, const T* in, int64_t n) {
    int64_t i = 0;
#if defined(__AVX512VNNI__)
    for (; i + 4 * BLOCK <= n; i += 4 * BLOCK) convert_four((int8_t*)out + i, scales + i / BLOCK, in + i);
#endif
    for (; i < n; i += BLOCK) {
      F x[BLOCK / W];
      float top = load_block(x, in + i, n - i), inverse = top < TINY ? 0.0f : 127.0f / top, scale = scale_of(top);
      I sums[2] = {zero_words(), zero_words()};
      for (int v = 0; v < BLOCK / W; v++) {
        I numbers = nearest_words(mul(x[v], all(inverse)));
        store_bytes((int8_t*)out + i + v * W, numbers);
        I& sum = sums[v * W / 16];
        sum = add_words(sum, numbers);
      }
      int32_t first = sum_of_words(sums[0]), negated = -first - sum_of_words(sums[1]);
      scales[i / BLOCK] = {scale, scale * (float)negated, negated, -first};
    }
  }
#if defined(__AVX512VNNI__)
  // Four blocks: a sum of 16 numbers is that of four lanes, each of four numbers.
  template <class T>
  static void convert_four(int8_t* out, QuantScale* scales, const T* in) {
    __m128 scale = numbers_of_four(out, in);
    __m256i sums[4];
    for (int b = 0; b < 4; b++) {
      __m256i bytes = _mm256_loadu_si256((const __m256i*)(out + b * BLOCK));
      sums[b] = _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_set1_epi8(1), bytes);
    }
    __m256i halves = _mm256_hadd_epi32(_mm256_hadd_epi32(sums[0], sums[1]), _mm256_hadd_epi32(sums[2], sums[3]));
    __m128i first = _mm_sub_epi32(_mm_setzero_si128(), _mm256_castsi256_si128(halves));
    __m128i negated = _mm_sub_epi32(first, _mm256_extracti128_si256(halves, 1));
    __m128 weighted = _mm_mul_ps(scale, _mm_cvtepi32_ps(negated));
    __m128 of_all = _mm_castsi128_ps(negated), of_first = _mm_castsi128_ps(first);
    _MM_TRANSPOSE4_PS(scale, weighted, of_all, of_first);
    _mm_storeu_ps((float*)scales, scale);
    _mm_storeu_ps((float*)(scales + 1), weighted);
    _mm_storeu_ps((float*)(scales + 2), of_all);
    _mm_storeu_ps((float*)(scales + 3), of_first);
  }
#endif
};

// Rows of a left operand: words [m][steps]; where they come in blocks: also scales [m][blocks].
template <class Op>
struct Left {
  const typename Op::Word* words;
  const typename Op::Scale* scales;
  int64_t steps, blocks;
  Left from(int64_t row) const { return {words + row * steps, scales + row * blocks, steps, blocks}; }
};

// A row in the order in which w has its columns; `spare` has room for them.
template <class T>
inline const T* in_order(const Linear& w, const T* row, T* spare) {
  if (!w.order) return row;
  for (int64_t k = 0; k < w.columns; k++) spare[k] = row[w.order[k]];
  return spare;
}

// What comes next in memory: so many lines of 64 bytes are asked for in each round, which is 16 steps, or a block of int8. `near`:
// into the first level of the cache.
struct Ahead {
  const char* at;
  int64_t lines;
  bool near = false;
  void round() {
    if (near)
      for (int64_t i = 0; i < lines; i++, at += 64) _mm_prefetch(at, _MM_HINT_T0);
    else
      for (int64_t i = 0; i < lines; i++, at += 64) _mm_prefetch(at, _MM_HINT_T1);
  }
};

}  // namespace
