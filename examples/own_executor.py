"""An executor of one's own, which docs/executors.md explains: it counts which token followed which.

PYTHONPATH=examples cohort serve --executor own_executor:SuccessorFactory
"""

from dataclasses import replace
from itertools import pairwise

import numpy as np

from executors.contract import *
from executors.contract.sampling_wrapper import SamplingWrapper

VOCABULARY, CONTEXT = 1024, 512  # as many token ids as the embedded tokenizer has


class Successor(BatchModelExecutor):
    """Logits: how often a token followed the last one so far, over a background that changes with the position."""

    def __init__(self, max_num_seqs: int = 8) -> None:
        self.max_num_seqs, self.state = max_num_seqs, ExecutorState.INITIALIZING
        self.table, self.histories = SlotTable(max_num_seqs, max_blocks=0), {}

    def info(self) -> ModelInfo:
        if self.state is not ExecutorState.READY:
            raise NotReady(f"the executor is {self.state}")
        return ModelInfo("successor", "counts", 1, 1, 1, 1, 1, VOCABULARY, VOCABULARY, CONTEXT, "float32")

    def capabilities(self) -> ExecutorCapabilities:
        memory = MemoryRequirements(0, 0, 8, 0)
        return ExecutorCapabilities(self.max_num_seqs, CONTEXT, (), memory, speculative=True)

    def status(self) -> ExecutorStatus:
        return ExecutorStatus(self.state, self.state is ExecutorState.READY)

    def metrics(self) -> ExecutorMetrics:
        return ExecutorMetrics()  # SamplingWrapper counts the steps

    def kv_layout(self) -> KvLayout:
        return KvLayout(block_size=16)  # no blocks: we own our KV

    def slot_table(self) -> SlotTable:
        return self.table

    async def warmup(self) -> None:
        if self.state is ExecutorState.INITIALIZING:
            self.state = ExecutorState.READY  # load weights here

    async def shutdown(self) -> None:
        self.state = ExecutorState.SHUTDOWN

    async def begin_epoch(self, epoch: int, adopt: SealedBlocks | None = None) -> Int32Array:
        self.info()  # raises NotReady
        self.table.clear()
        self.histories.clear()
        return np.empty(0, np.int32)  # no memory of ours outlives the process

    async def prefill(self, request: PrefillInput) -> PrefillOutput:
        handle = request.kv_cache or KvCacheHandle(-1)
        history = self.histories.setdefault(handle.cache_id, [])
        if request.adapter or request.want_hidden_states or request.want_attention_weights:
            raise (InvalidInput if request.adapter else Unsupported)("adapters, hidden states, attention")
        if request.pos_offset > len(history):
            raise InvalidInput(f"position {request.pos_offset} follows {len(history)} tokens")
        del history[request.pos_offset :]  # what was rolled back, or a prompt that begins anew
        rows = []
        for token in request.input_ids.numpy().ravel().tolist():
            history.append(token)
            rows.append(self._logits(history))
        wanted = {LogitsMode.NONE: None, LogitsMode.LAST: rows[-1:], LogitsMode.ALL: rows}[request.logits]
        logits = None if wanted is None else Tensor.of(np.array([wanted], np.float32))
        return PrefillOutput(logits, replace(handle, num_tokens=len(history)))

    async def decode(self, request: DecodeInput) -> DecodeOutput:
        one = PrefillInput(request.input_ids, kv_cache=request.kv_cache, pos_offset=request.pos_offset)
        output = await self.prefill(replace(one, logits=request.logits, adapter=request.adapter))
        return DecodeOutput(output.logits, output.kv_cache)

    def _logits(self, history: list[int]) -> np.ndarray:
        row = np.sin(np.arange(VOCABULARY) * (1.0 + len(history)))
        for token, successor in pairwise(history):
            row[successor] += 2.0 * (token == history[-1])
        return row

    def truncate_kv(self, handle: KvCacheHandle, new_len: int) -> int:
        del self.histories.get(handle.cache_id, [])[new_len:]
        return new_len

    def release_cache(self, cache_id: int) -> None:
        self.table.release(cache_id)
        self.histories.pop(cache_id, None)


class SuccessorFactory(ModelExecutorFactory):
    def create_executor(self, config: ExecutorConfig) -> ModelExecutor:
        return SamplingWrapper(Successor(config.max_num_seqs))

    def supported_types(self) -> tuple[ExecutorType, ...]:
        return (ExecutorType.CONTINUOUS_BATCH,)
