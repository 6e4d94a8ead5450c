import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from executors.contract.noise import uniform

words = st.integers(0, 2**64 - 1)


@given(words, st.integers(0, 1000), st.integers(0, 2**31))
def test_strictly_between_0_and_1_and_a_function_of_its_key(seed: int, choice: int, position: int) -> None:
    u = uniform([seed], [choice], [position])[0]
    assert 0.0 < u < 1.0
    among_others = uniform([1, seed, 2], [3, choice, 4], [5, position, 6])[1]
    assert u == among_others


def mix(x: int) -> int:
    """SplitMix64's finaliser on plain integers."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
    return x ^ (x >> 31)


@given(words, words, words)
def test_follows_its_definition(seed: int, choice: int, position: int) -> None:
    golden = 0x9E3779B97F4A7C15
    x = mix((seed + golden) % 2**64)
    x = mix((x + golden * (choice + 1)) % 2**64)
    x = mix((x + golden * (position + 1)) % 2**64)
    assert uniform([seed], [choice], [position])[0] == ((x >> 11) + 0.5) / 2**53


def test_is_the_same_in_every_version() -> None:
    """Tokens of a seed are promised across restarts and releases: these values never change."""
    expected = [0.13870941014555432, 0.3364067193012447, 0.30026869112128524]
    assert uniform([0, 1, 2**64 - 1], [0, 1, 2], [0, 7, 2047]).tolist() == expected


@pytest.mark.parametrize("vary", ["seed", "choice", "position"])
def test_neighbouring_keys_are_uniform_and_uncorrelated(vary: str) -> None:
    n = 20_000
    count, fixed = np.arange(n), np.full(n, 5)
    keys = {name: count if name == vary else fixed for name in ("seed", "choice", "position")}
    u = uniform(keys["seed"], keys["choice"], keys["position"])
    assert u.mean() == pytest.approx(0.5, abs=0.01)
    histogram = np.histogram(u, bins=20, range=(0, 1))[0]
    assert histogram.min() > 0.85 * n / 20 and histogram.max() < 1.15 * n / 20
    assert abs(np.corrcoef(u[:-1], u[1:])[0, 1]) < 0.03
