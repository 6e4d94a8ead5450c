"""What stands beside tokenizer.json in a checkpoint: special tokens, end tokens, chat templates.

The rules are those of transformers 5 for its generic fast tokenizer (`TokenizersBackend`), which takes tokenizer.json as it
is and then lets tokenizer_config.json add tokens. What is put around a text is the business of tokenizer.json's
post-processor alone: `add_bos_token` and `add_eos_token` speak of the slow tokenizers that these files were converted from,
transformers 5 ignores them where there is a tokenizer.json, and obeying them could only add a second BOS or lose the first.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, decoders, pre_tokenizers
from tokenizers import Tokenizer as RawTokenizer

from executors.contract import ConfigError

DEFAULT = "default"
"""The name of the template that is used when nothing else is asked for."""
_ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def read_json(path: Path) -> dict[str, Any]:
    """The object in a file; {} where there is no such file. Raises ConfigError for one that cannot be read."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not readable as JSON: {one_line(error)}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: a JSON object is expected, not {type(value).__name__}")
    return value


def read_tokenizer_config(directory: Path) -> dict[str, Any]:
    """tokenizer_config.json; older checkpoints keep the special tokens in special_tokens_map.json."""
    config = read_json(directory / "tokenizer_config.json")
    if "added_tokens_decoder" not in config:
        config.update(read_json(directory / "special_tokens_map.json"))
    return config


def special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """Texts of the special tokens by role (bos_token, ..., and a model's own such as image_token)."""
    own = [name for name in config if name.endswith("_token") and name not in _ROLES]
    named = {name: token_text(config.get(name)) for name in (*_ROLES, *own)}
    return {name: text for name, text in named.items() if text is not None}


def add_tokens(raw: RawTokenizer, config: Mapping[str, Any], where: str) -> None:
    """Add the tokens that only tokenizer_config.json knows: `added_tokens_decoder`, the special ones by role, the extra ones.

    Modifies `raw`. Raises ConfigError for entries that are no tokens.
    """
    known = {repr(token) for token in raw.get_added_tokens_decoder().values()}
    texts = {token.content for token in raw.get_added_tokens_decoder().values()}
    decoder = config.get("added_tokens_decoder") or {}
    try:
        listed = [_added(entry) for _, entry in sorted((int(i), entry) for i, entry in decoder.items())]
        special = [_added(value) for value in _special_values(config)]
    except (TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"{where}: not a list of tokens: {one_line(error)}") from error
    new = [token for token in listed if repr(token) not in known]
    texts |= {token.content for token in new}
    for token in special:
        if token.content not in texts:
            texts.add(token.content)
            new.append(token)
    raw.add_tokens(new)


def rebuild_llama(raw: RawTokenizer, config: Mapping[str, Any], model: Mapping[str, Any]) -> None:
    """A SentencePiece tokenizer of a Llama model that names the class LlamaTokenizer is set up as that class sets it up.

    transformers 5 takes only vocabulary and merges from such a tokenizer.json. What differs is the space before a text:
    files converted long ago put one after every special token too (`<s>[INST]` became `<s> [INST]`), the class only at
    the beginning of the text, unless tokenizer_config.json says `legacy`. Other model types (Mistral, Phi-3) and byte-level
    files keep what stands in tokenizer.json, there and here. Modifies `raw`.
    """
    named = str(config.get("tokenizer_class")).removesuffix("Fast") == "LlamaTokenizer"
    parts = repr((raw.pre_tokenizer, raw.decoder))
    is_bpe = type(raw.model).__name__ == "BPE"
    if not named or not is_bpe or "ByteLevel" in parts or model.get("model_type") not in (None, "llama"):
        return
    steps: list[Any] = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    scheme = "always" if config.get("legacy") else "first"
    if config.get("add_prefix_space") is False:
        scheme = "never"
    else:
        steps.append(decoders.Strip(" ", 1, 0))
    raw.normalizer = None
    raw.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    raw.decoder = decoders.Sequence(steps)
    raw.model.fuse_unk = raw.model.byte_fallback = True


def eos_ids(
    raw: RawTokenizer, config: Mapping[str, Any], generation: Mapping[str, Any], model: Mapping[str, Any]
) -> frozenset[int]:
    """End tokens: those of generation_config.json, else of config.json; and always the tokenizer's own eos_token."""
    ids: set[int] = set()
    text_config = model.get("text_config")
    for source in (generation, model, text_config if isinstance(text_config, dict) else {}):
        value = source.get("eos_token_id")
        if value is not None:
            ids = _id_set(value)
            break
    text = token_text(config.get("eos_token"))
    if text is not None and (eos := raw.token_to_id(text)) is not None:
        ids.add(eos)
    return frozenset(ids)


def chat_templates(directory: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Chat templates by name; empty where there are none.

    tokenizer_config.json (one, or a list of named ones) is overruled by chat_template.jinja and by the files
    `additional_chat_templates/NAME.jinja`; chat_template.json, where older multimodal checkpoints keep theirs, counts last.
    """
    templates = _configured(read_json(directory / "chat_template.json").get("chat_template"))
    templates |= _configured(config.get("chat_template"))
    files = {DEFAULT: directory / "chat_template.jinja"}
    files |= {path.stem: path for path in sorted(directory.glob("additional_chat_templates/*.jinja"))}
    for name, path in files.items():
        if path.is_file():
            try:
                templates[name] = path.read_text("utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigError(f"{path}: not readable as UTF-8 text: {one_line(error)}") from error
    return templates


def _configured(value: Any) -> dict[str, str]:
    if isinstance(value, str):
        return {DEFAULT: value}
    entries = [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []
    named = {entry.get("name"): entry.get("template") for entry in entries}
    return {n: t for n, t in named.items() if isinstance(n, str) and isinstance(t, str)}


def token_text(value: Any) -> str | None:
    """The text of a token given as a string or as an object with `content`."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def one_line(what: object) -> str:
    """For messages that end up in one log line."""
    return " ".join(str(what).split())[:300]


def _special_values(config: Mapping[str, Any]) -> Iterator[Any]:
    for name in special_tokens(config):
        yield config[name]
    for name in ("extra_special_tokens", "additional_special_tokens"):
        if values := config.get(name):
            yield from values.values() if isinstance(values, dict) else values
            return


def _added(value: Any) -> AddedToken:
    """Special unless it says otherwise, which only entries of `added_tokens_decoder` do."""
    if isinstance(value, str):
        return AddedToken(value, special=True)
    return AddedToken(**{"special": True} | {k: v for k, v in value.items() if k != "__type"})


def _id_set(value: Any) -> set[int]:
    ids = value if isinstance(value, list) else [value]
    if not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids):
        raise ConfigError(f"eos_token_id must be a token id or a list of token ids, not {one_line(value)}")
    return set(ids)
