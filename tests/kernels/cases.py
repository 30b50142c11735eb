"""Inputs and comparisons that the tests of all implementations share."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lightrft.kernels.linear_logprob import linear_logprob
from lightrft.kernels.reference import eager_logprob


@dataclass(frozen=True)
class Case:
    """A head, its rows, and the gradients that come back to it."""

    hidden: Tensor
    weight: Tensor
    target: Tensor
    bias: Tensor | None
    grads: tuple[Tensor, Tensor]  # of log-prob and entropy, [N]

    def to(self, dtype: torch.dtype) -> Case:
        bias = None if self.bias is None else self.bias.to(dtype)
        return replace(self, hidden=self.hidden.to(dtype), weight=self.weight.to(dtype), bias=bias)

    def on(self, device: torch.device | str) -> Case:
        bias = None if self.bias is None else self.bias.to(device)
        moved = [t.to(device) for t in (self.hidden, self.weight, self.target)]
        return Case(*moved, bias, (self.grads[0].to(device), self.grads[1].to(device)))


def make_case(n: int, d: int, v: int, bias: bool = True, seed: int = 0, dtype=torch.float64) -> Case:
    """Random, with peaked and flat rows; two rows ask for nothing, and two get no gradient."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    target = torch.randint(0, v, (n,), generator=generator)
    target[0], target[-1] = 0, v - 1
    logprob_grad, entropy_grad = normal(n), normal(n)
    if n > 8:
        target[2] = target[5] = -100
        logprob_grad[3] = entropy_grad[3] = logprob_grad[6] = entropy_grad[6] = 0
    hidden = normal(n, d) * torch.rand(n, 1, generator=generator, dtype=torch.float64) * 3
    case = Case(
        hidden, normal(v, d) / d**0.5, target, normal(v) if bias else None, (logprob_grad, entropy_grad)
    )
    return case.to(dtype)


def run(case: Case, **options) -> dict[str, Tensor]:
    """Log-probs, entropy and gradients of `case`, as float64; `impl="oracle"` is eager, in float64."""
    oracle = options.get("impl") == "oracle"
    if oracle:
        case, options = case.to(torch.float64), options | {"impl": "eager"}
        options.pop("chunk_size", None)
    leaves = {"hidden": case.hidden, "weight": case.weight, "bias": case.bias}
    leaves = {n: t.detach().clone().requires_grad_() for n, t in leaves.items() if t is not None}
    arguments = {"bias": leaves.get("bias"), "with_entropy": True} | options
    if oracle:
        arguments.pop("impl")
        outputs = eager_logprob(leaves["hidden"], leaves["weight"], case.target, **arguments)
    else:
        outputs = linear_logprob(leaves["hidden"], leaves["weight"], case.target, **arguments)
    asked = [(o, g.to(o)) for o, g in zip(outputs, case.grads, strict=True) if o is not None]
    gradients = torch.autograd.grad([o for o, _ in asked], list(leaves.values()), [g for _, g in asked])
    found = dict(zip(("logprob", "entropy"), outputs, strict=True))
    found |= {f"d{name}": g for name, g in zip(leaves, gradients, strict=True)}
    return {n: t.detach().cpu().double() for n, t in found.items() if t is not None}


def largest_error(got: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """The largest difference of values, and of gradients relative to their norm."""
    assert got.keys() == expected.keys()
    errors = []
    for name, value in expected.items():
        size = value.norm().clamp(min=1e-30) if name.startswith("d") else 1.0
        difference = (got[name] - value).norm() if name.startswith("d") else (got[name] - value).abs().max()
        errors.append(float(difference / size))
        assert errors[-1] == errors[-1], f"{name} is NaN"
    return max(errors)
