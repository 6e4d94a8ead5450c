import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from executors.contract.tensor import ITEM_SIZES, Tensor


@pytest.mark.parametrize("dtype", sorted(set(ITEM_SIZES) - {"bfloat16"}))
def test_round_trip(dtype: str) -> None:
    array = np.arange(6).reshape(1, 2, 3).astype(dtype)
    tensor = Tensor.of(array)
    assert (tensor.shape, tensor.dtype) == ((1, 2, 3), dtype)
    assert tensor.numpy().dtype == array.dtype
    np.testing.assert_array_equal(tensor.numpy(), array)


def test_of_takes_no_copy_of_contiguous_arrays_and_one_of_others() -> None:
    array = np.arange(6, dtype=np.int32).reshape(2, 3)
    tensor, turned = Tensor.of(array), Tensor.of(array.T)
    array[0, 0] = 9
    assert tensor.numpy()[0, 0] == 9
    assert turned.numpy()[0, 0] == 0
    assert turned.numpy().tolist() == [[0, 3], [1, 4], [2, 5]]


@pytest.mark.parametrize("shape", [(0,), (2, 0), (0, 3)])
def test_empty(shape: tuple[int, ...]) -> None:
    assert Tensor.of(np.empty(shape, np.float32)).numpy().shape == shape


def test_bfloat16_is_widened() -> None:
    halves = np.array([0x3F80, 0xC000, 0x0000], np.uint16)  # 1.0, -2.0, 0.0
    tensor = Tensor((3,), "bfloat16", halves.data.cast("B"))
    assert tensor.numpy().tolist() == [1.0, -2.0, 0.0]


@given(st.floats(width=32, allow_nan=False))
def test_bfloat16_widens_the_upper_half_of_a_float32(value: float) -> None:
    bits = np.array([value], np.float32).view(np.uint32)
    upper = (bits >> 16).astype(np.uint16)
    widened = Tensor((1,), "bfloat16", upper.data.cast("B")).numpy()
    assert widened.view(np.uint32)[0] == bits[0] & 0xFFFF0000


@pytest.mark.parametrize(("shape", "dtype"), [((2,), "float32"), ((1,), "int64"), ((1,), "complex64")])
def test_refuses_what_does_not_fit(shape: tuple[int, ...], dtype: str) -> None:
    with pytest.raises(ValueError, match=r"do not hold|unknown dtype"):
        Tensor(shape, dtype, memoryview(b"1234"))
