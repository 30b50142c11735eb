"""Every estimator and every loss learns: the tiny addition task, the same number of steps for each.

    python -m tests.learn                  # all, two at a time; about 15 minutes on two cores
    python -m tests.learn gae gspo         # some

Each case is one run of `train.py`, as a user starts it. The last line gives every case's pass rate, sampled
at temperature 1 on held-out problems, before and after; the exit code is 1 if one rises by less than 0.2.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lightrft.tools.before_after import first_and_last

ROOT = Path(__file__).parent.parent
RISE = 0.2
AT_ONCE = 2
TEACHER = "group_norm"  # its trained model teaches on_policy_distillation

COMMON = """
--apply_chat_template --prompt_max_len 16 --generate_max_len 6 --max_len 32 --reward exact_match
--rollout_batch_size 32 --n_samples_per_prompt 8 --train_batch_size 128 --micro_train_batch_size 128
--micro_rollout_batch_size 256 --num_episodes 1 --temperature 1.0 --top_p 1.0 --clip_range_higher 0.28
--engine_type hf --eval_before_train --eval_temperature 1.0 --init_kl_coef 0.001 --actor_learning_rate 4e-4
"""
CASES = {
    "group_norm": "--use_kl_loss",
    "reinforce": "--advantages_norm",
    "reinforce++": "",
    "reinforce_baseline": "",
    "rloo": "--advantages_norm",
    "cpgd": "--use_kl_loss",
    "gae": "--critic_learning_rate 1e-3 --advantages_norm",
    "on_policy_distillation": "--no_task_reward --init_kl_coef 0",
    "ppo": "--use_kl_loss --dual_clip 3.0 --loss_agg_mode token-mean",
    "cpgd_loss": "--use_kl_loss --policy_loss cpgd",
    "gspo": "--use_kl_loss --policy_loss gspo",
    "gmpo": "--use_kl_loss --policy_loss gmpo",
    "cispo": "--use_kl_loss --policy_loss cispo",
    "sapo": "--use_kl_loss --policy_loss sapo",
}
ESTIMATORS = tuple(CASES)[:8]


def command(name: str, folder: Path) -> list[str]:
    """The words after `train.py` for a case."""
    words = COMMON.split() + CASES[name].split()
    words += ["--pretrain", str(folder / "model"), "--prompt_data", str(folder / "train.jsonl")]
    words += ["--eval_data", str(folder / "eval.jsonl"), "--save_path", str(folder / name)]
    words += ["--advantage_estimator", name if name in ESTIMATORS else "group_norm"]
    if name == "on_policy_distillation":
        words += ["--teacher_pretrain", str(folder / TEACHER / "hf")]
    return words


def run(name: str, folder: Path) -> tuple[float, float] | None:
    """(before, after), or None where the run failed; its output is printed then."""
    environ = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    began = time.time()
    done = subprocess.run(
        [sys.executable, str(ROOT / "train.py"), *command(name, folder)],
        capture_output=True,
        text=True,
        env=environ,
        check=False,
    )
    if done.returncode != 0:
        print(f"{name}: failed\n{done.stdout[-1500:]}\n{done.stderr[-1500:]}", flush=True)
        return None
    before, after = first_and_last(folder / name / "logs" / "metrics.jsonl")["eval"]
    print(f"{name:24} {before:.3f} -> {after:.3f}   {time.time() - began:.0f} s", flush=True)
    return before, after


def main(names: list[str]) -> int:
    names = names or list(CASES)
    unknown = [n for n in names if n not in CASES]
    if unknown:
        print(f"learn: unknown {', '.join(unknown)}; choose from {', '.join(CASES)}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        make = [sys.executable, "-m", "lightrft.tools.make_tiny", "adder", str(folder / "model")]
        subprocess.run(make, check=True, cwd=ROOT)
        results = {}
        waits = [n for n in names if n == "on_policy_distillation"]
        first = ([TEACHER] if waits and TEACHER not in names else []) + [n for n in names if n not in waits]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            results |= dict(zip(first, pool.map(lambda n: run(n, folder), first), strict=True))
            results |= dict(zip(waits, pool.map(lambda n: run(n, folder), waits), strict=True))
    good = {n: r for n, r in results.items() if r is not None and r[1] - r[0] >= RISE}
    summary = ", ".join(f"{n} {r[0]:.2f}->{r[1]:.2f}" if r else f"{n} failed" for n, r in results.items())
    print(f"learn: {len(good)} of {len(results)} rose by {RISE} or more: {summary}")
    return 0 if len(good) == len(results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
