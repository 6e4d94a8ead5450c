// Encoders: `cohort_encode`.

#include "encoder.h"

extern "C" {

// Returns 0, or 1 where there is no memory. See EncoderModel and EncoderCall.
int cohort_encode(const EncoderModel* m, const EncoderCall* c) {
  if (m->kind >= FIRST_LAYOUT) return encode<QuantProduct, NarrowHeads>(*m, *c);
  if (m->kind == INT8) return encode<Int8Product, NarrowHeads>(*m, *c);
  if (m->kind == BF16) return encode<Bf16Product, NarrowHeads>(*m, *c);
  if (m->kind == FP16) return encode<HalfProduct, FloatHeads>(*m, *c);
  return encode<FloatProduct, FloatHeads>(*m, *c);
}
}
