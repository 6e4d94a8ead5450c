"""The files beside tokenizer.json in a checkpoint: special tokens, end tokens, chat templates.

The rules are those of transformers 5 for its generic fast tokenizer (`TokenizersBackend`), which takes tokenizer.json
unchanged and then adds the tokens of tokenizer_config.json. Only the post-processor of tokenizer.json adds tokens around a
text: `add_bos_token` and `add_eos_token` refer to the slow tokenizers from which these files were converted. transformers 5
ignores them if there is a tokenizer.json, and applying them could only add a second BOS or lose the first.
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
"""Name of the default template."""
_ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def read_json(path: Path) -> dict[str, Any]:
    """The object in a file; {} if there is no such file. Raises ConfigError if the file cannot be read."""
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
    """Add the tokens that only tokenizer_config.json has: `added_tokens_decoder`, the special ones by role, the extra ones.

    Modifies `raw`. Raises ConfigError for entries that are not tokens.
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
    """Set up a Llama model's SentencePiece tokenizer that names the class LlamaTokenizer as that class does.

    transformers 5 takes only vocabulary and merges from such a tokenizer.json. The difference is the space before a text:
    old converted files add one after every special token too (`<s>[INST]` becomes `<s> [INST]`), the class only at the
    beginning of the text, unless tokenizer_config.json says `legacy`. Other model types (Mistral, Phi-3) and byte-level
    files keep the settings of tokenizer.json, there and here. Modifies `raw`.
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
) -> tuple[frozenset[int], list[str]]:
    """End tokens: those of generation_config.json, else of config.json; and always the tokenizer's own eos_token. Also
    warnings about entries that are not ids. Raises ConfigError for values of another kind."""
    inner = model.get("text_config")
    inner = inner if isinstance(inner, dict) else {}
    sizes = [one for one in (model.get("vocab_size"), inner.get("vocab_size")) if type(one) is int]
    width = max([raw.get_vocab_size(), *sizes])
    ids: frozenset[int] = frozenset()
    warnings = []
    sources = (
        ("generation_config.json", generation),
        ("config.json", model),
        ("config.json: text_config", inner),
    )
    for where, source in sources:
        ids, warning = end_tokens(source.get("eos_token_id"), where, width)
        warnings += warning
        if ids:
            break
    text = token_text(config.get("eos_token"))
    if text is not None and (eos := raw.token_to_id(text)) is not None:
        ids |= {eos}
    return ids, warnings


def end_tokens(value: Any, where: str, width: int | None = None) -> tuple[frozenset[int], list[str]]:
    """The ids in an `eos_token_id`: one, several or none; and a sentence that names entries which are not ids: null in a list,
    numbers below 0, which mean "none", and numbers from `width` on. Raises ConfigError for values of another kind."""
    entries = [] if value is None else value if isinstance(value, list) else [value]
    if not all(entry is None or type(entry) is int for entry in entries):
        said = one_line(value)[:50]
        raise ConfigError(f"{where}: eos_token_id: it should be a token id or several, not {said!r}")
    ids = {one for one in entries if one is not None and one >= 0 and (width is None or one < width)}
    odd = [one for one in entries if one not in ids]
    if not odd:
        return frozenset(ids), []
    named = ", ".join("null" if one is None else str(one)[:20] for one in odd[:4]) + (
        ", ..." if odd[4:] else ""
    )
    return frozenset(ids), [f"{where}: eos_token_id: {named} not used: no token of the model has that id"]


def chat_templates(directory: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Chat templates by name; empty if there are none.

    chat_template.jinja and the files `additional_chat_templates/NAME.jinja` take precedence over tokenizer_config.json (one
    template, or a list of named ones); chat_template.json, which older multimodal checkpoints use, comes last.
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
    """The text on one line, for log messages."""
    return " ".join(str(what).split())[:300]


def _special_values(config: Mapping[str, Any]) -> Iterator[Any]:
    for name in special_tokens(config):
        yield config[name]
    for name in ("extra_special_tokens", "additional_special_tokens"):
        if values := config.get(name):
            yield from values.values() if isinstance(values, dict) else values
            return


def _added(value: Any) -> AddedToken:
    """The token of an entry, special unless the entry says otherwise, which only those of `added_tokens_decoder` do."""
    if isinstance(value, str):
        return AddedToken(value, special=True)
    return AddedToken(**{"special": True} | {k: v for k, v in value.items() if k != "__type"})
