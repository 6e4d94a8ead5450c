"""A library without a server behind the smallest server that `cohort bench` can measure: one completion at a time.

    PYTHON benchmarks/peers/one_stream.py openvino|ik MODEL.gguf PORT CONTEXT THREADS

PYTHON is the environment of that library (one_stream_install.py), so this file imports nothing of Cohort. It answers
`GET /health` and streamed `POST /v1/completions` with a prompt of token ids. Decoding is greedy and passes over the end of a
text. Each token is an event of its own, sent as soon as the library hands it over; its text is a placeholder, for what is
measured is time. The libraries keep their own defaults otherwise.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

Generate = Callable[[Sequence[int], int, Callable[[], None]], None]
"""Compute so many tokens behind a prompt, and call back at each."""


def openvino(model: str, context: int, threads: int) -> Generate:
    """OpenVINO GenAI's LLMPipeline, which reads a GGUF file itself. Its room grows by itself: `context` has no setting."""
    import numpy
    import openvino
    import openvino_genai as genai

    pipeline = genai.LLMPipeline(model, "CPU", INFERENCE_NUM_THREADS=threads)

    class Streamer(genai.StreamerBase):  # type: ignore[misc]
        def __init__(self, on_token: Callable[[], None]) -> None:
            super().__init__()
            self._on_token = on_token

        def write(self, token: Any) -> Any:
            for _ in token if isinstance(token, list) else [token]:
                self._on_token()
            return genai.StreamingStatus.RUNNING

        def end(self) -> None:
            pass

    def generate(prompt: Sequence[int], count: int, on_token: Callable[[], None]) -> None:
        ids = numpy.asarray([prompt], numpy.int64)
        inputs = genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(numpy.ones_like(ids)))
        config = genai.GenerationConfig(max_new_tokens=count, ignore_eos=True, do_sample=False)
        pipeline.generate(inputs, config, Streamer(on_token))

    return generate


def ik(model: str, context: int, threads: int) -> Generate:
    """ik_llama.cpp through its C interface. The package's own sampler walks over the vocabulary in Python, which takes longer
    than the model does; the largest logit is taken by NumPy here."""
    import numpy
    from ik_llama_cpp import _ctypes_api as api
    from ik_llama_cpp._internals import IkContext, IkModel, make_batch_range

    loaded = IkModel(model)
    state = IkContext(loaded, n_ctx=context, n_threads=threads)
    at_once = int(api.llama_n_ubatch(state.ctx))

    def decode(tokens: Sequence[int], position: int) -> None:
        batch = make_batch_range(list(tokens), pos_start=position)
        failed = state.decode(batch)
        api.llama_batch_free(batch)
        if failed:
            raise RuntimeError(f"llama_decode returned {failed}")

    def largest() -> int:
        return int(numpy.ctypeslib.as_array(state.get_logits(-1), (loaded.n_vocab,)).argmax())

    def generate(prompt: Sequence[int], count: int, on_token: Callable[[], None]) -> None:
        state.kv_cache_clear()
        for start in range(0, len(prompt), at_once):
            decode(prompt[start : start + at_once], start)
        for number in range(count):
            token = largest()
            on_token()
            if number + 1 < count:
                decode([token], len(prompt) + number)

    return generate


LIBRARIES: dict[str, Callable[[str, int, int], Generate]] = {"openvino": openvino, "ik": ik}


def handler(generate: Generate) -> type[BaseHTTPRequestHandler]:
    """What answers requests, one at a time, with `generate`."""

    class Handler(BaseHTTPRequestHandler):
        disable_nagle_algorithm = True
        """Else events wait for each other, and tokens seem to come in pairs."""

        def do_GET(self) -> None:
            self._json(200 if self.path == "/health" else 404, {})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            prompt, count = body["prompt"], body["max_tokens"]
            if self.path != "/v1/completions" or not isinstance(prompt, list):
                return self._json(400, {"error": {"message": "only completions of token ids"}})
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            sent = 0

            def on_token() -> None:
                nonlocal sent
                sent += 1
                finish = "length" if sent == count else None
                self._event({"choices": [{"index": 0, "text": ".", "finish_reason": finish}]})

            generate(prompt, count, on_token)
            usage = {"prompt_tokens": len(prompt), "completion_tokens": sent}
            self._event({"choices": [], "usage": usage})
            self.wfile.write(b"data: [DONE]\n\n")
            return None

        def _event(self, event: dict[str, Any]) -> None:
            self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())

        def _json(self, status: int, body: dict[str, Any]) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler


class Server(HTTPServer):
    """With room for the warm-up's requests, which wait for each other."""

    request_queue_size = 64


def main() -> None:
    """Load, then listen: ready is when /health answers."""
    library, model, port, context, threads = sys.argv[1:]
    generate = LIBRARIES[library](model, int(context), int(threads))
    Server(("127.0.0.1", int(port)), handler(generate)).serve_forever()


if __name__ == "__main__":
    main()
