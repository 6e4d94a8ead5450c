// Forwards of models with weights in float32 and float16.

#include "forward.h"

SHARED int forward_float(const Model& m, const Call& c) { return forward<FloatProduct, float>(m, c); }
SHARED int forward_half(const Model& m, const Call& c) { return forward<HalfProduct, float>(m, c); }
