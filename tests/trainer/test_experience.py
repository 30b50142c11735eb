"""From rewards to advantages: the order of the stages, signs, what is left out. Models are constants."""

import math
from types import SimpleNamespace

import pytest
import torch

from lightrft.algorithms.components import load_estimator
from lightrft.algorithms.kl import FixedKLController
from lightrft.models.policy import PolicyOutput
from lightrft.trainer.experience import ExperienceMaker, ExperienceOptions, Models, ShapingOptions
from lightrft.types import Prompt, RewardResult, Rollout

CPU = torch.device("cpu")


class Constant:
    """A model whose log-prob of any token is `logprob`, and whose entropy is a tenth of the token's id."""

    def __init__(self, logprob):
        self.logprob = logprob
        text = SimpleNamespace(vocab_size=100)
        self.model = SimpleNamespace(config=SimpleNamespace(get_text_config=lambda: text))

    def __call__(self, input_ids, attention_mask, response_mask, with_entropy=False, **pictures):
        entropy = input_ids / 10 * response_mask if with_entropy else None
        return PolicyOutput(self.logprob * response_mask, entropy)


def rollout(index, sample, response, gap=0.0):
    """The trainer's log-prob is -1, the engine's -1 - `gap`."""
    prompt = Prompt(index, [50, 51], "")
    return Rollout(prompt, sample, response, "", "stop", [-1.0 - gap] * len(response))


# Two prompts; responses of 2, 3, 1 and 2 tokens.
ROLLOUTS = [
    rollout(0, 0, [1, 2]),
    rollout(0, 1, [3, 4, 5], gap=math.log(1.5)),
    rollout(1, 0, [6]),
    rollout(1, 1, [7, 8], gap=-math.log(4)),
]


def make(rewards, estimator="reinforce", reference=None, critic=None, teacher=None, coef=0.1, **options):
    """(experience, metrics) of the four rollouts."""
    models = Models(
        policy=SimpleNamespace(module=Constant(-1.0)),
        reference=reference and Constant(reference),
        critic=critic and SimpleNamespace(module=lambda ids, attention, response, *_: critic * response),
        teacher=teacher and SimpleNamespace(logprobs=lambda batch: teacher * batch.response_mask),
    )
    shaping = {k: options.pop(k) for k in list(options) if k in ShapingOptions.__dataclass_fields__}
    given = ExperienceOptions(micro_batch_size=3, shaping=ShapingOptions(**shaping), **options)
    maker = ExperienceMaker(models, load_estimator(estimator), FixedKLController(coef), given, 0, CPU)
    experience, metrics = maker.make(ROLLOUTS, RewardResult(rewards))
    return experience, metrics.reduce()


def advantages(*args, **kwargs):
    """Advantages of response tokens, row by row."""
    experience, _ = make(*args, **kwargs)
    rows = zip(experience.advantages, experience.response_mask, strict=True)
    return [row[mask.bool()].tolist() for row, mask in rows]


def test_logprobs_and_entropy_come_from_their_models():
    experience, metrics = make([1.0, 0, 0, 0], reference=-1.5, kl_estimator="k2")
    mask = experience.response_mask
    assert torch.equal(experience.old_logprobs, -mask)
    assert torch.equal(experience.ref_logprobs, -1.5 * mask)
    assert metrics["policy/entropy"] == pytest.approx((1 + 2 + 3 + 4 + 5 + 6 + 7 + 8) / 10 / 8)
    assert metrics["policy/kl"] == pytest.approx(0.125)  # (-1 + 1.5)^2 / 2


def test_kl_in_the_reward_is_subtracted_from_every_token():
    # k1: .5 a token, times .1; what is to come counts: 1 - 2 * .05, 1 - .05
    got = advantages([1.0, 0, 0, 2.0], reference=-1.5, kl_in_reward=True, kl_estimator="k1")
    expected = [[0.9, 0.95], [-0.15, -0.1, -0.05], [-0.05], [1.9, 1.95]]
    assert [pytest.approx(row) for row in expected] == got


def test_kl_in_the_loss_leaves_the_reward_alone():
    assert advantages([1.0, 0, 0, 2.0], reference=-1.5) == [[1.0] * 2, [0.0] * 3, [0.0], [2.0] * 2]


def test_reinforce_plus_plus_has_the_kl_in_its_reward_whatever_else_uses_it():
    with_flag, without = (
        advantages([1.0, 0, 0, 2.0], "reinforce++", reference=-1.5, kl_in_reward=f) for f in (True, False)
    )
    assert with_flag == without
    assert without[0][0] < without[0][1]  # the first token has more penalty before it


def test_whitening_happens_once():
    rewards = [1.0, 0, 0, 2.0]
    once = advantages(rewards, "reinforce++")
    assert advantages(rewards, "reinforce++", advantages_norm=True) == once
    # tokens 1 1 0 0 0 0 2 2: mean .75, variance (2 * .0625 + 4 * .5625 + 2 * 1.5625) / 8 = .6875
    assert once[3][0] == pytest.approx(1.25 / math.sqrt(0.6875))
    assert advantages(rewards, advantages_norm=True) == once


def test_advantages_are_clipped_after_whitening():
    got = advantages([1.0, 0, 0, 2.0], advantages_norm=True, advantage_clip=1.0)
    assert got[3] == [1.0, 1.0]
    assert got[0][0] == pytest.approx(0.25 / math.sqrt(0.6875))


def test_the_penalty_comes_before_the_clip():
    # at most 3 tokens, buffer 2: length 3 costs 1 and length 2 a half; 3 - 1 = 2, clipped to 1.5
    got = advantages([0.0, 3.0, 1.0, 1.0], overlong_buffer_len=2, max_response_len=3, reward_clip=1.5)
    assert [row[0] for row in got] == [-0.5, 1.5, 1.0, 0.5]


def test_normalisation_comes_before_the_clip():
    # 4, 0, 0, 0: mean 1, unbiased std 2: 4 / 2 = 2, clipped to 1.5. Clipped first it would be 2 again
    got = advantages([4.0, 0, 0, 0], running_norm=True, reward_clip=1.5)
    assert [row[0] for row in got] == [1.5, 0.0, 0.0, 0.0]


def test_normalisation_can_take_off_the_mean():
    got = advantages([4.0, 0, 0, 0], running_norm=True, running_norm_minus_mean=True)
    assert [row[0] for row in got] == pytest.approx([1.5, -0.5, -0.5, -0.5])


def test_metrics_of_rewards_are_before_and_after_shaping():
    _, metrics = make([0.0, 3.0, 1.0, 1.0], overlong_buffer_len=2, max_response_len=3, reward_clip=1.5)
    assert metrics["rollout/reward"] == pytest.approx(5 / 4)
    assert metrics["rollout/pass_rate"] == pytest.approx(3 / 4)
    assert metrics["shaping/reward_after"] == pytest.approx((-0.5 + 1.5 + 1.0 + 0.5) / 4)
    assert metrics["shaping/overlong_share"] == pytest.approx(3 / 4)


def test_a_missing_reward_leaves_its_sample_out_of_everything():
    experience, metrics = make([None, 1.0, 0.0, 1.0], "rloo", running_norm=True)
    assert experience.advantages[:2].count_nonzero() == 0  # excluded, and the survivor of its group
    assert experience.advantages[3].count_nonzero() == 2
    assert metrics["rollout/excluded_share"] == pytest.approx(1 / 4)
    assert metrics["rollout/reward"] == pytest.approx(2 / 3)
    assert metrics["rollout/pass_rate"] == pytest.approx(2 / 3)
    assert metrics["rollout/zero_spread_share"] == pytest.approx(1 / 2)
    assert metrics["train/tokens"] == 6
    assert metrics["train/samples"] == 3


def test_values_become_advantages_and_returns():
    experience, _ = make([1.0, 0, 0, 0], "gae", critic=0.25, lambd=1.0)
    mask = experience.response_mask
    assert torch.equal(experience.values, 0.25 * mask)
    assert experience.advantages[0][mask[0].bool()].tolist() == [0.75, 0.75]  # the return less the value
    assert experience.returns[0][mask[0].bool()].tolist() == [1.0, 1.0]


def test_the_teacher_is_compared_with_the_policy():
    got = advantages(
        [1.0, 0, 0, 0], "on_policy_distillation", teacher=-3.0, opd_kl_coef=0.5, task_reward=False
    )
    assert got[0] == [-1.0, -1.0]  # .5 * (-3 + 1)


def test_discount_and_group_std_reach_the_estimator():
    assert advantages([1.0, 0, 0, 0], gamma=0.5)[0] == [0.5, 1.0]
    assert advantages([1.0, 0, 0, 0], "group_norm", group_std=False)[0] == [0.5, 0.5]


def test_no_weights_unless_something_asks_for_them():
    assert make([1.0, 0, 0, 0])[0].loss_weights is None


def test_correction_weighs_by_trainer_over_engine():
    # exp(gap): 1, 1.5, 1, 1/4; the cap 1.2 holds above only
    experience, metrics = make([1.0, 0, 0, 0], rollout_is="token", rollout_is_cap=1.2)
    expected = [[1.0] * 2, [1.2] * 3, [1.0], [0.25] * 2]
    rows = zip(experience.loss_weights, experience.response_mask, strict=True)
    assert [pytest.approx(row) for row in expected] == [w[m.bool()].tolist() for w, m in rows]
    assert metrics["policy/correction_weight"] == pytest.approx((2 + 3.6 + 1 + 0.5) / 8)


def test_filter_and_correction_multiply():
    # a quarter of 8 tokens: entropies .7 and .8, those of the last response, whose correction is 1/4
    experience, metrics = make([1.0, 0, 0, 0], rollout_is="token", high_entropy_token_ratio=0.25)
    kept = experience.loss_weights * experience.response_mask
    assert kept[:3].count_nonzero() == 0
    assert kept[3][experience.response_mask[3].bool()].tolist() == pytest.approx([0.25, 0.25])
    assert metrics["policy/filtered_share"] == pytest.approx(6 / 8)


def test_the_gap_is_measured_whatever_the_setting():
    _, metrics = make([1.0, 0, 0, 0], rollout_is_cap=1.2)
    # gaps: three tokens of ln 1.5, two of -ln 4
    low, high = math.log(1.5), math.log(4)
    assert metrics["rollout/logprob_gap_mean"] == pytest.approx((3 * low + 2 * high) / 8, abs=1e-6)
    assert metrics["rollout/logprob_gap_max"] == pytest.approx(high, abs=1e-6)
    assert metrics["rollout/capped_share"] == pytest.approx(3 / 8)
    # weights 1 x 3, 1.5 x 3, .25 x 2: sum 8, sum of squares 9.875
    assert metrics["rollout/effective_sample_share"] == pytest.approx(8**2 / (8 * 9.875), abs=1e-6)


def test_advantage_metrics():
    _, metrics = make([1.0, 0, 0, -2.0])  # tokens 1 1 0 0 0 0 -2 -2
    assert metrics["policy/advantage_mean"] == pytest.approx(-2 / 8)
    assert metrics["policy/advantage_abs_mean"] == pytest.approx(6 / 8)
    assert metrics["policy/advantage_square_mean"] == pytest.approx(10 / 8)
