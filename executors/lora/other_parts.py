"""Names of tensors that belong to parts which no model here loads: encoders of images and audio, and what projects their outputs.

An adapter trained on all linear layers of a multimodal model has pairs for them. No text goes through them, so they are left out,
whether the served checkpoint has such parts or is the text model alone.
"""

from __future__ import annotations

from collections.abc import Iterable

PARTS = frozenset(
    {
        "vision_tower", "vision_model", "vision_encoder", "vision_embed_tokens", "vision_projection", "visual",
        "image_encoder", "image_projection", "img_processor", "multi_modal_projector", "mm_projector", "embed_vision",
        "patch_merger", "vision_backbone", "vision_adapter", "vision_resampler", "vision_language_adapter", "modality_projection",
        "img_projection", "audio_tower", "audio_model", "audio_encoder", "audio_projector", "audio_projection", "embed_audio",
        "speech_encoder", "speech_projector",
    }
)  # fmt: skip
"""Modules by the names that transformers and authors of models give them; a tensor is theirs if a part of its name is one."""


def is_of_other_part(name: str) -> bool:
    """Return whether a tensor or module belongs to a part that is not loaded."""
    return not PARTS.isdisjoint(name.split("."))


def note_on(names: Iterable[str]) -> str:
    """Return a sentence on what was left out, by the parts' names."""
    listed = list(names)
    parts = sorted({next(one for one in name.split(".") if one in PARTS) for name in listed})
    return f"{len(listed)} tensors for {', '.join(parts)} are left out: images and audio are not served"
