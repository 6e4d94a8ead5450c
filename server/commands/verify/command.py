"""`cohort verify`: does this server compute what transformers computes?

Templates and token ids are made here, by the code that serves; what they are compared with, and all numbers, come from a
process that has torch and transformers (executors/llm/tools/compare.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

from server.commands.common import INTERRUPTED, fail, print_json, take_interrupts
from server.commands.find_model import find_model
from server.commands.options import AsJson, ModelArgument, Text, flag, with_settings
from server.commands.verify.cases import DIFFERENT, EQUAL, NOT_THERE

if TYPE_CHECKING:
    from pathlib import Path

    from engine.text.tokenizer import Tokenizer
    from server.templates.template import ChatTemplate

DTYPES = ("float32", "bfloat16", "float16")

Ask = Callable[[dict[str, Any]], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Options:
    """What to compare, and how closely. `tolerance` None: by transformers' own rounding, see executors/llm/tools/compare.py."""

    tokens: int = 32
    dtype: str = "float32"
    device: str = "auto"
    tolerance: float | None = None
    prompts: tuple[str, ...] = ()
    num_threads: int | None = None
    lora: Path | None = None


@with_settings(("revision", "download_dir"))
def verify(
    model: ModelArgument = None,
    reference: Annotated[
        Text, flag("Directory that transformers loads instead of MODEL.", "--reference", metavar="DIR")
    ] = None,
    prompts: Annotated[
        Text,
        flag(
            "File with one prompt per line, for logits and greedy text [built-in prompts].",
            "--prompts",
            metavar="FILE",
        ),
    ] = None,
    lora: Annotated[
        Text,
        flag(
            "Directory or GGUF file of a LoRA adapter, which PEFT adds to the reference. Needs PEFT.",
            "--lora",
            metavar="DIR",
        ),
    ] = None,
    tokens: Annotated[int, flag("Number of tokens of greedy text per prompt [32].", "--tokens")] = 32,
    dtype: Annotated[str, flag("Data type: float32, bfloat16 or float16 [float32].", "--dtype")] = "float32",
    device: Annotated[
        str, flag("Device of Cohort; transformers runs on the CPU [auto].", "--device")
    ] = "auto",
    tolerance: Annotated[
        float | None,
        flag(
            "Maximum difference of a logit from its float64 value [twice that of transformers].",
            "--tolerance",
        ),
    ] = None,
    as_json: AsJson = False,
    **flags: Any,
) -> None:
    """Compare a model with transformers.

    Compares chat templates, token ids, logits (of whole prompts and of prompts in chunks) and greedy text; of an encoder token
    ids, pairs, vectors and labels.
    Exit code 0: all are equal within the tolerance; 1: something differs. Needs the extra [verify].
    """
    from server.commands.common import console
    from server.commands.verify import view
    from server.model_files.ollama_package import read_package
    from server.system.executor_tool import ToolError, ask

    _check(tokens, dtype, tolerance)
    _require("transformers", "transformers")
    if lora is not None:
        _require("peft", "PEFT")
    options = Options(
        tokens, dtype, device, tolerance, _read_prompts(prompts),
        lora=None if lora is None else _adapter(lora),
    )  # fmt: skip
    take_interrupts()
    _, name, directory = find_model({"model": model, **flags})
    package = read_package(directory)
    if package is not None and package.adapter is not None:
        if lora is not None:
            fail(f"--lora: {package.where} has an adapter of its own")
        _require("peft", "PEFT")
        options = replace(options, lora=package.adapter)
    other = directory if reference is None else _directory("--reference", reference)
    screen = console(stderr=True)
    try:
        with screen.status("starting") as status:
            report = compare(
                directory, other, options, lambda job: ask("compare", job, lambda text: status.update(text))
            )
    except ToolError as error:
        fail(str(error), 1)
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
    if as_json:
        print_json(report)
    else:
        view.show(report, model or name)
    raise SystemExit(0 if report["equal"] else 1)


def compare(directory: Path, reference: Path, options: Options, ask: Ask) -> dict[str, Any]:
    """The whole report as plain data. `ask` is given the job of `executors.llm.tools.compare` and raises as it does.

    Ends the process for prompts that nothing can tokenize.
    """
    from server.commands.verify import encoder
    from server.commands.verify.cases import PROMPTS, TEXTS, conversations

    tokenizer, template, problem = _text_side(directory)
    if tokenizer is None and options.prompts:
        fail(f"--prompts needs a tokenizer: {problem}")
    cases = conversations() if template is not None else []
    texts = [*TEXTS, *options.prompts]
    if tokenizer is not None:
        texts += [f"before{token}after" for token in sorted(set(tokenizer.special_tokens.values()))]
    prompts, ids = _prompts(tokenizer, template, cases, options.prompts or PROMPTS, not options.prompts)
    pairs = None if tokenizer is None else encoder.pairs_of(tokenizer)
    answer = ask(
        {
            "model": str(directory),
            "reference": str(reference),
            "dtype": options.dtype,
            "device": options.device,
            "tolerance": options.tolerance,
            "tokens": options.tokens,
            "num_threads": options.num_threads,
            "lora": None if options.lora is None else str(options.lora),
            "has_tokenizer": tokenizer is not None,
            "conversations": cases,
            "texts": texts,
            "prompts": ids,
            "pairs": pairs,
        }
    )
    if "text_problem" in answer:
        tokenizer, template, problem = None, None, f"text is not compared: {answer['text_problem']}"
    parts = {"token_ids": _token_ids(tokenizer, texts, answer)}
    if answer.get("encoder"):
        parts |= encoder.parts(pairs, answer)
    else:
        parts |= {
            "templates": _templates(template, cases, answer),
            "logits": _logits(answer),
            "greedy": _greedy(tokenizer, prompts, answer),
        }
    about = ("transformers", "torch", "tolerance", "own_rounding", "largest")
    return {
        "equal": all(part["outcome"] != DIFFERENT for part in parts.values() if isinstance(part, dict)),
        "dtype": options.dtype,
        **{name: answer[name] for name in about},
        "peft": answer.get("peft"),
        "note": problem,
        **parts,
    }


def _text_side(directory: Path) -> tuple[Tokenizer | None, ChatTemplate | None, str | None]:
    """Tokenizer and template as the server reads them, and why there is none."""
    from engine.text.tokenizer import Tokenizer, has_tokenizer
    from executors.contract import ConfigError
    from server.templates.template import ChatTemplate

    if not has_tokenizer(directory):
        return None, None, f"{directory} has no tokenizer.json"
    try:
        tokenizer = Tokenizer.load(directory)
        if tokenizer.chat_template is None:
            return tokenizer, None, None
        return tokenizer, ChatTemplate(tokenizer.chat_template, tokenizer.special_tokens), None
    except ConfigError as error:
        fail(str(error), 1)


def _prompts(
    tokenizer: Tokenizer | None,
    template: ChatTemplate | None,
    cases: Sequence[dict[str, Any]],
    texts: Sequence[str],
    with_chat: bool,
) -> tuple[list[str], list[list[int]] | None]:
    """Texts for logits and greedy tokens, and their ids (None without a tokenizer). `with_chat`: a conversation too, whose
    template has written the special tokens already."""
    if tokenizer is None:
        return list(texts), None
    ids = [tokenizer.encode(text) for text in texts]
    chat = _render(template, cases[0]).get("text") if template is not None and with_chat else None
    if chat is None:
        return list(texts), ids
    return [*texts, chat], [*ids, tokenizer.encode(chat, add_special_tokens=False)]


def _templates(
    template: ChatTemplate | None, cases: Sequence[dict[str, Any]], answer: dict[str, Any]
) -> dict[str, Any]:
    if template is None:
        return {"outcome": NOT_THERE, "compared": 0, "refused": 0, "differences": []}
    differences, refused = [], 0
    for case, theirs in zip(cases, answer["templates"], strict=True):
        ours = _render(template, case)
        if "text" not in ours and "text" not in theirs:
            refused += 1  # both, as the template wants it
        elif ours.get("text") != theirs.get("text"):
            differences.append({"conversation": case["name"], "ours": ours, "theirs": theirs})
    return {
        "outcome": DIFFERENT if differences else EQUAL,
        "compared": len(cases),
        "refused": refused,
        "differences": differences,
    }


def _render(template: ChatTemplate, case: dict[str, Any]) -> dict[str, str]:
    from engine.errors import InvalidRequest

    try:
        text = template.render(case["messages"], case["tools"], case["generation_prompt"])
    except InvalidRequest as error:
        return {"refused": error.message}
    return {"text": text}


def _token_ids(tokenizer: Tokenizer | None, texts: Sequence[str], answer: dict[str, Any]) -> dict[str, Any]:
    if tokenizer is None:
        return {"outcome": NOT_THERE, "compared": 0, "ids": 0, "differences": []}
    differences, total = [], 0
    for text, theirs in zip(texts, answer["ids"], strict=True):
        ours = tokenizer.encode(text)
        total += len(theirs)
        if ours != theirs:
            differences.append({"text": text, "ours": ours, "theirs": theirs})
    return {
        "outcome": DIFFERENT if differences else EQUAL,
        "compared": len(texts),
        "ids": total,
        "differences": differences,
    }


def _logits(answer: dict[str, Any]) -> dict[str, Any]:
    rows = [
        {
            name: row[name]
            for name in ("length", "whole", "chunked", "chunked_positions", "largest", "logits_equal")
        }
        for row in answer["prompts"]
    ]
    return {"outcome": EQUAL if all(row["logits_equal"] for row in rows) else DIFFERENT, "prompts": rows}


def _greedy(tokenizer: Tokenizer | None, prompts: Sequence[str], answer: dict[str, Any]) -> dict[str, Any]:
    """Token by token, and as text where there is a tokenizer: the same ids must read the same."""
    rows = []
    for i, row in enumerate(answer["prompts"]):
        entry = {name: row[name] for name in ("agreed", "of", "gap", "ours", "theirs")}
        entry["equal"] = row["greedy_equal"]
        if tokenizer is not None:
            texts = {"ours_text": tokenizer.decode(row["ours"]), "theirs_text": row["theirs_text"]}
            entry |= {"prompt": prompts[i], **texts}
            if row["ours"] == row["theirs"] and texts["ours_text"] != texts["theirs_text"]:
                entry["equal"] = False
        rows.append(entry)
    return {"outcome": EQUAL if all(row["equal"] for row in rows) else DIFFERENT, "prompts": rows}


# -- what the flags may be -------------------------------------------------------------------------------------------------


def _check(tokens: int, dtype: str, tolerance: float | None) -> None:
    if tokens < 1:
        fail(f"--tokens {tokens}: at least 1 is needed")
    if dtype not in DTYPES:
        fail(f"--dtype {dtype}: it should be one of {', '.join(DTYPES)}")
    if tolerance is not None and not tolerance >= 0:
        fail(f"--tolerance {tolerance}: it should be 0 or more")


def _require(module: str, name: str) -> None:
    from importlib.util import find_spec

    if find_spec(module) is None:
        fail(f"verify compares with {name}, which is not installed: pip install 'cohort-server[verify]'")


def _read_prompts(name: str | None) -> tuple[str, ...]:
    from pathlib import Path

    if name is None:
        return ()
    try:
        lines = Path(name).expanduser().read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        fail(f"--prompts {name}: {getattr(error, 'strerror', None) or 'not readable as text'}")
    prompts = tuple(line for line in lines if line.strip())
    if not prompts:
        fail(f"--prompts {name}: there is no prompt in it")
    return prompts


def _adapter(name: str) -> Path:
    from pathlib import Path

    path = Path(name).expanduser().resolve()
    return path if path.suffix == ".gguf" and path.is_file() else _directory("--lora", name)


def _directory(flag: str, name: str) -> Path:
    from pathlib import Path

    directory = Path(name).expanduser().resolve()
    if not directory.is_dir():
        fail(f"{flag} {name}: no such directory")
    return directory
