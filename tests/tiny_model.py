"""What the embedded model's KV takes, by its own config: its sizes may change with a training."""

import json

from executors.tiny import weights_dir

_CONFIG = json.loads((weights_dir() / "config.json").read_text("utf-8"))
HEAD_DIM: int = _CONFIG["head_dim"]
LAYERS: int = _CONFIG["num_hidden_layers"]
NUMBERS_PER_TOKEN: int = 2 * LAYERS * _CONFIG["num_key_value_heads"] * _CONFIG["head_dim"]
"""Keys and values of all layers."""
BYTES_PER_TOKEN = 2 * NUMBERS_PER_TOKEN
"""In bfloat16."""
