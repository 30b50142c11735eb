"""The pages on algorithms and metrics name what the code has: all of it, and nothing else."""

import re
from pathlib import Path

import pytest
import torch

from lightrft import registry
from lightrft.algorithms.components import load_loss
from lightrft.algorithms.correction import gap_metrics
from lightrft.algorithms.losses._common import LossOptions
from lightrft.config.arguments import MOVED
from lightrft.config.flags import ALIASES, FLAGS
from lightrft.observability.sentinels import CHECKS
from lightrft.types import LossInputs

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = DOCS / "algorithms"
KINDS = {"algorithms/advantages": "--advantage_estimator", "algorithms/losses": "--policy_loss"}
CHOICES = [(package, value) for package in KINDS for value in registry.names(package)]
# Of deepspeed, torchrun and argparse; `--flag` stands for any flag.
NOT_OURS = {"for", "nproc-per-node", "nnodes", "num_accelerators", "hostfile", "master_port", "help", "flag"}
TOOLS = {"html", "data", "rollouts", "split", "out"}  # flags of the programs beside training
# Phases that are timed and lie outside every step.
BETWEEN_STEPS = {"time/evaluate", "time/save"}


def sources(folder):
    return "\n".join(path.read_text() for path in sorted((ROOT / "lightrft" / folder).glob("*.py")))


def links(page):
    """The files that the relative links of a page lead to."""
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text())
    return {(page.parent / t).resolve() for t in targets if "://" not in t}


@pytest.mark.parametrize(("package", "value"), CHOICES)
def test_each_estimator_and_loss_has_a_page_that_names_its_flag(package, value):
    page = PAGES / f"{registry.module_name(value)}.md"
    assert page.is_file()
    assert f"`{KINDS[package]} {value}`" in page.read_text()


def test_the_index_leads_to_every_page_and_to_each_under_its_flags_value():
    index = PAGES / "README.md"
    assert {p.resolve() for p in PAGES.glob("*.md")} - links(index) == {index.resolve()}
    rows = index.read_text()
    missing = [v for _, v in CHOICES if f"| [`{v}`]({registry.module_name(v)}.md)" not in rows]
    assert missing == []


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda p: str(p.relative_to(DOCS)))
def test_flags_and_links_of_a_page_exist(page):
    named = set(re.findall(r"(?<![\w-])--([a-z][a-z0-9_-]*)", page.read_text()))
    assert sorted(named - FLAGS.keys() - ALIASES.keys() - MOVED.keys() - NOT_OURS - TOOLS) == []
    assert [str(target) for target in sorted(links(page)) if not target.exists()] == []


def loss_metrics(value):
    """The names that a built-in loss measures, each option on."""
    row = torch.zeros(1, 2)
    inputs = LossInputs(logprobs=row, old_logprobs=row, advantages=row, response_mask=torch.ones(1, 2))
    outputs = load_loss(value)(inputs, LossOptions(dual_clip=3.0, drift_coef=0.01))
    return {f"policy/{name}" for name in outputs.metrics}


def measured():
    """Every metric that the code can log, but for the parts of rewards and the further temperatures."""
    trainer, evaluation = sources("trainer"), (ROOT / "lightrft/trainer/evaluate.py").read_text()
    plain = r'metrics\.add(?:_max|_total)?\(\s*"([\w/]+)"'
    names = {name for name in re.findall(plain, trainer) if "/" in name}
    names |= {f"eval/{name}" for name in re.findall(plain, evaluation)}
    for name in re.findall(r'f"\{self\.name\}/(\w+)"', trainer):
        names |= {f"policy/{name}", f"critic/{name}"}
    names |= set(re.findall(r'"(policy/\w+)": self', trainer))
    names |= {f"time/{phase}" for phase in re.findall(r'timers\("(\w+)"\)', trainer)} - BETWEEN_STEPS
    names |= set(re.findall(r'"(time/\w+)":', sources("observability")))
    names |= {f"sentinel/{check.name}" for check in CHECKS}
    gaps, _ = gap_metrics(torch.zeros(1, 2), torch.zeros(1, 2), torch.ones(1, 2))
    names |= {f"rollout/{name}" for name in gaps}
    return names.union(*(loss_metrics(value) for value in registry.names("algorithms/losses")))


def documented():
    """The names in the first column of the glossary's tables."""
    rows = re.findall(r"^\| (`.*?) \|", (DOCS / "metrics.md").read_text(), re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`([\w/]+)`", row)}


def test_the_glossary_has_every_metric_and_no_other():
    names = measured()
    assert len(names) > 60
    assert sorted(names - documented()) == []
    assert sorted(documented() - names) == []


@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.name)
def test_the_glossary_gives_the_limits_of_a_sentinel(check):
    row = re.search(
        rf"^\| `sentinel/{check.name}` \|(.*)\|$", (DOCS / "metrics.md").read_text(), re.MULTILINE
    )
    assert row is not None
    watched, fp32, bf16 = (cell.strip() for cell in row[1].split("|"))
    assert f"`{check.metric}`" in watched
    assert tuple(float(x) for x in fp32.split(",")) == check.fp32
    assert tuple(float(x) for x in (fp32 if bf16 == "the same" else bf16).split(",")) == check.bf16
