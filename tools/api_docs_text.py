"""The prose of docs/api.md, between the tables that api_docs.py derives."""

INTRODUCTION = """
# The HTTP API

`make api-docs` generates this page from the server's types and tables. A running server returns the same content as JSON at
`/openapi.json` (OpenAPI 3.1); `make openapi` writes that file without a server.
Clients of the OpenAI API work with the base URL `http://HOST:8000/v1`. Parameters
of vLLM belong in the body beside OpenAI's (in the OpenAI SDK: `extra_body`).
"""

KEYS = """
## Keys

A server started without `--api-key` and `--api-key-file` requires no key. With keys (the flag given several times,
`COHORT_API_KEY` with commas, or [a file](operate.md#keys)) every path requires
`Authorization: Bearer KEY` or, without that header, `x-api-key: KEY`, also a
path that does not exist; only `/live`, `/ready`, `/health`, `/version` and the console's pages and files (`/`, `/docs`,
`/console/`) do not. With keys, `/v1/steps` requires the admin key. `/metrics` needs no key unless the server was started with
`--metrics-key`; then it accepts only that key. A missing or wrong key, or a second `Authorization` header, returns 401 with the
code `invalid_api_key`.

Paths marked "admin" require the admin key (`--admin-key`, `--admin-key-file`), whether there are API keys or not. Without an
admin key they do not exist (404). A server whose stderr is a terminal makes one at its start and shows it there. Where clients
need keys, the admin key opens their paths too.

`--ssl-certfile` and `--ssl-keyfile` turn on HTTPS. With `--ssl-ca-certs` and `--ssl-cert-reqs 2`, clients must present a
certificate.

## Browsers

Web pages of other origins can call the server from a browser only if `--allowed-origins` names their origin;
`--allowed-methods`, `--allowed-headers` and `--allow-credentials` set what they may send. A preflight needs no key.

Bodies are JSON and need the header `Content-Type: application/json`. A missing or different type returns 415, because browsers
send such bodies from any page without a preflight. `curl -d` needs `-H 'Content-Type: application/json'`.

Ollama's paths below `/api` read a body of any type, or of none, as JSON, because Ollama's clients rely on it. Only a web page of
another origin needs the type there, too; `Origin` and `Sec-Fetch-Site` tell such a page. Browsers from before 2020 may
send neither.

A server that listens on a loopback address without `--api-key` answers only requests whose `Host` header names the loopback
(`localhost`, names below it, `127.0.0.1`, `[::1]`, with any port) or the name given with `--host`. Other requests get a 403.
Without this rule, a web page could point its own domain name at this machine (DNS rebinding) and read answers.
`--allowed-hosts NAME`, which may be given several times, allows more names: `*.example.com` allows every name below
`example.com`, `*` every name. With `--api-key`, or on another address, the server checks the `Host` header only if
`--allowed-hosts` is given.
"""

HEADERS = """
## Headers

| Response header | When | Meaning |
| --- | --- | --- |
| `x-request-id` | always | Identifier of the request, also in the server's log. An identifier sent by the client is not used. |
| `request-id` | below `/v1/messages` | The same identifier, where Anthropic's clients look for it. |
| `x-cohort-ignored` | a parameter had no effect | Names of such parameters, percent-encoded and separated by commas. A name \
within an object is its path (`messages[].type`). A final `...` means that there are more. |
| `server-timing` | a request was queued | Milliseconds of its parts: `prepare` (template, tokenizer, grammar), `queue`, \
`prefill` (from admission to the first token) and, without `stream`, `decode`. |
| `retry-after` | 429, 503 | Seconds to wait before the next attempt. |
| `x-should-retry` | some 500 | `false`: the same request would most likely fail again. OpenAI's clients then do not retry. |
| `www-authenticate` | 401 | `Bearer` |
| `allow` | 405 | Methods of the path. |
| `accept`, `accept-encoding` | 415 | Types and encodings that the server accepts. |
| `access-control-*`, `vary` | `--allowed-origins` is given | Permissions for browsers (CORS). |
"""

ERRORS = """
## Errors

Every answer that is not a success has this body, and so has the event that ends a failed stream:

```json
{"error": {"message": "'n' ...", "type": "invalid_request_error", "param": "n", "code": "invalid_value"}}
```

Below `/v1/messages` errors have Anthropic's form, with the same statuses; the message names the field:

```json
{"type": "error", "error": {"type": "invalid_request_error", "message": "'n' ..."}, "request_id": "req_..."}
```

Ollama's paths below `/api` have Ollama's form, with the same statuses; the message names the field, too:

```json
{"error": "'options.mirostat' is not supported by this server."}
```

Anthropic's types are `invalid_request_error`, `authentication_error` (401), `permission_error` (403), `not_found_error` (404),
`timeout_error` (408), `request_too_large` (413), `rate_limit_error` (429), `api_error` (500) and `overloaded_error` (503). The
message for a prompt that does not fit the context begins with "prompt is too long: ".

`param` is the path of the field in the body, such as `messages.0.content` or `prompt.2`, or null. A client may retry the same
request after a 429 or a 503 (when the seconds of `retry-after` have passed), after a 500 without `x-should-retry: false`, and
after a `request_timeout`.

| Status | `type` | `code` | Meaning |
| --- | --- | --- | --- |
| 400 | `invalid_request_error` | `invalid_json` | The body is not JSON. |
| 400 | `invalid_request_error` | `invalid_type` | A field or the body has the wrong type. |
| 400 | `invalid_request_error` | `invalid_value` | A field has an invalid value, or contradicts another field. |
| 400 | `invalid_request_error` | `unsupported_parameter` | The parameter would change the result and is not supported. |
| 400 | `invalid_request_error` | `unsupported_value` | The parameter is supported, but this value is not. |
| 400 | `invalid_request_error` | `unknown_parameter` | The name looks misspelt, or there are more than 64 unknown names. |
| 400 | `invalid_request_error` | `context_length_exceeded` | Prompt and output do not fit into the context. |
| 400 | `invalid_request_error` | `answer_too_large` | The log probabilities, or the copies of the prompt in \
all choices, would be more than 256 MiB. A stream has no such limit. |
| 400 | `invalid_request_error` | `chat_template_error` | The model's chat template refuses the conversation. |
| 400 | `invalid_request_error` | `no_chat_template` | The model has no chat template. |
| 400 | `invalid_request_error` | `missing_required_parameter` | A required field is missing, or one that another field needs. |
| 400 | `invalid_request_error` | `invalid_http` | The request is not valid HTTP; `Host` may be missing, invalid \
or given twice. |
| 401 | `authentication_error` | `invalid_api_key` | The API key is missing or wrong. |
| 403 | `permission_error` | `host_not_allowed` | The `Host` header names a host that the server does not answer to: \
see [Browsers](#browsers). |
| 404 | `invalid_request_error` | `model_not_found` | The model does not exist. |
| 404 | `invalid_request_error` | `response_not_found`, `previous_response_not_found`, `item_not_found` | The store has no such \
response or item, or another API key owns it: see [The Responses API](responses.md). |
| 404 | `invalid_request_error` | `request_not_found` | No story of such a call is kept, or never was. |
| 404 | `invalid_request_error` | `not_found` | The path does not exist. The message names the path that was probably meant, or \
the one that replaces another server's endpoint. |
| 405 | `invalid_request_error` | `method_not_allowed` | The path does not have this method. |
| 408 | `invalid_request_error` | `request_timeout` | The request did not arrive in time. |
| 408 | `invalid_request_error` | `reader_too_slow` | The client was too slow: more than 64 MiB of the answer waited to be read. |
| 413 | `invalid_request_error` | `request_too_large` | The body is larger than `--max-body-bytes`. |
| 415 | `invalid_request_error` | `unsupported_media_type` | The body's `Content-Type` is not `application/json` (or \
`application/NAME+json`), or it has a `Content-Encoding`. |
| 429 | `rate_limit_error` | `overloaded` | The queue is full. |
| 429 | `rate_limit_error` | `responses_store_full` | Background responses in progress fill the store of responses. |
| 429 | `rate_limit_error` | `deadline_exceeded` | The request has not started by its `deadline_ms`, or is not expected to. |
| 431 | `invalid_request_error` | `headers_too_large` | The request line and headers are larger than 64 KiB. |
| 500 | `executor_error` | `sequence_failed` | Only this request failed, for example because its logits \
were NaN. Has `x-should-retry: false`. |
| 500 | `executor_error` | `executor_died`, `step_failed`, `out_of_memory`, `invalid_input`, `unsupported`, `not_ready`, \
`executor_error` | Steps with this request failed repeatedly with this error, at last with the request alone in the step. Has \
`x-should-retry: false`. |
| 500 | `server_error` | `executor_died`, `engine_failed` | The model's process cannot be restarted, or the engine failed. \
This server ends; ask again when it is back. |
| 500 | `internal_error` | `internal_error` | Another error, which the server's log describes. |
| 501 | `invalid_request_error` | `unsupported_transfer_encoding` | The body has another transfer coding than `chunked`. |
| 503 | `service_unavailable` | `service_unavailable` | The server is loading or draining. |
| 503 | `service_unavailable` | `model_unavailable` | This one of several models failed to load, or does not fit. |
| 505 | `invalid_request_error` | `unsupported_http_version` | The request is neither HTTP/1.1 nor HTTP/1.0. |
"""

STREAMS = """
## Streams

With `stream` the answer is `text/event-stream`: events `data: JSON`, all with the same `id`, `created` and `model`, and a last
event `data: [DONE]`. A chat begins with a chunk that contains the role. Each choice ends with a chunk that contains its
`finish_reason`. With `stream_options.include_usage` one more chunk follows, with `usage` and no choices. The chunks of a stream
add up to the answer without `stream`.

An error before the first event has its own status; an error after it is an event `{"error": {...}}`. If no event is ready after
10 s, the server sends status 200 and a comment, so that proxies keep the connection open. A later error, such as a deadline
that passes in the queue, is then an event too, without `retry-after`.

`/v1/responses` has OpenAI's events, each with its type in a line `event:` and a `sequence_number`, and no `[DONE]`. After 10 s of
silence `response.in_progress` comes again. [The Responses API](responses.md) tells what differs, and how to use Codex.

Streams of Ollama's paths are lines of JSON (`application/x-ndjson`); after 10 s of silence a line with an empty text comes. See
[Ollama's API](ollama.md).

`/v1/messages` has Anthropic's events, each with its type in a line `event:`, and no `[DONE]`. After 10 s of silence a `ping`
comes, behind a `message_start` if the message has not begun. The arguments of a call are always one JSON object: what is common
in models' JSON and invalid (line breaks in strings, unknown escapes, `True`) is mended, and an object with another fault ends
there. A call that `max_tokens` cut off stays cut off.
"""

PARAMETERS = """
## Parameters

Each parameter is supported, refused or ignored:

- **Supported** parameters have the effect that OpenAI or vLLM document; the column "From" says which of them. A parameter that
  is null counts as left out.
- Unsupported parameters that would change the result are **refused** with a 400 that names the parameter, unless their value
  has no effect. A key that looks like a misspelt parameter is refused too.
- All other keys are **ignored** and listed in the response header `x-cohort-ignored`: bookkeeping, hints and unknown keys.

Unknown keys within objects follow the same rules. A misspelt key in an object of settings, such as `stream_options`, is
refused. In messages, their parts and their calls, unknown keys are ignored; only `function_call`, `audio`, `refusal` and
`prefix` are refused, because they would change what the model reads. The chat template receives `tools` with all their keys.
"""

OTHERS = """
## Other endpoints

Every path with `GET` also has `HEAD`. A slash at the end of a path makes no difference, except for `/live`, `/ready`, \
`/health`, `/version` and `/metrics`.
"""

LIMITS = """
## Limits

A body may have `--max-body-bytes` (16 MiB); the request line and headers 64 KiB. Headers must arrive within 30 s, and a body at
1 KiB per second, averaged over 10 s. Lists, strings and numbers have the limits of the tables above. A body as a whole may have
1,114,112 values (counted by commas), 131,072 lists and objects, and 131,072 keys. The server never fetches a URL in a request.

An answer without `stream` may contain 256 MiB of log probabilities and of copies of the prompt (`echo`, `return_token_ids`). The
server ends a stream whose client reads nothing for 60 s. A request also ends when its client closes the connection.
"""
