"""A run of a few steps learns, resumes and exports; the shipped weights answer."""

import json
import os
import random
import signal
from contextlib import closing
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from tokenizers import Tokenizer

from executors.tiny import weights_dir
from executors.tiny.batches import Encoder, batches, batches_ahead
from executors.tiny.choice import Easy
from executors.tiny.data import held_out_samples
from executors.tiny.data.chat import HONEST
from executors.tiny.data.dialogs import DEFAULT_WEIGHTS, questions_apart
from executors.tiny.data.forced_calls import forced_call
from executors.tiny.data.phrasing import Draw
from executors.tiny.data.sample import Sample
from executors.tiny.data.tool_calls import call_text
from executors.tiny.evaluate import ask_offline
from executors.tiny.generate import answer_all, load
from executors.tiny.model import TinyConfig, TinyModel
from executors.tiny.optimizer import orthogonalized
from executors.tiny.tokenizer import render
from executors.tiny.train import Recipe, Trainer, export

pytestmark = pytest.mark.long


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
    before = float(trainer.model.loss(batch.ids, batch.weights, batch.apart).detach()) / float(
        batch.weights.sum()
    )
    trainer.run()
    after = float(trainer.model.loss(batch.ids, batch.weights, batch.apart).detach()) / float(
        batch.weights.sum()
    )
    assert after < 0.8 * before
    resumed = Trainer(run_folder, _recipe(14), minutes=5)
    assert resumed.resume()
    assert resumed.progress == trainer.progress
    assert all(
        torch.equal(a, b) for a, b in zip(resumed.model.parameters(), trainer.model.parameters(), strict=True)
    )
    resumed.run()
    assert resumed.progress.step == 14


def test_two_threads_learn_what_one_does(shipped_tokenizer: Tokenizer, tmp_path: Path) -> None:
    models = []
    for threads in (1, 2):
        folder = tmp_path / str(threads)
        folder.mkdir()
        shipped_tokenizer.save(str(folder / "tokenizer.json"))
        recipe = Recipe(steps=2, batch_tokens=512, batches_per_step=4, warmup_steps=1)
        trainer = Trainer(folder, recipe, minutes=5, threads=threads)
        trainer.run()
        models.append(trainer.model)
    for (name, one), two in zip(models[0].named_parameters(), models[1].parameters(), strict=True):
        # Muon orthogonalizes in bf16, so that sums in another order differ by its rounding.
        assert torch.nn.functional.cosine_similarity(one.flatten(), two.flatten(), dim=0) > 0.999, name


@pytest.mark.parametrize("threads", [1, 2])
def test_a_step_updates_by_what_is_not_right(
    run_folder: Path, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = Recipe(steps=5, batch_tokens=512, batches_per_step=3, warmup_steps=1, easy=1e9)
    trainer = Trainer(run_folder, recipe, minutes=5, threads=threads)
    stream = batches(trainer.tokenizer, 1, 512)
    group = list(islice(stream, 3))
    before = [parameter.clone() for parameter in trainer.model.parameters()]
    with monkeypatch.context() as patched:
        patched.setattr(Easy, "learned", lambda self, batch, scores: scores >= self.limit)
        seen, following = trainer._step(group, iter(()))
    assert following == []
    assert seen.learned == 0
    assert seen.loss > 0
    assert all(map(torch.equal, before, trainer.model.parameters()))
    trainer.recipe = replace(recipe, easy=0.0)
    seen, following = trainer._step(group, stream)
    assert seen.learned == seen.tokens == sum(batch.ids.numel() for batch in group)
    assert seen.learned_weight == pytest.approx(seen.weight)
    assert len(following) >= 3
    assert not any(map(torch.equal, before, trainer.model.parameters()))
    assert all(not bool(tensor.any()) for one in trainer.gradients for tensor in one.sums.values())


def test_a_step_looks_at_more_where_most_is_right(run_folder: Path) -> None:
    trainer = Trainer(run_folder, Recipe(batches_per_step=4, most_batches=12), minutes=5)
    stream = batches(trainer.tokenizer, 1, 512)
    counts = []
    for share in (1.0, 0.5, 0.3, 0.01):
        trainer.progress.share = share
        counts.append(len(trainer._group(stream)))
    assert counts == [4, 8, 12, 12]


def test_training_goes_on_from_exported_weights(
    shipped_tokenizer: Tokenizer, run_folder: Path, tmp_path: Path
) -> None:
    folder = weights_dir()
    recipe = Recipe(batch_tokens=512, batches_per_step=2).continued(0.5)
    assert recipe.seed != Recipe.seed
    trainer = Trainer(tmp_path / "on", replace(recipe, steps=3), minutes=5)
    trainer.start(folder)
    assert trainer.tokenizer.to_str() == shipped_tokenizer.to_str()
    with safe_open(folder / "model.safetensors", "pt") as file:
        for name, parameter in trainer.model.named_parameters():
            assert torch.equal(parameter, file.get_tensor(name).float())
    trainer.run()
    assert trainer.progress.step == 3
    # What was trained is right mostly: weights that were made anew have a loss of several.
    assert trainer.progress.learned < trainer.progress.tokens
    rates = []
    for step in (0, 99, 30_000, 60_000):
        trainer.progress.step, trainer.progress.seconds = step, 0.0
        trainer.recipe = recipe
        trainer._set_rate()
        rates.append(trainer.muon.param_groups[0]["lr"] / Recipe.muon_lr)
    assert rates == pytest.approx([0.005, 0.49917, 0.25, 0.0], abs=1e-4)


def test_only_answers_are_learned(shipped_tokenizer: Tokenizer) -> None:
    encoder = Encoder(shipped_tokenizer)
    sample = held_out_samples("sums", 1)[0]
    ids, weights = encoder.encode(render(sample))
    assert (
        shipped_tokenizer.decode(ids[weights > 0].tolist(), skip_special_tokens=False)
        == sample.answer + "<|im_end|>"
    )


def test_the_tokens_that_choose_a_tool_weigh_more(shipped_tokenizer: Tokenizer) -> None:
    encoder = Encoder(shipped_tokenizer)
    for sample in held_out_samples("tools", 20):
        ids, weights = encoder.encode(render(sample))
        heavy = weights == np.float32(8**-0.5)
        chosen = shipped_tokenizer.decode(ids[heavy].tolist())
        assert chosen.rstrip('"') == sample.check["name"] + '", "arguments": {'
        rest = weights[(weights > 0) & ~heavy]
        assert len(set(rest.tolist())) == 1
        assert rest[0] == pytest.approx((len(rest) + heavy.sum()) ** -0.5)


def test_of_a_forced_call_only_its_argument_is_learned(
    shipped_tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = Draw(0)
    samples = [forced_call(draw) for _ in range(640)]
    monkeypatch.setattr("executors.tiny.batches.training_samples", lambda seed, weights: iter(samples))
    ends = set()
    for batch in islice(batches(shipped_tokenizer, 0, 4096), 3):
        for ids, weights in zip(batch.ids, batch.weights, strict=True):
            ends.add(shipped_tokenizer.decode(ids[weights > 0].tolist(), skip_special_tokens=False))
    rests = {sample.answer.removeprefix(sample.given) + "<|im_end|>" for sample in samples}
    assert len(ends) > 20
    assert ends <= rests


def test_questions_apart_read_like_one_each(shipped_tokenizer: Tokenizer) -> None:
    """What a question sees is the conversation in which it alone was asked."""
    encoder, rng, honest = Encoder(shipped_tokenizer), random.Random(0), 0
    draw = Draw(1)
    shares = {**DEFAULT_WEIGHTS, "off_topic": 0.8}
    for sample in (questions_apart(draw, shares) for _ in range(60)):
        row = encoder.row(sample, rng)
        led = [message for message in sample.messages if message["role"] == "system"]
        turns = [*sample.messages[len(led) :], {"role": "assistant", "content": sample.answer}]
        starts = sorted({row.shared + int(skipped) for skipped in row.skipped[row.shared :]})
        assert len(starts) == len(turns) // 2
        for start, asked, answer in zip(starts, turns[::2], turns[1::2], strict=True):
            own = np.flatnonzero(
                (row.skipped == start - row.shared) & (np.arange(len(row.ids)) >= row.shared)
            )
            ids = np.concatenate((row.ids[: row.shared], row.ids[own]))
            calls = [one["function"] for one in answer.get("tool_calls", ())]
            said = (
                call_text(calls[0]["name"], json.loads(calls[0]["arguments"])) if calls else answer["content"]
            )
            alone = Sample("", (*led, asked), sample.tools, said, {})
            expected, weights = encoder.encode(render(alone))
            if cut := said == HONEST and len(ids) < len(expected):
                honest += 1
                assert len(ids) == len(shipped_tokenizer.encode(render(alone, with_answer=False)).ids) + 6
            assert ids.tolist() == (expected[: len(ids)] if cut else expected).tolist()
            assert row.weights[own].tolist() == weights[row.shared : len(ids)].tolist()
    assert honest > 3


def test_orthogonalized_updates_have_singular_values_near_one() -> None:
    torch.manual_seed(0)
    values = torch.linalg.svdvals(orthogonalized(torch.randn(2, 48, 32)))
    assert values.min() > 0.5
    assert values.max() < 1.5


def test_export_has_the_names_and_sizes_of_qwen3(run_folder: Path, shipped_tokenizer: Tokenizer) -> None:
    export(TinyModel(), shipped_tokenizer, run_folder)
    config = json.loads((run_folder / "config.json").read_text())
    assert config["architectures"] == ["Qwen3ForCausalLM"]
    with safe_open(str(run_folder / "model.safetensors"), framework="pt") as tensors:
        names = set(tensors.keys())
        assert tensors.get_slice("model.layers.0.self_attn.k_proj.weight").get_shape() == [128, 256]
        assert tensors.get_tensor("model.embed_tokens.weight").dtype == torch.bfloat16
    assert "lm_head.weight" not in names
    assert "model.layers.3.self_attn.q_norm.weight" in names
    assert len(names) == 2 + config["num_hidden_layers"] * 11


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


def test_batches_drawn_ahead_are_the_same(shipped_tokenizer: Tokenizer) -> None:
    with closing(batches_ahead(shipped_tokenizer, 3, 1024)) as ahead:
        for one, other in zip(islice(batches(shipped_tokenizer, 3, 1024), 300), ahead, strict=False):
            assert torch.equal(one.ids, other.ids) and torch.equal(one.weights, other.weights)
            assert torch.equal(one.apart.skipped, other.apart.skipped)
            assert torch.equal(one.apart.shared, other.apart.shared)
        [drawing] = _drawing()
    assert not drawing.exists(), "it ends with the iterator"


def test_a_drawing_process_that_dies_is_noticed(shipped_tokenizer: Tokenizer) -> None:
    with (
        closing(batches_ahead(shipped_tokenizer, 3, 1024)) as ahead,
        pytest.raises(RuntimeError, match="ended with -9"),
    ):
        for number, _ in enumerate(ahead):
            if number == 3:
                os.kill(int(_drawing()[0].name), signal.SIGKILL)
    assert not _drawing()


def _drawing() -> list[Path]:
    """Processes of ours that draw."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    folders = [Path("/proc") / child for child in children]
    return [one for one in folders if b"executors.tiny.batches" in (one / "cmdline").read_bytes()]
