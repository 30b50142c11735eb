"""The benchmarks run, and their verdicts can fail."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SPEED = "linear_logprob.py"


def benchmark(name, *arguments):
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / name, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    out = tmp_path_factory.mktemp("benchmark") / "out.json"
    said = benchmark(SPEED, "--tiny", "--out", str(out), "--set", "tiling.TILE_BYTES=1")
    assert "linear_logprob: not measured: N 8192 chunk 4096, of the floor;" in said.splitlines()[-1]
    return json.loads(out.read_text())


@pytest.mark.slow
def test_the_figures_of_a_small_shape(record):
    rows = {row["method"]: row for row in record["rows"]}
    own, eager = rows["ours, chunk 32"], rows["eager bf16"]
    assert own["max_error"] < 1e-5 < eager["max_error"]
    assert 0 < own["grad_error"] < eager["grad_error"] < 1e-2
    assert own["both_ms"] > own["forward_ms"] > 0
    assert rows["floor"]["both_of_floor"] == 1
    assert record["set"] == ["tiling.TILE_BYTES=1"]


@pytest.mark.slow
def test_bars_hold_or_are_named(record, tmp_path):
    def verdict(**change):
        rows = []
        for n in (8192, 32768):
            for method, time in (
                ("ours, chunk 4096", 50.0),
                ("ours, chunk 1024", 50.0),
                ("cut-cross-entropy", 80.0),
            ):
                for d in (3584, 896):
                    row = dict.fromkeys(record["rows"][0]) | {"method": method, "n": n, "d": d, "v": 152064}
                    row |= {
                        "both_ms": time,
                        "forward_of_floor": 0.95,
                        "both_of_floor": 0.95,
                        "beyond_mib": 600.0,
                    }
                    row |= {"max_error": 1e-5, "grad_error": 1e-3, "note": ""}
                    rows.append(row | (change if method == "ours, chunk 1024" else {}))
            rows.append(rows[-1] | {"method": "eager bf16", "d": 3584, "grad_error": 2e-3})
        path = tmp_path / "record.json"
        path.write_text(json.dumps(record | {"rows": rows}))
        return benchmark(SPEED, "--show", str(path)).splitlines()[-1]

    assert verdict() == "linear_logprob: all bars hold"
    assert verdict(both_of_floor=0.8).startswith(
        "linear_logprob: missed: N 8192 chunk 1024, of the floor; N 32768"
    )
    assert verdict(beyond_mib=700.0).startswith("linear_logprob: missed: N 8192 chunk 1024, MiB beyond;")
    assert verdict(max_error=2e-3) == "linear_logprob: missed: chunk 1024, max error"
    assert verdict(grad_error=3e-3) == "linear_logprob: missed: chunk 1024, gradient error as eager's"
    assert verdict(max_error=None) == "linear_logprob: not measured: chunk 1024, max error"
