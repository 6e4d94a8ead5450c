"""Parts of messages that no model here reads: images, audio, documents."""

from __future__ import annotations

from collections.abc import Mapping

PLACEHOLDER = "placeholder"
"""Value of `--unread-parts` that puts a text in their place."""

_KINDS: Mapping[str, str] = {
    "image": "image",
    "image_url": "image",
    "input_image": "image",
    "input_audio": "audio",
    "audio": "audio",
    "audio_url": "audio",
    "video": "video",
    "video_url": "video",
    "input_video": "video",
    "file": "document",
    "input_file": "document",
    "document": "document",
    "container_upload": "file",
}
"""Words for the types that clients send."""


def placeholder(kind: str, policy: str) -> str | None:
    """The text in place of a part of this type. None: the part is refused."""
    word = _KINDS.get(kind)
    return f"[{word} not read]" if policy == PLACEHOLDER and word is not None else None
