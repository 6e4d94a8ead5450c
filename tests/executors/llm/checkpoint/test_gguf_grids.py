"""The grids of IQ1, IQ2 and IQ3 against those of the gguf package."""

import numpy as np
import pytest
from gguf import quants

from executors.llm.checkpoint.gguf_grids import points


@pytest.mark.parametrize("kind", ["IQ1_S", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"])
def test_points(kind: str):
    reference = getattr(quants, kind)
    reference.init_grid()
    wanted = np.asarray(reference.grid).reshape(reference.grid_shape)

    assert np.array_equal(np.array(reference.grid_map)[np.array(points(kind))], wanted)
