"""LoRA adapters (Hu et al., 2021) as files: read in PEFT's form, checked, and written as one file that is named by its content.

    adapter_file.py   the one file: what an executor loads
    peft.py           a folder of PEFT's into it

Nothing here needs torch: the server packs adapters, and an executor's process reads them.
"""

from executors.lora.adapter_file import AdapterFile, Module, PackedAdapter, read_adapter
from executors.lora.peft import pack

__all__ = ["AdapterFile", "Module", "PackedAdapter", "pack", "read_adapter"]
