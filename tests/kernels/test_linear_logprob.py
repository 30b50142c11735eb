"""The fused log-prob against hand values, the oracle and itself."""

import math
import re

import pytest
import torch

from lightrft.kernels.linear_logprob import linear_logprob
from lightrft.kernels.products import narrow_in_place
from lightrft.kernels.tiling import MIB, TILE_BYTES, backward_tile, forward_tile
from tests.kernels.cases import largest_error, make_case, run

ODD_SHAPES = [(1, 1, 1), (1, 3, 2), (7, 5, 11), (33, 17, 301), (65, 31, 1027), (130, 8, 515)]
TWO = torch.tensor([[1.0, 0.0]])


def test_hand_values():
    """Logits 0, ln 3 at T = 2: log p(1) = ln 3 / 2 - ln(1 + sqrt 3) = -.4557; even with a bias of ln 3."""
    weight = torch.tensor([[0.0, 5.0], [math.log(3), 5.0]])
    for impl in ("eager", "chunked"):
        got, entropy = linear_logprob(
            TWO, weight, torch.tensor([1]), temperature=2.0, with_entropy=True, impl=impl
        )
        p = math.sqrt(3) / (1 + math.sqrt(3))
        assert got.item() == pytest.approx(-0.4557, abs=1e-4)
        assert entropy.item() == pytest.approx(-p * math.log(p) - (1 - p) * math.log(1 - p), abs=1e-6)
        bias = torch.tensor([math.log(3), 0.0])
        even, _ = linear_logprob(TWO, weight, torch.tensor([1]), bias=bias, impl=impl)
        assert even.item() == pytest.approx(-math.log(2), abs=1e-6)


def test_the_gradient_of_two_logits():
    """d log p(1) / d logits = [-p(0), p(1) complement] / T: with even odds at T = 2, [-.25, .25]."""
    hidden, weight = TWO.clone().requires_grad_(), torch.zeros(2, 2, requires_grad=True)
    linear_logprob(hidden, weight, torch.tensor([1]), temperature=2.0)[0].sum().backward()
    assert weight.grad.tolist() == [[-0.25, 0.0], [0.25, 0.0]]
    assert hidden.grad.tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize("shape", ODD_SHAPES)
@pytest.mark.parametrize("chunk_size", [1, 7, 4096])
def test_float64_is_the_oracle(shape, chunk_size):
    case = make_case(*shape)
    options = {"temperature": 0.7}
    got = run(case, impl="chunked", chunk_size=chunk_size, **options)
    assert largest_error(got, run(case, impl="oracle", **options)) < 1e-13


@pytest.mark.parametrize("with_entropy", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_without_bias_or_entropy(with_entropy, bias):
    case = make_case(33, 17, 301, bias=bias)
    got = run(case, impl="chunked", chunk_size=16, with_entropy=with_entropy)
    assert largest_error(got, run(case, impl="oracle", with_entropy=with_entropy)) < 1e-13


def test_tiles_of_columns_change_nothing(monkeypatch):
    """With the tile at its smallest, a row of 1027 columns is scanned in 5 parts."""
    monkeypatch.setattr("lightrft.kernels.tiling.TILE_BYTES", 1)
    case = make_case(65, 31, 1027)
    assert largest_error(run(case, impl="chunked", chunk_size=32), run(case, impl="oracle")) < 1e-13


def test_gradcheck():
    case = make_case(9, 4, 13)
    leaves = [t.requires_grad_() for t in (case.hidden, case.weight, case.bias)]

    def chunked(hidden, weight, bias):
        return linear_logprob(
            hidden,
            weight,
            case.target,
            bias=bias,
            temperature=1.3,
            with_entropy=True,
            chunk_size=4,
            impl="chunked",
        )

    assert torch.autograd.gradcheck(chunked, leaves, atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_values_are_exact_for_the_inputs_as_they_are(dtype):
    """Log-probs of 16-bit inputs are those of the same inputs in float64: nothing is rounded on the way."""
    case = make_case(65, 64, 1027, dtype=dtype)
    got, expected = run(case, impl="chunked", chunk_size=32), run(case, impl="oracle")
    for name in ("logprob", "entropy"):
        assert (got[name] - expected[name]).abs().max() < 1e-5  # float32 of logits up to 20
    unit = torch.finfo(dtype).eps  # one rounding of the result is half of it at most
    for name in ("dhidden", "dweight", "dbias"):
        bound = max(unit / 2, 2e-6)
        assert (got[name] - expected[name]).norm() <= bound * expected[name].norm()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_no_worse_than_eager_in_low_precision(dtype):
    case = make_case(65, 64, 1027, bias=False, dtype=dtype)
    expected = run(case, impl="oracle", with_entropy=False)
    hidden, weight = case.hidden.clone().requires_grad_(), case.weight.clone().requires_grad_()
    asked = case.target != -100
    logp = (hidden @ weight.T).float().log_softmax(-1)
    chosen = logp.gather(1, case.target.where(asked, 0)[:, None]).squeeze(1) * asked
    chosen.backward(case.grads[0].float())
    got = run(case, impl="chunked", with_entropy=False)
    eager = {"logprob": chosen.detach(), "dhidden": hidden.grad, "dweight": weight.grad}
    for name, low in eager.items():
        error = (got[name] - expected[name]).norm()
        assert error <= (low.double() - expected[name]).norm() * 1.01, name


def test_dtypes_of_results_and_gradients():
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        hidden = torch.ones(3, 4, dtype=dtype, requires_grad=True)
        weight = torch.ones(5, 4, dtype=dtype, requires_grad=True)
        for impl in ("eager", "chunked"):
            out, entropy = linear_logprob(
                hidden, weight, torch.tensor([0, 1, 2]), with_entropy=True, impl=impl, chunk_size=2
            )
            assert out.dtype == entropy.dtype == wide
            grads = torch.autograd.grad(out.sum(), [hidden, weight])
            assert [g.dtype for g in grads] == [dtype, dtype]


def test_hidden_and_weight_of_different_dtypes():
    hidden = torch.randn(3, 4, dtype=torch.bfloat16, requires_grad=True)
    weight = torch.randn(5, 4, requires_grad=True)
    out, _ = linear_logprob(hidden, weight, torch.tensor([0, 1, 2]))
    out.sum().backward()
    expected = (hidden.float() @ weight.T).log_softmax(-1).gather(1, torch.tensor([[0], [1], [2]])).squeeze(1)
    torch.testing.assert_close(out, expected)
    assert hidden.grad.dtype == torch.bfloat16


def test_rows_that_ask_for_nothing_may_hold_anything():
    case = make_case(33, 17, 301)
    expected = run(case, impl="chunked", chunk_size=8)
    case.hidden[2], case.hidden[5] = torch.nan, torch.inf
    for impl in ("chunked", "eager"):
        got = run(case, impl=impl, chunk_size=8)
        assert got["logprob"][[2, 5]].tolist() == got["entropy"][[2, 5]].tolist() == [0, 0]
        assert got["dhidden"][[2, 5]].abs().max() == 0
        assert largest_error(got, expected) < 1e-13


def test_rows_without_gradient_are_left_out(monkeypatch):
    """Their logits are computed once, going forward; no product of the backward pass sees them."""
    from lightrft.kernels import products

    seen = []
    monkeypatch.setattr(
        products,
        "logits_into",
        lambda out, hidden, weight, real=products.logits_into: (
            seen.append(len(hidden)),
            real(out, hidden, weight),
        ),
    )
    case = make_case(33, 17, 301)
    run(case, impl="chunked", chunk_size=8)
    assert sum(seen[:5]) == 33  # 8 + 8 + 8 + 8 + 1
    assert sum(seen[5:]) == 33 - 4
    del seen[:]
    hidden = case.hidden.requires_grad_()
    out, _ = linear_logprob(hidden, case.weight.requires_grad_(), case.target)
    (0.0 * out).sum().backward()
    assert seen == [33]
    assert hidden.grad.abs().max() == 0
    assert case.weight.grad.abs().max() == 0


def test_a_frozen_weight_costs_no_gradient(monkeypatch):
    def fails(*arguments):
        raise AssertionError("the weight's gradient was computed")

    monkeypatch.setattr("lightrft.kernels.products.add_weight_gradient", fails)
    monkeypatch.setattr("lightrft.kernels.products.weight_gradient", fails)
    case = make_case(33, 17, 301)
    expected = run(case, impl="oracle", with_entropy=False)["dhidden"]
    for chunk_size in (8, 64):
        hidden = case.hidden.clone().requires_grad_()
        out, _ = linear_logprob(hidden, case.weight, case.target, bias=case.bias, chunk_size=chunk_size)
        out.backward(case.grads[0])
        torch.testing.assert_close(hidden.grad, expected)
    with pytest.raises(AssertionError, match="was computed"):
        run(case, impl="chunked")


def test_no_rows_at_all():
    weight = torch.ones(5, 4, requires_grad=True)
    out, entropy = linear_logprob(
        torch.ones(0, 4), weight, torch.zeros(0, dtype=torch.long), with_entropy=True
    )
    out.sum().backward()
    assert out.shape == entropy.shape == (0,)
    assert weight.grad.abs().max() == 0


def test_tokens_that_are_ruled_out():
    """A bias of -inf takes a token out of the distribution; entropy and gradients stay finite."""
    case = make_case(33, 17, 301)
    case.bias[100:200] = -torch.inf
    case.target[case.target.clamp(100, 199) == case.target] = 7
    got, expected = run(case, impl="chunked", chunk_size=8), run(case, impl="oracle")
    assert largest_error(got, expected) < 1e-13
    assert got["dbias"][100:200].abs().max() == 0


def test_large_logits_do_not_overflow():
    case = make_case(33, 17, 301, bias=False, dtype=torch.float32)
    case.hidden.mul_(1e4)
    got, expected = run(case, impl="chunked", chunk_size=8), run(case, impl="oracle")
    scale = expected["logprob"].abs().max()
    assert (got["logprob"] - expected["logprob"]).abs().max() < 1e-6 * scale
    assert all(value.isfinite().all() for value in got.values())


def test_a_second_run_gives_the_same_bits():
    case = make_case(65, 64, 1027, dtype=torch.float32)
    first, second = (run(case, impl="chunked", chunk_size=32) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_autocast_does_not_reach_inside():
    case = make_case(33, 17, 301, dtype=torch.float32)
    plain = linear_logprob(case.hidden, case.weight, case.target)[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(linear_logprob(case.hidden, case.weight, case.target)[0], plain)


def test_it_is_differentiated_once():
    case = make_case(9, 4, 13)
    out, _ = linear_logprob(case.hidden.requires_grad_(), case.weight, case.target)
    (grad,) = torch.autograd.grad(out.square().sum(), case.hidden, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"target": torch.tensor([0, 1])}, "target must be int64 [N]"),
        ({"target": torch.tensor([0, 1, 5])}, "target 5 is no token: the vocabulary has 5 (0 to 4)"),
        ({"target": torch.tensor([0, -1, 2])}, "target -1 is no token"),
        ({"target": torch.tensor([0.0, 1.0, 2.0])}, "target must be int64"),
        ({"weight": torch.ones(5, 3)}, "hidden [3, 4], weight [5, 3], target [3]"),
        ({"hidden": torch.ones(3, 4, dtype=torch.int64)}, "must be of a float dtype"),
        ({"bias": torch.ones(4)}, "bias [4] must be [V]"),
        ({"temperature": 0.0}, "temperature (0.0) must be above 0"),
        ({"temperature": math.nan}, "temperature (nan) must be above 0"),
        ({"chunk_size": 0}, "chunk_size (0) must be at least 1"),
        ({"impl": "cuda"}, "impl ('cuda') must be one of auto, eager, chunked, triton"),
    ],
)
def test_what_does_not_fit_is_named(change, says):
    arguments = {"hidden": torch.ones(3, 4), "weight": torch.ones(5, 4), "target": torch.tensor([0, 1, 2])}
    arguments |= change
    positional = [arguments.pop(name) for name in ("hidden", "weight", "target")]
    with pytest.raises(ValueError, match=re.escape(says)):
        linear_logprob(*positional, **arguments)


@pytest.mark.parametrize("size", [1, 3, (1 << 16) - 1, (1 << 16) + 1, 300_001])
def test_a_matrix_is_narrowed_in_its_own_memory(size):
    wide = torch.randn(size, 1)
    expected, address = wide.to(torch.bfloat16), wide.data_ptr()
    narrow = narrow_in_place(wide, torch.bfloat16)
    assert torch.equal(narrow, expected)
    assert narrow.data_ptr() == address


@pytest.mark.parametrize("num_columns", [32000, 151936, 152064, 256000, 32001])
@pytest.mark.parametrize("chunk_size", [256, 1024, 4096])
@pytest.mark.parametrize("num_rows", [2048, 8192, 32768, 8191])
def test_the_plan_stays_within_the_bound(num_columns, chunk_size, num_rows):
    """On a GPU in 16 bits: kept gradients and a tile of logits are chunk x V x 4 + 33 MiB at most."""
    bound = chunk_size * num_columns * 4 + TILE_BYTES + MIB
    forward = forward_tile(num_rows, num_columns, chunk_size, 4, on_gpu=True)
    pitch = -(-forward.columns // 16) * 16
    assert forward.rows * pitch * 4 <= bound
    tile = backward_tile(num_rows, num_columns, chunk_size, 4, kept_width=2)
    used = tile.rows * (-(-num_columns // 16) * 16 * 2 + (tile.columns + 15) * 4)
    assert used <= bound
    assert tile.rows >= min(num_rows, 1.4 * chunk_size)  # nearly twice the rows of float32


@pytest.mark.parametrize("chunk_size", [64, 512])
def test_chunk_size_bounds_the_memory(chunk_size):
    """What a run allocates at most, read from the allocator; eager takes five times the logits."""
    n, d, v = 1024, 64, 4096
    case = make_case(n, d, v, bias=False, dtype=torch.float32)
    gradients = (n * d + v * d) * 4
    peak = allocated_at_most(case, impl="chunked", chunk_size=chunk_size)
    assert peak - gradients <= chunk_size * v * 4 * 2 + MIB
    assert allocated_at_most(case, impl="eager") > 3 * n * v * 4


def allocated_at_most(case, **options) -> int:
    from torch.profiler import ProfilerActivity, profile

    hidden, weight = case.hidden.clone().requires_grad_(), case.weight.clone().requires_grad_()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        out, _ = linear_logprob(hidden, weight, case.target, **options)
        out.backward(case.grads[0].float())
    held = peak = 0
    for event in seen.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return peak
