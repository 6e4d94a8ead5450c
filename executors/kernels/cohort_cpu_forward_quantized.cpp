// Forwards of models with weights that are quantized as in a file, and of float models with weights in int8.

#include "forward.h"

SHARED int forward_quantized_float(const Model& m, const Call& c) { return forward<QuantProduct, float>(m, c); }
SHARED int forward_quantized_bf16(const Model& m, const Call& c) { return forward<QuantProduct, uint16_t>(m, c); }
SHARED int forward_int8_float(const Model& m, const Call& c) { return forward<Int8Product, float>(m, c); }
