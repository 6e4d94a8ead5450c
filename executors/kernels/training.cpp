// What stands between the matrix products when cohort-tiny is trained, forwards and backwards: each a single pass over memory.
//
// Activations are bf16, the residual stream, its gradient and all sums are fp32. Rows are tokens; where a result has more rows
// (`padded`) than there are tokens, the rest is set to zero, so that products over rows need not know. One thread a call.
#include "simd.h"

namespace {

using U = uint16_t;

constexpr U FAR_BELOW = 0xCE6E;  // -1e9 in bf16: no share is left of it

inline F get(const U* p) { return load_some(p, W); }
inline void put(U* p, F a) { store_some(p, a, W); }

inline void clear(U* p, int64_t from, int64_t to, int64_t size) {
  if (to > from) memset(p + from * size, 0, (to - from) * size * sizeof(U));
}

// One head's RMSNorm and rotation; y is scaled by `by`.
void turn(const U* x, const float* w, const float* cos, const float* sin, int64_t size, float eps, float by, U* y, float* scale) {
  F sum = all(0);
  for (int64_t i = 0; i < size; i += W) { F a = get(x + i); sum = fma(a, a, sum); }
  float r = 1 / sqrtf(sum_of(sum) / size + eps);
  *scale = r;
  F rs = all(r * by);
  int64_t half = size / 2;
  for (int64_t i = 0; i < half; i += W) {
    F a = mul(mul(get(x + i), rs), load(w + i)), b = mul(mul(get(x + half + i), rs), load(w + half + i));
    put(y + i, fnma(b, load(sin + i), mul(a, load(cos + i))));
    put(y + half + i, fma(a, load(sin + half + i), mul(b, load(cos + half + i))));
  }
}

// Its gradient: d is that of y, dx that of x; adds to dw.
void turn_back(const U* d, const U* x, const float* w, const float* cos, const float* sin, int64_t size, float by, float r, U* dx, float* dw) {
  int64_t half = size / 2;
  float turned[256];
  F sum = all(0), rs = all(r), bys = all(by);
  for (int64_t i = 0; i < half; i += W) {
    F a = mul(get(d + i), bys), b = mul(get(d + half + i), bys);
    F da = fma(b, load(sin + half + i), mul(a, load(cos + i))), db = fnma(a, load(sin + i), mul(b, load(cos + half + i)));
    F xa = mul(get(x + i), rs), xb = mul(get(x + half + i), rs);
    store(dw + i, fma(da, xa, load(dw + i)));
    store(dw + half + i, fma(db, xb, load(dw + half + i)));
    da = mul(da, load(w + i)), db = mul(db, load(w + half + i));
    sum = fma(da, xa, fma(db, xb, sum));
    store(turned + i, da);
    store(turned + half + i, db);
  }
  F share = all(sum_of(sum) / size);
  for (int64_t i = 0; i < size; i += W) put(dx + i, mul(rs, fnma(mul(get(x + i), rs), share, load(turned + i))));
}

inline F sigmoid(F g) { return div(all(1), add(all(1), exp2f(mul(g, all(-LOG2E))))); }

}  // namespace

extern "C" {

// out = in + added (where there is one), y = RMSNorm(out) * w.
void training_norm(const float* in, const U* added, float* out, const float* w, U* y, float* scales, int64_t rows, int64_t padded,
                   int64_t size, float eps) {
  for (int64_t n = 0; n < rows; n++) {
    const float* x = in + n * size;
    float* o = out + n * size;
    F sum = all(0);
    for (int64_t i = 0; i < size; i += W) {
      F a = load(x + i);
      if (added) a = add(a, get(added + n * size + i));
      store(o + i, a);
      sum = fma(a, a, sum);
    }
    scales[n] = 1 / sqrtf(sum_of(sum) / size + eps);
    F r = all(scales[n]);
    for (int64_t i = 0; i < size; i += W) put(y + n * size + i, mul(mul(load(o + i), r), load(w + i)));
  }
  clear(y, rows, padded, size);
}

// Adds the norm's gradient to that of the residual stream (`fresh`: sets it), to dw, and rounds the stream's to g16.
void training_norm_back(const U* dy, const float* x, const float* scales, const float* w, float* g, U* g16, float* dw, int64_t rows,
                        int64_t padded, int64_t size, int64_t fresh) {
  for (int64_t n = 0; n < rows; n++) {
    const float* a = x + n * size;
    const U* d = dy + n * size;
    F r = all(scales[n]), sum = all(0);
    for (int64_t i = 0; i < size; i += W) {
      F normed = mul(load(a + i), r), each = get(d + i);
      store(dw + i, fma(each, normed, load(dw + i)));
      sum = fma(mul(each, load(w + i)), normed, sum);
    }
    F share = all(sum_of(sum) / size);
    for (int64_t i = 0; i < size; i += W) {
      F normed = mul(load(a + i), r);
      F back = mul(r, fnma(normed, share, mul(get(d + i), load(w + i))));
      if (!fresh) back = add(back, load(g + n * size + i));
      store(g + n * size + i, back);
      put(g16 + n * size + i, back);
    }
  }
  clear(g16, rows, padded, size);
}

// qkv (rows, (heads + 2 kv_heads) * size) to q (batch, kv head, token, head of the group, size), k and v (batch, kv head, token, size).
// A token's position is its place less `skipped` (batch, token).
void training_split(const U* qkv, const float* wq, const float* wk, const float* cos, const float* sin, const int64_t* skipped, U* q,
                    U* k, U* v, float* rq, float* rk, int64_t batch, int64_t tokens, int64_t heads, int64_t kv_heads, int64_t size, float eps) {
  int64_t group = heads / kv_heads;
  float by = 1 / sqrtf((float)size);
  for (int64_t n = 0; n < batch * tokens; n++) {
    int64_t b = n / tokens, t = n % tokens;
    const U* x = qkv + n * (heads + 2 * kv_heads) * size;
    const float *c = cos + (t - skipped[n]) * size, *s = sin + (t - skipped[n]) * size;
    for (int64_t h = 0; h < heads; h++, x += size) {
      U* to = q + (((b * kv_heads + h / group) * tokens + t) * group + h % group) * size;
      turn(x, wq, c, s, size, eps, by, to, rq + n * heads + h);
    }
    for (int64_t h = 0; h < kv_heads; h++, x += size)
      turn(x, wk, c, s, size, eps, 1, k + ((b * kv_heads + h) * tokens + t) * size, rk + n * kv_heads + h);
    for (int64_t h = 0; h < kv_heads; h++, x += size) memcpy(v + ((b * kv_heads + h) * tokens + t) * size, x, size * sizeof(U));
  }
}

void training_split_back(const U* dq, const U* dk, const U* dv, const U* qkv, const float* wq, const float* wk, const float* cos,
                         const float* sin, const int64_t* skipped, const float* rq, const float* rk, U* dqkv, float* dwq, float* dwk, int64_t batch,
                         int64_t tokens, int64_t padded, int64_t heads, int64_t kv_heads, int64_t size) {
  int64_t group = heads / kv_heads, width = (heads + 2 * kv_heads) * size;
  float by = 1 / sqrtf((float)size);
  for (int64_t n = 0; n < batch * tokens; n++) {
    int64_t b = n / tokens, t = n % tokens;
    const U* x = qkv + n * width;
    U* dx = dqkv + n * width;
    const float *c = cos + (t - skipped[n]) * size, *s = sin + (t - skipped[n]) * size;
    for (int64_t h = 0; h < heads; h++, x += size, dx += size) {
      const U* from = dq + (((b * kv_heads + h / group) * tokens + t) * group + h % group) * size;
      turn_back(from, x, wq, c, s, size, by, rq[n * heads + h], dx, dwq);
    }
    for (int64_t h = 0; h < kv_heads; h++, x += size, dx += size)
      turn_back(dk + ((b * kv_heads + h) * tokens + t) * size, x, wk, c, s, size, 1, rk[n * kv_heads + h], dx, dwk);
    for (int64_t h = 0; h < kv_heads; h++, dx += size) memcpy(dx, dv + ((b * kv_heads + h) * tokens + t) * size, size * sizeof(U));
  }
  clear(dqkv, batch * tokens, padded, width);
}

// Causal softmax in place: row i of `rows` belongs to token t = `begin` + i / group and sees the tokens up to itself, of `width`, but
// for skipped[b][t] of them behind the first shared[b]. There are `kv_heads` matrices for each of the batch's b.
void training_softmax(U* scores, const int64_t* shared, const int64_t* skipped, int64_t matrices, int64_t rows, int64_t width,
                      int64_t begin, int64_t group, int64_t kv_heads, int64_t tokens) {
  for (int64_t m = 0; m < matrices * rows; m++) {
    U* s = scores + m * width;
    int64_t t = begin + m % rows / group, seen = t + 1, i, b = m / rows / kv_heads;
    int64_t hidden = skipped[b * tokens + t];
    U* behind = s + shared[b];
    for (i = 0; i < hidden; i++) behind[i] = FAR_BELOW;
    F most = all(-INFINITY), sum = all(0);
    for (i = 0; i + W <= seen; i += W) most = larger(most, get(s + i));
    float top = max_of(most);
    for (int64_t j = i; j < seen; j++) { float one; uint32_t bits = (uint32_t)s[j] << 16; memcpy(&one, &bits, 4); top = one > top ? one : top; }
    F shift = all(top * LOG2E);
    float lanes[W];
    for (i = 0; i + W <= seen; i += W) sum = add(sum, exp2f(sub(mul(get(s + i), all(LOG2E)), shift)));
    float total = sum_of(sum);
    if (i < seen) {
      store(lanes, exp2f(sub(mul(load_some(s + i, seen - i), all(LOG2E)), shift)));
      for (int64_t j = 0; j < seen - i; j++) total += lanes[j];
    }
    F share = all(1 / total);
    for (i = 0; i < seen; i += W) {
      int64_t n = seen - i < W ? seen - i : W;
      store_some(s + i, mul(exp2f(sub(mul(load_some(s + i, n), all(LOG2E)), shift)), share), n);
    }
    if (seen < width) memset(s + seen, 0, (width - seen) * sizeof(U));
    memset(behind, 0, hidden * sizeof(U));
  }
}

// Its gradient in place of that of the shares: shares * (d - sum(shares * d)).
void training_softmax_back(const U* shares, U* d, int64_t matrices, int64_t rows, int64_t width, int64_t begin, int64_t group) {
  for (int64_t m = 0; m < matrices * rows; m++) {
    const U* p = shares + m * width;
    U* g = d + m * width;
    int64_t seen = begin + m % rows / group + 1;
    F sum = all(0);
    for (int64_t i = 0; i < seen; i += W) {  // shares are 0 behind `seen`
      int64_t n = width - i < W ? width - i : W;
      sum = fma(load_some(p + i, n), load_some(g + i, n), sum);
    }
    F total = all(sum_of(sum));
    for (int64_t i = 0; i < seen; i += W) {
      int64_t n = width - i < W ? width - i : W;
      store_some(g + i, mul(load_some(p + i, n), sub(load_some(g + i, n), total)), n);
    }
    int64_t done = (seen + W - 1) / W * W;
    if (done < width) memset(g + done, 0, (width - done) * sizeof(U));
  }
}

// Heads side by side for the tokens listed in `chosen` (all where it is null).
void training_merge(const U* att, const int64_t* chosen, U* out, int64_t rows, int64_t padded, int64_t tokens, int64_t heads,
                    int64_t kv_heads, int64_t size) {
  int64_t group = heads / kv_heads;
  for (int64_t m = 0; m < rows; m++) {
    int64_t n = chosen ? chosen[m] : m, b = n / tokens, t = n % tokens;
    for (int64_t h = 0; h < kv_heads; h++)
      memcpy(out + (m * heads + h * group) * size, att + ((b * kv_heads + h) * tokens + t) * group * size, group * size * sizeof(U));
  }
  clear(out, rows, padded, heads * size);
}

void training_merge_back(const U* d, const int64_t* chosen, U* datt, int64_t rows, int64_t batch, int64_t tokens, int64_t heads,
                         int64_t kv_heads, int64_t size) {
  int64_t group = heads / kv_heads;
  if (chosen) memset(datt, 0, batch * tokens * heads * size * sizeof(U));
  for (int64_t m = 0; m < rows; m++) {
    int64_t n = chosen ? chosen[m] : m, b = n / tokens, t = n % tokens;
    for (int64_t h = 0; h < kv_heads; h++)
      memcpy(datt + ((b * kv_heads + h) * tokens + t) * group * size, d + (m * heads + h * group) * size, group * size * sizeof(U));
  }
}

// gate_up (rows, 2 * size): out = silu(gate) * up.
void training_gate(const U* gate_up, U* out, int64_t rows, int64_t size) {
  for (int64_t n = 0; n < rows; n++)
    for (int64_t i = 0; i < size; i += W) {
      F g = get(gate_up + n * 2 * size + i), u = get(gate_up + (n * 2 + 1) * size + i);
      put(out + n * size + i, mul(mul(g, sigmoid(g)), u));
    }
}

void training_gate_back(const U* gate_up, const U* d, U* dgate_up, int64_t rows, int64_t size) {
  for (int64_t n = 0; n < rows; n++)
    for (int64_t i = 0; i < size; i += W) {
      F g = get(gate_up + n * 2 * size + i), u = get(gate_up + (n * 2 + 1) * size + i), e = get(d + n * size + i);
      F s = sigmoid(g), silu = mul(g, s);
      put(dgate_up + n * 2 * size + i, mul(mul(e, u), fma(silu, sub(all(1), s), s)));
      put(dgate_up + (n * 2 + 1) * size + i, mul(e, silu));
    }
}

// losses[n] = weights[n] * cross-entropy(logits[n], targets[n]); the logits become the gradient of their sum.
void training_loss(U* logits, const int64_t* targets, const float* weights, float* losses, int64_t rows, int64_t size) {
  for (int64_t n = 0; n < rows; n++) {
    U* l = logits + n * size;
    F most = all(-INFINITY), sum = all(0);
    for (int64_t i = 0; i < size; i += W) most = larger(most, get(l + i));
    float top = max_of(most), lanes[W];
    F shift = all(top * LOG2E);
    for (int64_t i = 0; i < size; i += W) sum = add(sum, exp2f(sub(mul(get(l + i), all(LOG2E)), shift)));
    float total = sum_of(sum), wanted;
    uint32_t bits = (uint32_t)l[targets[n]] << 16;
    memcpy(&wanted, &bits, 4);
    losses[n] = weights[n] * (logf(total) + top - wanted);
    F share = all(weights[n] / total);
    for (int64_t i = 0; i < size; i += W) {
      F p = mul(exp2f(sub(mul(get(l + i), all(LOG2E)), shift)), share);
      if (targets[n] >= i && targets[n] < i + W) {
        store(lanes, p);
        lanes[targets[n] - i] -= weights[n];
        p = load(lanes);
      }
      put(l + i, p);
    }
  }
}
}
