"""Train `cohort-tiny` on the generator's text: `python -m executors.tiny.train --out DIR --minutes M [--start WEIGHTS] [--resume]`."""

import argparse
import json
import shutil
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor

from executors.tiny.batches import Batch, batches_ahead
from executors.tiny.choice import Easy, Seen, scores
from executors.tiny.fused import Gradients, Weights, rounded
from executors.tiny.model import TinyConfig, TinyModel
from executors.tiny.optimizer import Muon
from executors.tiny.tokenizer import build_from_generator, save, token_id

_CHECKPOINT = "checkpoint.pt"
_CHECKPOINT_SECONDS = 120
_LOG_EVERY = 50
_PACE = 0.02
"""How fast the running mean follows a step."""


@dataclass(frozen=True)
class Recipe:
    """How the model is trained: at most 18,000 steps of about 5,900 tokens, an hour on two free cores."""

    seed: int = 0
    steps: int = 18000
    batch_tokens: int = 1664
    batches_per_step: int = 4
    muon_lr: float = 0.02
    adam_lr: float = 0.004
    weight_decay: float = 0.01
    warmup_steps: int = 30
    decay_from: float = 0.35
    easy: float = 0.1
    """A conversation whose loss is less is right already, and not learned again: in sums no digit is less likely than 0.87, say."""
    most_batches: int = 12
    """Batches that a step looks at when most of what is in them is right."""

    def continued(self, rate: float) -> "Recipe":
        """Return how weights that were trained are trained on: other text, at `rate` of the rates, which decays from the start."""
        return replace(
            self, seed=self.seed + 500_000, muon_lr=self.muon_lr * rate, adam_lr=self.adam_lr * rate, warmup_steps=100,
            decay_from=0.0, steps=60_000,
        )  # fmt: skip


@dataclass
class Progress:
    """Where a run stands; kept in the checkpoint."""

    step: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    """CPU time of all threads: on a machine that does other things too, it tells how long the run would take alone."""
    tokens: int = 0
    learned: int = 0
    """Tokens of conversations that were not right already."""
    share: float = 1.0
    """Running mean of the share of tokens that is learned."""
    history: list[dict[str, float]] = field(default_factory=list)


class Trainer:
    """A resumable training run in one folder."""

    def __init__(self, out: Path, recipe: Recipe, minutes: float, threads: int = 2) -> None:
        self.out, self.recipe, self.limit = out, recipe, minutes * 60
        torch.manual_seed(recipe.seed)
        out.mkdir(parents=True, exist_ok=True)
        self.tokenizer = self._tokenizer()
        self.model = TinyModel(TinyConfig())
        # Each thread computes a part of a step's batches on its own: two of them share nothing that they would wait for.
        self.threads = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))
        self.gradients = [Gradients(self.model) for _ in range(threads)]
        matrices = [p for name, p in self.model.named_parameters() if p.dim() == 2 and "embed" not in name]
        others = [p for name, p in self.model.named_parameters() if p.dim() != 2 or "embed" in name]
        self.muon = Muon(matrices, recipe.muon_lr, weight_decay=recipe.weight_decay, each=self.threads.map)
        self.adam = torch.optim.AdamW(others, recipe.adam_lr, betas=(0.9, 0.98), weight_decay=0.0)
        self.progress = Progress()

    def _tokenizer(self) -> Tokenizer:
        """Return the run's tokenizer, built on first use."""
        path = self.out / "tokenizer.json"
        if not path.exists():
            build_from_generator().save(str(path))
        return Tokenizer.from_file(str(path))

    def start(self, folder: Path) -> None:
        """Begin with the weights and the tokenizer that were exported to `folder`."""
        shutil.copy(folder / "tokenizer.json", self.out / "tokenizer.json")
        self.tokenizer = self._tokenizer()
        tensors = load_file(folder / "model.safetensors")
        self.model.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})

    def resume(self) -> bool:
        """Load the checkpoint if there is one, and tell whether there was."""
        path = self.out / _CHECKPOINT
        if not path.exists():
            return False
        state = torch.load(path, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.muon.load_state_dict(state["muon"])
        self.adam.load_state_dict(state["adam"])
        self.progress = Progress(**state["progress"])
        return True

    def checkpoint(self) -> None:
        """Write everything needed to go on; replaces the file at once, so that a kill never leaves half of it."""
        state = {
            "model": self.model.state_dict(),
            "muon": self.muon.state_dict(),
            "adam": self.adam.state_dict(),
            "progress": asdict(self.progress),
        }
        partial = self.out / (_CHECKPOINT + ".partial")
        torch.save(state, partial)
        partial.replace(self.out / _CHECKPOINT)

    def done(self) -> float:
        """Return the share of the run that is over: of its steps or of its time, whichever is further."""
        return max(self.progress.step / self.recipe.steps, self.progress.seconds / self.limit)

    def _set_rate(self) -> None:
        """Set the learning rates: warm up, stay, and decay to zero over the last part."""
        recipe = self.recipe
        factor = min(1.0, (self.progress.step + 1) / recipe.warmup_steps)
        factor *= min(1.0, max(0.0, 1 - self.done()) / (1 - recipe.decay_from))
        self.muon.param_groups[0]["lr"] = recipe.muon_lr * factor
        self.adam.param_groups[0]["lr"] = recipe.adam_lr * factor

    def run(self) -> None:
        """Train until the steps or the minutes are used up."""
        recipe = self.recipe
        # A resumed run draws fresh text: the seed moves on with the step.
        stream = batches_ahead(self.tokenizer, recipe.seed + 1000 + self.progress.step, recipe.batch_tokens)
        with closing(stream):
            self._run(stream)
        self.checkpoint()

    def _run(self, stream: Iterator[Batch]) -> None:
        """Make steps until there are enough."""
        group = self._group(stream)
        saved = time.monotonic()
        while self.done() < 1:
            began, cpu_began = time.monotonic(), time.process_time()
            self._set_rate()
            seen, group = self._step(group, stream)
            progress = self.progress
            progress.step += 1
            progress.tokens += seen.tokens
            progress.learned += seen.learned
            progress.seconds += time.monotonic() - began
            progress.cpu_seconds += time.process_time() - cpu_began
            if progress.step % _LOG_EVERY == 0:
                rate = seen.tokens / (time.monotonic() - began)
                entry = {"step": progress.step, "loss": seen.loss / seen.weight, "tokens": progress.tokens}
                progress.history.append(entry)
                print(f"step {progress.step} loss {entry['loss']:.4f} tokens {progress.tokens} learned {progress.share:.2f} "
                      f"{rate:.0f}/s lr {self.muon.param_groups[0]['lr']:.4f} {progress.seconds / 60:.1f} min, CPU {progress.cpu_seconds / 60:.1f} min", flush=True)  # fmt: skip
            if time.monotonic() - saved > _CHECKPOINT_SECONDS:
                self.checkpoint()
                saved = time.monotonic()

    def _group(self, stream: Iterator[Batch]) -> list[Batch]:
        """Return the batches of a step, as many as it takes to learn about as many tokens whatever is right already."""
        recipe = self.recipe
        return list(
            islice(stream, min(recipe.most_batches, round(recipe.batches_per_step / self.progress.share)))
        )

    def _step(self, group: Sequence[Batch], stream: Iterator[Batch]) -> tuple[Seen, list[Batch]]:
        """Make one optimizer step over `group`; return what was seen, and the next group."""
        matrices, progress = rounded(self.model), self.progress
        # Widest first, and whoever is free takes the next: how much of a batch is learned shows on the way.
        waiting = iter(sorted(group, key=lambda batch: -batch.ids.shape[1]))
        easy = Easy(self.recipe.easy, progress.share)
        parts = [
            self.threads.submit(_add, gradients, matrices, waiting, easy) for gradients in self.gradients
        ]
        following = self._group(stream)
        seen = Seen()
        for part in parts:
            seen.add(part.result())
        if seen.learned_weight:
            self._update(seen.learned_weight)
        progress.share += _PACE * (seen.learned / seen.tokens - progress.share)
        return seen, following

    def _update(self, weight: float) -> None:
        """Update the weights from the threads' sums of gradients, over `weight`, and clear these."""
        first, *others = (gradients.sums for gradients in self.gradients)
        for name, parameter in self.model.named_parameters():
            parameter.grad = first[name]
            for other in others:
                parameter.grad.add_(other[name])
            parameter.grad.div_(weight)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.muon.step()
        self.adam.step()
        for gradients in self.gradients:
            for tensor in gradients.sums.values():
                tensor.zero_()


def _add(gradients: Gradients, matrices: Weights, waiting: Iterator[Batch], easy: Easy) -> Seen:
    """Add the gradients of batches that are `waiting`, but for what is `easy`."""
    seen = Seen()
    for batch in waiting:
        seen.add(_add_batch(gradients, matrices, batch, easy))
    return seen


def _add_batch(gradients: Gradients, matrices: Weights, batch: Batch, easy: Easy) -> Seen:
    """Add the gradients of one batch."""
    seen = Seen(tokens=batch.ids.numel())

    def choose(losses: Tensor) -> Tensor:
        chosen = easy.learned(batch, scores(batch, losses))
        seen.loss, seen.learned = float(losses.sum()), int(chosen.sum()) * batch.ids.shape[1]
        weights = batch.weights[:, 1:].sum(dim=1)
        seen.weight, seen.learned_weight = float(weights.sum()), float(weights[chosen].sum())
        return chosen

    gradients.add_chosen(matrices, batch.ids, batch.weights, choose, batch.apart)
    return seen


def export(model: TinyModel, tokenizer: Tokenizer, folder: Path) -> None:
    """Write `model` in bf16 and `tokenizer` into `folder` in Hugging Face layout."""
    folder.mkdir(parents=True, exist_ok=True)
    eos, pad = token_id(tokenizer, "<|im_end|>"), token_id(tokenizer, "<|endoftext|>")
    tensors = {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in model.state_dict().items()}
    save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})
    generation = {"do_sample": True, "temperature": 0.2, "eos_token_id": [eos, pad], "pad_token_id": pad}
    for name, content in (("config", model.config.to_hf(eos, pad)), ("generation_config", generation)):
        (folder / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    save(tokenizer, folder)


def main(argv: Sequence[str] | None = None) -> None:
    """Train, checkpoint and export."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--out", type=Path, required=True, help="folder for the checkpoint and, under weights/, the export"
    )
    parser.add_argument(
        "--minutes", type=float, default=60, help="time limit; the learning rate decays to zero by then"
    )
    parser.add_argument("--steps", type=int, help="step limit")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint in --out")
    parser.add_argument("--start", type=Path, help="folder of exported weights to train on")
    parser.add_argument("--rate", type=float, default=0.5, help="with --start: part of a new run's rates")
    parser.add_argument("--seed", type=int, default=Recipe.seed, help="of the text and of new weights")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args(argv)
    torch.set_num_threads(1)
    recipe = Recipe(seed=arguments.seed)
    if arguments.start is not None:
        recipe = recipe.continued(arguments.rate)
    if arguments.steps is not None:
        recipe = replace(recipe, steps=arguments.steps)
    trainer = Trainer(arguments.out, recipe, arguments.minutes, arguments.threads)
    if arguments.start is not None:
        trainer.start(arguments.start)
    if arguments.resume:
        print("resumed" if trainer.resume() else "no checkpoint, starting anew", flush=True)
    trainer.run()
    export(trainer.model, trainer.tokenizer, arguments.out / "weights")
    progress = trainer.progress
    print(
        f"{progress.tokens} tokens in {progress.seconds / 60:.1f} minutes, {progress.cpu_seconds / 60:.1f} of CPU time",
        flush=True,
    )


if __name__ == "__main__":
    main()
