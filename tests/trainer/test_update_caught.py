"""The update's arithmetic by hand: a policy whose log-probs are its parameters, so that gradients show."""

import pytest
import torch

from lightrft.algorithms.kl import FixedKLController
from lightrft.algorithms.losses import ppo
from lightrft.distributed.local import LocalModel
from lightrft.distributed.strategy import OptimizerOptions
from lightrft.models.policy import PolicyOutput
from lightrft.trainer.optimize import OptimizeOptions, Optimizer
from lightrft.trainer.update import BatchOptions, PolicyOptions, PolicyUpdater
from lightrft.types import Experience

MASK = torch.tensor([[0.0, 1, 1, 0], [0, 1, 1, 1]])  # two and three response tokens
ADVANTAGES = torch.tensor([[0.0, 2, 2, 0], [0, -1, -1, -1]])


class Table(torch.nn.Module):
    """Log-probs and entropies as parameters, looked up by the row's first id."""

    def __init__(self):
        super().__init__()
        self.logprobs = torch.nn.Parameter(torch.full((2, 4), -1.0))
        self.entropy = torch.nn.Parameter(torch.full((2, 4), 0.5))

    def forward(self, input_ids, attention_mask, response_mask, with_entropy=False, **pictures):
        rows, width = input_ids[:, 0], input_ids.shape[1]
        entropy = self.entropy[rows, :width] if with_entropy else None
        return PolicyOutput(self.logprobs[rows, :width], entropy)


class Recorder(LocalModel):
    """Keeps the gradients and the learning rate of each step."""

    def __init__(self, module):
        super().__init__(module, OptimizerOptions(max_norm=0.0))
        self.gradients, self.rates = [], []

    def step(self, learning_rate):
        self.gradients.append(
            {
                n: torch.zeros_like(p) if p.grad is None else p.grad.clone()
                for n, p in self.module.named_parameters()
            }
        )
        self.rates.append(learning_rate)
        return super().step(learning_rate)


def experience(**changes):
    ids = torch.tensor([[0, 9, 9, 9], [1, 9, 9, 9]])
    given = {
        "input_ids": ids,
        "attention_mask": torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]]),
        "response_mask": MASK,
        "group_ids": torch.zeros(2, dtype=torch.long),
        "rewards": torch.zeros(2),
        "policy_version": torch.zeros(2, dtype=torch.long),
        "old_logprobs": -MASK,
        "ref_logprobs": -1.5 * MASK,
        "advantages": ADVANTAGES,
    }
    return Experience(**(given | changes))


def updated(batch, micro=2, mode="seq-mean-token-mean", rate=0.0, steps=1, warmup_steps=0, **options):
    model = Recorder(Table())
    optimize = OptimizeOptions(rate, warmup_steps=warmup_steps, total_steps=10)
    updater = PolicyUpdater(
        Optimizer("policy", model, optimize, torch.device("cpu")),
        ppo.compute,
        FixedKLController(0.1),
        BatchOptions(2, micro, 1, mode, 4),
        PolicyOptions(**options),
    )
    metrics = [updater.update(batch).reduce() for _ in range(steps)]
    return model, metrics[-1]


@pytest.mark.parametrize("micro", [1, 2])
def test_each_sequences_mean_over_the_number_of_sequences(micro):
    # d(-p A)/d logprob = -A at p = 1; over the row's tokens (2, 3), over 2 sequences
    model, metrics = updated(experience(), micro)
    expected = torch.tensor([[0.0, -0.5, -0.5, 0], [0, 1 / 6, 1 / 6, 1 / 6]])
    torch.testing.assert_close(model.gradients[0]["logprobs"], expected)
    # (-2 + 1) / 2, whatever the cut
    assert metrics["policy/loss"] == pytest.approx(-0.5)


@pytest.mark.parametrize("micro", [1, 2])
def test_each_token_over_the_number_of_tokens(micro):
    model, metrics = updated(experience(), micro, "token-mean")
    torch.testing.assert_close(model.gradients[0]["logprobs"], -ADVANTAGES / 5)
    assert metrics["policy/loss"] == pytest.approx(-0.2)  # (-2 * 2 + 3 * 1) / 5


def test_weights_scale_the_policy_loss_and_neither_kl_nor_entropy():
    weights = torch.tensor([[1.0, 0.5, 0, 1], [1, 1, 2, 0]])
    batch = experience(loss_weights=weights)
    model, _ = updated(batch, mode="token-mean", use_kl_loss=True, kl_estimator="k2", entropy_coef=0.01)
    # k2: x = -1 + 1.5 = .5 is its own gradient, times the coefficient .1
    expected = (-ADVANTAGES * weights + 0.1 * 0.5 * MASK) / 5
    torch.testing.assert_close(model.gradients[0]["logprobs"], expected)
    torch.testing.assert_close(model.gradients[0]["entropy"], -0.01 * MASK / 5)


@pytest.mark.parametrize(
    ("estimator", "gradient"),
    [("k1", 1.0), ("k2", 0.5), ("k3", 1 - 0.606531)],  # 1, x and 1 - exp(-x) at x = .5
)
def test_the_kl_term_has_the_chosen_estimators_gradient(estimator, gradient):
    batch = experience(advantages=torch.zeros(2, 4))
    model, _ = updated(batch, mode="token-mean", use_kl_loss=True, kl_estimator=estimator)
    torch.testing.assert_close(model.gradients[0]["logprobs"], 0.1 * gradient * MASK / 5)


def test_kl_is_no_part_of_the_loss_unless_asked_for():
    model, _ = updated(experience(advantages=torch.zeros(2, 4)))
    assert model.gradients[0]["logprobs"].abs().max() == 0


def test_ratio_metrics():
    # log-ratios .5 on two tokens and 0 on three: ratios 1.648721 and 1
    old = torch.tensor([[0.0, -1.5, -1.5, 0], [0, -1, -1, -1]])
    _, metrics = updated(experience(old_logprobs=old))
    assert metrics["policy/ratio_mean"] == pytest.approx((2 * 1.648721 + 3) / 5, abs=1e-6)
    assert metrics["policy/ratio_max"] == pytest.approx(1.648721, abs=1e-6)
    assert metrics["policy/ratio_max_deviation"] == pytest.approx(0.648721, abs=1e-6)
    # k3 of x = .5: exp(-.5) - 1 + .5 = .106531
    assert metrics["policy/approx_kl"] == pytest.approx(2 * 0.106531 / 5, abs=1e-6)


def test_the_learning_rate_follows_the_steps_that_were_taken():
    model, _ = updated(experience(), rate=1.0, steps=4, warmup_steps=3)
    assert model.rates == pytest.approx([0.25, 0.5, 0.75, 1.0])


def test_a_skipped_step_does_not_move_the_learning_rate():
    poisoned = experience(advantages=ADVANTAGES * float("nan"))
    model, metrics = updated(poisoned, rate=1.0, steps=3, warmup_steps=3)
    assert model.rates == pytest.approx([0.25, 0.25, 0.25])
    assert metrics["train/skipped_steps"] == 3
    assert torch.equal(model.module.logprobs, torch.full((2, 4), -1.0))


def test_a_loss_that_is_not_finite_reaches_neither_the_gradients_nor_the_metrics():
    model, metrics = updated(experience(advantages=ADVANTAGES * float("nan")), micro=1)
    assert model.gradients[0]["logprobs"].count_nonzero() == 0
    assert "policy/loss" not in metrics
