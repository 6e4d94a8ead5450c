"""`cohort verify` finds every family equal to transformers, and finds what was made different."""

from __future__ import annotations

import base64
import importlib.util
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from executors.contract.errors import ConfigError
from executors.llm.model.config import read_config
from executors.llm.model.families import FAMILIES
from executors.llm.tools import compare
from executors.llm.tools.reference import ReferenceText
from executors.lora import pack
from executors.tiny import weights_dir
from server.commands.verify import command as verb
from server.commands.verify import view
from tests.executors.llm.models import build
from tests.executors.lora.peft_files import write_peft
from tests.tiers import sweep

pytestmark = pytest.mark.long

SHAPES = (
    "qwen3-window-on-last-layers", "llama-biases-llama3-rope", "mistral-window", "qwen2-window-on-last-layers-yarn",
    "qwen3-moe", "gemma-one-kv-head", "gemma2-caps-alternating-windows", "gemma3-two-ropes", "phi3-window", "olmo2",
    "smollm3-some-layers-without-rope", "gpt2", "mixtral", "olmoe", "granite", "gemma3-beside-images",
    "mistral-beside-images", "ministral3-growing-queries", "qwen2-moe-windows-some-dense-layers", "qwen3-beside-images",
    "glm4-neighbours-of-half-a-head", "olmo3-windows-yarn", "exaone4-windows-rotated-alone", "hunyuan-norms-last-alpha",
    "gemma4-experts-beside-mlp", "gemma4-beside-images", "gemma4-unified", "gemma4-unified-beside-images",
    "gpt-oss-sinks-windows", "lfm2-short-convolutions", "lfm2-moe-sigmoid-router", "qwen3-next", "qwen3.5",
    "qwen3.5-beside-images", "qwen3.5-moe", "qwen3.5-moe-beside-images",
)  # fmt: skip

CONVERSATION = {"messages": [{"role": "user", "content": "Hi"}], "tools": [], "generation_prompt": True}


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def tiny_copy(tmp_path: Path) -> Path:
    """A copy of the embedded checkpoint to change."""
    return Path(shutil.copytree(weights_dir(), tmp_path / "copy"))


def in_process(job: dict[str, Any]) -> dict[str, Any]:
    """As the child does it: what travels is plain JSON."""
    return json.loads(json.dumps(compare.run(json.loads(json.dumps(job)), lambda stage: None)))


def compared(model: Path, reference: Path | None = None, **options: Any) -> dict[str, Any]:
    chosen = verb.Options(**{"tokens": 8, "num_threads": 1, **options})
    return verb.compare(model, reference or model, chosen, in_process)


def test_a_template_that_stands_where_processors_have_it(tiny_copy: Path) -> None:
    """transformers' tokenizers do not look there, the server does."""
    template = tiny_copy / "chat_template.jinja"
    (tiny_copy / "chat_template.json").write_text(json.dumps({"chat_template": template.read_text()}))
    template.unlink()
    settings = json.loads((tiny_copy / "tokenizer_config.json").read_text())
    settings.pop("chat_template", None)
    (tiny_copy / "tokenizer_config.json").write_text(json.dumps(settings))
    assert ReferenceText(tiny_copy).render(CONVERSATION) == ReferenceText(weights_dir()).render(CONVERSATION)
    (tiny_copy / "chat_template.json").unlink()
    assert "refused" in ReferenceText(tiny_copy).render(CONVERSATION)


@pytest.mark.long(every=6)
@sweep(every=3)
@pytest.mark.parametrize("name", SHAPES)
def test_random_models_are_equal(name: str, tmp_path: Path) -> None:
    reference = build(name, tmp_path)
    report = compared(tmp_path)
    assert report["equal"], report
    assert {part: report[part]["outcome"] for part in ("templates", "token_ids", "logits", "greedy")} == {
        "templates": "not there", "token_ids": "not there", "logits": "equal", "greedy": "equal",
    }  # fmt: skip
    rows = report["logits"]["prompts"]
    assert [row["length"] for row in rows] == [1, 12, 40]
    assert all(row["whole"] <= 1e-4 and row["chunked"] <= 1e-4 for row in rows)
    assert report["tolerance"] == max(2 * report["own_rounding"], 5e-6 * report["largest"]) < 1e-4
    # The greedy tokens are the ones that transformers' own generation gives.
    greedy = report["greedy"]["prompts"][1]
    ids = compare._prompts({"model": str(tmp_path), "tokens": 8, "prompts": None})[1]
    assert greedy["theirs"] == greedy["ours"] == reference.greedy(ids, 8)


@pytest.mark.long(every=2)
@pytest.mark.parametrize("names", [("foo",), ("model-00001-of-00002", "model-00002-of-00002")])
def test_weights_of_other_names_are_compared(names: tuple[str, ...], tmp_path: Path) -> None:
    """transformers looks for two names only."""
    build("llama-biases-llama3-rope", tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    for number, name in enumerate(names):
        part = {key: tensors[key] for key in sorted(tensors)[number :: len(names)]}
        save_file(part, tmp_path / f"{name}.safetensors")
    report = compared(tmp_path)
    assert report["equal"], report


def test_a_shape_of_every_family_is_verified() -> None:
    from tests.executors.llm.models import MODEL_CLASSES
    from tests.executors.llm.models import SHAPES as ALL

    kinds = {ALL[name][0] for name in SHAPES}
    architectures = {MODEL_CLASSES.get(kind, f"{kind}ForCausalLM") for kind in kinds}
    missing = [family.name for family in FAMILIES if not architectures & set(family.architectures)]
    assert not missing


def test_cohort_tiny_is_equal_with_its_text(tmp_path: Path) -> None:
    report = compared(weights_dir(), prompts=("Count from 2 to 5.",))
    assert report["equal"], report
    assert report["templates"]["outcome"] == report["token_ids"]["outcome"] == "equal"
    assert report["templates"]["compared"] == 14
    assert report["token_ids"]["ids"] > 500
    (greedy,) = report["greedy"]["prompts"]
    assert greedy["prompt"] == "Count from 2 to 5." and greedy["ours_text"] == greedy["theirs_text"]


def test_a_conversation_is_among_the_prompts() -> None:
    rows = compared(weights_dir())["greedy"]["prompts"]
    assert len(rows) == 4 and rows[3]["prompt"].startswith(
        "<|im_start|>user\nHello! What can you do?<|im_end|>"
    )


@pytest.mark.long(extended=True)
def test_a_narrower_dtype_may_lose_what_transformers_loses() -> None:
    report = compared(weights_dir(), dtype="bfloat16")
    assert report["equal"], report
    assert report["own_rounding"] > 1e-3
    assert report["tolerance"] == 2 * report["own_rounding"]
    assert "twice what transformers itself loses in bfloat16." in view._tolerance(report)
    strict = compared(weights_dir(), dtype="bfloat16", tolerance=1e-4)
    assert strict["logits"]["outcome"] == "different" and not strict["equal"]
    assert view._tolerance(strict).endswith("Allowed: 0.0001, as given.")


def test_the_bound_follows_transformers_rounding_and_the_largest_logit() -> None:
    """Trained models have logits of 30 to 120: no absolute bound suits them and random ones."""
    large = compare.Bound.of(None, 2e-4, 2e-4, 42.0)
    assert large.tolerance == 4e-4 and large.tie() == 2 * (4e-4 + 2e-4)
    lucky = compare.Bound.of(None, 1e-7, 1e-7, 42.0)
    assert lucky.tolerance == pytest.approx(2.1e-4)
    assert compare.Bound.of(1e-5, None, 2e-4, 42.0).tolerance == 1e-5


def change_a_weight(directory: Path) -> None:
    """One weight of 131,072, by a fifth of the RMS of its matrix."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(directory / "model.safetensors")
    weight = tensors["model.layers.1.mlp.down_proj.weight"]
    weight[3, 5] += 0.2 * weight.float().square().mean().sqrt()
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})


def change_the_rope(directory: Path) -> None:
    config = json.loads((directory / "config.json").read_text())
    fields = config.get("rope_parameters", config)
    fields["rope_theta"] *= 1.001
    (directory / "config.json").write_text(json.dumps(config))


@pytest.mark.long(every=2)
@pytest.mark.parametrize("change", [change_a_weight, change_the_rope])
def test_the_bound_finds_small_faults(tiny_copy: Path, change: Callable[[Path], None]) -> None:
    change(tiny_copy)
    report = compared(tiny_copy, weights_dir())
    assert report["logits"]["outcome"] == "different" and not report["equal"], report["logits"]
    assert compared(tiny_copy)["equal"]


def test_other_weights_differ(tiny_copy: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(tiny_copy / "model.safetensors")
    name = "model.layers.1.mlp.down_proj.weight"
    tensors[name] = tensors[name] * 1.5
    save_file(tensors, tiny_copy / "model.safetensors", {"format": "pt"})
    report = compared(tiny_copy, weights_dir())
    assert not report["equal"]
    assert report["logits"]["outcome"] == "different"
    assert report["templates"]["outcome"] == report["token_ids"]["outcome"] == "equal"


def test_another_template_differs(tiny_copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    template = tiny_copy / "chat_template.jinja"
    template.write_text(template.read_text("utf-8").replace("<|im_start|>assistant", "<|im_start|>Assistant"))
    report = compared(weights_dir(), tiny_copy)
    assert not report["equal"] and report["templates"]["outcome"] == "different"
    view.show(report, "model")
    shown = capsys.readouterr().out
    assert "Different: chat template." in shown
    assert "<|im_start|>assistant" in shown and "<|im_start|>Assistant" in shown


def test_another_tokenizer_differs(tiny_copy: Path) -> None:
    path = tiny_copy / "tokenizer.json"
    raw = json.loads(path.read_text("utf-8"))
    raw["model"]["ignore_merges"] = False  # its whole words come from that
    path.write_text(json.dumps(raw))
    report = compared(weights_dir(), tiny_copy)
    assert report["token_ids"]["outcome"] == "different" and not report["equal"]
    assert report["logits"]["outcome"] == "equal", "both get the ids made here"


@pytest.mark.long
def test_a_vocabulary_that_transformers_cannot_read_here(tiny_copy: Path) -> None:
    """It needs libraries for SentencePiece's files, which the server reads without them."""
    data = json.loads(
        (Path(__file__).parents[2] / "engine" / "text" / "sentencepiece_models.json").read_text("utf-8")
    )
    (tiny_copy / "tokenizer.json").unlink()
    (tiny_copy / "tokenizer.model").write_bytes(base64.b64decode(data["models"]["bpe"]))
    report = compared(tiny_copy)
    assert report["token_ids"]["outcome"] == "not there" and report["logits"]["outcome"] == "equal"
    assert "transformers cannot load the tokenizer" in report["note"]


def test_a_tie_may_go_either_way() -> None:
    """Two tokens as good as equally likely: what follows is not compared."""
    import numpy as np

    from executors.llm.tools.reference import Greedy

    logits = np.zeros((2, 3), np.float32)
    ours = compare._Ours([logits], [logits], [[1, 2, 0]])

    def judged(gap: float) -> dict[str, Any]:
        greedy = Greedy([1, 0, 0], [1.0, gap, 1.0])
        bound = compare.Bound(1e-4, None, 1e-5, 1.0)
        return compare._judged([5, 6], logits, greedy, ours, 0, bound, None)

    assert judged(1e-4)["greedy_equal"] and judged(1e-4)["agreed"] == 1
    assert not judged(1e-2)["greedy_equal"]


def test_numbers_that_are_none_are_no_equality() -> None:
    import numpy as np

    assert compare._distance(np.array([[np.nan]]), np.zeros((1, 1))) is None
    assert compare._distance(np.zeros((1, 2)), np.zeros((1, 1))) is None
    assert compare._distance(np.ones((1, 2)), np.zeros((1, 2))) == 1.0


def test_a_checkpoint_that_transformers_cannot_load(tiny_copy: Path) -> None:
    (tiny_copy / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match="transformers cannot load the model"):
        compared(weights_dir(), tiny_copy)


def test_tokens_beyond_the_context(tmp_path: Path) -> None:
    build("gpt2", tmp_path)
    context = read_config(tmp_path).context_length
    with pytest.raises(ConfigError, match=f"leaves no room in the model's context of {context}"):
        compared(tmp_path, tokens=context)


@pytest.mark.long(every=2)
@pytest.mark.parametrize("width", [80, 120])
def test_the_report_fits_the_terminal(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    view.show(compared(weights_dir()), "cohort-tiny")
    shown = capsys.readouterr().out
    assert all(len(line) <= width for line in shown.splitlines()), shown
    assert "8 of 8" in shown and "Equal." in shown and "in chunks" in shown


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        ({"tokens": 0}, "--tokens 0: at least 1 is needed"),
        ({"dtype": "int8"}, "--dtype int8: it should be one of float32, bfloat16, float16"),
        ({"tolerance": -1.0}, "--tolerance -1.0: it should be 0 or more"),
        ({"prompts": "/nowhere"}, "--prompts /nowhere: No such file or directory"),
        ({"reference": "/nowhere"}, "--reference /nowhere: no such directory"),
        ({"model": "/nowhere"}, "/nowhere: no such directory"),
    ],
)
def test_what_a_person_can_put_right(
    flags: dict[str, Any], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        verb.verify(**flags)
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith(f"cohort: error: {line}") and error.count("\n") == 1


def test_without_transformers(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SystemExit) as ended:
        verb.verify()
    assert ended.value.code == 2
    assert "pip install 'cohort-server[verify]'" in capsys.readouterr().err


def write_adapter(model: Path, folder: Path, seed: int) -> Path:
    with safe_open(model / "model.safetensors", "pt") as file:
        shapes = {
            name.removesuffix(".weight"): tuple(file.get_slice(name).get_shape())
            for name in file.keys()  # noqa: SIM118
            if name.endswith("_proj.weight")
        }
    write_peft(folder, shapes, rank=4, seed=seed, config={"lora_alpha": 2})
    return folder


@pytest.mark.long(every=2)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_model_with_an_adapter_is_equal_to_peft(tmp_path: Path, dtype: str) -> None:
    build("llama-biases-llama3-rope", tmp_path / "model")
    adapter = write_adapter(tmp_path / "model", tmp_path / "adapter", 1)
    report = compared(tmp_path / "model", lora=adapter, dtype=dtype)
    assert report["equal"] and report["peft"], report
    # The adapter is in it: beside the model alone nothing is equal.
    plain = compared(tmp_path / "model", dtype=dtype)
    assert plain["greedy"]["prompts"][0]["ours"] != report["greedy"]["prompts"][0]["ours"]


def test_another_adapter_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build("llama-biases-llama3-rope", tmp_path / "model")
    adapter = write_adapter(tmp_path / "model", tmp_path / "adapter", 1)
    other = write_adapter(tmp_path / "model", tmp_path / "other", 2)
    monkeypatch.setattr(compare, "pack", lambda folder, to, rank, **more: pack(other, to, rank, **more))
    report = compared(tmp_path / "model", lora=adapter)
    assert report["logits"]["outcome"] == "different", report


def test_without_peft_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "peft" else object())
    with pytest.raises(SystemExit):
        verb.verify(str(tmp_path), lora=str(tmp_path))
    said = capsys.readouterr().err
    assert "verify compares with PEFT, which is not installed: pip install 'cohort-server[verify]'" in said


def test_an_adapter_that_does_not_fit_is_told(tmp_path: Path) -> None:
    build("llama-biases-llama3-rope", tmp_path / "model")
    write_peft(tmp_path / "adapter", {"model.layers.0.self_attn.q_proj": (80, 40)}, config={"use_dora": True})
    with pytest.raises(ConfigError, match="use_dora"):
        compared(tmp_path / "model", lora=tmp_path / "adapter")
