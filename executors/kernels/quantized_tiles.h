// Products with weights that are quantized as in a file: a tile of up to MR rows times one panel, whatever the layout.
//
// Whole numbers are summed in int32 within a block, exactly, and float32 over blocks in ascending order, alike on every
// instruction set: a result depends neither on the other rows nor on the CPU.
#pragma once

#include <utility>

#include "parts.h"
#include "quantized_layouts.h"

namespace {

#if defined(__AVX512F__)
inline I load_codes(const uint8_t* p) { return _mm512_loadu_si512(p); }
inline I low_fours(I a) { return _mm512_and_si512(a, _mm512_set1_epi8(15)); }
inline I high_fours(I a) { return _mm512_and_si512(_mm512_srli_epi16(a, 4), _mm512_set1_epi8(15)); }
inline I look_up(const int8_t* table, int8_t shift, I codes) {
  __m128i values = _mm_add_epi8(_mm_loadu_si128((const __m128i*)table), _mm_set1_epi8(shift));
  return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(values), codes);
}
// 16 in every byte that has its bit.
inline I with_fifth(I codes, const uint8_t* bits) {
  uint64_t mask;
  memcpy(&mask, bits, 8);
  return _mm512_mask_add_epi8(codes, mask, codes, _mm512_set1_epi8(16));
}
template <int TURN>
inline I with_pairs(I codes, I pairs) {
  if (TURN == 0) pairs = _mm512_slli_epi16(pairs, 4);
  if (TURN == 1) pairs = _mm512_slli_epi16(pairs, 2);
  if (TURN == 3) pairs = _mm512_srli_epi16(pairs, 2);
  return _mm512_or_si512(codes, _mm512_and_si512(pairs, _mm512_set1_epi8(0x30)));
}
template <int TURN>
inline I pairs_alone(I pairs) {
  return _mm512_and_si512(_mm512_srli_epi16(pairs, 2 * TURN), _mm512_set1_epi8(3));
}
inline F load_halves(const uint8_t* p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p)); }
inline F load_shorts(const uint8_t* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(_mm256_loadu_si256((const __m256i*)p)));
}
inline F load_bytes(const uint8_t* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p)));
}
inline F load_signed_bytes(const uint8_t* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)));
}
template <int BITS>
inline I times_power(I a) {
  return _mm512_slli_epi32(a, BITS);
}
inline I sub_words(I a, I b) { return _mm512_sub_epi32(a, b); }
#else
inline I load_codes(const uint8_t* p) { return _mm256_loadu_si256((const __m256i*)p); }
inline I low_fours(I a) { return _mm256_and_si256(a, _mm256_set1_epi8(15)); }
inline I high_fours(I a) { return _mm256_and_si256(_mm256_srli_epi16(a, 4), _mm256_set1_epi8(15)); }
inline I look_up(const int8_t* table, int8_t, I codes) {
  return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)table)), codes);
}
inline I with_fifth(I codes, const uint8_t* bits) {
  int32_t mask;
  memcpy(&mask, bits, 4);
  // Byte i of 32 gets the byte of the mask that its bit is in.
  const I spread = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3);
  const I each = _mm256_set1_epi64x((int64_t)0x8040201008040201);
  I own = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(mask), spread), each);
  return _mm256_or_si256(codes, _mm256_and_si256(_mm256_cmpeq_epi8(own, each), _mm256_set1_epi8(16)));
}
template <int TURN>
inline I with_pairs(I codes, I pairs) {
  if (TURN == 0) pairs = _mm256_slli_epi16(pairs, 4);
  if (TURN == 1) pairs = _mm256_slli_epi16(pairs, 2);
  if (TURN == 3) pairs = _mm256_srli_epi16(pairs, 2);
  return _mm256_or_si256(codes, _mm256_and_si256(pairs, _mm256_set1_epi8(0x30)));
}
template <int TURN>
inline I pairs_alone(I pairs) {
  return _mm256_and_si256(_mm256_srli_epi16(pairs, 2 * TURN), _mm256_set1_epi8(3));
}
inline F load_halves(const uint8_t* p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)); }
inline F load_shorts(const uint8_t* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(_mm_loadu_si128((const __m128i*)p)));
}
inline F load_bytes(const uint8_t* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)p)));
}
inline F load_signed_bytes(const uint8_t* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p)));
}
template <int BITS>
inline I times_power(I a) {
  return _mm256_slli_epi32(a, BITS);
}
inline I sub_words(I a, I b) { return _mm256_sub_epi32(a, b); }
#endif

// The codes of a step of W columns, `group` 0 or 1 of a panel: bytes from 0 on, or (S8 and LUT4) signed ones, which have 128
// added where products are of unsigned weights.
template <class L, int STEP>
inline I codes_of(const uint8_t* block, int group) {
  if (L::CODES == U2) return pairs_alone<STEP % 4>(load_codes(block + (STEP / 4 * NR + group * W) * 4));
  const uint8_t* at = block + (STEP % (L::CODES == S8 ? 8 : 4) * NR + group * W) * 4;
  I raw = load_codes(at);
  if (L::CODES == S8) return raw;
  I codes = STEP < 4 ? low_fours(raw) : high_fours(raw);
  const uint8_t* more = block + NR * 16;
  if (L::CODES == U5) return with_fifth(codes, more + (STEP * 2 + group) * (W / 2));
  if (L::CODES == U6) return with_pairs<STEP % 4>(codes, load_codes(more + (STEP / 4 * NR + group * W) * 4));
  if (L::CODES == LUT4) return look_up(lookup_table<L>(), (int8_t)QuantProduct::FLIP, codes);
  return codes;
}

constexpr int bits_of(int power) { return power <= 1 ? 0 : 1 + bits_of(power / 2); }

// What the code of a weight of 0 is, in the bytes that `codes_of` returns.
template <class L>
constexpr int zero_of() {
  return L::CODES == S8 || L::CODES == LUT4 ? (QuantProduct::FLIP ? 128 : 0) : L::ZERO;
}

// Scales, and minima or zeros, of a head, as they lie in the panel.
template <class L>
struct StoredHead {
  const uint8_t* at;
  F top(int group) const {
    return L::WIDE_HEAD ? load((const float*)at + group * W) : load_halves(at + group * W * 2);
  }
  F least(int group) const { return load_halves(at + NR * L::HEAD_SCALE + group * W * 2); }
};

// The same, converted to float32 once for all blocks of the head: one row of Q4_K took 0.94 of the time, four 0.98 (Zen 1).
template <class L>
struct ConvertedHead {
  alignas(64) float tops[NR], minima[NR];
  void operator=(StoredHead<L> head) {
    for (int g = 0; g < 2; g++) {
      store(tops + g * W, head.top(g));
      if (L::MINIMUM || L::ZEROS) store(minima + g * W, head.least(g));
    }
  }
  F top(int group) const { return load(tops + group * W); }
  F least(int group) const { return load(minima + group * W); }
};

// Scales, and minima or zeros, of W columns for a part of a block.
template <class L, class Head>
inline F scale_of_part(const Head& head, const uint8_t* block, int part, int group) {
  if (L::GROUPED) return head.top(group);
  const uint8_t* at = block + L::CODE_WORDS * 4;
  if (L::SCALES == PART_F32) return load((const float*)at + part * NR + group * W);
  if (L::SCALES == POWER) return load_some((const uint16_t*)at + group * W, W);
  if (L::SCALES == FLAT) return load_halves(at + group * W * 2);
  F top = head.top(group);
  if (L::SCALES == TWO_WIDE) return mul(top, load_shorts(at + group * W * 2));
  at += part * NR + group * W;
  return mul(top, L::SIGNED ? load_signed_bytes(at) : load_bytes(at));
}
template <class L, class Head>
inline F minimum_of_part(const Head& head, const uint8_t* block, int part, int group) {
  if (L::GROUPED) return head.least(group);
  const uint8_t* at = block + L::CODE_WORDS * 4;
  if (L::SCALES == FLAT) return load_halves(at + (NR + group * W) * 2);
  return mul(head.least(group), load_bytes(at + (L::PARTS + part) * NR + group * W));
}

// The negated sum of a row's numbers in a part of a block, in every word.
template <class L>
inline I negated_of(const QuantScale& a, int part) {
  if (L::PARTS == 1) return all_words((uint32_t)a.negated);
  I first = all_words((uint32_t)a.negated_first);
  return part == 0 ? first : sub_words(all_words((uint32_t)a.negated), first);
}

// total + the part's sum of products, weighted. With zeros that sum is made the one of (code - zero) first: a whole number that
// float32 holds, so that nothing is lost where code and zero are near each other.
template <class L>
inline F with_part(F total, I sum, const QuantScale& a, F scale, F minimum, int part) {
  if (L::ZEROS) {
    F products = fma(from_words(all_words((uint32_t)a.negated)), minimum, from_words(sum));
    return fma(products, mul(all(a.scale), scale), total);
  }
  total = fma(from_words(sum), mul(all(a.scale), scale), total);
  if (!L::MINIMUM) return total;
  F weighted = L::PARTS == 1 ? all(a.weighted) : mul(all(a.scale), from_words(negated_of<L>(a, part)));
  return L::SCALES == FLAT ? fnma(weighted, minimum, total) : fma(weighted, minimum, total);
}

#if defined(__AVX512VNNI__)
template <class L>
using Head = StoredHead<L>;

// The instruction as it stands: compilers load a word once and keep it in a register for both columns, and then have none
// left for the sums.
inline void add_products(I& sum, I weights, const uint32_t* a) {
  asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(weights), "m"(*a));
}

template <class L, int R, int STEP>
inline void add_step(I (*sum)[2], const uint8_t* block, const uint32_t* words, int64_t lda) {
  I one = codes_of<L, STEP>(block, 0), two = codes_of<L, STEP>(block, 1);
#pragma GCC unroll 7
  for (int r = 0; r < R; r++) {
    add_products(sum[r][0], one, words + r * lda + STEP);
    add_products(sum[r][1], two, words + r * lda + STEP);
  }
}

// Steps in the order in which their codes lie in memory, which CPUs read ahead: 4 bits of steps 0 and 4 share words.
template <class L, int R, int PART, size_t... NUMBERS>
inline void add_steps(I (*sum)[2], const uint8_t* block, const uint32_t* words, int64_t lda, Ahead* ahead,
                      std::index_sequence<NUMBERS...>) {
  auto add = [&](auto number) {
    if (ahead && number == BLOCK_STEPS / 2) ahead->round();
    constexpr int N = decltype(number)::value, STEP = L::CODES == S8 || L::CODES == U2 ? N : N / 2 + N % 2 * 4;
    if constexpr (L::PARTS == 1 || PART == STEP / 4) add_step<L, R, STEP>(sum, block, words, lda);
  };
  (add(std::integral_constant<int, (int)NUMBERS>()), ...);
}

template <class L, int R, int PART>
inline void add_part(F (*total)[2], const Head<L>& head, const uint8_t* block, const uint32_t* words, int64_t lda,
                     const QuantScale* scales, int64_t blocks, Ahead* ahead = nullptr) {
  I sum[R][2];
#pragma GCC unroll 7
  for (int r = 0; r < R; r++) {
    constexpr int ZERO = zero_of<L>();
    if (ZERO)
      sum[r][0] = sum[r][1] = times_power<bits_of(ZERO)>(negated_of<L>(scales[r * blocks], PART));
    else
      sum[r][0] = sum[r][1] = zero_words();
  }
  add_steps<L, R, PART>(sum, block, words, lda, PART == 0 ? ahead : nullptr, std::make_index_sequence<8>());
#pragma GCC unroll 2
  for (int g = 0; g < 2; g++) {
    F scale = scale_of_part<L>(head, block, PART, g), minimum = all(0.0f);
    if (L::MINIMUM || L::ZEROS) minimum = minimum_of_part<L>(head, block, PART, g);
#pragma GCC unroll 7
    for (int r = 0; r < R; r++) total[r][g] = with_part<L>(total[r][g], sum[r][g], scales[r * blocks], scale, minimum, PART);
  }
}

template <class L, int R>
void tile_of_layout(const Left<QuantProduct>& a, const uint32_t* panel, float* buffer, Ahead ahead) {
  F total[R][2];
#pragma GCC unroll 7
  for (int r = 0; r < R; r++) total[r][0] = total[r][1] = all(0.0f);
  const uint8_t* block = (const uint8_t*)panel;
  Head<L> head;
  const QuantScale* scales = a.scales;
  const uint32_t* words = a.words;
  for (int64_t b = 0; b < a.blocks; b++, block += L::BLOCK_BYTES, words += BLOCK_STEPS, scales++) {
    if (L::HEAD_BYTES > 0 && b % L::BLOCKS == 0) head = {block}, block += L::HEAD_BYTES;
    ahead.round();
    add_part<L, R, 0>(total, head, block, words, a.steps, scales, a.blocks, &ahead);
    if (L::PARTS == 2) add_part<L, R, 1>(total, head, block, words, a.steps, scales, a.blocks);
  }
#pragma GCC unroll 7
  for (int r = 0; r < R; r++) {
    store(buffer + r * NR, total[r][0]);
    store(buffer + r * NR + W, total[r][1]);
  }
}
#else
template <class L>
using Head = ConvertedHead<L>;

#if defined(__AVX512F__)
inline I zero_shorts() { return _mm512_setzero_si512(); }
inline I add_shorts(I a, I b) { return _mm512_add_epi16(a, b); }
// Has no effect: 32 registers are enough.
inline void settle(I&, I&) {}
#else
inline I zero_shorts() { return _mm256_setzero_si256(); }
inline I add_shorts(I a, I b) { return _mm256_add_epi16(a, b); }
// Makes both sums known before what follows. Without it the compiler moves products of several steps beside each other, whose
// sums no longer fit the 16 registers: four rows of Q4_K took 1.2 times as long (Zen 1).
inline void settle(I& one, I& two) { asm volatile("" : "+x"(one), "+x"(two)); }
#endif

// sum[R][2] in int32 += the pairs of a step, `words` [R] `lda` apart times the codes of both groups.
template <int R, bool SIGNED>
inline __attribute__((always_inline)) void add_pairs(I (*sum)[2], I one, I two, const uint32_t* words, int64_t lda) {
#pragma GCC unroll 8
  for (int r = 0; r < R; r++) {
    I a = all_words(words[r * lda]);
    sum[r][0] = add_words(sum[r][0], madd(SIGNED ? signed_pair_products(one, a) : pair_products(one, a), ones()));
    sum[r][1] = add_words(sum[r][1], madd(SIGNED ? signed_pair_products(two, a) : pair_products(two, a), ones()));
    settle(sum[r][0], sum[r][1]);
  }
}

// How many steps' pairs of products fit int16: two of code * 127 each.
template <class L>
constexpr int steps_in_shorts() {
  return L::CODES == U4 || L::CODES == U2 ? 8 : L::CODES == U5 ? 4 : L::CODES == U6 ? 2 : 1;
}

template <class L, int R, int STEP>
inline __attribute__((always_inline)) void add_step(I (*some)[2], const uint8_t* block, const uint32_t* words, int64_t lda) {
  I one = codes_of<L, STEP>(block, 0), two = codes_of<L, STEP>(block, 1);
#pragma GCC unroll 7
  for (int r = 0; r < R; r++) {
    I a = all_words(words[r * lda + STEP]);
    some[r][0] = add_shorts(some[r][0], pair_products(one, a));
    some[r][1] = add_shorts(some[r][1], pair_products(two, a));
  }
#pragma GCC unroll 7
  for (int r = 0; r < R; r++) settle(some[r][0], some[r][1]);
}

// The steps from STEP on that the sums in int16 have room for, and then their sums in int32.
template <class L, int R, int STEP, int UNTIL>
inline __attribute__((always_inline)) void add_steps(I (*sum)[2], const uint8_t* block, const uint32_t* words, int64_t lda) {
  if constexpr (STEP < UNTIL) {
    constexpr int COUNT = steps_in_shorts<L>() < UNTIL - STEP ? steps_in_shorts<L>() : UNTIL - STEP;
    if constexpr (COUNT == 1) {
      add_pairs<R, L::CODES == S8 || L::CODES == LUT4>(sum, codes_of<L, STEP>(block, 0), codes_of<L, STEP>(block, 1), words + STEP, lda);
    } else {
      I some[R][2];
#pragma GCC unroll 7
      for (int r = 0; r < R; r++) some[r][0] = some[r][1] = zero_shorts();
      add_step<L, R, STEP>(some, block, words, lda);
      add_step<L, R, STEP + 1>(some, block, words, lda);
      if constexpr (COUNT > 2) add_step<L, R, STEP + 2>(some, block, words, lda);
      if constexpr (COUNT > 3) add_step<L, R, STEP + 3>(some, block, words, lda);
      if constexpr (COUNT > 4) add_step<L, R, STEP + 4>(some, block, words, lda);
      if constexpr (COUNT > 5) add_step<L, R, STEP + 5>(some, block, words, lda);
      if constexpr (COUNT > 6) add_step<L, R, STEP + 6>(some, block, words, lda);
      if constexpr (COUNT > 7) add_step<L, R, STEP + 7>(some, block, words, lda);
#pragma GCC unroll 7
      for (int r = 0; r < R; r++) {
        sum[r][0] = add_words(sum[r][0], madd(some[r][0], ones()));
        sum[r][1] = add_words(sum[r][1], madd(some[r][1], ones()));
      }
    }
    add_steps<L, R, STEP + COUNT, UNTIL>(sum, block, words, lda);
  }
}

template <class L, int R, int PART>
inline __attribute__((always_inline)) void add_part(float* buffer, bool first, const Head<L>& head, const uint8_t* block,
                                                    const uint32_t* words, int64_t lda, const QuantScale* scales,
                                                    int64_t blocks) {
  I sum[R][2];
#pragma GCC unroll 7
  for (int r = 0; r < R; r++) {
    constexpr int ZERO = zero_of<L>();
    if (ZERO)
      sum[r][0] = sum[r][1] = times_power<bits_of(ZERO)>(negated_of<L>(scales[r * blocks], PART));
    else
      sum[r][0] = sum[r][1] = zero_words();
  }
  add_steps<L, R, PART * 4, L::PARTS == 1 ? 8 : PART * 4 + 4>(sum, block, words, lda);
#pragma GCC unroll 2
  for (int g = 0; g < 2; g++) {
    F scale = scale_of_part<L>(head, block, PART, g), minimum = all(0.0f);
    if (L::MINIMUM || L::ZEROS) minimum = minimum_of_part<L>(head, block, PART, g);
#pragma GCC unroll 7
    for (int r = 0; r < R; r++) {
      float* at = buffer + r * NR + g * W;
      store(at, with_part<L>(first ? all(0.0f) : load(at), sum[r][g], scales[r * blocks], scale, minimum, PART));
    }
  }
}

// Sums over blocks are kept in the buffer: so there are registers for more rows, which share the taking apart of weights.
template <class L, int R>
void tile_of_layout(const Left<QuantProduct>& a, const uint32_t* panel, float* buffer, Ahead ahead) {
  const uint8_t* block = (const uint8_t*)panel;
  Head<L> head;
  const QuantScale* scales = a.scales;
  const uint32_t* words = a.words;
  for (int64_t b = 0; b < a.blocks; b++, block += L::BLOCK_BYTES, words += BLOCK_STEPS, scales++) {
    if (L::HEAD_BYTES > 0 && b % L::BLOCKS == 0) head = StoredHead<L>{block}, block += L::HEAD_BYTES;
    ahead.round();
    add_part<L, R, 0>(buffer, b == 0, head, block, words, a.steps, scales, a.blocks);
    if (L::PARTS == 2) add_part<L, R, 1>(buffer, false, head, block, words, a.steps, scales, a.blocks);
  }
}
#endif

// buffer[2][NR]: one row times the panel and times the one at `second.at`, block by block in turn: a core reads two streams of
// memory faster than one. The same sums as of a panel alone.
template <class L>
void two_panels_of_layout(const Left<QuantProduct>& a, const uint32_t* panel, float* buffer, Ahead second) {
  const uint8_t *block[2] = {(const uint8_t*)panel, (const uint8_t*)second.at};
  Head<L> head[2];
  const QuantScale* scales = a.scales;
  const uint32_t* words = a.words;
#if defined(__AVX512VNNI__)
  F total[2][1][2];
  for (auto& of : total) of[0][0] = of[0][1] = all(0.0f);
#endif
  for (int64_t b = 0; b < a.blocks; b++, words += BLOCK_STEPS, scales++) {
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
      if (L::HEAD_BYTES > 0 && b % L::BLOCKS == 0) head[i] = StoredHead<L>{block[i]}, block[i] += L::HEAD_BYTES;
#if defined(__AVX512VNNI__)
      add_part<L, 1, 0>(total[i], head[i], block[i], words, a.steps, scales, a.blocks);
      if (L::PARTS == 2) add_part<L, 1, 1>(total[i], head[i], block[i], words, a.steps, scales, a.blocks);
#else
      add_part<L, 1, 0>(buffer + i * NR, b == 0, head[i], block[i], words, a.steps, scales, a.blocks);
      if (L::PARTS == 2) add_part<L, 1, 1>(buffer + i * NR, false, head[i], block[i], words, a.steps, scales, a.blocks);
#endif
      block[i] += L::BLOCK_BYTES;
    }
  }
#if defined(__AVX512VNNI__)
  for (int i = 0; i < 2; i++) store(buffer + i * NR, total[i][0][0]), store(buffer + i * NR + W, total[i][0][1]);
#endif
}

using TileOfLayout = void (*)(const Left<QuantProduct>&, const uint32_t*, float*, Ahead);

// Tiles of a layout by their number of rows, and in place of none `two_panels_of_layout`, where the layout gains by it. Functions
// behind pointers, so that what calls them is compiled once for all.
template <class L, size_t... ROWS_BEFORE>
inline const TileOfLayout* tiles_of(std::index_sequence<ROWS_BEFORE...>) {
  TileOfLayout two = nullptr;
  if constexpr (L::TWO_PANELS) two = two_panels_of_layout<L>;
  static const TileOfLayout tiles[] = {two, tile_of_layout<L, (int)ROWS_BEFORE + 1>...};
  return tiles;
}

// Which part compiles a layout's tiles: as many seconds for each.
template <class L>
constexpr bool in_first_part() {
  return L::CODES == U4 || (L::CODES == LUT4 && L::PARTS == 1);
}
template <bool FIRST>
inline const TileOfLayout* tiles_in_part(int64_t kind) {
  return with_layout(kind, [](auto layout) -> const TileOfLayout* {
    using L = decltype(layout);
    if constexpr (in_first_part<L>() == FIRST) return tiles_of<L>(std::make_index_sequence<QuantProduct::MR>());
    return nullptr;
  });
}

}  // namespace

// `tiles_in_part`, null for a kind of the other part: cohort_cpu_tiles_1.cpp and cohort_cpu_tiles_2.cpp.
SHARED const TileOfLayout* tiles_in_first_part(int64_t kind);
SHARED const TileOfLayout* tiles_in_second_part(int64_t kind);

namespace {

inline const TileOfLayout* tiles_of(const Linear& w) {
  if (!w.quantized()) return nullptr;
  const TileOfLayout* tiles = tiles_in_first_part(w.kind);
  return tiles ? tiles : tiles_in_second_part(w.kind);
}

}  // namespace
