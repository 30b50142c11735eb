"""The fused linear log-prob beside its peers: time, memory and error, in one run on the same inputs.

    python benchmarks/linear_logprob.py --quick --out benchmarks/results/linear_logprob_h200.json
    python benchmarks/linear_logprob.py --out ...          # the whole grid
    python benchmarks/linear_logprob.py --show FILE.json   # tables and bars of an earlier run
    python benchmarks/linear_logprob.py --plot FILE.json   # writes docs/images/linear_logprob_*.png

All methods of a shape take turns, round by round. The floor is four matrix products of cuBLAS in bf16, as
large as the logits: one forward, the same again, and one for each gradient. Peers that are missing are named.
`--set tiling.TILE_BYTES=16777216` (or `triton_logprob.SCAN_WARPS=16`) changes a constant of the kernels.
The last line says whether all bars hold, or which do not.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from run_summary import machine
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from lightrft.kernels import tiling
from lightrft.kernels.linear_logprob import linear_logprob
from lightrft.kernels.reference import eager_logprob

MIB = 1 << 20
ROUNDS, ERROR_ROWS = 7, 4096
MAIN, SMALL = (3584, 152064), (896, 152064)  # D, V of the bars
GRID = [
    (n, d, v) for d in (896, 3584, 8192) for v in (32000, 128256, 152064, 256000) for n in (2048, 8192, 32768)
]
QUICK = [(8192, *MAIN), (32768, *MAIN), (8192, *SMALL)]
CHUNKS = (4096, 1024)
PEERS = {"cut-cross-entropy": "cut_cross_entropy", "Liger": "liger_kernel"}
Method = Callable[[Tensor, Tensor, Tensor], Tensor]  # hidden, weight, target -> log-probs [N]


@dataclass
class Row:
    """A method at a shape. Times are medians in ms; memory is MiB beyond what was there before."""

    method: str
    n: int
    d: int
    v: int
    forward_ms: float | None = None
    both_ms: float | None = None  # forward and backward
    forward_of_floor: float | None = None  # the floor's time by this one's, median over rounds
    both_of_floor: float | None = None
    peak_mib: float | None = None
    beyond_mib: float | None = None  # of it, beyond the gradients: hidden's and the weight's accumulator
    max_error: float | None = None  # of log-probs, against float64 on the same inputs
    grad_error: float | None = None  # the larger of both gradients' relative errors
    note: str = ""


@dataclass(frozen=True)
class Bar:
    """A figure and its limit; `value` is None where it was not measured."""

    name: str
    value: float | None
    limit: float
    at_most: bool = False

    @property
    def holds(self) -> bool:
        if self.value is None:
            return False
        return self.value <= self.limit if self.at_most else self.value >= self.limit


# -- methods


def eager(hidden: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    """What one writes without a kernel: logits in the model's dtype, softmax in float32."""
    logp = F.linear(hidden, weight).float().log_softmax(-1)
    return logp.gather(-1, target[:, None]).squeeze(-1)


def checkpointed(hidden: Tensor, weight: Tensor, target: Tensor, chunk_size: int = 1024) -> Tensor:
    parts = [
        checkpoint(eager, hidden[s], weight, target[s], use_reentrant=False)
        for s in tiling.spans(len(hidden), chunk_size)
    ]
    return torch.cat(parts)


def cut_cross_entropy(hidden: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    from cut_cross_entropy import linear_cross_entropy

    return -linear_cross_entropy(hidden, weight, target, reduction="none")


def liger(hidden: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    from liger_kernel.transformers.functional import liger_fused_linear_cross_entropy

    return -liger_fused_linear_cross_entropy(
        hidden, weight, target, reduction="none", accum_dtype=torch.float32
    )


def ours(chunk_size: int, hidden: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    return linear_logprob(hidden, weight, target, chunk_size=chunk_size)[0]


def methods(chunks: tuple[int, ...], with_compile: bool) -> dict[str, Method]:
    found: dict[str, Method] = {f"ours, chunk {c}": partial(ours, c) for c in chunks}
    found |= {"eager bf16": eager, "checkpointed chunks of 1024": checkpointed}
    if with_compile:
        torch.compiler.reset()
        found["torch.compile"] = torch.compile(eager, dynamic=False)
    if find_spec("cut_cross_entropy"):
        found["cut-cross-entropy"] = cut_cross_entropy
    if find_spec("liger_kernel"):
        found["Liger"] = liger
    return found


# -- measuring


class Stopwatch:
    """ms of an action: by events on a GPU, by the clock elsewhere."""

    def __init__(self) -> None:
        self.cuda = torch.cuda.is_available()

    def __call__(self, action: Callable[[], Any]) -> float:
        if not self.cuda:
            began = time.perf_counter()
            action()
            return (time.perf_counter() - began) * 1e3
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start.record()
        action()
        end.record()
        torch.cuda.synchronize()
        return float(start.elapsed_time(end))


@dataclass
class Inputs:
    hidden: Tensor
    weight: Tensor
    target: Tensor
    grad: Tensor
    logits: Tensor | None = field(default=None)  # the floor's room

    @classmethod
    def make(cls, n: int, d: int, v: int, device: torch.device) -> Inputs:
        """Logits of a standard deviation of about 2, as a trained head gives; gradients as of a mean loss."""
        generator = torch.Generator(device).manual_seed(n + d + v)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, device=device)

        hidden = normal(n, d).bfloat16().requires_grad_()
        weight = (normal(v, d) * (2 / d**0.5)).bfloat16().requires_grad_()
        target = torch.randint(0, v, (n,), generator=generator, device=device)
        return cls(hidden, weight, target, normal(n) / n)

    def rows(self, n: int) -> Inputs:
        hidden = self.hidden.detach()[:n].requires_grad_()
        return Inputs(hidden, self.weight, self.target[:n], self.grad[:n])


def floor_forward(x: Inputs) -> None:
    assert x.logits is not None
    torch.mm(x.hidden.detach(), x.weight.detach().t(), out=x.logits)


def floor_both(x: Inputs) -> None:
    """Logits twice, then both gradients, with the logits standing in for their own gradient."""
    floor_forward(x)
    floor_forward(x)
    assert x.logits is not None
    torch.mm(x.logits, x.weight.detach())
    torch.mm(x.logits.t(), x.hidden.detach())


@torch.no_grad()
def run_forward(method: Method, x: Inputs) -> Tensor:
    return method(x.hidden, x.weight, x.target)


def run_both(method: Method, x: Inputs) -> tuple[Tensor, tuple[Tensor, ...]]:
    out = method(x.hidden, x.weight, x.target)
    return out.detach(), torch.autograd.grad(out, [x.hidden, x.weight], x.grad.to(out.dtype))


def peak_mib(action: Callable[[], Any]) -> float | None:
    """The most that torch allocated at once within `action`, beyond what was there."""
    if not torch.cuda.is_available():
        return None
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    action()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / MIB


def gradients_mib(name: str, x: Inputs) -> float:
    """hidden's gradient and the weight's, the latter in float32 where several chunks are summed."""
    (n, d), v = x.hidden.shape, len(x.weight)
    chunk_size = int(name.rpartition(" ")[2])
    once = tiling.backward_tile(n, v, chunk_size, 4, 2).rows >= n
    return (n * d * 2 + v * d * (2 if once else 4)) / MIB


def measure(x: Inputs, found: dict[str, Method], rounds: int) -> list[Row]:
    """Every method at one shape, taking turns with the floor."""
    (n, d), v = x.hidden.shape, len(x.weight)
    rows = {name: Row(name, n, d, v) for name in ["floor", *found]}
    alive: dict[str, Method] = {}
    for name, method in found.items():  # compiles, warms up, and shows who runs out of memory
        try:
            run_forward(method, x)
            run_both(method, x)
            rows[name].peak_mib = peak_mib(partial(run_both, method, x))
            alive[name] = method
        except (torch.cuda.OutOfMemoryError, RuntimeError) as error:
            rows[name].note = "out of memory" if "memory" in str(error) else str(error).splitlines()[0][:80]
        if name.startswith("ours") and rows[name].peak_mib is not None:
            rows[name].beyond_mib = rows[name].peak_mib - gradients_mib(name, x)
    x.logits = torch.empty(n, v, dtype=x.hidden.dtype, device=x.hidden.device)
    floor_both(x)
    timed = Stopwatch()
    times: dict[tuple[str, str], list[float]] = {}
    for k in range(rounds):
        order = ["floor", *alive] if k % 2 == 0 else [*reversed(alive), "floor"]
        for name in order:
            forward = partial(floor_forward, x) if name == "floor" else partial(run_forward, alive[name], x)
            both = partial(floor_both, x) if name == "floor" else partial(run_both, alive[name], x)
            times.setdefault((name, "forward"), []).append(timed(forward))
            times.setdefault((name, "both"), []).append(timed(both))
    x.logits = None
    for name in ["floor", *alive]:
        for part in ("forward", "both"):
            own, floor = times[name, part], times["floor", part]
            setattr(rows[name], f"{part}_ms", statistics.median(own))
            ratio = statistics.median(f / t for f, t in zip(floor, own, strict=True))
            setattr(rows[name], f"{part}_of_floor", ratio)
    return list(rows.values())


def measure_errors(x: Inputs, found: dict[str, Method], rows: list[Row]) -> None:
    """Against float64 on the same inputs, on the first rows of the shape."""
    few = x.rows(min(len(x.hidden), ERROR_ROWS))
    wide = [t.detach().double().requires_grad_() for t in (few.hidden, few.weight)]
    expected, _ = eager_logprob(*wide, few.target)
    exact = torch.autograd.grad(expected, wide, few.grad.double())
    expected = expected.detach()
    del wide
    for row in rows:
        if row.both_ms is None or row.method not in found:
            continue
        logprob, gradients = run_both(found[row.method], few)
        row.max_error = float((logprob.double() - expected).abs().max())
        errors = [(g.double() - e).norm() / e.norm() for g, e in zip(gradients, exact, strict=True)]
        row.grad_error = float(max(errors))


def run(shapes: list[tuple[int, int, int]], chunks: tuple[int, ...], rounds: int, quick: bool) -> list[Row]:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    rows: list[Row] = []
    for n, d, v in shapes:
        began = time.perf_counter()
        x = Inputs.make(n, d, v, device)
        found = methods(chunks, with_compile=device.type == "cuda" and (quick or d == MAIN[0]))
        at_shape = measure(x, found, rounds)
        if n == min(other for other, *rest in shapes if rest == [d, v]):
            measure_errors(x, found, at_shape)
        rows += at_shape
        del x
        if device.type == "cuda":
            torch.cuda.empty_cache()
        print(f"N {n} D {d} V {v}: {time.perf_counter() - began:.0f} s", flush=True)
    return rows


# -- bars and report


def bars(rows: list[Row]) -> list[Bar]:
    by_key = {(r.method, r.n, r.d, r.v): r for r in rows}

    def get(method: str, n: int, shape: tuple[int, int], name: str) -> float | None:
        row = by_key.get((method, n, *shape))
        return None if row is None else getattr(row, name)

    def error(method: str, name: str) -> float | None:
        at_any = (get(method, n, MAIN, name) for n in (2048, 8192))
        return next((value for value in at_any if value is not None), None)

    found = []
    for n in (8192, 32768):
        for chunk_size, limit in ((4096, 0.92), (1024, 0.85)):
            name = f"ours, chunk {chunk_size}"
            found.append(
                Bar(f"N {n} chunk {chunk_size}, of the floor", get(name, n, MAIN, "both_of_floor"), limit)
            )
            bound = chunk_size * MAIN[1] * 4 / MIB + 64
            beyond = get(name, n, MAIN, "beyond_mib")
            found.append(Bar(f"N {n} chunk {chunk_size}, MiB beyond", beyond, bound, at_most=True))
        name = "ours, chunk 4096"
        cce, own = (get(m, n, MAIN, "both_ms") for m in ("cut-cross-entropy", name))
        speed = cce / own if cce and own else None
        found.append(Bar(f"N {n}, by cut-cross-entropy's speed", speed, 1.35))
        found.append(Bar(f"N {n}, forward of one product", get(name, n, MAIN, "forward_of_floor"), 0.92))
    for chunk_size in CHUNKS:
        name = f"ours, chunk {chunk_size}"
        many, few = (get(name, n, MAIN, "beyond_mib") for n in (32768, 8192))
        found.append(Bar(f"chunk {chunk_size}, N 32768 MiB as N 8192", many, (few or 0) + 1, at_most=True))
        found.append(Bar(f"chunk {chunk_size}, max error", error(name, "max_error"), 1e-3, at_most=True))
        eager_error = error("eager bf16", "grad_error") or 0
        grad_error = error(name, "grad_error")
        found.append(
            Bar(f"chunk {chunk_size}, gradient error as eager's", grad_error, eager_error, at_most=True)
        )
    small = get("ours, chunk 4096", 8192, SMALL, "both_of_floor")
    return [*found, Bar("D 896, of the floor", small, 0.80)]


def cell(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def report(record: dict[str, Any]) -> None:
    """Print the tables and the bars; the last line says it all."""
    rows = [Row(**row) for row in record["rows"]]
    print(f"{record['device']} {record['versions']} {record['set']}")
    if record["absent"]:
        print(f"not installed: {', '.join(record['absent'])}")
    shape = None
    for r in rows:
        if (r.n, r.d, r.v) != shape:
            shape = (r.n, r.d, r.v)
            print(f"\nN {r.n}, D {r.d}, V {r.v}")
            print(
                "| method | forward ms | of floor | both ms | of floor | peak MiB | beyond gradients "
                "| max error | gradient error |\n|---|---|---|---|---|---|---|---|---|"
            )
        figures = [
            cell(r.forward_ms, ".2f"),
            cell(r.forward_of_floor, ".3f"),
            cell(r.both_ms, ".2f"),
            cell(r.both_of_floor, ".3f"),
            cell(r.peak_mib, ".0f"),
            cell(r.beyond_mib, ".1f"),
            cell(r.max_error, ".1e"),
            cell(r.grad_error, ".2e"),
        ]
        print(f"| {r.method} | {' | '.join(figures)} | {r.note}")
    print()
    missed, unmeasured = [], []
    for bar in bars(rows):
        verdict = "-" if bar.value is None else "ok" if bar.holds else "MISS"
        side = "<=" if bar.at_most else ">="
        print(f"{verdict:4} {bar.name}: {cell(bar.value, '.4g')} {side} {bar.limit:.4g}")
        if not bar.holds:
            (unmeasured if bar.value is None else missed).append(bar.name)
    if missed:
        print(f"linear_logprob: missed: {'; '.join(missed)}")
    elif unmeasured:
        print(f"linear_logprob: not measured: {'; '.join(unmeasured)}")
    else:
        print("linear_logprob: all bars hold")


def plot(record: dict[str, Any], folder: Path) -> None:
    """Time of forward and backward, and memory, by vocabulary: one picture for each D, N 8192."""
    import matplotlib.pyplot as plt

    rows = [Row(**row) for row in record["rows"]]
    folder.mkdir(parents=True, exist_ok=True)
    for d in sorted({r.d for r in rows}):
        figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2))
        for method in dict.fromkeys(r.method for r in rows):
            line = sorted((r for r in rows if (r.method, r.n, r.d) == (method, 8192, d)), key=lambda r: r.v)
            timed = [r for r in line if r.both_ms is not None]
            left.plot([r.v / 1e3 for r in timed], [r.both_ms for r in timed], marker="o", label=method)
            held = [r for r in line if r.peak_mib is not None]
            right.plot([r.v / 1e3 for r in held], [r.peak_mib / 1024 for r in held], marker="o")
        left.set(title=f"forward + backward, N 8192, D {d}", xlabel="vocabulary, thousands", ylabel="ms")
        right.set(title="peak memory beyond inputs", xlabel="vocabulary, thousands", ylabel="GiB")
        left.legend(fontsize=7)
        figure.tight_layout()
        figure.savefig(folder / f"linear_logprob_{d}.png", dpi=110)
        plt.close(figure)


def change_constant(text: str) -> str:
    """`module.NAME=VALUE`: an integer constant of lightrft/kernels/module.py.

    Raises:
        SystemExit: there is none of that name.
    """
    name, _, value = text.partition("=")
    module_name, _, constant = name.partition(".")
    module = importlib.import_module(f"lightrft.kernels.{module_name}")
    if not isinstance(getattr(module, constant, None), int):
        raise SystemExit(f"--set {text}: {name} is no integer constant of lightrft/kernels")
    setattr(module, constant, int(value))
    return text


def profile_ours(rounds: int = 3) -> None:
    """Where the time of the first bar's shape goes, kernel by kernel."""
    from torch.profiler import ProfilerActivity, profile

    x = Inputs.make(8192, *MAIN, torch.device("cuda"))
    for chunk_size in CHUNKS:
        run_both(partial(ours, chunk_size), x)
        with profile(activities=[ProfilerActivity.CUDA]) as seen:
            for _ in range(rounds):
                run_both(partial(ours, chunk_size), x)
            torch.cuda.synchronize()
        print(f"chunk {chunk_size}, {rounds} runs")
        print(seen.key_averages().table(sort_by="cuda_time_total", row_limit=12, max_name_column_width=70))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="the shapes of the bars only")
    parser.add_argument("--tiny", action="store_true", help="one small shape: shows that the program works")
    parser.add_argument("--out", type=Path, help="write the figures there")
    parser.add_argument("--show", type=Path, help="print an earlier run")
    parser.add_argument("--plot", type=Path, help="draw an earlier run into docs/images")
    parser.add_argument("--profile", action="store_true", help="only say where the time goes, on a GPU")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", type=change_constant)
    parser.add_argument("--commit", default="", help="where the machine has no git history")
    args = parser.parse_args()
    if args.plot:
        plot(json.loads(args.plot.read_text()), Path("docs/images"))
        return
    if args.show:
        report(json.loads(args.show.read_text()))
        return
    if args.profile:
        profile_ours()
        return
    if args.tiny:
        rows = run([(64, 32, 1000)], (32,), 2, quick=True)
    else:
        rows = run(QUICK if args.quick else GRID, CHUNKS, args.rounds, args.quick)
    record = machine() | {
        "set": args.set,
        "absent": [name for name, module in PEERS.items() if not find_spec(module)],
        "peers": {name: version(module) for name, module in PEERS.items() if find_spec(module)},
        "rows": [asdict(row) for row in rows],
    }
    record["commit"] = args.commit or record["commit"]
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(record, indent=1) + "\n")
    report(record)


if __name__ == "__main__":
    main()
