"""From files to a loaded model: safetensors, names, dtypes, FP8 scales."""
