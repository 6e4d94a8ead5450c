"""A run of a few steps learns, resumes and exports; the shipped weights answer."""

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from tokenizers import Tokenizer

from executors.tiny import weights_dir
from executors.tiny.batches import Encoder, batches
from executors.tiny.data import held_out_samples
from executors.tiny.evaluate import ask_offline
from executors.tiny.generate import answer_all, load
from executors.tiny.model import TinyConfig, TinyModel, causal
from executors.tiny.optimizer import orthogonalized
from executors.tiny.tokenizer import render
from executors.tiny.train import Recipe, Trainer, export


@pytest.fixture
def run_folder(tmp_path: Path, shipped_tokenizer: Tokenizer) -> Path:
    """A run's folder that has the shipped tokenizer, so that none has to be built."""
    shipped_tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def _recipe(steps: int) -> Recipe:
    return Recipe(steps=steps, batch_tokens=1024, batches_per_step=1, warmup_steps=2)


def test_a_short_run_learns_and_resumes(run_folder: Path) -> None:
    torch.manual_seed(0)
    trainer = Trainer(run_folder, _recipe(12), minutes=5)
    batch = next(batches(trainer.tokenizer, 99, 2048))
    before = float(trainer.model.loss(batch.ids, batch.weights).detach()) / float(batch.weights.sum())
    trainer.run()
    after = float(trainer.model.loss(batch.ids, batch.weights).detach()) / float(batch.weights.sum())
    assert after < 0.8 * before
    resumed = Trainer(run_folder, _recipe(14), minutes=5)
    assert resumed.resume()
    assert resumed.progress == trainer.progress
    assert all(
        torch.equal(a, b) for a, b in zip(resumed.model.parameters(), trainer.model.parameters(), strict=True)
    )
    resumed.run()
    assert resumed.progress.step == 14


def test_only_answers_are_learned(shipped_tokenizer: Tokenizer) -> None:
    encoder = Encoder(shipped_tokenizer)
    sample = held_out_samples("sums", 1)[0]
    ids, weights = encoder.encode(render(sample))
    assert (
        shipped_tokenizer.decode(ids[weights > 0].tolist(), skip_special_tokens=False)
        == sample.answer + "<|im_end|>"
    )


def test_orthogonalized_updates_have_singular_values_near_one() -> None:
    torch.manual_seed(0)
    values = torch.linalg.svdvals(orthogonalized(torch.randn(2, 48, 32)))
    assert values.min() > 0.5
    assert values.max() < 1.5


def test_rounded_products_keep_weights_and_gradients_in_fp32() -> None:
    torch.manual_seed(0)
    exact, rounded = TinyModel(), TinyModel(products=torch.bfloat16)
    rounded.load_state_dict(exact.state_dict())
    ids = torch.randint(0, 800, (3, 41))
    losses = [model.loss(ids, torch.ones(3, 41)) for model in (exact, rounded)]
    torch.testing.assert_close(losses[1], losses[0], rtol=0.01, atol=0)
    for loss in losses:
        loss.backward()
    for (name, a), b in zip(exact.named_parameters(), rounded.parameters(), strict=True):
        assert b.dtype == torch.float32 and b.grad.dtype == torch.float32
        assert torch.nn.functional.cosine_similarity(a.grad.flatten(), b.grad.flatten(), dim=0) > 0.99, name


def test_causal_attention_equals_pytorchs() -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 4, 33, 64), torch.randn(2, 2, 33, 64), torch.randn(2, 2, 33, 64)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    torch.testing.assert_close(causal(q, k, v, torch.float32), expected)
    torch.testing.assert_close(causal(q, k, v, torch.bfloat16), expected, rtol=0.02, atol=0.03)


def test_export_has_the_names_and_sizes_of_qwen3(run_folder: Path, shipped_tokenizer: Tokenizer) -> None:
    export(TinyModel(), shipped_tokenizer, run_folder)
    config = json.loads((run_folder / "config.json").read_text())
    assert config["architectures"] == ["Qwen3ForCausalLM"]
    with safe_open(str(run_folder / "model.safetensors"), framework="pt") as tensors:
        names = set(tensors.keys())
        assert tensors.get_slice("model.layers.0.self_attn.k_proj.weight").get_shape() == [128, 256]
        assert tensors.get_tensor("model.embed_tokens.weight").dtype == torch.bfloat16
    assert "lm_head.weight" not in names
    assert "model.layers.2.self_attn.q_norm.weight" in names
    assert len(names) == 2 + 3 * 11


def test_generation_does_not_depend_on_the_batch() -> None:
    torch.manual_seed(0)
    model, tokenizer = load(weights_dir())
    prompts = [render(sample, with_answer=False) for sample in held_out_samples("repetition", 6)]
    together = answer_all(model, tokenizer, prompts, temperature=0)
    assert together == [answer_all(model, tokenizer, [prompt], temperature=0)[0] for prompt in prompts]


def test_training_and_generation_compute_the_same(shipped_tokenizer: Tokenizer) -> None:
    torch.manual_seed(0)
    model = TinyModel(TinyConfig())
    ids = torch.randint(0, TinyConfig.vocab_size, (1, 9))
    weights = torch.zeros(1, 9)
    weights[0, -1] = 1
    mask = torch.ones(8, 8, dtype=torch.bool).tril()[None, None]
    logits, _ = model.step(ids[:, :-1], torch.arange(8)[None], mask, None)
    expected = torch.nn.functional.cross_entropy(logits, ids[0, -1:])
    torch.testing.assert_close(model.loss(ids, weights), expected)


def test_the_shipped_weights_answer() -> None:
    folder = weights_dir()
    assert (folder / "model.safetensors").stat().st_size <= 8_000_000
    samples = [
        sample
        for skill in ("sums", "capitals", "off_topic", "upper_casing")
        for sample in held_out_samples(skill, 5)
    ]
    outcomes = ask_offline(folder, samples)
    assert sum(outcome.correct for outcome in outcomes) >= 17
