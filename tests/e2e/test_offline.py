"""`LLM`: the server's engine and answers without a server, from any thread, and nothing left behind."""

from __future__ import annotations

import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from cohort_server import LLM, RequestOutput, SamplingParams
from tests.e2e.server_process import ServerProcess

pytestmark = [pytest.mark.long, pytest.mark.timeout(120)]

PROMPTS = ["Count from 3 to 9.", "What is the capital of Peru?", "Once upon", "1, 2, 3,"]
GREEDY = SamplingParams(temperature=0, max_tokens=24)
SCRIPT = """
from cohort_server import LLM, SamplingParams

{guard}
    llm = LLM("cohort-tiny", max_num_seqs=4)
    [result] = llm.generate("Count from 3 to 9.", SamplingParams(temperature=0, max_tokens=8, ignore_eos=True))
    print(len(result.outputs[0].token_ids), llm._engine.core.executor.pid)
"""


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM("cohort-tiny", max_num_seqs=32) as made:
        yield made


def texts(results: list[RequestOutput]) -> list[str]:
    return [one.text for result in results for one in result.outputs]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_greedy_texts_are_the_servers(llm: LLM, tiny_server: ServerProcess) -> None:
    for prompt in PROMPTS:  # one by one on both sides: sums of another order may end in another token
        body = {"prompt": prompt, "temperature": 0, "max_tokens": 24}
        theirs = httpx.post(f"{tiny_server.url}/v1/completions", json=body, timeout=60).json()
        [ours] = llm.generate(prompt, GREEDY)
        assert texts([ours]) == [theirs["choices"][0]["text"]]
        assert ours.outputs[0].finish_reason == theirs["choices"][0]["finish_reason"]
        assert len(ours.prompt_token_ids) == theirs["usage"]["prompt_tokens"] and ours.prompt == prompt
        messages = [{"role": "user", "content": prompt}]
        body = {"messages": messages, "temperature": 0, "max_tokens": 24}
        theirs = httpx.post(f"{tiny_server.url}/v1/chat/completions", json=body, timeout=60).json()
        assert texts(llm.chat(messages, GREEDY)) == [theirs["choices"][0]["message"]["content"]]


def test_prompts_take_every_form(llm: LLM) -> None:
    [as_text] = llm.generate(PROMPTS[0], GREEDY)
    ids = as_text.prompt_token_ids
    for form in (ids, [ids], {"prompt": PROMPTS[0]}, [{"prompt_token_ids": ids}], tuple(ids)):
        [result] = llm.generate(form, GREEDY)
        assert result.outputs == as_text.outputs and result.prompt_token_ids == ids
        assert result.prompt == PROMPTS[0]
    assert llm.generate([], GREEDY) == []


def test_a_batch_is_computed_in_common_steps(llm: LLM) -> None:
    """32 answers of 32 tokens one after the other would be a thousand steps."""
    before = llm._engine.core.stats().steps
    params = SamplingParams(temperature=0, max_tokens=32, ignore_eos=True)
    results = llm.generate([f"Count from {number} to 20." for number in range(32)], params)
    assert [len(result.outputs[0].token_ids) for result in results] == [32] * 32
    assert [result.prompt for result in results] == [f"Count from {number} to 20." for number in range(32)]
    assert llm._engine.core.stats().steps - before <= 48


def test_more_prompts_than_the_queue_takes(llm: LLM) -> None:
    params = [SamplingParams(max_tokens=1 + number % 3, ignore_eos=True) for number in range(300)]
    results = llm.generate(["a"] * 300, params)
    assert [len(result.outputs[0].token_ids) for result in results] == [one.max_tokens for one in params]


def test_choices_and_seeds(llm: LLM) -> None:
    params = SamplingParams(n=4, temperature=1.5, seed=7, max_tokens=12, ignore_eos=True)
    [first], [again] = llm.generate("Once upon", params), llm.generate("Once upon", params)
    assert [one.index for one in first.outputs] == [0, 1, 2, 3]
    assert len({one.text for one in first.outputs}) > 1
    assert first.outputs == again.outputs


def test_stop_strings_and_ends(llm: LLM) -> None:
    messages = [{"role": "user", "content": PROMPTS[0]}]
    [[whole]] = [one.outputs for one in llm.chat(messages, SamplingParams(temperature=0, max_tokens=None))]
    assert whole.finish_reason == "stop" and whole.stop_reason is None
    assert re.findall(r"\d", whole.text) == list("3456789")
    [[cut]] = [
        one.outputs for one in llm.chat(messages, SamplingParams(temperature=0, max_tokens=64, stop=", 6"))
    ]
    assert (cut.text, cut.finish_reason, cut.stop_reason) == ("3, 4, 5", "stop", ", 6")
    kept = SamplingParams(temperature=0, max_tokens=64, stop=[", 6"], include_stop_str_in_output=True)
    assert texts(llm.chat(messages, kept)) == ["3, 4, 5, 6"]
    [[short]] = [one.outputs for one in llm.chat(messages, SamplingParams(temperature=0, max_tokens=2))]
    assert short.finish_reason == "length" and len(short.token_ids) == 2


def test_logprobs(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=6, logprobs=3, prompt_logprobs=2, ignore_eos=True)
    [result] = llm.generate(PROMPTS[1], params)
    [one] = result.outputs
    assert one.logprobs is not None and len(one.logprobs) == 6
    for token_id, entry in zip(one.token_ids, one.logprobs, strict=True):
        assert next(iter(entry)) == token_id and entry[token_id].rank == 1  # it is the most likely one
        assert len(entry) == 3 and [each.rank for each in entry.values()] == [1, 2, 3]
        assert all(each.logprob <= entry[token_id].logprob <= 0 for each in entry.values())
    assert (
        "".join(entry[i].decoded_token for i, entry in zip(one.token_ids, one.logprobs, strict=True))
        == one.text
    )
    own = [entry[i].logprob for i, entry in zip(one.token_ids, one.logprobs, strict=True)]
    assert one.cumulative_logprob is not None and math.isclose(one.cumulative_logprob, sum(own))
    told = result.prompt_logprobs
    assert told is not None and len(told) == len(result.prompt_token_ids) and told[0] is None
    assert all(i in (entry or {}) for i, entry in zip(result.prompt_token_ids[1:], told[1:], strict=True))
    [plain] = llm.generate(PROMPTS[1], GREEDY)
    assert plain.outputs[0].logprobs is plain.outputs[0].cumulative_logprob is plain.prompt_logprobs is None


def test_structured_outputs(llm: LLM) -> None:
    params = SamplingParams(temperature=1, max_tokens=32, structured_outputs={"choice": ["red", "green"]})
    assert set(texts(llm.generate([f"Paint {i}:" for i in range(8)], params))) <= {"red", "green"}


async def test_inside_a_running_loop(llm: LLM) -> None:
    assert len(texts(llm.generate(PROMPTS, GREEDY))) == len(PROMPTS)


def test_several_threads_at_once(llm: LLM) -> None:
    alone = [texts(llm.generate(prompt, GREEDY)) for prompt in PROMPTS]
    found: dict[int, list[str]] = {}
    threads = [
        threading.Thread(target=lambda i=i, p=p: found.update({i: texts(llm.generate(p, GREEDY))}))
        for i, p in enumerate(PROMPTS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(found) == list(range(len(PROMPTS)))
    assert found[0] == alone[0]


def test_what_is_wrong_is_named(llm: LLM) -> None:
    with pytest.raises(TypeError, match="unexpected setting 'max_modle_len'; did you mean 'max_model_len'"):
        LLM(max_modle_len=64)
    with pytest.raises(TypeError, match="'port', which is about the HTTP server"):
        LLM(port=1)
    with pytest.raises(ValueError, match="--max-num-seqs: it should be greater than or equal to 1"):
        LLM(max_num_seqs=0)
    with pytest.raises(ValueError, match="no such directory"):
        LLM("./missing")
    with pytest.raises(TypeError, match="temprature"):
        SamplingParams(temprature=1)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="Invalid value for 'temperature'"):
        llm.generate("a", SamplingParams(temperature=-1))
    with pytest.raises(ValueError, match="2 prompts and 1 sampling_params"):
        llm.generate(["a", "b"], [GREEDY])
    with pytest.raises(TypeError, match="a SamplingParams is expected, not dict"):
        llm.generate(["a"], [{"n": 1}])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="either 'prompt' or 'prompt_token_ids'"):
        llm.generate({"text": "a"})
    with pytest.raises(ValueError, match=r"chat_template_kwargs\.colour"):
        llm.chat([{"role": "user", "content": "a"}], chat_template_kwargs={"colour": 1})
    with pytest.raises(ValueError, match="context"):  # and the others' work is ended
        llm.generate(["a", [1] * 5000, "b"], SamplingParams(max_tokens=None, ignore_eos=True))
    assert texts(llm.generate("a", GREEDY))


def test_failed_calls_take_no_places_along() -> None:
    """Answers that are given up before they begin free their places, too."""
    params = [SamplingParams(n=4, max_tokens=1)] * 4
    with LLM("cohort-tiny", max_num_seqs=4, max_model_len=64) as llm:
        for _ in range(4):
            with pytest.raises(ValueError, match="context"):
                llm.generate([[1] * 100, "a", "b", "c"], params)
        assert len(texts(llm.generate(["a"] * 8, SamplingParams(max_tokens=2)))) == 8


@pytest.mark.long(every=2)
@pytest.mark.parametrize(
    "interrupt",
    # The second is taken by another thread, so that it does not wake the one that waits.
    ["os.kill(os.getpid(), signal.SIGINT)", "signal.pthread_kill(threading.get_ident(), signal.SIGINT)"],
    ids=["process", "another thread"],
)
def test_ctrl_c_ends_the_call_and_nothing_else(interrupt: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import faulthandler, os, signal, threading\n"
        "from cohort_server import LLM, SamplingParams\n"
        "faulthandler.dump_traceback_later(80, exit=True)\n"  # a call that does not end says where it waits
        "llm = LLM('cohort-tiny', max_num_seqs=4)\n"
        f"threading.Timer(0.5, lambda: {interrupt}).start()\n"
        "try:\n"
        "    llm.generate(['a'] * 200, SamplingParams(max_tokens=1500, ignore_eos=True))\n"
        "except KeyboardInterrupt:\n"
        "    [result] = llm.generate('a', SamplingParams(max_tokens=3, ignore_eos=True))\n"
        "    print(len(result.outputs[0].token_ids), llm._engine.core.executor.pid)\n"
    )
    run = subprocess.run([sys.executable, script], capture_output=True, text=True, cwd=tmp_path, timeout=100)
    assert run.returncode == 0 and run.stderr == "", run.stderr
    tokens, pid = map(int, run.stdout.split())
    assert tokens == 3 and not is_alive(pid)


@pytest.mark.long(extended=True)
def test_a_killed_executor_loses_no_answer() -> None:
    params = SamplingParams(temperature=1, seed=3, max_tokens=400, ignore_eos=True)
    with LLM("cohort-tiny", max_num_seqs=4) as llm:
        expected = texts(llm.generate(PROMPTS[2], params))
        pid = llm._engine.core.executor.pid
        steps = llm._engine.core.stats().steps

        def kill() -> None:
            while llm._engine.core.stats().steps < steps + 20:
                time.sleep(0.001)
            os.kill(pid, signal.SIGKILL)

        killer = threading.Thread(target=kill)
        killer.start()
        assert texts(llm.generate(PROMPTS[2], params)) == expected
        killer.join()
        assert llm._engine.core.executor.pid != pid


def test_close_ends_the_executor_process() -> None:
    llm = LLM("cohort-tiny", max_num_seqs=4)
    pid = llm._engine.core.executor.pid
    assert is_alive(pid)
    llm.close()
    assert not is_alive(pid)
    llm.close()
    with pytest.raises(RuntimeError, match="this LLM is closed"):
        llm.generate("a")


@pytest.mark.long(every=2)
@pytest.mark.parametrize("guard", ['if __name__ == "__main__":', "if True:"])
def test_a_script_without_close_leaves_nothing(guard: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(guard=guard))
    run = subprocess.run([sys.executable, script], capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert run.returncode == 0 and run.stderr == "", run.stderr
    tokens, pid = map(int, run.stdout.split())
    assert tokens == 8 and not is_alive(pid)


def test_a_foreign_package_of_the_same_name(tmp_path: Path) -> None:
    """One beside the script stays out of sight; one that is imported already is an error that says what to do."""
    (tmp_path / "server").mkdir()
    (tmp_path / "server/__init__.py").write_text("MINE = True\n")
    begin = "from cohort_server import LLM, SamplingParams\nprint(LLM.__name__)\n"
    for code, ending in ((begin, "LLM"), ("import server\nassert server.MINE\n" + begin, None)):
        script = tmp_path / "script.py"
        script.write_text(code)
        run = subprocess.run(
            [sys.executable, script], capture_output=True, text=True, cwd=tmp_path, timeout=60
        )
        if ending:
            assert run.stdout.strip() == ending, run.stderr
        else:
            assert run.returncode and "cohort_server needs its own package 'server'" in run.stderr, run.stderr
