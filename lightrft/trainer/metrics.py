"""Metrics that mean the same on any number of ranks: sums and counts are added, then divided once."""

from __future__ import annotations

from torch import Tensor

from lightrft.distributed.collectives import reduce_named


class MetricSums:
    """Collects (sum, count) pairs and maxima over micro-batches; `reduce` adds them over ranks.

    Tensors are kept as they are until `reduce`, so that collecting does not wait for the device. Ranks may
    collect different names.
    """

    def __init__(self) -> None:
        self._sums: dict[str, list[tuple[Tensor | float, Tensor | float]]] = {}
        self._maxima: dict[str, list[Tensor | float]] = {}
        self._totals: dict[str, list[Tensor | float]] = {}

    def add(self, name: str, total: Tensor | float, count: Tensor | float = 1.0) -> None:
        """`total` over `count` things. Means of the same name are weighted by their counts."""
        self._sums.setdefault(name, []).append((_detached(total), _detached(count)))

    def add_max(self, name: str, value: Tensor | float) -> None:
        """A value of which the largest is reported."""
        self._maxima.setdefault(name, []).append(_detached(value))

    def add_total(self, name: str, value: Tensor | float) -> None:
        """A value of which the sum over everything is reported."""
        self._totals.setdefault(name, []).append(_detached(value))

    def merge(self, other: MetricSums) -> None:
        """Take over everything that `other` has collected."""
        for name, pairs in other._sums.items():
            self._sums.setdefault(name, []).extend(pairs)
        for mine, others in ((self._maxima, other._maxima), (self._totals, other._totals)):
            for name, values in others.items():
                mine.setdefault(name, []).extend(values)

    def reduce(self, device: object = "cpu") -> dict[str, float]:
        """Means, totals and maxima over all ranks. Collective. A mean over nothing is left out."""
        flat = {f"{name}|total": sum(float(v) for v in values) for name, values in self._totals.items()}
        for name, pairs in self._sums.items():
            flat[f"{name}|sum"] = sum(float(total) for total, _ in pairs)
            flat[f"{name}|count"] = sum(float(count) for _, count in pairs)
        maxima = {name: max(float(v) for v in values) for name, values in self._maxima.items()}
        sums, out = reduce_named(flat, maxima, str(device))
        for key, value in sums.items():
            name, _, kind = key.rpartition("|")
            if kind == "total":
                out[name] = value
            elif kind == "sum" and sums[f"{name}|count"] != 0:
                out[name] = value / sums[f"{name}|count"]
        return out


def _detached(value: Tensor | float) -> Tensor | float:
    return value.detach() if isinstance(value, Tensor) else value
