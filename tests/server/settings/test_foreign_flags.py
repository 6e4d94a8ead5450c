"""Flags of other servers: each of vLLM's and llama.cpp's is a setting, changes nothing, or is refused by name."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from cohort_server.command_line import application, known_options
from server.settings.foreign.command_line import ROWS, Reading, read_flags
from server.settings.foreign.rows import Kind, by_name
from server.settings.foreign.variables import LLAMA_CPP, advice_of_flags

NAMES = Path(__file__).with_name("names")


def listed(file: str) -> list[str]:
    return [line for line in (NAMES / file).read_text("utf-8").splitlines() if not line.startswith("#")]


def serve_options() -> dict[str, bool]:
    command: Any = typer.main.get_command(application())
    return known_options(command.commands["serve"])


OPTIONS = serve_options()


def read(line: str) -> Reading:
    return read_flags(line.split(), OPTIONS)


@pytest.mark.parametrize("file", ["vllm.txt", "llama_cpp.txt"])
def test_every_flag_of_the_present_servers_is_known(file: str) -> None:
    flags = [name for name in listed(file) if name.startswith("-")]
    assert len(flags) > 300
    assert [flag for flag in flags if flag not in OPTIONS and flag not in by_name(ROWS)] == []


def test_a_flag_is_left_out_or_named() -> None:
    for flag, row in by_name(ROWS).items():
        found = read(f"a-model {flag} --port 80")
        if row.kind is Kind.IGNORED:
            assert found.argv == ["a-model", "--port", "80"] and found.complaint is None
            [warning] = found.warnings
            assert warning.startswith(f"{flag} is ignored: ")
        else:
            assert found.warnings == []
            assert found.complaint is not None and found.complaint.startswith(f"unknown flag {flag}: ")


def test_every_variable_of_llama_cpp_is_known() -> None:
    known = {*advice_of_flags(), *LLAMA_CPP, "LLAMA_API_KEY", "LLAMA_ARG_API_KEY_FILE", "HF_TOKEN"}
    variables = [name for name in listed("llama_cpp.txt") if not name.startswith("-")]
    assert len(variables) > 100
    assert [name for name in variables if name not in known and name.startswith(("LLAMA", "HF_"))] == []


def test_no_flag_stands_twice_and_none_is_a_setting() -> None:
    names = [name for row in ROWS for name in row.names]
    assert sorted(names) == sorted(set(names))
    assert set(names) & set(OPTIONS) == set()


def test_the_settings_in_answers_exist() -> None:
    import re

    for row in ROWS:
        for flag in re.findall(r"(?<![\w-])--[a-z][\w-]+", row.answer):
            assert flag in OPTIONS or flag in ("--replicas", "--version"), row


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("-m x", "unknown flag -m: use the positional MODEL, or --model x"),
        ("--model-path x", "use the positional MODEL, or --model x"),
        ("-c 4096", "unknown flag -c: use --max-model-len 4096"),
        ("--ctx-size 4096", "use --max-model-len 4096"),
        ("--context-length=4096", "use --max-model-len 4096"),
        ("--n-gpu-layers 99", "use --device"),
        ("-ngl 99", "use --device"),
        ("--mem-fraction-static 0.8", "use --gpu-memory-utilization 0.8"),
        ("--num-gpu-blocks-override 100", "use --kv-cache-memory-bytes"),
        ("--cache-type-k q8_0", "use --kv-cache-dtype int8"),
        ("--enable-expert-parallel", "unknown flag --enable-expert-parallel: not supported; experts lie on"),
        ("--max-running-requests 8", "use --max-num-seqs 8"),
        ("--max_num_seqs 8", "unknown flag --max_num_seqs: use --max-num-seqs"),
        ("--tp 2", "use --tensor-parallel-size 2"),
        ("--dp 2", "unknown flag --dp: use cohort ray serve --replicas 2"),
        ("--async-scheduling", "unknown flag --async-scheduling: use --max-in-flight 2"),
        ("--no-async-scheduling", "use --max-in-flight 1"),
        ("--speculative-model x", "use --speculative-config"),
        ("--disable-radix-cache", "use --no-enable-prefix-caching"),
        ("--schedule-policy fcfs", "use --scheduling-policy"),
        ("--no_enable_prefix_caching", "use --no-enable-prefix-caching"),
        ("--temp 0.7", "use --override-generation-config '{\"temperature\": 0.7}'"),
        ("--temp", "use --override-generation-config '{\"temperature\": VALUE}'"),
        ("--max-num-seq 8", "unknown flag --max-num-seq; did you mean --max-num-seqs?"),
        ("--frobnicate", "unknown flag --frobnicate; see cohort serve --help"),
        ("--port 1 --frobnicate", "unknown flag --frobnicate"),
        ("-tp2", "unknown flag -tp2; did you mean -tp?"),
        ("--hf-overrides.rope_theta 5", "unknown flag --hf-overrides.rope-theta: use --classifier-from-token"),
        ("--uds=/run/x", "unknown flag --uds: not supported yet"),
        ("--logprobs-mode processed_logits", "unknown flag --logprobs-mode: not supported; "),
        ("--n-predict 5", "unknown flag --n-predict: not supported; "),
        ("-n 1", "unknown flag -n: not supported; "),
        ("--alias 'two words'", "use --served-model-name"),
    ],
)  # fmt: skip
def test_one_flag(line: str, answer: str) -> None:
    found = read(line)
    assert found.complaint is not None
    assert answer in found.complaint and "\n" not in found.complaint


def test_all_unknown_flags_are_in_one_line() -> None:
    found = read("m --ctx-size 4096 --frobnicate --swap-space 4 --uds /x --port 8 -ngl 99 --max-num-seq 3")
    assert found.complaint == (
        "5 unknown flags: --ctx-size (use --max-model-len 4096); --frobnicate (see cohort serve --help); "
        "--uds (not supported yet); -ngl (use --device cuda, or --device cpu for 0 layers); "
        "--max-num-seq (did you mean --max-num-seqs?)"
    )


@pytest.mark.parametrize(
    ("line", "rest"),
    [
        ("--trust-remote-code m", "m"),
        ("m --trust-remote-code --port 8", "m --port 8"),
        ("m --trust_remote_code", "m"),
        ("--disable-log-requests m", "m"),
        ("--swap-space 4 m", "m"),
        ("--swap-space=4 m", "m"),
        ("--enable-chunked-prefill True m", "m"),
        ("--enable-chunked-prefill=False m", "m"),
        ("--no-enable-chunked-prefill m", "m"),
        ("m --cudagraph-capture-sizes 1 2 4 --seed 1", "m --seed 1"),
        ("m --no-webui", "m"),
        ("m -cb -t 8", "m"),
        ("m --jinja", "m"),
        ("m --cpu-offload-gb 0", "m"),
        ("m --task generate", "m"),
        ("m -dp 1 --nnodes=1", "m"),
        ("m -c 0 --parallel -1", "m"),
        ("m --no-enable-sleep-mode", "m"),
        ("m --no-enable-expert-parallel", "m"),
        ("m -fa on", "m"),
        ("m --swap-space -1", "m"),
        ("--compilation-config.mode 3 -O.backend=eager m", "m"),
    ],
)  # fmt: skip
def test_what_changes_nothing_is_left_out(line: str, rest: str) -> None:
    found = read(line)
    assert found.complaint is None
    assert found.argv == rest.split()
    assert found.warnings and all(" is ignored: " in warning for warning in found.warnings)


@pytest.mark.parametrize(
    "line",
    [
        "", "model", "--port 80 model", "--port=80", "--seed -1", "--host -x", "-- --odd", "--help", "-5",
        "--enable-prefix-caching model", "--no-enable-prefix-caching --port 80", "--target-itl-ms 0 model",
        "--served-model-name --swap-space",
    ],
)  # fmt: skip
def test_what_exists_stays(line: str) -> None:
    found = read(line)
    assert found == Reading(line.split(), [], [])


def test_words_behind_two_dashes_are_no_flags() -> None:
    assert read("--swap-space 4 -- --uds x").argv == ["--", "--uds", "x"]


@pytest.mark.long
def test_the_command_warns_in_the_log_and_goes_on() -> None:
    command = [str(Path(sys.executable).with_name("cohort")), "serve", "--swap-space", "4", "no-such-model"]
    done = subprocess.run(
        [*command, "--port", "0"], capture_output=True, text=True, env=os.environ, timeout=60
    )
    assert done.returncode == 2
    assert "--swap-space is ignored: " in done.stderr
    assert done.stderr.splitlines()[-1].startswith("cohort: error: ") and "no-such-model" in done.stderr
