"""Generate without a server: python examples/offline.py [MODEL]

MODEL is a directory, a GGUF file or a hub name; without it the default model answers.
"""

import sys

from cohort_server import LLM, SamplingParams

model = sys.argv[1] if len(sys.argv) > 1 else None
with LLM(model, max_num_seqs=32) as llm:
    # All prompts go through the engine together; the results come in the order of the prompts.
    places = "Peru France Japan Kenya Norway Chile Egypt India".split()
    prompts = [f"The capital of {place} is" for place in places]
    params = SamplingParams(temperature=0, max_tokens=24)
    for result in llm.generate(prompts, params)[:3]:
        print(f"{result.prompt} -> {result.outputs[0].text!r}")

    # A conversation goes through the model's chat template.
    messages = [{"role": "user", "content": "What is the capital of Peru?"}]
    [answer] = llm.chat(messages, SamplingParams(temperature=0, max_tokens=64))
    print(answer.outputs[0].text)

    # Several answers to one prompt, with the logprob of each token.
    sampled = SamplingParams(n=2, temperature=1.0, seed=1, max_tokens=6, logprobs=0)
    [result] = llm.generate("Once upon a time", sampled)
    for output in result.outputs:
        print(f"{output.index}: {output.text!r} {output.finish_reason} {output.cumulative_logprob:.2f}")
