"""Messages come back as they were, garbage is refused, and a usual step costs little."""

import struct
import timeit
from dataclasses import fields, is_dataclass, replace

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from executors.contract import (
    DecodeInput,
    Drafts,
    ExecutorConfig,
    InvalidInput,
    ItemFault,
    ItemOutput,
    KvCacheHandle,
    LogitsMode,
    PrefillInput,
    PrefillOutput,
    SampledToken,
    SamplingParams,
    SealedBlocks,
    SequenceStart,
    StepFailed,
    TableUpdates,
    Tensor,
    UnifiedBatch,
    UnifiedOutput,
)
from executors.process import messages as m
from executors.process.wire import MAX_FRAME_BYTES, FrameDecoder, WireError, encode

int32 = st.integers(-(2**31), 2**31 - 1)
floats = st.floats(allow_nan=False)
arrays = hnp.arrays(np.int32, st.integers(0, 9), elements=int32)
params = st.builds(
    SamplingParams,
    temperature=st.floats(0.0, allow_infinity=False),
    top_k=st.integers(0, 2**63 - 1),
    top_p=st.floats(0.0, 1.0, exclude_min=True),
    seed=st.integers(0, 2**64 - 1),
    logprobs=st.none() | st.integers(0, 20),
)
sampled = st.builds(
    SampledToken, int32, st.none() | floats, st.lists(st.tuples(int32, floats), max_size=3).map(tuple)
)
starts = st.builds(
    SequenceStart,
    seq_id=st.integers(0, 2**62),
    slot=int32,
    prompt_token_ids=arrays,
    output_token_ids=arrays,
    sampling=st.none() | params,
    adapter=st.none() | st.text(max_size=5),
    grammar=st.none() | st.text(max_size=5),
    prompt_logprobs=st.none() | int32,
    pooling=st.sampled_from((None, "last", "mean")),
    second_segment=st.none() | int32,
)
handles = st.builds(KvCacheHandle, int32, st.lists(arrays, max_size=2).map(tuple), int32)
shapes = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)
dtypes = st.sampled_from(("float32", "float16", "int32", "int8", "bool", "float64"))
tensors = dtypes.flatmap(
    lambda d: hnp.arrays(d, shapes, elements={"allow_nan": False} if "f" in d else None)
).map(Tensor.of)
prefills = st.builds(
    PrefillInput,
    input_ids=tensors,
    attention_mask=st.none() | tensors,
    kv_cache=st.none() | handles,
    pos_offset=int32,
    logits=st.sampled_from(LogitsMode),
    sampling=st.none() | params,
)
items = st.none() | st.builds(
    ItemOutput,
    tokens=st.lists(sampled, max_size=3).map(tuple),
    prompt_logprobs=st.none() | st.lists(sampled, max_size=3).map(tuple),
    pooled=st.none() | hnp.arrays(np.float32, 4, elements=st.floats(width=32, allow_nan=False)),
    logits=st.none() | tensors,
    error=st.none() | st.text(max_size=5),
    fault=st.sampled_from(ItemFault),
)


@st.composite
def batches(draw: st.DrawFn) -> UnifiedBatch:
    n, total, copies = draw(st.integers(0, 5)), draw(st.integers(0, 9)), draw(st.integers(0, 3))

    def array(size: int, dtype: type = np.int32) -> np.ndarray:
        return draw(hnp.arrays(dtype, size))

    return UnifiedBatch(
        epoch=draw(st.integers(0, 2**40)),
        step_id=draw(st.integers(0, 2**40)),
        seq_ids=array(n, np.int64),
        slots=array(n),
        num_q_tokens=array(n),
        pos_offsets=array(n),
        is_final_chunk=array(n, np.bool_),
        num_draft_tokens=array(n),
        token_ids=array(total),
        pending=draw(st.none() | hnp.arrays(np.bool_, total)),
        starts=tuple(draw(st.lists(starts, max_size=3))),
        tables=TableUpdates(*(array(draw(st.integers(0, 4))) for _ in range(5))),
        block_copies=draw(hnp.arrays(np.int32, (copies, 3))),
        drafts_wanted=draw(st.none() | hnp.arrays(np.int32, n)),
        seals=draw(hnp.arrays(np.int32, (draw(st.integers(0, 3)), 2))),
        state_src=draw(st.none() | hnp.arrays(np.int32, n)),
        state_dst=draw(st.none() | hnp.arrays(np.int32, n)),
        snapshots=draw(hnp.arrays(np.int32, (draw(st.integers(0, 3)), 3))),
    )


def same(a: object, b: object) -> bool:
    """Deep equality of records that hold arrays; dtypes and shapes count."""
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, memoryview) and isinstance(b, memoryview):
        return a.tobytes() == b.tobytes()
    if is_dataclass(a) and type(a) is type(b):
        return all(same(getattr(a, f.name), getattr(b, f.name)) for f in fields(a))
    if isinstance(a, (tuple, list)) and type(a) is type(b):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(value, b[key]) for key, value in a.items())
    return type(a) is type(b) and a == b


def to_child(message: m.ToExecutor) -> m.ToExecutor:
    return FrameDecoder(m.ToExecutor).feed(bytes(encode(message)))[0]


def to_parent(message: m.ToServer) -> m.ToServer:
    return FrameDecoder(m.ToServer).feed(bytes(encode(message)))[0]


@given(batches())
def test_a_batch_comes_back(batch: UnifiedBatch) -> None:
    got = to_child(m.pack_batch(7, batch))
    assert isinstance(got, m.Step) and got.call == 7
    unpacked = m.unpack_batch(got)
    assert same(batch, unpacked)
    for array in (unpacked.token_ids, unpacked.tables.slots, unpacked.block_copies):
        assert array.flags.writeable and array.flags.aligned and array.flags.c_contiguous


@given(st.lists(items, max_size=4))
def test_an_output_comes_back(outputs: list[ItemOutput | None]) -> None:
    output = UnifiedOutput.from_items(outputs)
    if outputs:
        counts = np.full(len(outputs), 2, np.int32)
        output.drafts = Drafts(counts, np.arange(2 * len(outputs), dtype=np.int32), 2, 0.25)
        output.checksums = np.array([2**64 - 1] * len(outputs), np.uint64)
    got = to_parent(m.pack_output(3, 0.5, output))
    assert isinstance(got, m.StepDone) and got.seconds == 0.5
    assert same(output, m.unpack_output(got))


@given(st.none() | st.integers(0, 3), st.text(max_size=3))
def test_sealed_blocks_come_back(count: int | None, fingerprint: str) -> None:
    ids = np.arange(count or 0, dtype=np.int32)
    sealed = (
        None
        if count is None
        else SealedBlocks(fingerprint, ids, ids[::-1].copy(), ids.astype(np.uint64) << 62)
    )
    got = to_child(m.BeginEpoch(1, 2, sealed))
    assert isinstance(got, m.BeginEpoch) and same(got.adopt, sealed)
    begun = to_parent(m.EpochBegun(1, 0.5, ids))
    assert isinstance(begun, m.EpochBegun) and same(begun.adopted, ids)


def test_seals_of_another_dtype_or_shape_do_not_travel() -> None:
    none = np.empty(0, np.int32)
    for wrong in (np.zeros((1, 3), np.int32), np.zeros((1, 2), np.int64), np.zeros(2, np.int32)):
        batch = UnifiedBatch(
            0, 0, none.astype(np.int64), none, none, none, none.astype(bool), none, none, seals=wrong
        )
        with pytest.raises(InvalidInput, match="seals is"):
            m.pack_batch(1, batch)
    step = m.pack_batch(1, replace(batch, seals=np.zeros((2, 2), np.int32)))
    for bad in (np.zeros(3, np.int32), np.zeros(2, np.int64)):
        step.seals = bad
        with pytest.raises(InvalidInput, match="seals came as"):
            m.unpack_batch(step)


def test_states_of_another_dtype_or_shape_do_not_travel() -> None:
    none = np.empty(0, np.int32)
    batch = UnifiedBatch(0, 0, none.astype(np.int64), none, none, none, none.astype(bool), none, none)
    for name, wrong in (
        ("state_src", np.zeros(1, np.int64)), ("state_dst", np.zeros(1, np.float32)),
        ("snapshots", np.zeros((1, 2), np.int32)), ("snapshots", np.zeros((1, 3), np.int64)),
    ):  # fmt: skip
        with pytest.raises(InvalidInput, match=f"{name} is"):
            m.pack_batch(1, replace(batch, **{name: wrong}))
        step = m.pack_batch(1, batch)
        setattr(step, name, wrong.reshape(-1)[:2])
        with pytest.raises(InvalidInput, match=f"{name} came as"):
            m.unpack_batch(step)


@given(st.lists(prefills, max_size=2))
def test_tensors_come_back_with_memory_of_their_own(inputs: list[PrefillInput]) -> None:
    got = to_child(m.Prefill(1, inputs, "many"))
    assert isinstance(got, m.Prefill)
    owned = [m.own(one) for one in got.inputs]
    assert same(inputs, owned)
    assert all(one.input_ids.numpy().flags.aligned and not one.input_ids.data.readonly for one in owned)


def test_other_messages_come_back() -> None:
    config = ExecutorConfig("x", max_model_len=3, options={"a": True, "b": 1, "c": 1.0, "d": "d"})
    got = to_child(m.Load(config, 0.5))
    assert isinstance(got, m.Load) and got.config == config
    assert [type(value) for value in got.config.options.values()] == [bool, int, float, str]
    decode = DecodeInput(Tensor.of([[3]], "int32"), KvCacheHandle(1, (np.arange(3, dtype=np.int32),), 3), 3)
    got_decode = to_child(m.Decode(1, [decode], "verify"))
    assert isinstance(got_decode, m.Decode) and same(m.own(got_decode.inputs[0]), decode)
    bfloat = PrefillOutput(Tensor((1, 2), "bfloat16", memoryview(b"abcd")), None)
    got_output = to_parent(m.PrefillDone(1, 0.0, [bfloat]))
    assert isinstance(got_output, m.PrefillDone) and same(m.own(got_output.outputs[0]), bfloat)


@given(st.lists(st.integers(0, 2**40), max_size=5), st.integers(1, 30))
def test_frames_may_come_in_any_pieces(ids: list[int], size: int) -> None:
    stream = b"".join(bytes(encode(m.Release(i))) for i in ids)
    decoder: FrameDecoder[m.ToExecutor] = FrameDecoder(m.ToExecutor)
    got = [message for at in range(0, len(stream), size) for message in decoder.feed(stream[at : at + size])]
    assert got == [m.Release(i) for i in ids]


@given(st.binary(min_size=1, max_size=200))
def test_garbage_is_a_typed_error(payload: bytes) -> None:
    decoder: FrameDecoder[m.ToServer] = FrameDecoder(m.ToServer)
    try:
        decoder.feed(struct.pack("<I", len(payload)) + payload)
    except WireError:
        return
    message = msgspec.msgpack.decode(payload)
    assert isinstance(message, list)  # by chance, it was one


@pytest.mark.parametrize(
    "payload", [b"\x91" * 100_000, b"\x92\x01\xc7\x01\x63\x00", b"\x92\x0a\xc7\x03\x01\x00\x00\x00"]
)
def test_nested_and_odd_garbage_is_a_typed_error(payload: bytes) -> None:
    with pytest.raises(WireError):
        FrameDecoder(m.ToExecutor).feed(struct.pack("<I", len(payload)) + payload)


def test_a_call_with_odd_fields_is_rescued_and_garbage_is_not() -> None:
    def feed(*parts: object) -> m.ToExecutor | m.Unreadable:
        payload = msgspec.msgpack.encode(parts)
        decoder: FrameDecoder[m.ToExecutor | m.Unreadable] = FrameDecoder(m.ToExecutor, rescue=m.unreadable)
        return decoder.feed(struct.pack("<I", len(payload)) + payload)[0]

    assert feed(9, 7, 1) == m.BeginEpoch(7, 1)
    # A wrong type, a field too few, an extension unknown, a record that refuses itself.
    params = [True, 0, 1.0, 0, 0, None]
    decode = [{"input_ids": {}, "sampling": params}]
    for parts in ((9, 7, "one"), (9, 7), (8, 7, msgspec.msgpack.Ext(99, b"")), (4, 7, decode, "one")):
        rescued = feed(*parts)
        assert isinstance(rescued, m.Unreadable) and rescued.call == 7 and rescued.reason
    for parts in ((10, "x"), (11, 1, 2)):
        rescued = feed(*parts)
        assert isinstance(rescued, m.Unreadable) and rescued.call is None
    for parts in ((1, 7), (99, 7), (9,), ("9", 7), (9, "x")):
        with pytest.raises(WireError):
            feed(*parts)


def test_a_frame_beyond_the_cap_is_refused_at_its_header() -> None:
    with pytest.raises(WireError, match="refused"):
        FrameDecoder(m.ToServer).feed(struct.pack("<I", MAX_FRAME_BYTES + 1))


def test_a_message_beyond_the_cap_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("executors.process.wire.MAX_FRAME_BYTES", 1000)
    with pytest.raises(WireError, match="do not fit"):
        encode(m.UnloadAdapter(1, "x" * 1000))


@pytest.mark.parametrize("value", [object(), np.array([object()]), np.zeros((2, 2), np.int32), 1 << 70])
def test_what_cannot_travel_is_a_typed_error(value: object) -> None:
    with pytest.raises(WireError):
        encode(m.BeginEpoch(1, value))  # type: ignore[arg-type]


def test_numpy_scalars_travel_as_numbers() -> None:
    assert to_child(m.BeginEpoch(1, np.int64(5))) == m.BeginEpoch(1, 5)  # type: ignore[arg-type]


def test_wrong_dtypes_are_refused_on_both_sides() -> None:
    batch = usual_batch(3)
    batch.slots = batch.slots.astype(np.int64)  # type: ignore[assignment]
    with pytest.raises(InvalidInput, match="slots is int64"):
        m.pack_batch(1, batch)
    packed = m.pack_batch(1, usual_batch(3))
    packed.arrays[6] = packed.arrays[6].astype(np.int64)
    with pytest.raises(InvalidInput):
        m.unpack_batch(packed)
    with pytest.raises(StepFailed):
        m.pack_output(1, 0.0, UnifiedOutput(np.ones(1, np.int64), np.ones(1, np.int32)))  # type: ignore[arg-type]


def usual_batch(n: int) -> UnifiedBatch:
    rows, ones = np.arange(n, dtype=np.int32), np.ones(n, np.int32)
    tables = TableUpdates(rows, rows, rows, ones, rows)
    final = np.ones(n, np.bool_)
    return UnifiedBatch(
        1, 2, rows.astype(np.int64), rows, ones, rows, final, rows * 0, rows, final, (), tables
    )


def test_a_usual_step_costs_little() -> None:
    batch, output = usual_batch(256), UnifiedOutput(np.ones(256, np.int32), np.arange(256, dtype=np.int32))
    down, up = bytes(encode(m.pack_batch(1, batch))), bytes(encode(m.pack_output(1, 0.0, output)))
    to_executor: FrameDecoder[m.Step] = FrameDecoder(m.ToExecutor)
    to_server: FrameDecoder[m.StepDone] = FrameDecoder(m.ToServer)
    for work in (
        lambda: encode(m.pack_batch(1, batch)),
        lambda: m.unpack_batch(to_executor.feed(down)[0]),
        lambda: encode(m.pack_output(1, 0.0, output)),
        lambda: m.unpack_output(to_server.feed(up)[0]),
    ):
        assert min(timeit.repeat(work, number=20, repeat=20)) / 20 < 150e-6
