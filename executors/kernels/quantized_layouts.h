// How quantized weights of files lie in panels: the codes as the file has them, 4 to 8 bits each, and its scales.
//
// A panel holds NR columns (rows of w). Values of k come in blocks of 32; formats with scales of two levels share a head among 8
// blocks. For each block:
//
//   codes    U2        [2][NR] words: in a byte those of four steps
//            U4, LUT4  [4][NR] words: in a byte the value of step j in the low half, of step j + 4 in the high half
//            U5        the same, and the fifth bits [8 steps][2][W * 4]: a bit for each byte of a step
//            U6        the same, and the upper two bits [2][NR] words: four steps in a byte
//            S8        [8][NR] words, as int8
//   scales   FLAT      float16 [NR]; with a minimum float16 [NR] more
//            POWER     bf16 [NR], a power of two
//            TWO       [scales of a block][NR] bytes, then as many minima; the head before 8 blocks: float16 [NR] (and [NR])
//            TWO_WIDE  int16 [NR]; the head as for TWO
//            TWO_F32   [scales of a block][NR] bytes; the head before 8 blocks: float32 [NR]
//            PART_F32  [scales of a block][NR] float32
//            GROUP     none; the head before 1, 2 or 4 blocks: float16 [NR], with zeros float16 [NR] more
//            GROUP_F32 the same, the scales as float32
//
// A weight is scale * (code - ZERO) + minimum (FLAT) or - minimum (TWO), a scale of two levels being the product of both: what
// the file's own definition makes of it, without a rounding. The formats are those of ggml. With zeros, which are whole numbers, it
// is scale * (code - zero): groups of GPTQ, AWQ and compressed-tensors, whose rows are made for the kernels (quantized_tensors.py).
#pragma once

#include <vector>

#include "operands.h"

namespace {

enum Codes { U2, U4, U5, U6, LUT4, S8 };
enum Scales { FLAT, POWER, TWO, TWO_WIDE, TWO_F32, PART_F32, GROUP, GROUP_F32 };
enum Table { OF_IQ4, OF_FP4, OF_IQ2, OF_IQ3_XXS, OF_IQ3_S };

// `PARTS`: scales of a block of 32. `MINIMUM`: whether there is one. `SIGNED`: scales of the second level. `ZEROS`: whether
// groups have zeros of their own. `VALUES`: of the codes of LUT4.
template <Codes C, Scales S, int ZERO_, int PARTS_ = 1, bool MINIMUM_ = false, bool SIGNED_ = false, int BLOCKS_ = 1,
          bool ZEROS_ = false, Table VALUES_ = OF_IQ4>
struct LayoutOf {
  static constexpr Codes CODES = C;
  static constexpr Scales SCALES = S;
  static constexpr int ZERO = ZERO_, PARTS = PARTS_;
  static constexpr bool MINIMUM = MINIMUM_, SIGNED = SIGNED_, ZEROS = ZEROS_;
  static constexpr Table VALUES = VALUES_;
  static constexpr bool BYTES = S == TWO || S == TWO_F32;  // scales of the second level
  static constexpr bool TWO_LEVELS = BYTES || S == TWO_WIDE, GROUPED = S == GROUP || S == GROUP_F32;
  static constexpr bool WIDE_HEAD = S == TWO_F32 || S == GROUP_F32;
  static constexpr int BLOCKS = TWO_LEVELS ? 8 : BLOCKS_;  // that share a head
  static constexpr int CODE_WORDS = NR * (C == S8 ? 8 : C == U6 ? 6 : C == U5 ? 5 : C == U2 ? 2 : 4);
  static constexpr int COLUMN_SCALES = BYTES ? PARTS * (MINIMUM ? 2 : 1) : S == PART_F32 ? 4 * PARTS : MINIMUM ? 4 : 2;  // bytes
  static constexpr int SCALE_BYTES = GROUPED ? 0 : NR * COLUMN_SCALES;
  static constexpr int BLOCK_BYTES = CODE_WORDS * 4 + SCALE_BYTES;
  // Whether one row is multiplied with two panels in turn. Blocks of 4 to 6 bits gain nothing: their codes take as long as reading.
  static constexpr bool TWO_PANELS = C == S8;
  // Whether one row, too, asks for the next panel on AMD's CPUs, see `asks_ahead`. Two pieces of a block hold codes of 6 bits, which
  // these CPUs follow less well: a row took 0.85 to 0.93 of the time with asking at 1,024 columns, as long at 4,096; with 4 or 5
  // bits 1.02 to 1.15 (Zen 4).
  static constexpr bool ONE_ROW_ASKS = C == U6;
  static constexpr int HEAD_SCALE = WIDE_HEAD ? 4 : 2;  // bytes
  static constexpr int HEAD_BYTES = TWO_LEVELS || GROUPED ? NR * (HEAD_SCALE + (MINIMUM || ZEROS ? 2 : 0)) : 0;
};

template <Codes C, int BLOCKS, int ZERO = 0, Scales S = GROUP>
using Grouped = LayoutOf<C, S, ZERO, 1, false, false, BLOCKS, ZERO == 0>;
template <Table VALUES>
using Looked = LayoutOf<LUT4, TWO_F32, 0, 2, false, true, 1, false, VALUES>;

// The order is that of `STORED_KINDS` in cpu.py.
using Q4_0 = LayoutOf<U4, FLAT, 8>;
using Q4_1 = LayoutOf<U4, FLAT, 0, 1, true>;
using Q5_0 = LayoutOf<U5, FLAT, 16>;
using Q5_1 = LayoutOf<U5, FLAT, 0, 1, true>;
using Q8_0 = LayoutOf<S8, FLAT, 0>;
using Q2_K = LayoutOf<U2, TWO, 0, 2, true>;
using Q3_K = LayoutOf<U4, TWO, 4, 2, false, true>;
using Q4_K = LayoutOf<U4, TWO, 0, 1, true>;
using Q5_K = LayoutOf<U5, TWO, 0, 1, true>;
using Q6_K = LayoutOf<U6, TWO, 32, 2, false, true>;
using IQ4_NL = LayoutOf<LUT4, FLAT, 0>;
using IQ4_XS = LayoutOf<LUT4, TWO_WIDE, 0, 1, false, true>;
using MXFP4 = LayoutOf<LUT4, POWER, 0, 1, false, false, 1, false, OF_FP4>;
using Int4G64 = Grouped<U4, 2, 8>;  // the zero is 8
using Int4G128 = Grouped<U4, 4, 8>;
using UInt4G32 = Grouped<U4, 1>;
using UInt4G64 = Grouped<U4, 2>;
using UInt4G128 = Grouped<U4, 4>;
using UInt4F32 = Grouped<U4, 1, 0, GROUP_F32>;
using UInt8F32 = Grouped<S8, 1, 0, GROUP_F32>;
using Lut4IQ2 = Looked<OF_IQ2>;
using Lut4IQ3XXS = Looked<OF_IQ3_XXS>;
using Lut4IQ3S = Looked<OF_IQ3_S>;
using Lut4FP4 = LayoutOf<LUT4, PART_F32, 0, 2, false, false, 1, false, OF_FP4>;

// Words of a panel of that kind.
template <class L>
constexpr int64_t words_of(int64_t columns) {
  return columns / (BLOCK * L::BLOCKS) * (L::HEAD_BYTES + L::BLOCKS * L::BLOCK_BYTES) / 4;
}

// Calls `use(layout)` with the layout of that kind; the caller has made sure that there is one.
template <class Use>
inline auto with_layout(int64_t kind, Use use) {
  switch (kind - FIRST_LAYOUT) {
    case 0: return use(Q4_0());
    case 1: return use(Q4_1());
    case 2: return use(Q5_0());
    case 3: return use(Q5_1());
    case 4: return use(Q8_0());
    case 5: return use(Q2_K());
    case 6: return use(Q3_K());
    case 7: return use(Q4_K());
    case 8: return use(Q5_K());
    case 9: return use(Q6_K());
    case 10: return use(IQ4_NL());
    case 11: return use(IQ4_XS());
    case 12: return use(MXFP4());
    case 13: return use(Int4G64());
    case 14: return use(Int4G128());
    case 15: return use(UInt4G32());
    case 16: return use(UInt4G64());
    case 17: return use(UInt4G128());
    case 18: return use(UInt4F32());
    case 19: return use(UInt8F32());
    case 20: return use(Lut4IQ2());
    case 21: return use(Lut4IQ3XXS());
    case 22: return use(Lut4IQ3S());
    default: return use(Lut4FP4());
  }
}

inline int64_t Linear::panel_words() const {
  if (!quantized()) return kind == INT8 ? blocks() * BLOCK_WORDS : steps() * step_words();
  return with_layout(kind, [this](auto layout) { return words_of<decltype(layout)>(columns); });
}

constexpr int8_t IQ4_VALUES[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
// Twice the values of FP4 (e2m1), whose scale is halved for it.
constexpr int8_t FP4_VALUES[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
// Points of IQ2 (three sizes) and of IQ1 (eight times -1, 0 or 1, plus or less 1); sizes and then the same negated.
constexpr int8_t IQ2_VALUES[16] = {8, 25, 43, 1, 7, 9, 0, 0, -8, -25, -43, -1, -7, -9, 0, 0};
constexpr int8_t IQ3_XXS_VALUES[16] = {4, 12, 20, 28, 36, 44, 52, 62, -4, -12, -20, -28, -36, -44, -52, -62};
constexpr int8_t IQ3_S_VALUES[16] = {1, 3, 5, 7, 9, 11, 13, 15, -1, -3, -5, -7, -9, -11, -13, -15};
template <class L>
inline const int8_t* lookup_table() {
  constexpr const int8_t* TABLES[] = {IQ4_VALUES, FP4_VALUES, IQ2_VALUES, IQ3_XXS_VALUES, IQ3_S_VALUES};
  return TABLES[L::VALUES];
}

// ---- from a file's blocks to panels --------------------------------------------------------------------------------

inline uint16_t u16_at(const uint8_t* p) {
  uint16_t a;
  memcpy(&a, p, 2);
  return a;
}

// One head's blocks of one row, taken apart: codes as stored in panels, before they are put beside those of other rows.
struct Unpacked {
  uint8_t codes[256];
  uint16_t scale, minimum;  // float16: of the block, or of the head; POWER: bf16. With zeros: the zero in place of a minimum
  float wide;               // GROUP_F32: the scale; TWO_F32: the one of the head
  float parts[2];           // PART_F32: the scales
  int16_t scales[16];       // of the second level, PARTS for each block
  uint8_t minima[16];
};

inline void halves(const uint8_t* in, uint8_t* codes) {  // 16 bytes: values 0 to 15 in the low halves, 16 to 31 in the high
  constexpr uint64_t LOW = 0x0f0f0f0f0f0f0f0f;
  for (int i = 0; i < 16; i += 8) {
    uint64_t eight;
    memcpy(&eight, in + i, 8);
    uint64_t low = eight & LOW, high = eight >> 4 & LOW;
    memcpy(codes + i, &low, 8);
    memcpy(codes + 16 + i, &high, 8);
  }
}

inline void fifth_bits(const uint8_t* in, uint8_t* codes) {
  uint32_t bits;
  memcpy(&bits, in, 4);
  for (int i = 0; i < 32; i++) codes[i] |= (bits >> i & 1) << 4;
}

// The twelve bytes of Q4_K and Q5_K: eight scales and eight minima of 6 bits.
inline void six_bits(const uint8_t* in, Unpacked& to) {
  for (int i = 0; i < 4; i++) {
    to.scales[i] = in[i] & 63, to.minima[i] = in[i + 4] & 63;
    to.scales[i + 4] = (in[i + 8] & 15) | in[i] >> 6 << 4;
    to.minima[i + 4] = in[i + 8] >> 4 | in[i + 4] >> 6 << 4;
  }
}

// 64 bytes of four values of 2 bits each; each 32 bytes hold four blocks, one in each pair of bits.
inline void two_bits(const uint8_t* in, uint8_t* codes) {
  for (int part = 0; part < 2; part++, in += 32)
    for (int pair = 0; pair < 4; pair++, codes += 32)
      for (int i = 0; i < 32; i++) codes[i] = in[i] >> 2 * pair & 3;
}

// 128 bytes of two values of 4 bits each; each 32 bytes hold two blocks, the first in the low halves.
inline void four_bits(const uint8_t* in, uint8_t* codes) {
  for (int part = 0; part < 4; part++, in += 32, codes += 64)
    for (int i = 0; i < 32; i++) codes[i] = in[i] & 15, codes[32 + i] = in[i] >> 4;
}

inline const uint8_t* unpack(Q4_0, const uint8_t* in, Unpacked& to) {
  to.scale = u16_at(in);
  halves(in + 2, to.codes);
  return in + 18;
}
inline const uint8_t* unpack(Q4_1, const uint8_t* in, Unpacked& to) {
  to.scale = u16_at(in), to.minimum = u16_at(in + 2);
  halves(in + 4, to.codes);
  return in + 20;
}
inline const uint8_t* unpack(Q5_0, const uint8_t* in, Unpacked& to) {
  to.scale = u16_at(in);
  halves(in + 6, to.codes);
  fifth_bits(in + 2, to.codes);
  return in + 22;
}
inline const uint8_t* unpack(Q5_1, const uint8_t* in, Unpacked& to) {
  to.scale = u16_at(in), to.minimum = u16_at(in + 2);
  halves(in + 8, to.codes);
  fifth_bits(in + 4, to.codes);
  return in + 24;
}
inline const uint8_t* unpack(Q8_0, const uint8_t* in, Unpacked& to) {
  to.scale = u16_at(in);
  memcpy(to.codes, in + 2, 32);
  return in + 34;
}
inline const uint8_t* unpack(Q2_K, const uint8_t* in, Unpacked& to) {
  for (int i = 0; i < 16; i++) to.scales[i] = in[i] & 15, to.minima[i] = in[i] >> 4;
  two_bits(in + 16, to.codes);
  to.scale = u16_at(in + 80), to.minimum = u16_at(in + 82);
  return in + 84;
}
inline const uint8_t* unpack(Q3_K, const uint8_t* in, Unpacked& to) {
  two_bits(in + 32, to.codes);
  for (int block = 0; block < 8; block++)
    for (int i = 0; i < 32; i++) to.codes[32 * block + i] |= (in[i] >> block & 1) << 2;
  const uint8_t* packed = in + 96;
  for (int i = 0; i < 16; i++) {
    int low = i < 8 ? packed[i] & 15 : packed[i - 8] >> 4;
    to.scales[i] = (int16_t)((low | (packed[8 + i % 4] >> i / 4 * 2 & 3) << 4) - 32);
  }
  to.scale = u16_at(in + 108);
  return in + 110;
}
inline const uint8_t* unpack(Q4_K, const uint8_t* in, Unpacked& to) {
  to.scale = u16_at(in), to.minimum = u16_at(in + 2);
  six_bits(in + 4, to);
  four_bits(in + 16, to.codes);
  return in + 144;
}
inline const uint8_t* unpack(Q5_K, const uint8_t* in, Unpacked& to) {
  to.scale = u16_at(in), to.minimum = u16_at(in + 2);
  six_bits(in + 4, to);
  four_bits(in + 48, to.codes);
  for (int block = 0; block < 8; block++)
    for (int i = 0; i < 32; i++) to.codes[32 * block + i] |= (in[16 + i] >> block & 1) << 4;
  return in + 176;
}
inline const uint8_t* unpack(Q6_K, const uint8_t* in, Unpacked& to) {
  for (int part = 0; part < 2; part++) {
    const uint8_t *low = in + 64 * part, *high = in + 128 + 32 * part;
    uint8_t* codes = to.codes + 128 * part;
    for (int i = 0; i < 32; i++) {
      codes[i] = (low[i] & 15) | (high[i] & 3) << 4;
      codes[32 + i] = (low[32 + i] & 15) | (high[i] >> 2 & 3) << 4;
      codes[64 + i] = low[i] >> 4 | (high[i] >> 4 & 3) << 4;
      codes[96 + i] = low[32 + i] >> 4 | high[i] >> 6 << 4;
    }
  }
  for (int i = 0; i < 16; i++) to.scales[i] = (int8_t)in[192 + i];
  to.scale = u16_at(in + 208);
  return in + 210;
}
inline const uint8_t* unpack(IQ4_NL, const uint8_t* in, Unpacked& to) {
  to.scale = u16_at(in);
  halves(in + 2, to.codes);
  return in + 18;
}
inline const uint8_t* unpack(IQ4_XS, const uint8_t* in, Unpacked& to) {
  to.scale = u16_at(in);
  uint16_t high = u16_at(in + 2);
  for (int i = 0; i < 8; i++) {
    to.scales[i] = (int16_t)(((in[4 + i / 2] >> i % 2 * 4 & 15) | (high >> 2 * i & 3) << 4) - 32);
    halves(in + 8 + 16 * i, to.codes + 32 * i);
  }
  return in + 136;
}
inline const uint8_t* unpack(MXFP4, const uint8_t* in, Unpacked& to) {
  // 2 to the power of (exponent - 128), halved as said above; 0 and 1 are below bf16's normal numbers.
  to.scale = in[0] < 2 ? (uint16_t)(0x20 << in[0]) : (uint16_t)((in[0] - 1) << 7);
  halves(in + 1, to.codes);
  return in + 17;
}

// A group of whole blocks: its scale, float16 or float32, its zero as float16 if it has one of its own, then the blocks' codes: of
// 4 bits as in Q4_0, of 8 bits as int8, from which 128 was subtracted like from the zero.
template <Codes C, Scales S, int ZERO, int BLOCKS, bool ZEROS>
inline const uint8_t* unpack(LayoutOf<C, S, ZERO, 1, false, false, BLOCKS, ZEROS>, const uint8_t* in, Unpacked& to) {
  static_assert(S == GROUP || S == GROUP_F32, "a format of ggml has its own");
  if (S == GROUP_F32) memcpy(&to.wide, in, 4), in += 4;
  if (S == GROUP) to.scale = u16_at(in), in += 2;
  if (ZEROS) to.minimum = u16_at(in), in += 2;
  for (int b = 0; b < BLOCKS; b++, in += C == S8 ? 32 : 16) {
    if (C == S8)
      memcpy(to.codes + b * BLOCK, in, 32);
    else
      halves(in, to.codes + b * BLOCK);
  }
  return in;
}

// 8 blocks: their scale as float32, 16 scales of the second level, the codes as in Q4_0.
template <Table VALUES>
inline const uint8_t* unpack(Looked<VALUES>, const uint8_t* in, Unpacked& to) {
  memcpy(&to.wide, in, 4);
  for (int i = 0; i < 16; i++) to.scales[i] = (int8_t)in[4 + i];
  for (int i = 0; i < 8; i++) halves(in + 20 + 16 * i, to.codes + 32 * i);
  return in + 148;
}
// A block: the scales of its halves as float32, the codes as in Q4_0.
inline const uint8_t* unpack(Lut4FP4, const uint8_t* in, Unpacked& to) {
  memcpy(to.parts, in, 8);
  halves(in + 8, to.codes);
  return in + 24;
}

inline float half_to_float(uint16_t a) { return _cvtsh_ss(a); }

// Bytes of a row in a file.
template <class L>
int64_t row_bytes(int64_t columns) {
  Unpacked probe;
  static const uint8_t zeros[256] = {};
  return columns / (BLOCK * L::BLOCKS) * (unpack(L(), zeros, probe) - zeros);
}

// A row of a file in float32, with the roundings of the format's definition.
template <class L>
void dequantize_row(const uint8_t* in, float* out, int64_t columns) {
  Unpacked row;
  const int8_t* table = lookup_table<L>();
  for (int64_t begin = 0; begin < columns; begin += BLOCK * L::BLOCKS) {
    in = unpack(L(), in, row);
    float top = L::SCALES == POWER ? to_float(row.scale) : half_to_float(row.scale);
    if (L::WIDE_HEAD) top = row.wide;
    float least = L::MINIMUM || L::ZEROS ? half_to_float(row.minimum) : 0.0f;
    for (int i = 0; i < BLOCK * L::BLOCKS; i++) {
      int part = i * L::PARTS / BLOCK, code = row.codes[i] - L::ZERO;
      if (L::CODES == S8) code = (int8_t)row.codes[i];
      if (L::CODES == LUT4) code = table[row.codes[i]];
      float scale = L::TWO_LEVELS ? top * row.scales[part] : L::SCALES == PART_F32 ? row.parts[part] : top;
      float minimum = L::TWO_LEVELS && L::MINIMUM ? -(least * row.minima[part]) : least;
      out[begin + i] = L::MINIMUM ? scale * code + minimum : L::ZEROS ? scale * (code - least) : scale * code;
    }
  }
}

// The codes of one step: four values of a column, a byte each.
inline uint32_t word_at(const uint8_t* codes) {
  uint32_t word;
  memcpy(&word, codes, 4);
  return word;
}

// Two bits of each byte of four steps, `low` being the first of them, in one word.
inline uint32_t pairs_of(const uint8_t* codes, int low) {
  uint32_t pairs = 0;
  for (int step = 0; step < 4; step++) pairs |= (word_at(codes + 4 * step) >> low & 0x03030303u) << 2 * step;
  return pairs;
}

// Bit 4 of each of a word's bytes, the first byte's in bit 0. The product moves the four bits beside each other, and no two of its
// other terms meet.
inline uint32_t fifth_bits_of(uint32_t word) { return (word >> 4 & 0x01010101u) * 0x01020408u >> 24 & 15; }

// Codes and scales of one row to its column. `panel` begins at the head.
template <class L>
inline void put_unpacked(uint8_t* panel, int column, const Unpacked& from) {
  if constexpr (L::HEAD_BYTES > 0) {
    const void* scale = L::WIDE_HEAD ? (const void*)&from.wide : (const void*)&from.scale;
    memcpy(panel + column * L::HEAD_SCALE, scale, L::HEAD_SCALE);
    if (L::MINIMUM || L::ZEROS) memcpy(panel + NR * L::HEAD_SCALE + column * 2, &from.minimum, 2);
  }
  int group = column / W, lane = column % W;
  for (int b = 0; b < L::BLOCKS; b++) {
    uint8_t* block = panel + L::HEAD_BYTES + b * L::BLOCK_BYTES;
    const uint8_t* codes = from.codes + b * BLOCK;
    auto put = [&](int number, uint32_t word) { memcpy(block + (number * NR + column) * 4, &word, 4); };
    if constexpr (L::CODES == S8) {
      for (int step = 0; step < 8; step++) put(step, word_at(codes + 4 * step) ^ (uint8_t)QuantProduct::FLIP * 0x01010101u);
    } else if constexpr (L::CODES == U2) {
      for (int half = 0; half < 2; half++) put(half, pairs_of(codes + 16 * half, 0));
    } else {
      for (int step = 0; step < 4; step++)
        put(step, (word_at(codes + 4 * step) & 0x0f0f0f0fu) | (word_at(codes + 16 + 4 * step) & 0x0f0f0f0fu) << 4);
      if constexpr (L::CODES == U6)
        for (int half = 0; half < 2; half++) put(4 + half, pairs_of(codes + 16 * half, 4));
      if constexpr (L::CODES == U5)
        for (int step = 0; step < 8; step++) {  // half a byte
          uint8_t* bits = block + NR * 16 + (step * 2 + group) * (W / 2) + lane / 2;
          int at = lane % 2 * 4;
          *bits = (uint8_t)((*bits & ~(15 << at)) | fifth_bits_of(word_at(codes + 4 * step)) << at);
        }
    }
    if (L::GROUPED) continue;
    uint8_t* scales = block + L::CODE_WORDS * 4;
    if (L::BYTES) {
      for (int p = 0; p < L::PARTS; p++) {
        scales[p * NR + column] = (uint8_t)from.scales[b * L::PARTS + p];
        if (L::MINIMUM) scales[(L::PARTS + p) * NR + column] = from.minima[b * L::PARTS + p];
      }
    } else if (L::SCALES == PART_F32) {
      for (int p = 0; p < L::PARTS; p++) memcpy(scales + (p * NR + column) * 4, &from.parts[p], 4);
    } else {
      const void* scale = L::SCALES == TWO_WIDE ? (const void*)&from.scales[b] : (const void*)&from.scale;
      memcpy(scales + column * 2, scale, 2);
      if (L::MINIMUM) memcpy(scales + (NR + column) * 2, &from.minimum, 2);
    }
  }
}

// Rows begin..begin+count of w, `in` [count][blocks of the file's format], to their panels.
template <class L>
void pack_rows(const Linear& w, const uint8_t* in, int64_t begin, int64_t count, int threads) {
  int64_t heads = w.columns / (BLOCK * L::BLOCKS), head_bytes = L::HEAD_BYTES + L::BLOCKS * L::BLOCK_BYTES;
  int64_t in_row = row_bytes<L>(w.columns);
  // A thread takes the rows that share half a panel, so that no two write to one byte.
  std::vector<int64_t> firsts;
  int64_t last = -1;
  for (int64_t i = 0; i < count; i++) {
    int64_t panel, column;
    w.place(begin + i, &panel, &column);
    if (panel * 2 + column / W != last) firsts.push_back(i), last = panel * 2 + column / W;
  }
  firsts.push_back(count);
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1) if (threads > 1)
  for (size_t g = 0; g < firsts.size() - 1; g++) {
    for (int64_t i = firsts[g]; i < firsts[g + 1]; i++) {
      int64_t panel, column;
      w.place(begin + i, &panel, &column);
      uint8_t* to = (uint8_t*)(w.packed + panel * w.panel_words());
      const uint8_t* from = in + i * in_row;
      Unpacked unpacked;
      for (int64_t h = 0; h < heads; h++) {
        from = unpack(L(), from, unpacked);
        put_unpacked<L>(to + h * head_bytes, (int)column, unpacked);
      }
    }
  }
}

}  // namespace
