"""From logits to tokens: penalties, masks, top-k, top-p, draws, logprobs, grammars; on the host and on a device."""
