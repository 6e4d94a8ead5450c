"""The files beside tokenizer.json in a checkpoint: special tokens, end tokens, chat templates.

The rules are those of transformers 5 for its generic fast tokenizer (`TokenizersBackend`), which takes tokenizer.json
unchanged and then adds the tokens of tokenizer_config.json (`engine.text.tokenizer_classes` has the other classes). Only the
post-processor of tokenizer.json adds tokens around a text: `add_bos_token` and `add_eos_token` refer to the slow tokenizers from
which these files were converted. transformers 5 ignores them if there is a tokenizer.json, and applying them could only add a
second BOS or lose the first.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as RawTokenizer

from executors.contract import ConfigError

DEFAULT = "default"
"""Name of the default template."""
NOTES = "conversion_notes"
"""Key of a converted tokenizer_config.json: sentences about what the conversion left out."""
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
    """tokenizer_config.json; older checkpoints keep the special tokens in special_tokens_map.json, and other added tokens in
    added_tokens.json, which becomes `added_tokens`: ids by text."""
    config = read_json(directory / "tokenizer_config.json")
    if "added_tokens_decoder" not in config:
        config.update(read_json(directory / "special_tokens_map.json"))
        config["added_tokens"] = read_json(directory / "added_tokens.json")
    return config


def special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """Texts of the special tokens by role (bos_token, ..., and a model's own such as image_token)."""
    own = [name for name in config if name.endswith("_token") and name not in _ROLES]
    by_role = {name: token_text(config.get(name)) for name in (*_ROLES, *own)}
    return {name: text for name, text in by_role.items() if text is not None}


def add_tokens(raw: RawTokenizer, config: Mapping[str, Any], where: str) -> None:
    """Add the tokens that only tokenizer_config.json has: `added_tokens_decoder`, the special ones by role, the extra ones.

    Modifies `raw`. Raises ConfigError for entries that are not tokens.
    """
    own = raw.get_added_tokens_decoder()
    existing = {repr(token) for token in own.values()}
    texts = {token.content for token in own.values()}
    decoder = config.get("added_tokens_decoder") or {}
    try:
        listed = [_added(entry) for _, entry in sorted((int(i), entry) for i, entry in decoder.items())]
        special = [_added(value) for value in _special_values(config)]
        listed += [token for i, token in sorted(older_tokens(config).items()) if i not in own]
    except (TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"{where}: not a list of tokens: {one_line(error)}") from error
    new = [token for token in listed if repr(token) not in existing]
    roles = set(special_tokens(config).values())
    for token in new:
        if token.content in roles:
            token.special = True
    texts |= {token.content for token in new}
    for token in special:
        if token.content not in texts:
            texts.add(token.content)
            new.append(token)
    raw.add_tokens(new)


def older_tokens(config: Mapping[str, Any]) -> dict[int, AddedToken]:
    """The tokens of added_tokens.json by id. Raises TypeError or ValueError for ids that are none."""
    special = {token_text(value) for value in _special_values(config)}
    return {
        int(i): AddedToken(text, normalized=text not in special, special=text in special)
        for text, i in (config.get("added_tokens") or {}).items()
    }


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
        excerpt = one_line(value)[:50]
        raise ConfigError(f"{where}: eos_token_id: it should be a token id or several, not {excerpt!r}")
    ids = {one for one in entries if one is not None and one >= 0 and (width is None or one < width)}
    odd = [one for one in entries if one not in ids]
    if not odd:
        return frozenset(ids), []
    numbers = ", ".join("null" if one is None else str(one)[:20] for one in odd[:4]) + (
        ", ..." if odd[4:] else ""
    )
    return frozenset(ids), [f"{where}: eos_token_id: {numbers} not used: no token of the model has that id"]


def chat_templates(directory: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Chat templates by name; empty if there are none.

    The precedence is that of transformers 5: chat_template.jinja and the files `additional_chat_templates/NAME.jinja` replace
    all templates of tokenizer_config.json (a text, a list of objects with `name` and `template`, or an object of texts by name);
    only where these files hold no default template does that of tokenizer_config.json stay. Processors' files come last:
    chat_template.json, then processor_config.json.
    """
    files = {DEFAULT: directory / "chat_template.jinja"}
    files |= {path.stem: path for path in sorted(directory.glob("additional_chat_templates/*.jinja"))}
    templates = {name: _template_text(path) for name, path in files.items() if path.is_file()}
    configured = _configured(config.get("chat_template"))
    if not templates:
        templates = configured
    elif DEFAULT not in templates and DEFAULT in configured:
        templates[DEFAULT] = configured[DEFAULT]
    for name in ("chat_template.json", "processor_config.json"):
        templates = templates or _configured(read_json(directory / name).get("chat_template"))
    return templates


def _template_text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not readable as UTF-8 text: {one_line(error)}") from error


def _configured(value: Any) -> dict[str, str]:
    if isinstance(value, str):
        return {DEFAULT: value}
    if isinstance(value, dict):
        templates = value
    else:
        entries = [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []
        templates = {entry.get("name"): entry.get("template") for entry in entries}
    return {n: t for n, t in templates.items() if isinstance(n, str) and isinstance(t, str)}


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
