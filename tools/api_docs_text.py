"""The prose of docs/api.md, between the tables that api_docs.py derives."""

INTRODUCTION = """
# The HTTP API

Made by `make api-docs` from the server's own types and tables; the same in JSON is `docs/openapi.json`, which a running
server gives at `/openapi.json`. Clients made for the OpenAI API work with the base URL `http://HOST:8000/v1`; parameters of
vLLM go into the body beside OpenAI's (`extra_body` of the SDK).
"""

KEYS = """
## Keys

A server started without `--api-key` asks for none. With one or more of them (the flag several times, or `COHORT_API_KEY` with
commas) every path wants `Authorization: Bearer KEY`, also paths that do not exist, except `/live`, `/ready`, `/health` and
`/version`. `/metrics` is open unless `--metrics-key` closes it, and then takes that key alone. Two `Authorization` headers are
none. A missing or wrong key is a 401 with the code `invalid_api_key`.

HTTPS: `--ssl-certfile` and `--ssl-keyfile`; with `--ssl-ca-certs` and `--ssl-cert-reqs 2` clients must show a certificate.

## Browsers

Web pages of other origins cannot call the server from a browser unless `--allowed-origins` names them; `--allowed-methods`,
`--allowed-headers` and `--allow-credentials` narrow or widen what they may do. A preflight needs no key.

Bodies are JSON and have to say so: `Content-Type: application/json`. Any other type, or none, is a 415, because browsers send
such bodies from any page without a preflight. `curl -d` needs `-H 'Content-Type: application/json'`.

A server that listens on a loopback address without `--api-key` answers only requests whose `Host` header names the loopback
(`localhost`, names below it, `127.0.0.1`, `[::1]`, with any port) or the name given with `--host`; others get a 403. Without
this rule a page could point a name of its own at this machine (DNS rebinding) and read answers. `--allowed-hosts NAME`, several
times, opens more names: `*.example.com` every name below one, `*` all. With `--api-key`, or on another address, every host is
answered unless `--allowed-hosts` is given; then the rule holds there too.
"""

HEADERS = """
## Headers

| Response header | When | Meaning |
| --- | --- | --- |
| `x-request-id` | always | Minted for the request; the server's log has it. A client's own is not taken over. |
| `x-cohort-ignored` | something had no effect | Names, separated by commas, percent-encoded, \
those of inner objects as `messages[].type`; `...`: there are more. |
| `retry-after` | 429, 503 | Seconds to wait. |
| `x-should-retry` | some 500 | `false`: the same request would most likely fail again; OpenAI's clients then do not repeat it. |
| `www-authenticate` | 401 | `Bearer` |
| `allow` | 405 | The methods there are. |
| `accept`, `accept-encoding` | 415 | What would be taken. |
| `access-control-*`, `vary` | `--allowed-origins` | For browsers. |
"""

ERRORS = """
## Errors

Every answer but a success has this body, and so has the event that ends a stream which failed:

```json
{"error": {"message": "'n' ...", "type": "invalid_request_error", "param": "n", "code": "invalid_value"}}
```

`param` is the field's path in the body, such as `messages.0.content`, or null. Worth a retry as it stands is a 429 or 503 after
the seconds of `retry-after`, a 500 unless it has `x-should-retry: false`, and a `request_timeout`.

| Status | `type` | `code` | Meaning |
| --- | --- | --- | --- |
| 400 | `invalid_request_error` | `invalid_json` | The body is no JSON. |
| 400 | `invalid_request_error` | `invalid_type` | A field, or the body, has a wrong type. |
| 400 | `invalid_request_error` | `invalid_value` | A field has a wrong value, or contradicts another. |
| 400 | `invalid_request_error` | `unsupported_parameter` | The parameter would change the result and is not supported. |
| 400 | `invalid_request_error` | `unsupported_value` | The parameter is supported, this value of it is not. |
| 400 | `invalid_request_error` | `unknown_parameter` | The name looks misspelt, or there are more than 64 unknown ones. |
| 400 | `invalid_request_error` | `context_length_exceeded` | Prompt and output do not fit the context. |
| 400 | `invalid_request_error` | `answer_too_large` | Logprobs, or what all choices repeat of the prompt, would be \
more than 256 MiB. A stream has no such limit. |
| 400 | `invalid_request_error` | `chat_template_error` | The model's chat template refuses the conversation. |
| 400 | `invalid_request_error` | `no_chat_template` | The model has no chat template. |
| 400 | `invalid_request_error` | `missing_required_parameter` | A required field is missing, or one that another field needs. |
| 400 | `invalid_request_error` | `invalid_http` | The request is not valid HTTP; a missing, second or invalid `Host` counts. |
| 401 | `authentication_error` | `invalid_api_key` | No valid key. |
| 403 | `permission_error` | `host_not_allowed` | The `Host` header names a host that the server does not answer to: \
see [Browsers](#browsers). |
| 404 | `invalid_request_error` | `model_not_found` | There is no such model. |
| 404 | `invalid_request_error` | `not_found` | There is no such path. The message names the one that was probably meant, or \
what to use in place of another server's endpoint. |
| 405 | `invalid_request_error` | `method_not_allowed` | The path has other methods. |
| 408 | `invalid_request_error` | `request_timeout` | The request did not arrive in time. |
| 408 | `invalid_request_error` | `reader_too_slow` | More of the answer waited to be read than is kept: 64 MiB. |
| 413 | `invalid_request_error` | `request_too_large` | The body is larger than `--max-body-bytes`. |
| 415 | `invalid_request_error` | `unsupported_media_type` | The body's `Content-Type` is not `application/json` (or \
`application/NAME+json`), or it has a `Content-Encoding`. |
| 429 | `rate_limit_error` | `overloaded` | The queue is full. |
| 429 | `rate_limit_error` | `deadline_exceeded` | It would not be, or was not, started before the request's own deadline. |
| 431 | `invalid_request_error` | `headers_too_large` | Request line and headers are larger than 64 KiB. |
| 500 | `executor_error` | `sequence_failed` | This request alone failed, its logits were NaN, say; \
with `x-should-retry: false`. |
| 500 | `executor_error` | `executor_died`, `step_failed`, `out_of_memory`, `invalid_input`, `unsupported`, `not_ready`, \
`executor_error` | What steps with this request ended in again and again, at last while it was computed alone; with \
`x-should-retry: false`. |
| 500 | `executor_error` | `executor_died`, `engine_failed` | The model's process cannot be brought back, or the engine itself \
failed: this server serves nothing any more. |
| 500 | `internal_error` | `internal_error` | Something else failed; the log says what. |
| 501 | `invalid_request_error` | `unsupported_transfer_encoding` | The body has another transfer coding than `chunked`. |
| 503 | `service_unavailable` | `service_unavailable` | Loading or draining. |
| 505 | `invalid_request_error` | `unsupported_http_version` | The request is neither HTTP/1.1 nor HTTP/1.0. |
"""

STREAMS = """
## Streams

With `stream` the answer is `text/event-stream`: events `data: JSON`, all with the same `id`, `created` and `model`, and at last
`data: [DONE]`. A chat begins with a chunk that holds the role; each choice ends with a chunk that holds its `finish_reason`;
with `stream_options.include_usage` one more follows, with `usage` and no choices. An error before the first event is an answer
with its own status; one after it is an event `{"error": {...}}`. Who has waited 10 s has been sent a 200 and a comment, so that
no proxy gives up: what fails then (a deadline in the queue, say) is an event as well, without `retry-after`. What a stream adds
up to equals the answer without `stream`.
"""

PARAMETERS = """
## Parameters

What is sent is supported, refused or ignored, and the server tells which:

- **Supported** parameters have the effect that OpenAI or vLLM document; the tables say whose they are. null means left out.
- A parameter that would change the result and is not supported is **refused** with a 400 that names it, unless it has a value
  at which it does nothing. So is a key that looks like a misspelt parameter.
- Everything else is **ignored**, and listed in the response header `x-cohort-ignored`: bookkeeping, hints, and unknown keys.

Unknown keys inside of objects follow the same rule. In settings such as `stream_options` a misspelt key is refused; in
messages, their parts and calls unknown keys are ignored, except `function_call`, `audio`, `refusal` and `prefix`, which would
change what the model reads and are refused. Keys of `tools` are handed to the chat template as they are.
"""

OTHERS = """
## Other endpoints

Every `GET` answers `HEAD` too. A slash at the end of a path makes no difference, except for `/live`, `/ready`, `/health`, \
`/version` and `/metrics`.
"""

LIMITS = """
## Limits

A body has at most `--max-body-bytes` (16 MiB), request line and headers 64 KiB; headers must arrive within 30 s, and of a body 1
KiB a second on average over each 10 s. A stream whose client does not read for 60 s is given up. Closing the connection ends the
request, streamed or not. An answer that is not streamed holds at most 256 MiB of logprobs and of what its choices repeat of
their prompts (`echo`, `return_token_ids`). Lists, strings and numbers have the limits of the tables, and a body as a whole
at most 1,114,112 values (between commas), 131,072 lists and objects, and 131,072 keys. No URL in a request is ever fetched.
"""
