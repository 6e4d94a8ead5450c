"""The model for ONNX Runtime and OpenVINO, made from torch: float32, and int8 as each library makes it.

    python -m benchmarks.encoders.export MODEL FOLDER        within the environment of install.py

model.onnx          float32
model_int8.onnx     ONNX Runtime: fused as its optimizer fuses BERT, then dynamic quantization with a scale for each column
plain_int8.onnx     the same without that optimizer
static_int8.xml     OpenVINO: NNCF's quantization for transformers, with scales of activations from 64 texts
weights_int8.xml    OpenVINO: weights alone, and activations quantized as they come
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import nncf
import numpy as np
import onnxruntime
import openvino
import torch
import torch.nn.functional as F
import transformers
from onnxruntime.quantization import QuantType, quantize_dynamic
from onnxruntime.transformers import optimizer

from benchmarks.encoders.texts import texts, tokenizer

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
_FLOAT = 1
"""onnx.TensorProto.FLOAT: the type of what the optimizer's fused nodes make."""


class Bert(torch.nn.Module):
    """BERT's forward written out, without what cannot be traced: int64 [b, L] each -> float32 [b, L, hidden]."""

    def __init__(self, model: Path) -> None:
        super().__init__()
        self.model = transformers.BertModel.from_pretrained(model, add_pooling_layer=False).eval()

    def forward(self, ids: torch.Tensor, mask: torch.Tensor, types: torch.Tensor) -> torch.Tensor:
        """See the class."""
        tables = self.model.embeddings
        places = torch.cumsum(torch.ones_like(ids), 1) - 1
        words = tables.word_embeddings(ids) + tables.token_type_embeddings(types)
        x: torch.Tensor = tables.LayerNorm(words + tables.position_embeddings(places))
        hidden = (1.0 - mask[:, None, None, :].to(torch.float32)) * -10000.0
        for layer in self.model.encoder.layer:
            x = self._layer(layer, x, hidden)
        return x

    def _layer(self, layer: Any, x: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        heads, own = self.model.config.num_attention_heads, layer.attention.self
        shape = (x.shape[0], x.shape[1], heads, self.model.config.hidden_size // heads)
        q, k, v = (one(x).view(shape).permute(0, 2, 1, 3) for one in (own.query, own.key, own.value))
        weights = torch.softmax(torch.matmul(q, k.transpose(-1, -2)) / shape[3] ** 0.5 + hidden, -1)
        mixed = torch.matmul(weights, v).permute(0, 2, 1, 3).contiguous().view(x.shape[0], x.shape[1], -1)
        after = layer.attention.output
        x = after.LayerNorm(after.dense(mixed) + x)
        inner = F.gelu(layer.intermediate.dense(x))
        out: torch.Tensor = layer.output.LayerNorm(layer.output.dense(inner) + x)
        return out


def main(model: Path, folder: Path) -> None:
    """Write all files, and compare the first with torch."""
    folder.mkdir(parents=True, exist_ok=True)
    bert, path = Bert(model), folder / "model.onnx"
    ids = torch.randint(5, 1000, (2, 9))
    axes = {name: {0: "batch", 1: "length"} for name in (*INPUTS, "hidden")}
    with torch.no_grad():
        torch.onnx.export(
            bert, (ids, torch.ones_like(ids), torch.zeros_like(ids)), str(path), input_names=list(INPUTS),
            output_names=["hidden"], opset_version=17, dynamic_axes=axes, dynamo=False,
        )  # fmt: skip
        ids = torch.randint(5, 1000, (3, 17))
        right = bert(ids, torch.ones_like(ids), torch.zeros_like(ids)).numpy()
    given = {
        "input_ids": ids.numpy(),
        "attention_mask": np.ones_like(ids),
        "token_type_ids": np.zeros_like(ids),
    }
    found = onnxruntime.InferenceSession(str(path)).run(None, given)[0]
    if abs(found - right).max() > 1e-4:
        raise SystemExit(f"{path} is off by {abs(found - right).max():g}")
    config = bert.model.config
    fused = optimizer.optimize_model(
        str(path), "bert", config.num_attention_heads, config.hidden_size, opt_level=0
    )
    fused.save_model_to_file(str(folder / "fused.onnx"))
    for name, source in (("model_int8", "fused"), ("plain_int8", "model")):
        quantize_dynamic(
            folder / f"{source}.onnx", folder / f"{name}.onnx", per_channel=True, weight_type=QuantType.QInt8,
            extra_options={"DefaultTensorType": _FLOAT},
        )  # fmt: skip
    encodings = [one.ids for one in tokenizer(model).encode_batch(texts(model, 64, seed=1))]
    examples = [np.array([one], np.int64) for one in encodings]
    data = [
        {"input_ids": one, "attention_mask": np.ones_like(one), "token_type_ids": np.zeros_like(one)}
        for one in examples
    ]
    read = openvino.Core().read_model
    transformer = nncf.ModelType.TRANSFORMER
    static = nncf.quantize(read(path), nncf.Dataset(data), model_type=transformer, subset_size=len(data))
    openvino.save_model(static, folder / "static_int8.xml", compress_to_fp16=False)
    weights = nncf.compress_weights(read(path), mode=nncf.CompressWeightsMode.INT8_SYM)
    openvino.save_model(weights, folder / "weights_int8.xml", compress_to_fp16=False)
    (folder / "exported").touch()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
