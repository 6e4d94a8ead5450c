"""Generate without a server: python examples/offline.py [MODEL]

MODEL is a directory or a hub name; without it the embedded model answers.
"""

import sys

from cohort_server import LLM, SamplingParams

model = sys.argv[1] if len(sys.argv) > 1 else None
with LLM(model, max_num_seqs=32) as llm:
    # All prompts go through the engine together; the results come in the order of the prompts.
    prompts = [f"Count from {first} to {first + 5}." for first in range(1, 17)]
    params = SamplingParams(temperature=0, max_tokens=24)
    for result in llm.generate(prompts, params)[:3]:
        print(f"{result.prompt} -> {result.outputs[0].text!r}")

    # A conversation goes through the model's chat template.
    messages = [{"role": "user", "content": "Count from 3 to 9."}]
    [answer] = llm.chat(messages, SamplingParams(temperature=0, max_tokens=64))
    print(answer.outputs[0].text)

    # Several answers to one prompt, with the logprob of each token.
    sampled = SamplingParams(n=2, temperature=1.0, seed=1, max_tokens=6, logprobs=0)
    [result] = llm.generate("Once upon a time", sampled)
    for output in result.outputs:
        print(f"{output.index}: {output.text!r} {output.finish_reason} {output.cumulative_logprob:.2f}")
