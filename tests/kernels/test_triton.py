"""The Triton kernels: on a GPU as they are, on a CPU in Triton's interpreter (test_interpreter.py)."""

import os

import pytest
import torch

from lightrft.kernels.linear_logprob import linear_logprob
from tests.kernels.cases import largest_error, make_case, run

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
pytestmark = pytest.mark.skipif(
    not CUDA and os.environ.get("TRITON_INTERPRET") != "1", reason="runs in the interpreter"
)
ODD_SHAPES = [(1, 1, 1), (1, 3, 2), (7, 5, 11), (33, 17, 301), (20, 8, 1027)]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Several blocks and several tiles in a row, with tails."""
    from lightrft.kernels import tiling, triton_logprob

    monkeypatch.setattr(triton_logprob, "SCAN_COLUMNS", 128)
    monkeypatch.setattr(triton_logprob, "GRADIENT_COLUMNS", 64)
    monkeypatch.setattr(tiling, "TILE_BYTES", 1)


def triton_run(case, **options):
    return run(case.on(DEVICE), impl="triton", **options)


@pytest.mark.parametrize("shape", ODD_SHAPES)
@pytest.mark.parametrize("chunk_size", [16, 4096])
def test_odd_shapes(shape, chunk_size):
    case = make_case(*shape, dtype=torch.float32)
    got = triton_run(case, chunk_size=chunk_size, temperature=0.7)
    assert largest_error(got, run(case, impl="oracle", temperature=0.7)) < 2e-5


@pytest.mark.parametrize("with_entropy", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_without_bias_or_entropy(with_entropy, bias):
    case = make_case(33, 17, 301, bias=bias, dtype=torch.float32)
    got = triton_run(case, chunk_size=16, with_entropy=with_entropy)
    assert largest_error(got, run(case, impl="oracle", with_entropy=with_entropy)) < 2e-5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_no_worse_than_eager_in_low_precision(dtype):
    case = make_case(65, 64, 517, bias=False, dtype=dtype)
    expected = run(case, impl="oracle", with_entropy=False)
    moved = case.on(DEVICE)
    hidden, weight = moved.hidden.requires_grad_(), moved.weight.requires_grad_()
    asked = moved.target != -100
    logp = (hidden @ weight.T).float().log_softmax(-1)
    chosen = logp.gather(1, moved.target.where(asked, 0)[:, None]).squeeze(1) * asked
    chosen.backward(moved.grads[0].float())
    got = triton_run(case, chunk_size=16, with_entropy=False)
    assert (got["logprob"] - expected["logprob"]).abs().max() < 1e-5
    eager = {"logprob": chosen.detach(), "dhidden": hidden.grad, "dweight": weight.grad}
    for name, low in eager.items():
        error = (got[name] - expected[name]).norm()
        assert error <= (low.double().cpu() - expected[name]).norm() * 1.01, name


def test_gradient_written_in_16_bits():
    """As on a GPU: float32 logits of a tile in, bfloat16 out to a matrix with rows further apart."""
    from lightrft.kernels.rows import Columns, RowGradient, TorchRows
    from lightrft.kernels.triton_logprob import TritonRows

    tile = torch.randn(9, 70, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    target = torch.arange(9, device=DEVICE) * 20
    log_z, entropy = tile.logsumexp(1), torch.ones(9, device=DEVICE)
    rows = RowGradient(log_z, torch.linspace(-2, 2, 9, device=DEVICE), entropy, entropy / 3)
    columns = Columns(target, 30, torch.ones(70, device=DEVICE), 0.7)
    outs = []
    for kernels in (TritonRows(), TorchRows()):
        wide = torch.full((9, 96), 7.0, dtype=torch.bfloat16, device=DEVICE)
        kernels.gradient(tile.clone(), columns, rows, wide[:, 16:86])
        assert (wide[:, :16] == 7).all()
        assert (wide[:, 86:] == 7).all()
        outs.append(wide[:, 16:86].float())
    torch.testing.assert_close(*outs, atol=1e-6, rtol=1 / 128)
    assert outs[0].abs().max() > 0.1


def test_rows_that_ask_for_nothing_may_hold_anything():
    case = make_case(33, 17, 301, dtype=torch.float32)
    expected = triton_run(case, chunk_size=8)
    case.hidden[2], case.hidden[5] = torch.nan, torch.inf
    got = triton_run(case, chunk_size=8)
    assert all(torch.equal(got[name], expected[name]) for name in expected)
    assert got["dhidden"][[2, 5]].abs().max() == 0


def test_tokens_that_are_ruled_out():
    case = make_case(33, 17, 301, dtype=torch.float32)
    case.bias[100:200] = -torch.inf
    case.target[case.target.clamp(100, 199) == case.target] = 7
    assert largest_error(triton_run(case, chunk_size=8), run(case, impl="oracle")) < 2e-5


def test_a_second_run_gives_the_same_bits():
    case = make_case(65, 64, 517, dtype=torch.bfloat16)
    first, second = (triton_run(case, chunk_size=32) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.gpu
def test_the_largest_shapes_repeat_bit_for_bit(monkeypatch):
    monkeypatch.undo()
    case = make_case(3000, 896, 151936, bias=False, dtype=torch.bfloat16)
    first, second = (triton_run(case, chunk_size=512) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_products_are_not_rounded(dtype):
    """1 + 2^-12 is no number of 16 bits; as a logit it comes out of the product whole."""
    from lightrft.kernels.products import logits_into

    hidden = torch.tensor([[1.0, 2.0**-12]] * 16, dtype=dtype, device="cuda")
    out = torch.empty(16, 16, device="cuda")
    logits_into(out, hidden, torch.ones(16, 2, dtype=dtype, device="cuda"))
    assert (out == 1 + 2.0**-12).all()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_weights_gradient_is_summed_in_float32(dtype):
    from lightrft.kernels.products import add_weight_gradient

    total = torch.ones(32, 16, device="cuda")
    ones = torch.full((8, 32), 2.0**-15, dtype=dtype, device="cuda")
    add_weight_gradient(total, ones, torch.ones(8, 16, dtype=dtype, device="cuda"))
    assert (total == 1 + 2.0**-12).all()


@pytest.mark.gpu
@pytest.mark.parametrize("chunk_size", [256, 1024])
def test_chunk_size_bounds_the_memory(chunk_size, monkeypatch):
    """Beyond inputs, the hidden states' gradient and the weight's in float32."""
    monkeypatch.undo()
    n, d, v = 8192, 896, 151936
    hidden = torch.randn(n, d, device="cuda").bfloat16().requires_grad_()
    weight = (torch.randn(v, d, device="cuda") / 30).bfloat16().requires_grad_()
    target = torch.randint(0, v, (n,), device="cuda")
    peaks = []
    for rows in (n, n, n // 4):  # the first compiles
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        out, _ = linear_logprob(hidden[:rows], weight, target[:rows], chunk_size=chunk_size, impl="triton")
        torch.autograd.grad(out.sum(), [hidden, weight])
        peaks.append(torch.cuda.max_memory_allocated() - before - v * d * 4 - rows * d * 2)
        del out
    assert peaks[1] <= chunk_size * v * 4 + (64 << 20)
    assert peaks[1] <= peaks[2] + (16 << 20)
