"""What guesses the next tokens beside the model: a draft model on the CPU (`companion.py`) or behind the steps of a device
(`device_companion.py`), or the model's own MTP head (`mtp.py`). `checkpoint/draft.py` loads them."""
