"""The shipped folder loads in transformers as it is, and computes the same."""

import pytest
import torch

from executors.tiny import weights_dir
from executors.tiny.data import held_out_samples
from executors.tiny.generate import load
from executors.tiny.tokenizer import render

transformers = pytest.importorskip("transformers")


def test_tokenizer_and_template_agree() -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(weights_dir())
    _, ours = load(weights_dir())
    for skill in ("tools", "extraction", "off_topic"):
        for sample in held_out_samples(skill, 5, turns=3):
            messages, tools = list(sample.messages), list(sample.tools) or None
            text = tokenizer.apply_chat_template(
                messages, tools=tools, add_generation_prompt=True, tokenize=False
            )
            assert text == render(sample, with_answer=False)
            assert tokenizer(text)["input_ids"] == ours.encode(text).ids
    assert tokenizer.decode(tokenizer("héllo 日本 'x'  y")["input_ids"]) == "héllo 日本 'x'  y"


def test_logits_agree() -> None:
    theirs = transformers.AutoModelForCausalLM.from_pretrained(weights_dir(), dtype=torch.float32)
    assert type(theirs).__name__ == "Qwen3ForCausalLM"
    assert theirs.generation_config.temperature == 0.2
    ours, tokenizer = load(weights_dir())
    ids = torch.tensor([tokenizer.encode(render(held_out_samples("sums", 1)[0])).ids])
    count = ids.shape[1]
    mask = torch.ones(count, count, dtype=torch.bool).tril()[None, None]
    with torch.inference_mode():
        expected, _ = ours.step(ids, torch.arange(count)[None], mask, None)
        torch.testing.assert_close(theirs(ids).logits[:, -1], expected, atol=1e-4, rtol=1e-4)
