"""A small random checkpoint in fp32 with a tokenizer, and what transformers computes with it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, processors

from tests.e2e.checkpoints import write_tokenizer

IM_END, BOS, FIM_PREFIX, FIM_SUFFIX, FIM_MIDDLE = range(257, 262)
VOCAB_SIZE = 262
_FIELDS: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 24, "intermediate_size": 96, "max_position_embeddings": 512,
    "tie_word_embeddings": True, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}  # fmt: skip


@dataclass(frozen=True)
class Reference:
    """The checkpoint's directory and the model that wrote it."""

    path: Path
    model: Any

    def logprobs(self, ids: list[int]) -> NDArray[np.float32]:
        """float32 [len(ids), V]: row p is about the token at position p + 1."""
        import torch

        with torch.no_grad():
            logits = self.model(torch.tensor([ids])).logits[0].float()
            found: NDArray[np.float32] = logits.log_softmax(-1).numpy()
        return found

    def hidden(self, ids: list[int]) -> NDArray[np.float32]:
        """float32 [len(ids), hidden]: behind the last norm."""
        import torch

        with torch.no_grad():
            states = self.model.model(torch.tensor([ids])).last_hidden_state[0]
        found: NDArray[np.float32] = states.float().numpy()
        return found


def write_reference(folder: Path) -> Reference:
    """A token a byte, `<s>` before every text, and the marks of StarCoder's kind for filling in the middle. The weights are
    large enough for peaked logits that depend on the position."""
    import torch
    import transformers

    write_tokenizer(folder)
    raw = Tokenizer.from_file(str(folder / "tokenizer.json"))
    texts = ("<s>", "<fim_prefix>", "<fim_suffix>", "<fim_middle>")
    raw.add_special_tokens([AddedToken(text, special=True) for text in texts])
    raw.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", BOS)])
    raw.save(str(folder / "tokenizer.json"))
    torch.manual_seed(6)
    config = transformers.Qwen3Config(**_FIELDS, bos_token_id=None, eos_token_id=None)
    config._attn_implementation = "eager"
    model = transformers.Qwen3ForCausalLM(config).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, 1.2 / parameter.shape[-1] ** 0.5)
            else:
                parameter.uniform_(0.5, 1.5)
    model.tie_weights()
    model.save_pretrained(folder)
    return Reference(folder, model)
