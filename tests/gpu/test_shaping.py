"""Penalties, biases and bans on the device: what the table says, who counts, and what the host tells it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from triton.runtime.errors import InterpreterError

from executors.contract import InvalidInput
from executors.contract.batch import SamplingParams, SequenceStart, UnifiedBatch
from executors.contract.errors import ItemFault
from executors.contract.reference_sampler import edited
from executors.contract.token_history import TokenHistory
from executors.kernels.shaping_layout import row_words
from executors.kernels.triton import sampling as sampling_kernels
from executors.kernels.triton import shaping as shaping_kernels
from executors.llm.sampling import device_shaping as layout
from executors.llm.sampling.device_sampler import TorchDeviceSampler
from executors.llm.sampling.device_shaping import RowShaping, count_inputs, shaped
from executors.llm.sampling.shaped_slots import ShapedSlots
from executors.llm.sampling.triton_sampler import TritonSampler
from executors.llm.step_arrays import StepArrays
from tests.executors.checkpoints import write_checkpoint
from tests.executors.llm.driver import Driver, config
from tests.gpu.device_fakes import FakeDevice, FakeDeviceExecutor
from tests.gpu.test_kernel_mutants import mutated
from tests.gpu.test_sampling import DEVICE, DTYPES, settings_of
from tests.gpu.workloads import SHAPED, SMALL

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore:overflow encountered in")]
MAX_LEN = 64
MOST = 4
"""Drafts of a sequence in a step."""


def random_settings(rng: np.random.Generator, width: int) -> SamplingParams:
    """Any of them together."""
    some = lambda most: rng.choice(width, int(rng.integers(1, most + 1)), replace=False).tolist()  # noqa: E731
    on = rng.random(7) < 0.5
    return SamplingParams(
        temperature=float(np.float32(rng.choice([0.0, 0.5, 1.0]))),
        top_k=int(rng.choice([0, 0, 3, 20])),
        top_p=float(np.float32(rng.choice([1.0, 0.5, 0.9]))),
        repetition_penalty=float(rng.choice([0.5, 1.25, 2.0])) if on[0] else 1.0,
        frequency_penalty=float(rng.choice([-0.5, 0.75])) if on[1] else 0.0,
        presence_penalty=float(rng.choice([-1.0, 0.5])) if on[2] else 0.0,
        logit_bias=tuple((token, float(rng.normal() * 3)) for token in some(9)) if on[3] else (),
        bad_words=tuple((token,) for token in some(5)) if on[4] else (),
        allowed_token_ids=tuple(some(width)) if on[5] else None,
        min_tokens=int(rng.integers(0, 6)) if on[6] else 0,
        stop_token_ids=tuple(some(4)) if on[6] else (),
    )


class Slots:
    """`ShapedSlots` fed by hand, a step at a time, with the device's part played at once."""

    def __init__(self, num_slots: int, width: int, limit: int = 1 << 30) -> None:
        self.slots = ShapedSlots(
            num_slots, num_slots, MAX_LEN, width, DEVICE, self.settle, limit, MOST * num_slots
        )
        self.settled = 0
        self.due: list[tuple[object, np.ndarray]] = []
        self.device_tokens: dict[tuple[int, int], int] = {}
        """What the pool would hold."""

    def settle(self) -> None:
        self.settled += 1
        for recording, tokens in self.due:
            self.slots.record(recording, tokens)  # type: ignore[arg-type]
        self.due.clear()

    def send(self) -> None:
        """Bring the table up to date."""
        sending = self.slots.sending
        sending.clean()
        places, values = sending.unsent()
        assert len(np.unique(places)) == len(places)
        flat = self.slots.table.view(-1)
        flat[torch.from_numpy(places).to(DEVICE)] = torch.from_numpy(values).to(DEVICE)
        sending.sent()

    def step(self, items: list[tuple[int, int, list[int]]], drafts: list[int] | None = None) -> RowShaping:
        """`items`: slot, position and tokens, -1 pending, the last ones of which are `drafts`. Returns what the sampler gets, and
        does not count."""
        batch, arrays = made(items, drafts)
        self.slots.prepare(batch, arrays, np.ones(len(items), np.bool_))
        self.send()
        columns: list[tuple[int, int, int, int]] = []
        behind = 0
        for slot, end, place, token in rows_of(items, drafts):
            row = int(self.slots.row_of[slot])
            guessed = place > 0 and row >= 0
            behind += guessed
            known = self.device_tokens[slot, end - 1] if token < 0 else token
            columns.append((row, end, known, behind if guessed else 0))
        rows, ends, inputs, numbers = (
            torch.tensor(column, dtype=torch.int32, device=DEVICE) for column in zip(*columns, strict=True)
        )
        return RowShaping(self.slots.table, rows, ends, inputs, numbers, self.slots.results)

    def sampled(
        self, items: list[tuple[int, int, list[int]]], tokens: list[int], later: bool = False,
        drafts: list[int] | None = None,
    ) -> None:  # fmt: skip
        """What the rows of a step with these items gave; `later`: the host hears of it with the next settling."""
        rows = list(rows_of(items, drafts))
        slots, ends = np.array([row[0] for row in rows]), np.array([row[1] for row in rows])
        self.device_tokens |= dict(zip(zip(slots.tolist(), ends.tolist(), strict=True), tokens, strict=True))
        recording = self.slots.recording(slots, ends)
        if recording is not None:
            self.due.append((recording, np.array(tokens, np.int32)))
        if not later:
            self.settle()
            self.settled -= 1


def rows_of(
    items: list[tuple[int, int, list[int]]], drafts: list[int] | None = None
) -> Iterator[tuple[int, int, int, int]]:
    """Slot, number of tokens before it, number of drafts before it and last input of each sampled row."""
    for (slot, begin, tokens), most in zip(items, drafts or [0] * len(items), strict=True):
        for place in range(most + 1):
            count = len(tokens) - most + place
            yield slot, begin + count, place, tokens[count - 1]


def made(
    items: list[tuple[int, int, list[int]]], drafts: list[int] | None = None
) -> tuple[UnifiedBatch, StepArrays]:
    ids = np.array([max(token, 0) for _, _, tokens in items for token in tokens], np.int32)
    pending = np.array([token < 0 for _, _, tokens in items for token in tokens], np.bool_)
    counts = np.array([len(tokens) for _, _, tokens in items])
    begins = np.array([begin for _, begin, _ in items])
    slots = np.array([slot for slot, *_ in items], np.int32)
    batch = UnifiedBatch(
        epoch=1, step_id=1, num_draft_tokens=np.array(drafts or [0] * len(items), np.int32), seq_ids=slots.astype(np.int64),
        slots=slots, token_ids=ids, num_q_tokens=counts.astype(np.int32),
        pos_offsets=begins.astype(np.int32), is_final_chunk=np.ones(len(items), np.bool_), pending=pending,
    )  # fmt: skip
    return batch, StepArrays(ids, counts, begins, np.empty((len(items), 0), np.int32))


def start(
    slot: int, prompt: list[int], params: SamplingParams, output: list[int] | None = None
) -> SequenceStart:
    return SequenceStart(slot, slot, np.array(prompt, np.int32), np.array(output or [], np.int32), params)


def reference(row: np.ndarray, params: SamplingParams, prompt: list[int], output: list[int]) -> np.ndarray:
    return edited(row, params, TokenHistory(prompt, output))


# -- what is computed ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [30, 333])
def test_the_table_says_what_the_reference_does(width: int) -> None:
    rng = np.random.default_rng(width)
    for _ in range(30):
        slots = Slots(4, width)
        logits = torch.from_numpy(rng.normal(0, 3, (4, width)).astype(np.float32))
        items, expected = [], []
        for slot in range(4):
            params = random_settings(rng, width)
            prompt, output = (
                rng.integers(0, width, count).tolist() for count in (7, int(rng.integers(0, 9)))
            )
            if not slots.slots.begin(start(slot, prompt, params, output)):
                assert not params.edits_logits
            items.append((slot, 0, prompt + output))
            expected.append(reference(logits[slot].numpy(), params, prompt, output))
        shaping = slots.step(items)
        found = shaped(logits.to(DEVICE), shaping).cpu().numpy()
        np.testing.assert_allclose(found, np.array(expected), rtol=1e-6, atol=1e-6)


@pytest.mark.long(every=4)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("width", "capacity"), [(30, 4096), (700, 16)])
def test_kernels_choose_what_torch_chooses(dtype: torch.dtype, width: int, capacity: int) -> None:
    """Shaped rows among others, and padding; inputs that the sampler is to count. Twice: the second step reads the counts."""
    rng, rows = np.random.default_rng(width + capacity), 12
    slots = Slots(rows, width)
    params, items = [], []
    for slot in range(rows):
        params.append(None if slot == 5 else random_settings(rng, width))
        prompt = rng.integers(0, width, 6).tolist()
        if params[-1] is not None:
            slots.slots.begin(start(slot, prompt, params[-1]))
        items.append((slot, 0, prompt))
    shaping = slots.step(items)
    assert 2 < int((shaping.rows >= 0).sum()) < rows
    for number in range(3):
        logits = torch.from_numpy(rng.normal(0, 2, (rows, width))).to(dtype).to(DEVICE)
        columns = settings_of(params, rng.random(rows))
        theirs = replace(shaping, table=shaping.table.clone())
        found = []
        for sampler, one in (
            (TritonSampler(rows, width, DEVICE, capacity=capacity), shaping),
            (TorchDeviceSampler(), theirs),
        ):
            tokens = torch.zeros(rows, dtype=torch.int32, device=DEVICE)
            bad = torch.full((rows,), 9, dtype=torch.int8, device=DEVICE)
            sampler.sample(logits, columns, tokens, bad, one)
            tokens[5], bad[5] = 0, 0
            found.append((tokens.tolist(), bad.tolist()))
        assert found[0] == found[1], number
        said = slice(0, len(shaping.table) - 1), slice(0, layout.HEADER + width)
        assert torch.equal(shaping.table[said], theirs.table[said])
        following = [(slot, 6 + number, [-1]) for slot in range(rows)]
        slots.sampled([(slot, 0, [0] * (6 + number)) for slot in range(rows)], found[0][0], later=True)
        shaping = slots.step(following)


@pytest.mark.parametrize("sampler", ["triton", "torch"])
@pytest.mark.parametrize(("width", "seed"), [(30, 1), (700, 2)])
def test_a_row_behind_drafts_is_shaped_as_if_they_were_given(sampler: str, width: int, seed: int) -> None:
    """Each row against the reference, over three steps: greedy, as little else tells what one logit was. More rows than torch
    takes at a time; a sequence's rows lie on both sides of that border."""
    check_drafts(sampler, width, seed)


def check_drafts(sampler: str, width: int, seed: int, number_of_steps: int = 3) -> None:
    rng, count = np.random.default_rng(seed), 16
    slots = Slots(count, width)
    histories: list[tuple[SamplingParams, list[int], list[int]]] = []
    for slot in range(count):
        params = replace(random_settings(rng, width), temperature=0.0)
        prompt = rng.integers(0, width, 5).tolist()
        slots.slots.begin(start(slot, prompt, params))
        histories.append((params, prompt, []))
    for number in range(number_of_steps):
        items, drafts, accepted = [], [], []
        for slot, (_, prompt, output) in enumerate(histories):
            drafts.append(int(rng.integers(0, MOST + 1)))
            accepted.append(int(rng.integers(0, drafts[-1] + 1)))
            known = (prompt + output)[len(prompt) + len(output) - 1 if number else 0 :]
            # Of few tokens, so that they repeat each other and the output.
            guesses = (rng.integers(0, 5, drafts[-1]) + int(rng.integers(0, width - 5))).tolist()
            begin = len(prompt) + len(output) - len(known)
            items.append((slot, begin, known + guesses))
        shaping = slots.step(items, drafts)
        n = len(shaping.rows)
        assert n > 32
        logits = torch.from_numpy(rng.normal(0, 1, (n, width)).astype(np.float32))
        tokens = torch.zeros(n, dtype=torch.int32, device=DEVICE)
        bad = torch.zeros(n, dtype=torch.int8, device=DEVICE)
        chooser = TritonSampler(n, width, DEVICE) if sampler == "triton" else TorchDeviceSampler()
        columns = settings_of([SamplingParams(temperature=0.0)] * n, np.zeros(n))
        for _ in range(2):  # the second time the inputs are counted already
            chooser.sample(logits.to(DEVICE), columns, tokens, bad, shaping)
            for row, (slot, _, place, _) in enumerate(rows_of(items, drafts)):
                params, prompt, output = histories[slot]
                given = items[slot][2]
                text = output + given[len(given) - drafts[slot] :][:place]
                expected = reference(logits[row].numpy(), params, prompt, text)
                if np.isneginf(expected).all():
                    assert bad[row] == 2
                else:
                    assert bad[row] == 0 and expected[tokens[row]] == expected.max(), (row, slot, place)
        drawn: list[int] = []
        for slot, (_, _, output) in enumerate(histories):
            guesses = items[slot][2][len(items[slot][2]) - drafts[slot] :]
            if (own := int(slots.slots.row_of[slot])) >= 0 and histories[slot][0].penalized:
                words = slots.slots.table[own, layout.HEADER : layout.HEADER + width].cpu().numpy()
                counts = (words & (layout.IN_PROMPT - 1)).tolist()
                assert counts == [output.count(token) for token in range(width)], "a draft was counted"
            own_tokens = [*guesses[: accepted[slot]], *rng.integers(0, width, drafts[slot] + 1).tolist()]
            drawn += own_tokens[: drafts[slot] + 1]
            output += own_tokens[: accepted[slot] + 1]
        slots.sampled(items, drawn, drafts=drafts)


DRAFT_MUTANTS = {
    "no drafts": ("tl.load(guessed + other) > 0", "tl.load(guessed + other) < 0"),
    "the drafts of the row before": ("other = row\n", "other = tl.maximum(row - 1, 0)\n"),
    "one draft less": ("inputs)\n        while", "inputs) * 0\n        while"),
    "results in one place": ("if number > 0:", "if number > 1000:"),
    "results of the first draft": ("(number - 1).to(tl.int64)", "(number * 0).to(tl.int64)"),
    "a draft is counted": (" & (shape[7] == 0)", ""),
}


@pytest.mark.interpreted
@pytest.mark.parametrize("name", DRAFT_MUTANTS)
def test_a_mutant_of_drafts_is_caught(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant = mutated(shaping_kernels, tmp_path, DRAFT_MUTANTS[name])
    for function in ("row_shape", "load_logits", "shape_logits", "count_input"):
        monkeypatch.setattr(sampling_kernels, function, getattr(mutant, function))
    with pytest.raises((AssertionError, InterpreterError)):
        check_drafts("triton", 30, 2, number_of_steps=2)


def test_who_is_left_with_nothing_is_told_so() -> None:
    width = 40
    slots = Slots(3, width)
    everything = tuple((token,) for token in range(width))
    slots.slots.begin(start(0, [1], SamplingParams(bad_words=everything)))
    slots.slots.begin(start(1, [1], SamplingParams(logit_bias=((3, 2.0),))))
    shaping = slots.step([(0, 0, [1]), (1, 0, [1]), (2, 0, [1])])
    logits = torch.zeros(3, width, device=DEVICE)
    for at in (None, 1, 2):
        if at is not None:
            logits[at, 5] = torch.nan
        for sampler in (TritonSampler(3, width, DEVICE), TorchDeviceSampler()):
            for params in (SamplingParams(temperature=0.0), SamplingParams(), SamplingParams(top_k=3)):
                tokens, bad = (
                    torch.zeros(3, dtype=kind, device=DEVICE) for kind in (torch.int32, torch.int8)
                )
                sampler.sample(logits, settings_of([params] * 3, np.full(3, 0.5)), tokens, bad, shaping)
                assert bad.tolist() == [2, int(at is not None), int(at == 2)]
                assert int(tokens[0]) == 0


def test_an_input_is_counted_once_however_often_its_step_is_computed() -> None:
    """A step that found no memory is computed again in parts."""
    width = 20
    slots = Slots(2, width)
    slots.slots.begin(start(0, [3, 4], SamplingParams(frequency_penalty=1.0)))
    first = slots.step([(0, 0, [3, 4])])
    count_inputs(first)
    slots.sampled([(0, 0, [3, 4])], [7])
    second = slots.step([(0, 2, [7])])
    for sampler in (TorchDeviceSampler(), TritonSampler(1, width, DEVICE)):
        for _ in range(2):
            sampler.sample(
                torch.zeros(1, width, device=DEVICE), settings_of([SamplingParams()], np.zeros(1)),
                torch.zeros(1, dtype=torch.int32, device=DEVICE), torch.zeros(1, dtype=torch.int8, device=DEVICE), second,
            )  # fmt: skip
    words = slots.slots.table[int(second.rows[0]), layout.HEADER : layout.HEADER + width]
    assert words.tolist() == [
        layout.IN_PROMPT if token in (3, 4) else int(token == 7) for token in range(width)
    ]


# -- what the host tells -------------------------------------------------------------------------------------------------


@pytest.mark.long(every=6)
@pytest.mark.parametrize("seed", range(6))
def test_counts_follow_the_inputs_whatever_is_done_to_a_sequence(seed: int) -> None:
    """Decodes whose tokens are pending or known, recorded at once or later; with drafts, all, some or none of which are accepted;
    rolled back, led astray, computed anew in one piece, started again, taken over by the host and given back, released. The row
    says what a history would."""
    rng, width = random.Random(seed), 12
    params = SamplingParams(frequency_penalty=0.5, repetition_penalty=1.5, logit_bias=((2, 1.0),))
    slots = Slots(3, width)
    truth: dict[int, tuple[list[int], list[int]]] = {}
    at: dict[int, int] = {}
    done: set[str] = set()
    for _ in range(250):
        for slot in range(3):
            if slot not in truth:
                prompt = [rng.randrange(width) for _ in range(rng.randrange(1, 6))]
                output = [rng.randrange(width) for _ in range(rng.choice((0, 0, 3)))]
                assert slots.slots.begin(start(slot, prompt, params, output))
                truth[slot], at[slot] = (prompt, output), 0
        items, drafts, hosted = [], [], rng.random() < 0.15
        for slot in rng.sample(range(3), rng.randint(1, 3)):
            prompt, output = truth[slot]
            tokens = prompt + output
            what = rng.choice(("on", "on", "on", "on", "back", "astray", "anew"))
            if at[slot] <= len(prompt):
                what = "anew"
            begin = 0 if what == "anew" else at[slot]
            if what in ("back", "astray") and len(output) > 1:
                keep = rng.randrange(len(prompt) + 1, len(tokens))
                begin, tokens = keep - 1, tokens[:keep]
                if what == "astray":
                    tokens[-1] = (tokens[-1] + 1) % width
            done.add(what)
            given = tokens[begin:]
            truth[slot] = (prompt, tokens[len(prompt) :])
            guesses = rng.choice((0, 0, 1, 3)) if not hosted else 0
            if what == "on" and not guesses and rng.random() < 0.6:
                given[-1] = -1
            drafts.append(guesses)
            items.append((slot, begin, [*given, *(rng.randrange(width) for _ in range(guesses))]))
        for slot, begin, given in items:
            if given[-1] < 0:
                slots.device_tokens[slot, begin + len(given) - 1] = truth[slot][1][-1]
        drawn: list[list[int]] = []
        accepted = [rng.randint(0, count) for count in drafts]
        for (_, _, given), count, right in zip(items, drafts, accepted, strict=True):
            done |= {"accepted"} if right else {"rejected"} if count else set()
            guesses = given[len(given) - count :]
            drawn.append([*guesses[:right], *(rng.randrange(width) for _ in range(count + 1 - right))])
            if right < count and drawn[-1][right] == guesses[right]:
                drawn[-1][right] = (guesses[right] + 1) % width
        if hosted:
            host_step(slots, items, [one[0] for one in drawn], truth)
            done.add("hosted")
        else:
            later = not any(drafts) and rng.random() < 0.5
            device_step(slots, items, drafts, drawn, truth, width, later)
        for (slot, begin, given), count, right, tokens in zip(items, drafts, accepted, drawn, strict=True):
            at[slot] = begin + len(given) - count + right
            truth[slot][1].extend(tokens[: right + 1])
            if at[slot] > MAX_LEN - 4 or rng.random() < 0.03:
                slots.slots.drop(slot)
                del truth[slot]
    assert done == {"on", "back", "astray", "anew", "hosted", "accepted", "rejected"} and slots.settled < 200


def device_step(
    slots: Slots, items: list, drafts: list[int], drawn: list[list[int]], truth: dict, width: int, later: bool
) -> None:
    shaping = slots.step(items, drafts)
    logits = torch.ones(len(shaping.rows), width, device=DEVICE)
    found = shaped(logits, shaping).cpu().numpy()
    count_inputs(shaping)
    guesses = {
        slot: given[len(given) - count :] for (slot, _, given), count in zip(items, drafts, strict=True)
    }
    for row, (slot, _, place, _) in enumerate(rows_of(items, drafts)):
        prompt, output = truth[slot]
        expected = reference(np.ones(width, np.float32), PARAMS, prompt, output + guesses[slot][:place])
        np.testing.assert_allclose(found[row], expected, rtol=1e-6)
        words = slots.slots.table[int(shaping.rows[row]), layout.HEADER : layout.HEADER + width].cpu().numpy()
        counts = [int(word) & (layout.IN_PROMPT - 1) for word in words]
        assert counts == [output.count(token) for token in range(width)]
    slots.sampled(items, [token for one in drawn for token in one], later, drafts)


PARAMS = SamplingParams(frequency_penalty=0.5, repetition_penalty=1.5, logit_bias=((2, 1.0),))


def host_step(slots: Slots, items: list, drawn: list[int], truth: dict) -> None:
    batch, _ = made(items)
    slots.slots.histories(batch, np.ones(len(items), np.bool_))
    for (slot, begin, given), token in zip(items, drawn, strict=True):
        history = slots.slots._slots[slot].hosted
        assert history is not None
        history.sync(begin, [max(one, 0) for one in given], [one < 0 for one in given])
        assert history.output == truth[slot][1]
        history.append(token)
        slots.device_tokens[slot, begin + len(given)] = token


def test_what_was_never_sampled_cannot_be_pending() -> None:
    slots = Slots(1, 20)
    slots.slots.begin(start(0, [3, 4], SamplingParams(frequency_penalty=1.0)))
    with pytest.raises(InvalidInput, match="no token was sampled for position 2"):
        slots.slots.prepare(*made([(0, 0, [3, 4, -1])]), np.ones(1, np.bool_))
    with pytest.raises(InvalidInput, match="knows 2 tokens"):
        slots.slots.prepare(*made([(0, 3, [7])]), np.ones(1, np.bool_))


def test_what_is_heard_of_a_sequence_that_is_gone_is_nobodys() -> None:
    """The next one in the slot was preempted: KV of its first output tokens is found, so no input repeats them."""
    slots = Slots(1, 20)
    slots.slots.begin(start(0, [3, 4], SamplingParams(frequency_penalty=1.0)))
    slots.step([(0, 0, [3, 4])])
    slots.sampled([(0, 0, [3, 4])], [7], later=True)
    slots.slots.begin(start(0, [5, 6], SamplingParams(frequency_penalty=1.0), [9, 4]))
    slots.settle()
    shaping = slots.step([(0, 3, [4])])
    found = shaped(torch.zeros(1, 20, device=DEVICE), shaping)
    assert found[0].tolist() == [-1.0 if token in (9, 4) else 0.0 for token in range(20)]


def test_a_sequence_takes_over_no_count_of_its_slot() -> None:
    """Its prompt is as long as the one before, so that the old count would fit."""
    slots, params = Slots(1, 20), SamplingParams(repetition_penalty=2.0)
    for prompt in ([3, 4], [5, 6]):
        slots.slots.begin(start(0, prompt, params))
        found = shaped(torch.ones(1, 20, device=DEVICE), slots.step([(0, 0, prompt)]))
        assert found[0].tolist() == [0.5 if token in prompt else 1.0 for token in range(20)]


def test_rows_are_as_many_as_there_is_memory_for() -> None:
    row = 4 * row_words(20)
    slots = ShapedSlots(5, 5, MAX_LEN, 20, DEVICE, lambda: None, 2 * row + 7)
    params = SamplingParams(logit_bias=((3, 1.0),))
    assert [slots.begin(start(slot, [1], params)) for slot in range(3)] == [True, True, False]
    slots.drop(0)
    assert slots.begin(start(2, [1], params)) and not slots.begin(start(0, [1], params))
    slots.clear()
    assert slots.begin(start(0, [1], params)) and len(slots.table) == 3


def test_rows_are_for_twice_the_largest_batch() -> None:
    assert len(ShapedSlots(100, 8, MAX_LEN, 20, DEVICE, lambda: None).table) == 1 + 2 * 8
    assert len(ShapedSlots(100, 8, layout.IN_PROMPT, 20, DEVICE, lambda: None).table) == 1


def test_a_start_that_is_longer_than_the_model_is_not_taken() -> None:
    slots = ShapedSlots(1, 1, MAX_LEN, 20, DEVICE, lambda: None)
    params = SamplingParams(frequency_penalty=1.0)
    assert not slots.begin(start(0, [1] * MAX_LEN, params, [2, 3]))
    assert slots.begin(start(0, [1] * (MAX_LEN - 1), params, [2, 3]))


@pytest.mark.parametrize(
    ("params", "fits"),
    [
        (SamplingParams(), False),
        (SamplingParams(bad_words=((1, 2),)), False),
        (SamplingParams(logit_bias=((1, 2e30),)), False),
        (SamplingParams(presence_penalty=-2e30), False),
        (SamplingParams(logit_bias=tuple((token, float(token)) for token in range(1, 1023))), True),
        (SamplingParams(logit_bias=tuple((token, float(token)) for token in range(1, 1024))), False),
        (SamplingParams(bad_words=tuple((token,) for token in range(1500))), True),
    ],
)
def test_what_a_row_cannot_say_is_left_to_the_host(params: SamplingParams, fits: bool) -> None:
    assert ShapedSlots(2, 2, MAX_LEN, 2000, DEVICE, lambda: None).begin(start(0, [1], params)) is fits


# -- in an executor ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("small"), SMALL)


async def test_a_ban_of_everything_is_its_senders_fault(path: Path) -> None:
    executor = FakeDeviceExecutor.from_config(config(path))
    executor.device = FakeDevice()
    await executor.warmup()
    await executor.begin_epoch(1)
    driver = Driver(executor)
    bad = driver.add([1, 2], SamplingParams(min_tokens=3, stop_token_ids=tuple(range(211))))
    good = driver.add([1, 2], SHAPED[0])
    output = await driver.step([(bad, [1, 2], True, 0), (good, [1, 2], True, 0)])
    assert output[0] is not None and output[0].fault is ItemFault.NOTHING_LEFT
    assert output[1] is not None and len(output[1].tokens) == 1
