"""`cohort-tiny`: the trained demo model that `cohort serve` runs when no model is named."""

from pathlib import Path


def weights_dir() -> Path:
    """Return the folder with the embedded checkpoint in Hugging Face layout (config, tokenizer, safetensors)."""
    return Path(__file__).resolve().parent / "weights"
