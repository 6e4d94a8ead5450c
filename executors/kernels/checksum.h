// Checksums of 64 bits over ranges of memory, the same for every instruction set: `checksums_plain` of checksum.py is their
// definition in NumPy.
//
// The loop is that of XXH3 for long inputs (Yann Collet, https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md), with
// another table of keys and another end: stripes of 8 words are added up, each word to its neighbour's sum and multiplied, with a
// key that depends on its place among 1024 bytes, to its own; after 1024 bytes the sums are mixed by a bijection.
//
//   stripe s    sum[i ^ 1] += word[i];  sum[i] += low 32 bits of (word[i] ^ key) * high 32 bits;  key = KEYS[8 * s + i]
//   1024 bytes  sum[i] = (sum[i] ^ sum[i] >> 47 ^ KEYS[i]) * PRIME
//
// One word that differs changes its neighbour's sum, and no bijection loses that.
#pragma once

#include "simd.h"

namespace {

constexpr int LANES = 8, STRIPES = 16;
constexpr int64_t STRIPE_BYTES = LANES * 8, LOAF_BYTES = STRIPES * STRIPE_BYTES;
constexpr uint64_t MIX_PRIME = 0x9E3779B185EBCA87;

// The end of splitmix64 (Steele, Lea and Flood 2014), a bijection.
inline uint64_t mixed(uint64_t x) {
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9;
  x = (x ^ x >> 27) * 0x94D049BB133111EB;
  return x ^ x >> 31;
}

struct Keys {
  alignas(64) uint64_t at[STRIPES * LANES];
  Keys() {
    for (uint64_t i = 0; i < STRIPES * LANES; i++) at[i] = mixed((i + 1) * 0x9E3779B97F4A7C15);
  }
};
inline const Keys& keys() {
  static const Keys made;
  return made;
}

#if defined(__AVX512F__)
struct Sums {
  __m512i a;
  explicit Sums(const uint64_t* from) : a(_mm512_loadu_si512(from)) {}
  void add(const uint8_t* p, const uint64_t* key) {
    __m512i word = _mm512_loadu_si512(p), keyed = _mm512_xor_si512(word, _mm512_loadu_si512(key));
    __m512i product = _mm512_mul_epu32(keyed, _mm512_srli_epi64(keyed, 32));
    a = _mm512_add_epi64(_mm512_add_epi64(a, product), _mm512_shuffle_epi32(word, (_MM_PERM_ENUM)0x4e));
  }
  void store(uint64_t* to) const { _mm512_storeu_si512(to, a); }
};
#else
struct Sums {
  __m256i a[2];
  explicit Sums(const uint64_t* from) {
    for (int h = 0; h < 2; h++) a[h] = _mm256_loadu_si256((const __m256i*)from + h);
  }
  void add(const uint8_t* p, const uint64_t* key) {
    for (int h = 0; h < 2; h++) {
      __m256i word = _mm256_loadu_si256((const __m256i*)p + h);
      __m256i keyed = _mm256_xor_si256(word, _mm256_loadu_si256((const __m256i*)key + h));
      __m256i product = _mm256_mul_epu32(keyed, _mm256_srli_epi64(keyed, 32));
      a[h] = _mm256_add_epi64(_mm256_add_epi64(a[h], product), _mm256_shuffle_epi32(word, 0x4e));
    }
  }
  void store(uint64_t* to) const {
    for (int h = 0; h < 2; h++) _mm256_storeu_si256((__m256i*)to + h, a[h]);
  }
};
#endif

// Bytes behind the last whole stripe count as a stripe that ends in zeros; the length is part of the result.
inline uint64_t checksum(const uint8_t* p, int64_t bytes, uint64_t seed) {
  const uint64_t* key = keys().at;
  uint64_t sum[LANES];
  for (int i = 0; i < LANES; i++) sum[i] = mixed(seed + key[i]);
  for (int64_t begin = 0; begin < bytes; begin += LOAF_BYTES) {
    int64_t rest = bytes - begin, stripes = rest < LOAF_BYTES ? rest / STRIPE_BYTES : STRIPES;
    Sums sums(sum);
    for (int64_t s = 0; s < stripes; s++) {
      const uint8_t* at = p + begin + s * STRIPE_BYTES;
      __builtin_prefetch(at + 1024);
      sums.add(at, key + s * LANES);
    }
    if (stripes < STRIPES && rest > stripes * STRIPE_BYTES) {
      uint8_t tail[STRIPE_BYTES] = {};
      memcpy(tail, p + begin + stripes * STRIPE_BYTES, rest - stripes * STRIPE_BYTES);
      sums.add(tail, key + stripes * LANES);
    }
    sums.store(sum);
    for (int i = 0; i < LANES; i++) sum[i] = (sum[i] ^ sum[i] >> 47 ^ key[i]) * MIX_PRIME;
  }
  uint64_t result = mixed(seed ^ (uint64_t)bytes * MIX_PRIME);
  for (int i = 0; i < LANES; i++) result = mixed(result ^ sum[i]);
  return result;
}

// out [count]: of each block at [count] of those that lie `stride` bytes apart.
inline void checksums(const uint8_t* base, int64_t stride, int64_t bytes, const int32_t* at, int64_t count, uint64_t seed,
                      uint64_t* out, int threads) {
#pragma omp parallel for num_threads(threads) schedule(dynamic) if (threads > 1 && count > 1)
  for (int64_t i = 0; i < count; i++) out[i] = checksum(base + at[i] * stride, bytes, seed);
}

}  // namespace
