"""Executors that the conformance tests examine, how to make them fail, and the register of broken ones."""

from collections.abc import Callable

from executors.contract import ExecutorConfig, ModelExecutor
from executors.contract.sampling_wrapper import SamplingWrapper
from executors.testing.conformance import LoraSource, MakeExecutor
from executors.testing.fakes.base import FakeExecutor
from executors.testing.fakes.echo import EchoExecutor
from executors.testing.fakes.failures import Failure
from executors.testing.fakes.paged import PagedFakeExecutor
from executors.testing.fakes.state import StateFakeExecutor


def config(**options: bool | float | str) -> ExecutorConfig:
    return ExecutorConfig("fake", max_num_seqs=8, max_model_len=256, options={"vocab_size": 200} | options)


def maker(
    cls: type[FakeExecutor],
    wrap: Callable[[ModelExecutor], ModelExecutor] | None = None,
    **options: bool | float | str,
):
    def make() -> ModelExecutor:
        executor = cls(config(**options))
        return wrap(executor) if wrap else executor

    return make


def inject(executor: ModelExecutor, kind: str, seq_id: int) -> None:
    """Make the next step with the sequence fail."""
    inner = getattr(executor, "inner", executor)
    assert isinstance(inner, FakeExecutor)
    inner.failures.append(Failure(kind, seq=seq_id))


ADAPTERS = (LoraSource("one", "/one", "digest of one"), LoraSource("two", "/two", "digest of two"))
"""What the fakes load: they read no files."""

SUBJECTS: dict[str, MakeExecutor] = {
    "echo": maker(EchoExecutor),
    "echo-split": maker(EchoExecutor, native=False),
    "paged_fake": maker(PagedFakeExecutor),
    "echo-types": maker(EchoExecutor, token_types=2),
    "paged_fake-types": maker(PagedFakeExecutor, token_types=2),
    "adapter-echo-types": maker(EchoExecutor, SamplingWrapper, token_types=2),
    "echo-drafts": maker(EchoExecutor, drafts_right=0.7),
    "paged_fake-drafts": maker(PagedFakeExecutor, drafts_right=0.7),
    "paged_fake-outliving": maker(PagedFakeExecutor, fingerprint="a"),
    "paged_fake-outliving-split": maker(PagedFakeExecutor, fingerprint="a", native=False),
    "paged_fake-split": maker(PagedFakeExecutor, native=False),
    "paged_fake-windows": maker(PagedFakeExecutor, window="full,21,8", drafts_right=0.7),
    "paged_fake-windows-split": maker(PagedFakeExecutor, window="24,full", native=False),
    "paged_fake-all-windows": maker(PagedFakeExecutor, window="20"),
    "state_fake": maker(StateFakeExecutor, drafts_right=0.7),
    "state_fake-outliving": maker(StateFakeExecutor, fingerprint="a", state_interval=32),
    "state_fake-windows": maker(StateFakeExecutor, window="full,21", state_interval=32),
    "adapter-echo": maker(EchoExecutor, SamplingWrapper),
    "adapter-echo-split": maker(EchoExecutor, SamplingWrapper, native=False),
    "adapter-paged_fake": maker(PagedFakeExecutor, SamplingWrapper),
    "adapter-paged_fake-split": maker(PagedFakeExecutor, SamplingWrapper, native=False),
}

MUTANTS: list[tuple[type, str]] = []
"""(broken fake, name of a case that must catch it)."""


def caught_by(*cases: str) -> Callable[[type], type]:
    """Register a broken fake."""

    def register(cls: type) -> type:
        MUTANTS.extend((cls, case) for case in cases)
        return cls

    return register
