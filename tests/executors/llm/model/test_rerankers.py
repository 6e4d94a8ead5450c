"""Label logits and embeddings of Qwen3-Reranker's and Qwen3-Embedding's forms equal transformers'."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from executors.contract import ConfigError, InvalidInput
from executors.llm.checkpoint.weights import settle_config
from executors.llm.model.config import read_config
from tests.executors.checkpoints import LLAMA, QWEN3, write_checkpoint
from tests.executors.gguf_files import converted_checkpoint, prepared, sizes, write_gguf
from tests.executors.llm.driver import Driver, start
from tests.executors.llm.models import SHAPES

TOLERANCE = 1e-4
LENGTHS = (1, 3, 17, 40)


def prompts(vocab_size: int) -> list[list[int]]:
    rng = np.random.default_rng(5)
    return [rng.integers(0, vocab_size, length).tolist() for length in LENGTHS]


async def pooled(path: Path, asked: list[list[int]], chunk: int = 1000, **extra) -> list[np.ndarray]:
    """The vector of each prompt, beside a sequence that generates if the model can; all prompts in one step."""
    executor = await start(path)
    driver = Driver(executor)
    seqs = [driver.add(ids, None, **extra) for ids in asked]
    beside = [driver.add(asked[-1])] if executor.info().generates else []
    found: dict[int, np.ndarray] = {}
    while len(found) < len(seqs):
        live = [seq for seq in [*seqs, *beside] if seq.computed < len(seq.tokens)]
        items = []
        for seq in live:
            part = seq.tokens[seq.computed : seq.computed + chunk]
            items.append((seq, part, seq.computed + len(part) == len(seq.tokens), 0))
        output = await driver.step(items)
        for i, (seq, _, final, _) in enumerate(items):
            if seq in seqs and final:
                assert not output[i].tokens
                found[seq.seq_id] = output[i].pooled
    return [found[seq.seq_id] for seq in seqs]


def classifier(kind: str, shape: str, path: Path, num_labels: int = 1):
    """A model with a random classification head, in memory and at `path`."""
    import transformers

    fields = {**SHAPES[shape][1], "num_labels": num_labels, "pad_token_id": 0}
    config = getattr(transformers, f"{kind}Config")(**fields, bos_token_id=None, eos_token_id=None)
    torch.manual_seed(3)
    model = getattr(transformers, f"{kind}ForSequenceClassification")(config).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, 1.2 / parameter.shape[-1] ** 0.5)
    model.save_pretrained(path)
    return model


async def test_logits_of_two_tokens_equal_transformers(reference):
    ref = reference("qwen3-tied-gqa")
    asked = prompts(ref.vocab_size)
    for chunk in (1000, 7):
        found = await pooled(ref.path, asked, chunk, pooling="logits", label_ids=(101, 7))
        for ids, logits in zip(asked, found, strict=True):
            np.testing.assert_allclose(logits, ref.logits(ids)[-1][[101, 7]], atol=TOLERANCE)


@pytest.mark.parametrize(
    ("kind", "shape"),
    [("Qwen3", "qwen3-tied-gqa"), ("Llama", "llama-biases-llama3-rope"), ("GPT2", "gpt2")],
)
async def test_a_classification_head_equals_transformers(kind, shape, tmp_path):
    model = classifier(kind, shape, tmp_path)
    asked = prompts(130)
    found = await pooled(tmp_path, asked, 9, pooling="logits", label_ids=(0,))
    for ids, logits in zip(asked, found, strict=True):
        with torch.no_grad():
            expected = model(torch.tensor([[*ids]])).logits[0].numpy()
        np.testing.assert_allclose(logits, expected, atol=TOLERANCE)


async def test_a_classifier_has_facts_and_no_vocabulary(tmp_path):
    classifier("Qwen3", "qwen3-tied-gqa", tmp_path)
    executor = await start(tmp_path)
    info = executor.info()
    assert (info.generates, info.num_labels, info.label_width) == (False, 1, 1)
    driver = Driver(executor)
    for label_ids in ((), (1,), (-1,)):
        seq = driver.add([1, 2], None, pooling="logits", label_ids=label_ids)
        with pytest.raises(InvalidInput, match="label_ids"):
            await driver.step([(seq, [1, 2], True, 0)])


def gguf_reranker(folder: Path, num_labels: int, kind: str = "F32", arch: str = "qwen3", **more) -> Path:
    """A file as llama.cpp's converter writes rerankers: the rows of yes and no of the head as a head of their own."""
    source = write_checkpoint(folder / "source", QWEN3 if arch == "qwen3" else LLAMA)
    tensors = converted_checkpoint(source, arch)
    tensors.pop("output.weight", None)
    metadata = sizes(json.loads((source / "config.json").read_text()))
    plain = write_gguf(folder / "plain.gguf", arch, metadata, tensors)
    tensors["cls.output.weight"] = torch.randn(num_labels, tensors["token_embd.weight"].shape[1]) / 4
    labels = {"pooling_type": 4, "classifier.output_labels": ["yes", "no"][:num_labels]}
    write_gguf(
        folder / "rank.gguf", arch, metadata | labels | more, tensors,
        lambda name: kind if name == "cls.output.weight" else "F32",
    )  # fmt: skip
    prepared(folder / "plain", plain)
    prepared(folder / "rank", folder / "rank.gguf")
    torch.save(tensors["cls.output.weight"], folder / "head.pt")
    return folder


@pytest.mark.parametrize(("num_labels", "arch"), [(2, "qwen3"), (1, "qwen3"), (2, "llama")])
async def test_the_head_of_a_gguf_reranker(num_labels, arch, tmp_path):
    """Its labels' logits are its rows times the last hidden state, which the same file without it gives."""
    gguf_reranker(tmp_path, num_labels, arch=arch)
    asked = prompts(100)
    states = await pooled(tmp_path / "plain", asked, 9, pooling="last")
    found = await pooled(tmp_path / "rank", asked, 9, pooling="logits", label_ids=tuple(range(num_labels)))
    head = torch.load(tmp_path / "head.pt").numpy()
    for state, logits in zip(states, found, strict=True):
        np.testing.assert_allclose(logits, head @ state, atol=TOLERANCE)
        assert logits.shape == (num_labels,)
    config = read_config(tmp_path / "rank")
    assert (config.num_labels, config.headless) == (num_labels, True)
    assert not any("pooling_type" in note or "classifier" in note for note in config.notes)


@pytest.mark.parametrize("shape", [(3, 48), (2, 47), (48,)])
def test_another_head_of_a_gguf_reranker_is_refused(shape, tmp_path):
    source = write_checkpoint(tmp_path / "source", QWEN3)
    tensors = converted_checkpoint(source, "qwen3") | {"cls.output.weight": torch.zeros(shape)}
    metadata = sizes(json.loads((source / "config.json").read_text())) | {"pooling_type": 4}
    prepared(tmp_path / "rank", write_gguf(tmp_path / "rank.gguf", "qwen3", metadata, tensors))
    with pytest.raises(ConfigError, match=r"rank\.gguf: tensor cls\.output\.weight has shape"):
        read_config(tmp_path / "rank")


def test_a_dense_layer_before_the_head_of_a_gguf_reranker_is_refused(tmp_path):
    source = write_checkpoint(tmp_path / "source", QWEN3)
    tensors = converted_checkpoint(source, "qwen3") | {
        "cls.output.weight": torch.zeros(1, 48),
        "cls.weight": torch.zeros(48, 48),
    }
    metadata = sizes(json.loads((source / "config.json").read_text())) | {"pooling_type": 4}
    prepared(tmp_path / "rank", write_gguf(tmp_path / "rank.gguf", "qwen3", metadata, tensors))
    with pytest.raises(ConfigError, match=r"tensor cls\.weight is not supported"):
        settle_config(read_config(tmp_path / "rank"), tmp_path / "rank")


def test_several_labels_are_refused(tmp_path):
    classifier("Qwen3", "qwen3-tied-gqa", tmp_path, num_labels=2)
    with pytest.raises(ConfigError, match="has 2 labels"):
        read_config(tmp_path)


async def test_qwen3_embedding_whose_tensors_have_no_prefix(reference, tmp_path):
    """Its config.json names Qwen3ForCausalLM, and its tensors are those of the body saved alone."""
    ref = reference("qwen3-tied-gqa")
    weights = load_file(ref.path / "model.safetensors")
    save_file(
        {name.removeprefix("model."): tensor for name, tensor in weights.items()},
        tmp_path / "model.safetensors",
        {"format": "pt"},
    )
    config = json.loads((ref.path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config))
    asked = prompts(ref.vocab_size)
    found = await pooled(tmp_path, asked, 9, pooling="last")
    for ids, vector in zip(asked, found, strict=True):
        with torch.no_grad():
            states = ref.model.model(torch.tensor([ids])).last_hidden_state[0].numpy()
        np.testing.assert_allclose(vector, states[-1], atol=TOLERANCE)
