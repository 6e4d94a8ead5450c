"""The gradients that are written out equal autograd's, but for the rounding of products to bf16."""

import random

import pytest
import torch
from torch import Tensor

from executors.kernels.compiler import KernelUnavailable, usable_isas
from executors.tiny import fused
from executors.tiny.fused import Gradients, rounded
from executors.tiny.model import Apart, TinyConfig, TinyModel

SHAPES = [(1, 2), (1, 17), (3, 33), (2, 258), (1, 700), (40, 20)]
"""(batch, tokens): one token to learn, a few rows, some more than the rows of a product, more queries than are scored at once."""


def _model(seed: int, **changes: int) -> TinyModel:
    """Return a model whose norms are not all ones."""
    torch.manual_seed(seed)
    model = TinyModel(TinyConfig(**changes))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.3, 1.7)
    return model


def _batch(model: TinyModel, shape: tuple[int, int], share: float = 0.4) -> tuple[Tensor, Tensor]:
    """Return ids and weights; every row has a token to learn."""
    ids = torch.randint(0, model.config.vocab_size, shape)
    weights = torch.rand(shape) * (torch.rand(shape) < share)
    weights[:, -1] = 1
    return ids, weights


def _autograds(
    model: TinyModel, ids: Tensor, weights: Tensor, apart: Apart | None = None
) -> tuple[float, dict[str, Tensor]]:
    model.zero_grad()
    loss = model.loss(ids, weights, apart)
    loss.backward()  # type: ignore[no-untyped-call]
    return float(loss.detach()), {
        name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None
    }


def _assert_close(ours: dict[str, Tensor], exact: dict[str, Tensor], cosine: float = 0.998) -> None:
    """Operands of products are rounded to bf16, in each of four layers."""
    assert ours.keys() == exact.keys()
    for name, gradient in exact.items():
        if gradient.norm() < 1e-4:  # queries and keys of a token that sees none but itself
            assert ours[name].norm() < 1e-4, name
            continue
        found = torch.nn.functional.cosine_similarity(ours[name].flatten(), gradient.flatten(), dim=0)
        assert found > cosine, (name, float(found))
        assert float(ours[name].norm() / gradient.norm()) == pytest.approx(1, abs=0.03), name


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gradients_equal_autograds(shape: tuple[int, int]) -> None:
    model = _model(1)
    ids, weights = _batch(model, shape)
    loss, exact = _autograds(model, ids, weights)
    gradients = Gradients(model)
    assert gradients.add(rounded(model), ids, weights) == pytest.approx(loss, rel=2e-3)
    _assert_close(gradients.sums, exact)


def test_other_sizes() -> None:
    model = _model(
        2, hidden_size=128, intermediate_size=160, num_hidden_layers=2, num_attention_heads=6, head_dim=32
    )
    ids, weights = _batch(model, (5, 48))
    loss, exact = _autograds(model, ids, weights)
    gradients = Gradients(model)
    assert gradients.add(rounded(model), ids, weights) == pytest.approx(loss, rel=2e-3)
    _assert_close(gradients.sums, exact)


def test_gradients_of_batches_add_up_whatever_ran_before() -> None:
    """A large batch first: nothing of it may be left where a small one is filled up."""
    model = _model(3)
    matrices = rounded(model)
    large, small = _batch(model, (9, 70)), _batch(model, (1, 5))
    together, apart = Gradients(model), Gradients(model)
    together.add(matrices, *large)
    first = {name: tensor.clone() for name, tensor in together.sums.items()}
    together.add(matrices, *small)
    apart.add(matrices, *small)
    for name, total in together.sums.items():
        torch.testing.assert_close(total - first[name], apart.sums[name], rtol=1e-3, atol=1e-4)


def _apart(tokens: int, *rows: tuple[int, ...]) -> Apart:
    """Return turns that do not see each other: each row gives where its first and further ones begin (none: a plain one)."""
    skipped = torch.zeros(len(rows), tokens, dtype=torch.long)
    for row, starts in zip(skipped, rows, strict=True):
        for start in starts:
            row[start:] = start - starts[0]
    return Apart(torch.tensor([starts[0] if starts else 0 for starts in rows]), skipped)


@pytest.mark.parametrize("tokens", [33, 300, 601])
def test_gradients_of_turns_apart_equal_autograds(tokens: int) -> None:
    model = _model(7)
    ids, weights = _batch(model, (4, tokens))
    apart = _apart(tokens, (9, 16, 17, 30), (), (1, tokens // 2), (tokens // 3, tokens - 2))
    loss, exact = _autograds(model, ids, weights, apart)
    gradients = Gradients(model)
    assert gradients.add(rounded(model), ids, weights, apart) == pytest.approx(loss, rel=2e-3)
    _assert_close(gradients.sums, exact)


def test_turns_apart_are_learned_as_if_each_came_first() -> None:
    model = _model(8)
    ids, weights = _batch(model, (1, 40))
    weights[:, [*range(11), 22, 31]] = 0  # nothing tells a turn's first token
    each = torch.tensor(0.0)
    for begin, end in ((10, 22), (22, 31), (31, 40)):
        seen = [*range(10), *range(begin, end)]
        alone = weights[:, seen]
        alone[:, :10] = 0
        each = each + model.loss(ids[:, seen], alone)
    torch.testing.assert_close(model.loss(ids, weights, _apart(40, (10, 22, 31))), each)


@pytest.mark.parametrize("picked", [(), (1,), (0, 2), (0, 1, 2, 3)], ids=str)
@pytest.mark.parametrize("tokens", [17, 300])
def test_chosen_conversations_are_learned_as_if_alone(tokens: int, picked: tuple[int, ...]) -> None:
    model = _model(9)
    ids, weights = _batch(model, (4, tokens))
    apart = _apart(tokens, (), (3, 9), (4, tokens // 2), ())
    chosen = torch.zeros(4, dtype=torch.bool)
    chosen[list(picked)] = True
    matrices, ours, alone = rounded(model), Gradients(model), Gradients(model)
    seen = []

    def choose(losses: Tensor) -> Tensor:
        seen.append(losses.clone())
        return chosen

    losses = ours.add_chosen(matrices, ids, weights, choose, apart)
    assert torch.equal(losses, seen[0])
    for row in range(4):
        whole = float(model.loss(ids[row : row + 1], weights[row : row + 1], _row(apart, row)).detach())
        assert float(losses[row].sum()) == pytest.approx(whole, rel=3e-3)
        if row in picked:
            alone.add(matrices, ids[row : row + 1], weights[row : row + 1], _row(apart, row))
    for name, total in ours.sums.items():
        torch.testing.assert_close(
            total, alone.sums[name], rtol=2e-2, atol=2e-2 * float(alone.sums[name].abs().max()) + 1e-6
        )


def _row(apart: Apart, row: int) -> Apart:
    return Apart(apart.shared[row : row + 1], apart.skipped[row : row + 1])


def test_what_has_no_weight_changes_nothing() -> None:
    """Padding behind the last learned token, and what stands there."""
    model = _model(4)
    ids, weights = _batch(model, (3, 30))
    padded = torch.cat((ids, torch.zeros(3, 16, dtype=torch.long)), dim=1)
    other = torch.cat((ids, torch.full((3, 16), 7)), dim=1)
    sums = []
    for each in (padded, other):
        gradients = Gradients(model)
        gradients.add(rounded(model), each, torch.cat((weights, torch.zeros(3, 16)), dim=1))
        sums.append(gradients.sums)
    for name, tensor in sums[0].items():
        assert torch.equal(tensor, sums[1][name]), name


def test_numbers_far_apart_stay_numbers() -> None:
    model = _model(5)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.q_norm.weight.mul_(20)
            layer.mlp.gate_proj.weight.mul_(60)
    gradients = Gradients(model)
    assert gradients.add(rounded(model), *_batch(model, (4, 40))) > 0
    assert all(bool(tensor.isfinite().all()) for tensor in gradients.sums.values())


@pytest.mark.parametrize("isa", [isa.name for isa in usable_isas()])
def test_every_instruction_set_computes_the_same(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = _model(6)
    batch = _batch(model, (2, random.Random(0).randrange(20, 60)))
    _, exact = _autograds(model, *batch)
    found = fused.library
    monkeypatch.setattr(fused, "library", lambda source: found(source, isa))
    gradients = Gradients(model)
    assert gradients.isa == isa
    gradients.add(rounded(model), *batch)
    _assert_close(gradients.sums, exact)


def test_without_a_compiler_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(source: object) -> None:
        raise KernelUnavailable("no C++ compiler found (install g++)")

    monkeypatch.setattr(fused, "library", missing)
    with pytest.raises(KernelUnavailable, match="install g\\+\\+"):
        Gradients(TinyModel())
