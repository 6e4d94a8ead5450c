"""`EncoderConfig`, and how it is read for encoders in the manner of BERT. No torch here.

`reading.py` finds the family of a directory. Families with a table of positions are rows of `FAMILIES`. Every fault is a
ConfigError of one line that names the file, the field and what is supported. A key that is neither read nor known to be harmless
is named in a note.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from executors.contract.errors import ConfigError
from executors.llm.encoder.modules import DenseConfig
from executors.llm.model.fields import Fields

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
"""Names of activations in config.json, and here."""
_DTYPES = {"float32", "bfloat16", "float16"}
HEAD = "ForSequenceClassification"
"""How names of architectures with a classification head end."""
_HARMLESS = frozenset(
    {
        "_name_or_path", "architectures", "model_type", "transformers_version", "torch_dtype", "dtype", "label2id",
        "pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id", "mask_token_id", "gradient_checkpointing",
        "hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout", "initializer_range", "use_cache",
        "output_past", "directionality", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers",
        "pooler_size_per_head", "pooler_type", "chunk_size_feed_forward", "tie_word_embeddings", "problem_type",
        "sbert_ce_default_activation_function",
        "output_attentions", "output_hidden_states", "return_dict", "finetuning_task", "auto_map", "sentence_transformers",
        "torchscript",
    }
)  # fmt: skip
"""Keys that change nothing of what an encoder computes. `problem_type` chooses the loss in training; the two that name an
activation of scores are read where scores are made of logits (`server/model_defaults/retrieval.py`)."""
_DEFAULT_LABELS = 2
"""Of transformers, where the configuration counts no labels."""


@dataclass(frozen=True, slots=True)
class EncoderFamily:
    """Encoders of one kind of layer. `prefix`: of the tensors of a model with a head. `head`: names of the two layers of a
    classification head. `first_position`: the position of the first token counts from `pad_token_id` + 1."""

    model_type: str
    architectures: tuple[str, ...]
    prefix: str
    head: tuple[str, str] = ("classifier.dense", "classifier.out_proj")
    first_position: bool = False
    defaults: Mapping[str, int | float] = field(default_factory=dict)
    """Defaults of transformers for keys that are absent."""


_ROBERTA_DEFAULTS = {
    "vocab_size": 50_265,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "pad_token_id": 1,
}
FAMILIES = (
    EncoderFamily(
        "bert", ("BertModel", "BertForMaskedLM", "BertForPreTraining", "BertForSequenceClassification"), "bert.",
        ("pooler.dense", "classifier"),
        defaults={"vocab_size": 30_522, "max_position_embeddings": 512, "type_vocab_size": 2, "pad_token_id": 0},
    ),
    EncoderFamily(
        "roberta", ("RobertaModel", "RobertaForMaskedLM", "RobertaForSequenceClassification"), "roberta.", first_position=True,
        defaults=_ROBERTA_DEFAULTS,
    ),
    EncoderFamily(
        "xlm-roberta", ("XLMRobertaModel", "XLMRobertaForMaskedLM", "XLMRobertaForSequenceClassification"), "roberta.",
        first_position=True, defaults={**_ROBERTA_DEFAULTS, "vocab_size": 30_522},
    ),
    EncoderFamily(
        "camembert", ("CamembertModel", "CamembertForMaskedLM", "CamembertForSequenceClassification"), "roberta.",
        first_position=True, defaults={**_ROBERTA_DEFAULTS, "vocab_size": 30_522},
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class HeadConfig:
    """A classification head: out(norm(act(dense(x)))). `names` of the tensors of its two layers, the first of them "" where the
    head is out(x), and `norm` of those of the norm between them, "" without one. `bias` and `norm_bias`: of the first layer and
    of the norm. `pooling`: which hidden states x is."""

    names: tuple[str, str]
    activation: str = "tanh"
    bias: bool = True
    norm: str = ""
    norm_bias: bool = False
    norm_eps: float = 1e-5
    pooling: Literal["cls", "mean"] = "cls"


@dataclass(frozen=True, slots=True)
class EncoderConfig:
    """Configuration of an encoder. Sizes in elements, lengths in tokens."""

    family: EncoderFamily
    architecture: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    intermediate_size: int
    activation: str
    norm_eps: float
    num_positions: int
    """Rows of the table of positions."""
    position_offset: int
    """Row of the first token's position."""
    num_types: int
    """Rows of the table of token types."""
    dtype: str | None
    """Dtype that the checkpoint names; None if it names none."""
    labels: tuple[str, ...] = ()
    """Names of the labels of the classification head, in the order of their logits; () without a head."""
    head: HeadConfig | None = None
    """The classification head; None without labels."""
    dense: tuple[DenseConfig, ...] = ()
    """Layers behind the pooling."""
    max_seq_length: int | None = None
    """Most tokens that sentence-transformers reads of a text; None if it is not said."""
    notes: tuple[str, ...] = field(default=(), compare=False)

    @property
    def longest(self) -> int:
        """Most tokens of a text for which there are positions."""
        return self.num_positions - self.position_offset

    @property
    def context_length(self) -> int:
        """Most tokens of a text, unless a setting asks for more."""
        return min(self.longest, self.max_seq_length or self.longest)

    @property
    def head_dim(self) -> int:
        """Elements of a head."""
        return self.hidden_size // self.num_heads

    @property
    def kv_heads(self) -> int:
        """Number of heads of keys and values."""
        return self.num_heads


def parse_bert(family: EncoderFamily, values: Mapping[str, Any], where: str) -> EncoderConfig:
    """Parse config.json of an encoder whose positions are rows of a table. Raises ConfigError."""
    values = {**family.defaults, **values}
    fields = Fields(where, values)
    served = (one for one in values.get("architectures") or () if one in family.architectures)
    architecture = next(served, family.architectures[0])
    kind = values.get("position_embedding_type", "absolute")
    if kind not in ("absolute", None):
        raise ConfigError(f"{where}: position_embedding_type {kind!r} is not supported; supported: absolute")
    for name in ("is_decoder", "add_cross_attention"):
        if values.get(name):
            raise ConfigError(f"{where}: {name} is true: this model is a decoder, which is not supported")
    if values.get("pruned_heads"):
        raise ConfigError(f"{where}: pruned_heads is not supported; save the model with all of its heads")
    if values.get("quantization_config"):
        raise ConfigError(
            f"{where}: quantization_config of an encoder is not supported; --quantization int8 quantizes at load"
        )
    activation = fields.get("hidden_act", "gelu")
    if activation not in ACTIVATIONS:
        raise ConfigError(
            f"{where}: hidden_act {activation!r} is not supported; supported: {', '.join(ACTIVATIONS)}"
        )
    hidden, heads = fields.natural("hidden_size", 768), fields.natural("num_attention_heads", 12)
    if hidden % heads:
        raise ConfigError(f"{where}: hidden_size {hidden} is no multiple of num_attention_heads {heads}")
    offset = int(fields.get("pad_token_id", 0)) + 1 if family.first_position else 0
    positions = fields.natural("max_position_embeddings")
    if positions <= offset:
        raise ConfigError(f"{where}: max_position_embeddings is {positions}; more than {offset} is needed")
    dtype = fields.get("dtype", fields.get("torch_dtype"))
    labels = read_labels(fields) if architecture.endswith(HEAD) else ()
    return EncoderConfig(
        family,
        architecture,
        fields.natural("vocab_size"),
        hidden,
        fields.natural("num_hidden_layers", 12),
        heads,
        fields.natural("intermediate_size", 3072),
        ACTIVATIONS[activation],
        fields.real("layer_norm_eps", 1e-12),
        positions,
        offset,
        fields.natural("type_vocab_size"),
        dtype if dtype in _DTYPES else None,
        labels,
        HeadConfig(family.head) if labels else None,
        notes=_notes(values, where),
    )


def read_labels(fields: Fields) -> tuple[str, ...]:
    """Return the names of labels by their numbers, as transformers counts them. Raises ConfigError."""
    names = fields.get("id2label")
    if names is None:
        return tuple(f"LABEL_{number}" for number in range(fields.natural("num_labels", _DEFAULT_LABELS)))
    if (
        not isinstance(names, dict)
        or not names
        or set(names) != {str(number) for number in range(len(names))}
    ):
        raise ConfigError(
            f"{fields.where}: id2label is no object with the names of the labels 0, 1 and so on"
        )
    return tuple(str(names[str(number)]) for number in range(len(names)))


_READ = frozenset(
    {
        "position_embedding_type", "is_decoder", "add_cross_attention", "pruned_heads", "quantization_config", "hidden_act",
        "hidden_size", "num_attention_heads", "num_hidden_layers", "intermediate_size", "layer_norm_eps", "type_vocab_size",
        "max_position_embeddings", "vocab_size", "id2label", "num_labels",
    }
)  # fmt: skip


def _notes(values: Mapping[str, Any], where: str) -> tuple[str, ...]:
    unknown = sorted(set(values) - _READ - _HARMLESS)
    return (f"{where}: not used: {', '.join(unknown)}",) if unknown else ()
