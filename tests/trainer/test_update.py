"""The policy update in one process: identities of the first step, the cut into micro-batches, skipping."""

from dataclasses import replace

import pytest
import torch

from lightrft.algorithms.kl import FixedKLController
from lightrft.algorithms.losses import ppo
from lightrft.distributed.local import LocalModel
from lightrft.distributed.strategy import OptimizerOptions
from lightrft.errors import TrainingError
from lightrft.models.loading import ModelOptions, load_causal_lm
from lightrft.models.policy import Policy
from lightrft.trainer.optimize import OptimizeOptions, Optimizer
from lightrft.trainer.update import BatchOptions, PolicyOptions, PolicyUpdater
from lightrft.types import Experience

MODES = ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"]


class Recorder(LocalModel):
    """Keeps the gradients of the last step instead of losing them."""

    def step(self, learning_rate):
        self.gradients = {n: p.grad.clone() for n, p in self.module.named_parameters() if p.grad is not None}
        return super().step(learning_rate)


@pytest.fixture(scope="module")
def module(tiny_model):
    return Policy(load_causal_lm(ModelOptions(str(tiny_model))))


@pytest.fixture
def batch(module):
    """Six samples of uneven lengths with the module's own log-probs as old ones."""
    generator = torch.Generator().manual_seed(0)
    lengths = [(3, 5), (4, 1), (2, 7), (5, 3), (3, 0), (1, 4)]  # prompt, response; the fifth is excluded
    total = max(p + r for p, r in lengths)
    ids = torch.randint(5, 50, (6, total), generator=generator)
    attention, response = torch.zeros(6, total, dtype=torch.long), torch.zeros(6, total)
    for i, (p, r) in enumerate(lengths):
        attention[i, : p + r] = 1
        response[i, p : p + r] = 1
    with torch.no_grad():
        old = module(ids, attention, response).logprobs
    return Experience(
        input_ids=ids,
        attention_mask=attention,
        response_mask=response,
        group_ids=torch.arange(6) // 2,
        rewards=torch.zeros(6),
        policy_version=torch.zeros(6, dtype=torch.long),
        old_logprobs=old,
        ref_logprobs=old - 0.3 * response,
        advantages=torch.randn(6, 1, generator=generator) * response,
    )


OPTIMIZE = ("learning_rate", "max_skipped_steps")
CUT = ("local_train_batch_size", "max_epochs", "loss_agg_mode")


def updater(module, micro=6, controller=0.1, **flags):
    optimize = {"learning_rate": 0.0} | {k: flags.pop(k) for k in OPTIMIZE if k in flags}
    cut = {"local_train_batch_size": 6, "max_epochs": 1} | {k: flags.pop(k) for k in CUT if k in flags}
    model = Recorder(module, OptimizerOptions(max_norm=0.0))
    optimizer = Optimizer(
        "policy", model, OptimizeOptions(warmup_steps=0, total_steps=10, **optimize), torch.device("cpu")
    )
    return PolicyUpdater(
        optimizer,
        ppo.compute,
        FixedKLController(controller),
        BatchOptions(micro_batch_size=micro, max_response_len=7, **cut),
        PolicyOptions(**flags),
    )


def gradients(module, batch, micro, **options):
    u = updater(module, micro, **options)
    u.update(batch)
    return u.optimizer.model.gradients


def assert_same(got, expected):
    """Every parameter's gradient, within 1e-5 of its own norm: rounding, and nothing else."""
    for name, value in expected.items():
        assert (got[name] - value).norm() <= 1e-5 * value.norm() + 1e-9, name


def test_the_first_step_has_ratio_one_and_kl_zero(module, batch):
    metrics = updater(module, micro=2).update(batch).reduce()
    assert metrics["policy/ratio_max_deviation"] < 1e-5
    assert abs(metrics["policy/first_kl"]) < 1e-9
    assert metrics["policy/ratio_mean"] == pytest.approx(1.0, abs=1e-6)
    assert metrics["policy/clip_fraction_high"] == 0.0


def test_the_first_steps_gradient_is_the_policy_gradient(module, batch):
    """At ratio 1 the ppo loss has the gradient of -mean(A log p)."""
    got = gradients(module, batch, 6, loss_agg_mode="token-mean")
    module.zero_grad()
    scored = module(batch.input_ids, batch.attention_mask, batch.response_mask)
    (-(batch.advantages * scored.logprobs).sum() / batch.response_mask.sum()).backward()
    assert_same(got, {n: p.grad for n, p in module.named_parameters()})
    module.zero_grad()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("micro", [1, 2, 3, 5])
def test_no_cut_into_micro_batches_shows(module, batch, mode, micro):
    options = {"loss_agg_mode": mode, "use_kl_loss": True, "entropy_coef": 0.01}
    whole, cut = gradients(module, batch, 6, **options), gradients(module, batch, micro, **options)
    assert_same(cut, whole)


def test_the_order_of_samples_does_not_show(module, batch):
    whole = gradients(module, batch, 2)
    turned = gradients(module, batch.select([5, 3, 1, 0, 2, 4]), 2)
    assert_same(turned, whole)


def test_the_reported_loss_is_the_loss(module, batch):
    """token-mean at ratio 1: -sum(A) / tokens, plus coefficient x k2 of a gap of .3."""
    u = updater(module, 2, loss_agg_mode="token-mean", use_kl_loss=True, kl_estimator="k2", controller=0.1)
    expected = -float((batch.advantages * batch.response_mask).sum() / batch.response_mask.sum())
    assert u.update(batch).reduce()["policy/loss"] == pytest.approx(expected + 0.1 * 0.3**2 / 2, abs=1e-5)


def test_the_entropy_bonus_pulls_towards_higher_entropy(tiny_model, batch):
    module = Policy(load_causal_lm(ModelOptions(str(tiny_model))))
    flat = replace(batch, advantages=torch.zeros_like(batch.advantages))

    def entropy():
        with torch.no_grad():
            scored = module(batch.input_ids, batch.attention_mask, batch.response_mask, with_entropy=True)
        return float(scored.entropy.sum())

    before = entropy()
    updater(module, 6, entropy_coef=1.0, learning_rate=1e-4).update(flat)
    assert entropy() > before


def test_several_optimizer_steps_and_epochs_are_counted(module, batch):
    u = updater(module, 1, local_train_batch_size=2, max_epochs=2)
    u.update(batch)
    assert u.optimizer.counters.optimizer_steps == 6


def test_a_batch_without_any_reward_updates_nothing(module, batch):
    u = updater(module, 2)
    u.update(replace(batch, response_mask=torch.zeros_like(batch.response_mask)))
    assert u.optimizer.counters.optimizer_steps == 0
    assert u.optimizer.counters.skipped_steps == 0


def test_a_step_that_is_not_finite_is_skipped_whole(tiny_model, batch):
    module = Policy(load_causal_lm(ModelOptions(str(tiny_model))))
    before = {n: p.detach().clone() for n, p in module.named_parameters()}
    poisoned = batch.advantages.clone()
    poisoned[2, 5] = float("nan")
    u = updater(module, 1, learning_rate=1e-2, max_skipped_steps=3)
    metrics = u.update(replace(batch, advantages=poisoned)).reduce()
    assert u.optimizer.counters.skipped_steps == 1
    assert u.optimizer.counters.optimizer_steps == 0
    assert metrics["train/skipped_steps"] == 1
    assert all(torch.equal(p, before[n]) for n, p in module.named_parameters())
    u.update(batch)
    assert u.optimizer.counters.skipped_in_a_row == 0
    assert not all(torch.equal(p, before[n]) for n, p in module.named_parameters())


def test_too_many_skipped_steps_stop_the_run(module, batch):
    poisoned = replace(batch, advantages=batch.advantages * float("nan"))
    u = updater(module, 6, max_skipped_steps=2)
    u.update(poisoned)
    with pytest.raises(TrainingError, match="2 optimizer steps in a row of the policy"):
        u.update(poisoned)
