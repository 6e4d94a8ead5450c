"""Messages between the server and an API worker, in the frames of `server.remote.codec` on an inherited Unix socket.

worker -> server   Hello, Serving or NotServing; Submit, CallAnswered, Abort, Finish, CallBegins, CallEnds; Ask, Cancel;
                   Forward, Disconnected, BodySent; Counts, Synced, Answered
server -> worker   Setup, ModelAt, Serve; Deltas; Reply; Head, Body; Adapters, Sync, Drain, Stop
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.request import FinishReason, Request
from executors.contract import ExecutorCapabilities, ModelInfo, SampledToken, StateLayout
from server.settings.table import Settings
from server.state.prefix_keeping import PrefixKeeping


class WireFault(msgspec.Struct, array_like=True):
    """An `EngineError`: the name of its class, its message before the field's name was put in, and what else it knows."""

    kind: str
    template: str
    param: str | None
    code: str
    retry_after: int | None


class LoraFacts(msgspec.Struct, array_like=True):
    """An adapter and what answers under its name. `template`: the source of its own chat template; `notes`: what of its files is
    not used."""

    name: str
    root: str
    created: int
    digest: str
    fingerprint: str
    template: str | None
    notes: list[str] = []


# -- server -> worker ----------------------------------------------------------------------------------------------------


class Setup(msgspec.Struct, tag=1, array_like=True):
    """The first message. `patient`: there is a server beside it, so that it listens only when it can answer everything.
    `minted_key`: the admin key that was made for this start. `colors`: whether a terminal shows its log."""

    number: int
    settings: Settings
    names: tuple[str, ...]
    aliases: tuple[tuple[str, str], ...]
    minted_key: str | None
    started: int
    address: str
    patient: bool
    colors: bool


class ModelAt(msgspec.Struct, tag=2, array_like=True):
    """The model's files are here: the tokenizer can be read while the executor loads."""

    model_dir: str
    is_default: bool


class Serve(msgspec.Struct, tag=3, array_like=True):
    """The executor is loaded. `stores`: whether there is a store of responses; `adapters`: None without any.
    `own_adapter`: digest of the adapter that is part of the model. `states`: those of layers, None if they keep none."""

    info: ModelInfo
    max_model_len: int
    fingerprint: str
    capabilities: ExecutorCapabilities
    stores: bool
    drafts: bool
    max_loras: int
    adapters: list[LoraFacts] | None
    own_adapter: str | None = None
    prefixes: PrefixKeeping = PrefixKeeping()
    states: StateLayout | None = None


class StoryFacts(msgspec.Struct, array_like=True):
    """What a worker knows of a call when it gives it to the engine: members of `CallStory`."""

    received: float
    received_unix: float
    request_id: str
    client_request_id: str | None
    route: str
    key: str
    id: str | None
    model: str
    stream: bool
    parameters: dict[str, float]
    prompt: str | None
    trace_headers: dict[str, str]
    trace_id: str | None


class CallTimes(msgspec.Struct, array_like=True):
    """When a call came to what, in seconds of the engine's clock, which is the machine's: members of `Story`."""

    queued: float | None
    admitted: float | None
    first_token: float | None
    ended: float | None


class Delta(msgspec.Struct, array_like=True):
    """A `TokenDelta` of the sequence `key`. `times`: those of its call, with its first and its last delta."""

    key: int
    tokens: list[SampledToken]
    finish_reason: FinishReason | None
    stop_token_id: int | None
    num_cached_tokens: int
    fault: WireFault | None
    prompt_logprobs: tuple[SampledToken, ...] | None
    pooled: NDArray[np.float32] | None
    times: CallTimes | None


class Deltas(msgspec.Struct, tag=4, array_like=True):
    """What sequences gained. `plain`: key, token id and cached tokens of each delta that is one token and no more, in a row;
    those in `others` come after them."""

    plain: list[int]
    others: list[Delta]


class Stored(msgspec.Struct, array_like=True):
    """A response of the store."""

    id: str
    inputs: list[tuple[str, bytes]]
    body: bytes
    outputs: list[tuple[str, bytes]]
    in_progress: bool


class Reply(msgspec.Struct, tag=5, array_like=True):
    """The answer to the question of this number: a text, an item or a response, or what is wrong."""

    number: int
    fault: WireFault | None = None
    text: str | None = None
    item: bytes | None = None
    stored: Stored | None = None


class Head(msgspec.Struct, tag=6, array_like=True):
    """Status and headers of a forwarded request's answer. `ignored`: parameters without effect."""

    number: int
    status: int
    headers: list[tuple[bytes, bytes]]
    ignored: list[str] | None
    response_id: str | None


class Body(msgspec.Struct, tag=7, array_like=True):
    """A piece of that answer, to be answered by BodySent. The last one carries the refusal that it ended with: status, code and
    param. `failed`: there is no answer, or no end of it."""

    number: int
    data: bytes
    more: bool
    refusal: tuple[int, str, str | None] | None = None
    failed: bool = False


class Loras(msgspec.Struct, tag=8, array_like=True):
    """All adapters, as they are from now on."""

    adapters: list[LoraFacts]


class Sync(msgspec.Struct, tag=9, array_like=True):
    """To be answered by Synced when all that came before is done, and counts are sent."""

    number: int


class Drain(msgspec.Struct, tag=10, array_like=True):
    """To be answered by Answered once no client waits for the rest of an answer."""


class Stop(msgspec.Struct, tag=11, array_like=True):
    """End. `hurry`: without waiting for clients to read."""

    hurry: bool


ToWorker = Setup | ModelAt | Serve | Deltas | Reply | Head | Body | Loras | Sync | Drain | Stop

# -- worker -> server ----------------------------------------------------------------------------------------------------


class Serving(msgspec.Struct, tag=1, array_like=True):
    """The model's tokenizer and templates are loaded."""


class NotServing(msgspec.Struct, tag=2, array_like=True):
    """They cannot be; the worker ends. `by_operator`: the settings are at fault."""

    reason: str
    by_operator: bool


class Submit(msgspec.Struct, tag=3, array_like=True):
    """Requests with one prompt, whose sequences the worker calls `first_key` and the numbers after it, and their reader `choice`
    and the numbers after it. `call`: which API call they are a part of. `story`: with the call's first part what is known of it,
    with others the id of its story; None: the process that answers the call writes it. `committed`: output that a single
    request has already, and `started`, see `begun` of `EngineCore.submit`."""

    call: int
    first_key: int
    choice: int
    requests: list[Request]
    accepted: bool
    story: StoryFacts | str | None = None
    committed: list[int] | None = None
    started: bool = False


class CallAnswered(msgspec.Struct, tag=16, array_like=True):
    """A call's answer is complete, or its client is gone: arguments of `CallStory.answer`, and the line for the access log."""

    story: StoryFacts
    at: float
    status: int
    code: str | None
    event: str
    fields: dict[str, str | int | float]


class Abort(msgspec.Struct, tag=4, array_like=True):
    """Drop a sequence."""

    key: int


class Finish(msgspec.Struct, tag=5, array_like=True):
    """End a sequence after so many tokens."""

    key: int
    num_tokens: int


class CallBegins(msgspec.Struct, tag=6, array_like=True):
    """See `EngineCore.call`."""

    number: int


class CallEnds(msgspec.Struct, tag=7, array_like=True):
    """The block of that call was left."""

    number: int


class CheckGrammar(msgspec.Struct, tag=1, array_like=True):
    """`GrammarJudge.check`."""

    grammar: str
    tenant: str


class PrepareGrammar(msgspec.Struct, tag=2, array_like=True):
    """`EngineCore.prepare_grammar`."""

    grammar: str


class PutResponse(msgspec.Struct, tag=3, array_like=True):
    """`SharedResponseStore.put`, of a response that has ended."""

    tenant: str
    response: Stored


class GetResponse(msgspec.Struct, tag=4, array_like=True):
    """`SharedResponseStore.get`."""

    tenant: str
    id: str


class GetItem(msgspec.Struct, tag=5, array_like=True):
    """`SharedResponseStore.item`."""

    tenant: str
    id: str


class FindLora(msgspec.Struct, tag=6, array_like=True):
    """`LoraRegistry.find`; the table of adapters comes before the answer."""

    name: str


Question = CheckGrammar | PrepareGrammar | PutResponse | GetResponse | GetItem | FindLora


class Ask(msgspec.Struct, tag=8, array_like=True):
    """A question, answered by Reply."""

    number: int
    question: Question


class Cancel(msgspec.Struct, tag=9, array_like=True):
    """Cancel a question whose answer nothing waits for."""

    number: int


class Forward(msgspec.Struct, tag=10, array_like=True):
    """A request that the server answers: the ASGI scope's plain members, and the body."""

    number: int
    method: str
    path: str
    raw_path: bytes
    query: bytes
    headers: list[tuple[bytes, bytes]]
    scheme: str
    http_version: str
    request_id: str
    client: tuple[str, int] | None
    server: tuple[str, int | None] | None
    body: bytes


class Disconnected(msgspec.Struct, tag=11, array_like=True):
    """The client of this forwarded request has disconnected."""

    number: int


class BodySent(msgspec.Struct, tag=12, array_like=True):
    """The last Body of this forwarded request was sent to the client."""

    number: int


class Counts(msgspec.Struct, tag=13, array_like=True):
    """Counted since the last message of this kind: answers by route and status, refusals by code."""

    answers: list[tuple[str, int, int]]
    refused: dict[str, int]


class Synced(msgspec.Struct, tag=14, array_like=True):
    """The answer to Sync."""

    number: int


class Answered(msgspec.Struct, tag=15, array_like=True):
    """The answer to Drain."""


ToServer = (
    Serving
    | NotServing
    | Submit
    | CallAnswered
    | Abort
    | Finish
    | CallBegins
    | CallEnds
    | Ask
    | Cancel
    | Forward
    | Disconnected
    | BodySent
    | Counts
    | Synced
    | Answered
)
