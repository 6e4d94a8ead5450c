"""One way to cut a text into words before merging, and the entries of tokenizer.json that do so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Kind:
    """One way to cut texts."""

    patterns: tuple[str, ...]
    """Regular expressions (Oniguruma) whose matches become words of their own, one after the other."""
    gpt2: bool = False
    """GPT-2's pattern is applied after these (the library has it built in)."""
    digits: bool = False
    """Every digit is a word, before anything else."""
    after: tuple[str, ...] = ()
    """Patterns that are applied after GPT-2's."""
    nfc: bool = False
    ignore_merges: bool = False
    """A word that is a token is that token, whatever the merges say."""
    adds_bos: bool = False
    """The bos token precedes a text unless `tokenizer.ggml.add_bos_token` says otherwise."""
    marks: bool = False
    """Tokens are text, not bytes written as characters: a mark stands for a space, and `<0x41>` for a byte without a token."""

    def normalizer(self) -> dict[str, Any] | None:
        """The entry `normalizer` of tokenizer.json."""
        if self.marks:
            return {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
        return {"type": "NFC"} if self.nfc else None

    def pre_tokenizer(self) -> dict[str, Any]:
        """The entry `pre_tokenizer` of tokenizer.json."""
        steps: list[dict[str, Any]] = [{"type": "Digits", "individual_digits": True}] if self.digits else []
        steps += [split(pattern) for pattern in self.patterns]
        if not self.marks:
            steps.append(byte_level(use_regex=self.gpt2))
        steps += [split(pattern) for pattern in self.after]
        return steps[0] if len(steps) == 1 else {"type": "Sequence", "pretokenizers": steps}

    def decoder(self) -> dict[str, Any]:
        """The entry `decoder` of tokenizer.json."""
        if not self.marks:
            return byte_level()
        to_space = {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}
        return {"type": "Sequence", "decoders": [to_space, {"type": "ByteFallback"}, {"type": "Fuse"}]}


def byte_level(use_regex: bool = True) -> dict[str, Any]:
    """The step that writes bytes as characters; also the decoder, and the post-processor that changes no ids."""
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def split(pattern: str) -> dict[str, Any]:
    """The step that makes words of the matches of a regular expression, and of what is between them."""
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
