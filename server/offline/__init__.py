"""The engine without HTTP, for scripts and notebooks: `from cohort_server import LLM, SamplingParams`.

llm.py       LLM: what a caller uses, from any thread
engine.py    the engine on an event loop in a thread of its own
params.py    SamplingParams and StructuredOutputsParams: the fields of a request
outputs.py   RequestOutput and its parts: what comes back
"""

from server.offline.llm import LLM
from server.offline.outputs import CompletionOutput, Logprob, RequestOutput
from server.offline.params import SamplingParams, StructuredOutputsParams

__all__ = ["LLM", "CompletionOutput", "Logprob", "RequestOutput", "SamplingParams", "StructuredOutputsParams"]
