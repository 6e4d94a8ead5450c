// Forwards of bf16 models with weights in bf16 and int8.

#include "forward.h"

SHARED int forward_bf16(const Model& m, const Call& c) { return forward<Bf16Product, uint16_t>(m, c); }
SHARED int forward_int8_bf16(const Model& m, const Call& c) { return forward<Int8Product, uint16_t>(m, c); }
