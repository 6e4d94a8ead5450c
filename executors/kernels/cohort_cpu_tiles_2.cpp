// Tiles of the other layouts: see `in_first_part` of quantized_tiles.h.

#include "quantized_tiles.h"

SHARED const TileOfLayout* tiles_in_second_part(int64_t kind) { return tiles_in_part<false>(kind); }
