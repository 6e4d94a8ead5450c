"""The model in training form: a small Qwen3 in fp32 whose parameters carry transformers' names."""

from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Cache = list[tuple[Tensor, Tensor]]
"""Keys and values per layer, each (batch, kv heads, tokens, head_dim)."""


@dataclass(frozen=True)
class TinyConfig:
    """Sizes of `cohort-tiny`, named as in a Qwen3 `config.json`."""

    vocab_size: int = 1024
    hidden_size: int = 256
    intermediate_size: int = 512
    num_hidden_layers: int = 4
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 64
    max_position_embeddings: int = 2048
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-6

    def to_hf(self, eos_id: int, pad_id: int) -> dict[str, Any]:
        """Return the `config.json` that transformers and other engines read."""
        return {
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            **asdict(self),
            "rope_parameters": {"rope_theta": self.rope_theta, "rope_type": "default"},
            "rope_scaling": None,
            "attention_bias": False,
            "attention_dropout": 0.0,
            "hidden_act": "silu",
            "initializer_range": 0.02,
            "tie_word_embeddings": True,
            "use_cache": True,
            "use_sliding_window": False,
            "sliding_window": None,
            "max_window_layers": self.num_hidden_layers,
            "layer_types": ["full_attention"] * self.num_hidden_layers,
            "torch_dtype": "bfloat16",
            "bos_token_id": None,
            "eos_token_id": eos_id,
            "pad_token_id": pad_id,
        }


@dataclass(frozen=True)
class Apart:
    """Turns that stand one behind the other and do not see each other: each follows what all share, as if it came first.

    A token sees what comes before it, but for `skipped` (batch, tokens) tokens behind the first `shared` (batch,) ones, and its
    position is its place less `skipped`. Both are int64.
    """

    shared: Tensor
    skipped: Tensor

    @staticmethod
    def none(ids: Tensor) -> "Apart":
        """Return what stands for plain conversations, shaped for `ids` (batch, tokens)."""
        return Apart(torch.zeros(len(ids), dtype=torch.long), torch.zeros_like(ids))

    def mask(self, tokens: int) -> Tensor:
        """Return which of the first `tokens` each of them sees, bool (batch, 1, tokens, tokens)."""
        at = torch.arange(tokens)
        shared, skipped = self.shared[:, None, None], self.skipped[:, :tokens, None]
        hidden = (at >= shared) & (at < shared + skipped)
        return ((at[:, None] >= at) & ~hidden).unsqueeze(1)


class Attention(nn.Module):
    """Grouped-query attention with RMSNorm on each head's query and key."""

    def __init__(self, config: TinyConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = (
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
        )
        self.q_proj = nn.Linear(config.hidden_size, self.heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, self.kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, self.kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(self.heads * self.head_dim, config.hidden_size, bias=False)
        self.q_norm = nn.RMSNorm(self.head_dim, eps=config.rms_norm_eps)
        self.k_norm = nn.RMSNorm(self.head_dim, eps=config.rms_norm_eps)

    def mix(
        self, x: Tensor, rope: tuple[Tensor, Tensor], mask: Tensor | None, past: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Return the heads' outputs (batch, tokens, heads * head_dim) before `o_proj`, and the keys and values."""
        batch, tokens, _ = x.shape
        q = self.q_norm(self.q_proj(x).view(batch, tokens, self.heads, self.head_dim)).transpose(1, 2)
        k = self.k_norm(self.k_proj(x).view(batch, tokens, self.kv_heads, self.head_dim)).transpose(1, 2)
        v = self.v_proj(x).view(batch, tokens, self.kv_heads, self.head_dim).transpose(1, 2)
        q, k = rotate(q, rope), rotate(k, rope)
        if past is not None:
            k, v = torch.cat((past[0], k), dim=2), torch.cat((past[1], v), dim=2)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=True)
        return out.transpose(1, 2).reshape(batch, tokens, -1), (k, v)


class Mlp(nn.Module):
    """SiLU-gated feed-forward layer."""

    def __init__(self, config: TinyConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., hidden) to (..., hidden)."""
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Layer(nn.Module):
    """One pre-norm transformer layer."""

    def __init__(self, config: TinyConfig) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = Mlp(config)
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def finish(self, x: Tensor, mixed: Tensor) -> Tensor:
        """Add attention's output to the residual stream `x`, then the feed-forward layer; any leading shape."""
        x = x + self.self_attn.o_proj(mixed)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class Decoder(nn.Module):
    """Embedding, layers and final norm: what transformers calls `model`."""

    def __init__(self, config: TinyConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)


class TinyModel(nn.Module):
    """`Qwen3ForCausalLM` with tied embeddings, in plain PyTorch. Training computes its gradients in `fused.py`."""

    def __init__(self, config: TinyConfig | None = None) -> None:
        super().__init__()
        self.config = config or TinyConfig()
        self.model = Decoder(self.config)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                scale = 0.02 if "embed" in name else parameter.shape[1] ** -0.5
                nn.init.normal_(
                    parameter, std=0.5 * scale if "o_proj" in name or "down_proj" in name else scale
                )
        cos, sin = rope_table(self.config)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self.cos: Tensor
        self.sin: Tensor

    def loss(self, ids: Tensor, weights: Tensor, apart: Apart | None = None) -> Tensor:
        """Return the weighted sum of cross-entropies of the tokens of `ids` (batch, tokens); `weights` has the same shape.

        The last layer's feed-forward part and the head run only at the positions before tokens that count.
        """
        tokens = ids.shape[1] - 1
        rope, mask = (self.cos[:tokens], self.sin[:tokens]), None
        if apart is not None:
            positions = torch.arange(tokens) - apart.skipped[:, :tokens]
            rope, mask = (
                (self.cos[positions].unsqueeze(1), self.sin[positions].unsqueeze(1)),
                apart.mask(tokens),
            )
        x = self.model.embed_tokens(ids[:, :-1])
        wanted = weights[:, 1:] > 0
        last = len(self.model.layers) - 1
        for index, layer in enumerate(self.model.layers):
            mixed, _ = layer.self_attn.mix(layer.input_layernorm(x), rope, mask, None)
            if index == last:
                x, mixed = x[wanted], mixed[wanted]
            x = layer.finish(x, mixed)
        logits = F.linear(self.model.norm(x), self.model.embed_tokens.weight)
        losses = F.cross_entropy(logits, ids[:, 1:][wanted], reduction="none")
        return losses @ weights[:, 1:][wanted]

    def step(self, ids: Tensor, positions: Tensor, mask: Tensor, cache: Cache | None) -> tuple[Tensor, Cache]:
        """Return the logits after the last token of `ids` (batch, tokens) and the extended cache.

        `mask` (batch, 1, tokens, cached + tokens) is True where a token may look.
        """
        rope = self.cos[positions].unsqueeze(1), self.sin[positions].unsqueeze(1)
        x = self.model.embed_tokens(ids)
        grown: Cache = []
        for index, layer in enumerate(self.model.layers):
            past = None if cache is None else cache[index]
            mixed, kept = layer.self_attn.mix(layer.input_layernorm(x), rope, mask, past)
            grown.append(kept)
            x = layer.finish(x, mixed)
        return F.linear(self.model.norm(x[:, -1]), self.model.embed_tokens.weight), grown


def rope_table(config: TinyConfig) -> tuple[Tensor, Tensor]:
    """Return cosines and sines, each (positions, head_dim), in the half-split layout of transformers."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    angles = torch.outer(torch.arange(config.max_position_embeddings).float(), config.rope_theta**-exponents)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
    """Apply rotary position embedding to `x` (batch, heads, tokens, head_dim)."""
    first, second = x.chunk(2, dim=-1)
    return x * rope[0] + torch.cat((-second, first), dim=-1) * rope[1]
