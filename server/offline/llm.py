"""`LLM`: the engine without HTTP, for scripts and notebooks."""

from __future__ import annotations

import difflib
import os
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self

import structlog

from cohort_server.standard_streams import open_standard_streams
from engine.errors import EngineError, InvalidRequest
from executors.contract import ConfigError, ExecutorError
from server.hub import HubError
from server.offline.engine import OfflineEngine, OfflineRequest
from server.offline.outputs import RequestOutput
from server.offline.params import SamplingParams
from server.settings.load import SettingsError, load
from server.settings.table import TABLE
from server.system import logs

Prompt = str | Sequence[int] | Mapping[str, Any]
Messages = Sequence[Mapping[str, Any]]

_OF_HTTP = frozenset(
    "host port served_model_name api_key metrics_key allowed_origins allowed_methods allowed_headers allow_credentials "
    "allowed_hosts ssl_keyfile ssl_certfile ssl_ca_certs ssl_cert_reqs drain_timeout write_timeout max_body_bytes "
    "reasoning_field reasoning_parser tool_call_parser cache_salt_per_key responses_store_entries responses_store_bytes "
    "responses_store_age".split()
)
_UNBOUNDED = {"max_queue_wait": 1e9, "max_queued_tokens": 2**40, "log_level": "warning"}
"""A caller waits for all answers, however long that takes; a server refuses what would wait for more than a minute."""


class LLM:
    """A loaded model that answers batches of prompts.

        with LLM("path/to/model", max_model_len=4096) as llm:
            results = llm.generate(["One", "Two"], SamplingParams(max_tokens=32, temperature=0))
            print(results[0].outputs[0].text)

    The engine is the server's: prompts are batched continuously, and the model runs in an executor process that is started
    anew if it dies. Calls block; they may come from several threads, and from a notebook whose event loop runs. `close`,
    the end of the `with` block or the end of the program ends the executor process.
    """

    def __init__(self, model: str | os.PathLike[str] | None = None, **settings: Any) -> None:
        """`model`: a directory or a hub name; None: the default one. `settings` are the server's, by the names of its flags
        with underscores: `dtype`, `max_model_len`, `max_num_seqs`, `kv_cache_memory_bytes`, `quantization`, ... The
        environment's COHORT_* are not read.

        Raises TypeError for a setting that does not exist or is about HTTP, ValueError for a value that cannot be or a model
        that cannot be served, RuntimeError if the executor cannot be started or the model cannot be fetched.
        """
        for name in settings:
            _check_name(name)
        # The executor process gets this one's stderr, and sockets must not take the place of a closed one.
        open_standard_streams()
        model_setting = {} if model is None else {"model": os.fspath(model)}
        try:
            chosen, _ = load({**_UNBOUNDED, **settings, **model_setting}, {})
            if not structlog.is_configured():
                logs.configure_own(chosen.log_level)
            self._engine = OfflineEngine(chosen)
        except (SettingsError, ConfigError) as error:
            raise ValueError(str(error)) from None
        except (ExecutorError, HubError) as error:
            raise RuntimeError(str(error)) from error
        self._finalizer = weakref.finalize(self, self._engine.close)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Continue each prompt: a result per prompt, in their order.

        A prompt is a text, a list of token ids, {"prompt": text} or {"prompt_token_ids": ids}. `sampling_params` are for all
        prompts, or one for each. Raises ValueError for a prompt or parameter that the server would refuse, RuntimeError for
        an answer that fails.
        """
        each = [prompts] if _is_one(prompts) else list(prompts)
        requests = [
            self._completion(one, params) for one, params in _paired(each, sampling_params, "prompts")
        ]
        return self._run(requests)

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
    ) -> list[RequestOutput]:
        """Answer each conversation through the model's chat template: a result per conversation, in their order.

        A conversation is a list of messages as in the OpenAI API. The text of an answer is the model's own: calls of tools
        and reasoning are left in it. Raises what `generate` raises.
        """
        each = [messages] if messages and isinstance(messages[0], Mapping) else list(messages)
        fields = {
            "tools": tools,
            "chat_template_kwargs": chat_template_kwargs,
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": continue_final_message,
        }
        values = {name: value for name, value in fields.items() if value is not None}
        requests = [
            OfflineRequest(params.chat_body(one, **values), True, params.n)
            for one, params in _paired(each, sampling_params, "conversations")
        ]
        return self._run(requests)

    def close(self) -> None:
        """End the executor process and free the model's memory. Idempotent."""
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _completion(self, prompt: Prompt, params: SamplingParams) -> OfflineRequest:
        if isinstance(prompt, Mapping):
            prompt = _unwrapped(prompt)
        text = prompt if isinstance(prompt, str) else None
        return OfflineRequest(
            params.completion_body(prompt), False, params.n, text, params.max_tokens is None
        )

    def _run(self, requests: Sequence[OfflineRequest]) -> list[RequestOutput]:
        with _as_python():
            return self._engine.run(requests)


def _check_name(name: str) -> None:
    """Raises TypeError, in the words of Python's own."""
    if name in _OF_HTTP:
        raise TypeError(f"LLM() got the setting {name!r}, which is about the HTTP server: there is none here")
    if name not in TABLE and name != "config":
        near = difflib.get_close_matches(name, list(TABLE.keys() - _OF_HTTP), n=1, cutoff=0.7)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise TypeError(f"LLM() got an unexpected setting {name!r}{hint}")


def _is_one(prompts: Prompt | Sequence[Prompt]) -> bool:
    """True for a single prompt: a text, an object, or a list of token ids."""
    if isinstance(prompts, str | Mapping):
        return True
    return len(prompts) > 0 and isinstance(prompts[0], int)


def _unwrapped(prompt: Mapping[str, Any]) -> str | Sequence[int]:
    if set(prompt) == {"prompt"} or set(prompt) == {"prompt_token_ids"}:
        [value] = prompt.values()
        return value  # type: ignore[no-any-return]  # the request's schema checks it
    names = ", ".join(map(repr, prompt))
    raise ValueError(
        f"a prompt has either 'prompt' or 'prompt_token_ids', and this one has {names or 'neither'}"
    )


def _paired(
    each: Sequence[Any], params: SamplingParams | Sequence[SamplingParams] | None, what: str
) -> Iterator[tuple[Any, SamplingParams]]:
    """Each prompt with its parameters. Raises ValueError where there are more of one, TypeError for what is no parameters."""
    if params is None or isinstance(params, SamplingParams):
        params = [params or SamplingParams()] * len(each)
    if len(params) != len(each):
        raise ValueError(
            f"{len(each)} {what} and {len(params)} sampling_params: give one for each, or one for all"
        )
    for one in params:
        if not isinstance(one, SamplingParams):
            raise TypeError(f"sampling_params: a SamplingParams is expected, not {type(one).__name__}")
    return zip(each, params, strict=True)


@contextmanager
def _as_python() -> Iterator[None]:
    """The engine's errors as exceptions that every Python program knows."""
    try:
        yield
    except InvalidRequest as error:
        raise ValueError(error.message) from error
    except EngineError as error:
        raise RuntimeError(error.message) from error
