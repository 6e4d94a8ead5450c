"""The former name of `executors.contract.sampling_wrapper`."""

from executors.contract.sampling_wrapper import SamplingWrapper as SamplingAdapter

__all__ = ["SamplingAdapter"]
