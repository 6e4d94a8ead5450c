"""Tests of GPU measurements import kernels, and are collected before those of tests/gpu: the switch to interpret them has to be
there by then."""

import tests.gpu.conftest  # noqa: F401
