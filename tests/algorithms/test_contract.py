"""What every estimator and every loss keeps, built in or out of a user's file."""

import ast
import dataclasses

import pytest
import torch

from lightrft import registry
from lightrft.algorithms.advantages._common import AdvantageInputs
from lightrft.algorithms.components import load_estimator, load_loss
from lightrft.algorithms.losses._common import LossOptions
from lightrft.algorithms.masking import aggregate_loss
from lightrft.errors import ConfigError
from lightrft.types import LossInputs

NAN = float("nan")
USER_ESTIMATOR = """
import torch
from lightrft.algorithms.advantages._common import AdvantageOutputs

def twice(inputs):
    scores = torch.nan_to_num(2 * inputs.rewards, nan=0.0).to(inputs.token_rewards.dtype)
    spread = scores[:, None].expand(inputs.response_mask.shape)
    return AdvantageOutputs(torch.where(inputs.response_mask.bool(), spread, torch.zeros_like(spread)))

class Needy:
    NEEDS_GROUPS = True
    WHITENS = True
    compute = staticmethod(twice)

WITH_COMPUTE = Needy()
NUMBER = 3

def two_arguments(inputs, more):
    return None

def of_rows(inputs):
    return AdvantageOutputs(inputs.rewards)

def nothing(inputs):
    return None
"""
USER_LOSS = """
from lightrft.types import LossOutputs

def plain(inputs, options):
    return LossOutputs(-inputs.advantages * inputs.logprobs, {})

class Plain:
    def compute(self, inputs, options):
        return plain(inputs, options)

WITH_COMPUTE = Plain()

def one_argument(inputs):
    return None
"""
ESTIMATORS = [*registry.names("algorithms/advantages"), "user:twice", "user:WITH_COMPUTE"]
LOSSES = [*registry.names("algorithms/losses"), "user:plain", "user:WITH_COMPUTE"]
MASK = [[0, 1, 1, 0, 1], [1, 1, 0, 0, 0], [0, 1, 0, 1, 0], [0, 0, 0, 0, 0], [0, 1, 1, 1, 1], [1, 0, 1, 0, 0]]
EXCLUDED = 5  # the row without a reward


@pytest.fixture
def written(tmp_path):
    """Turns `user:name` into the path of a file that holds it."""

    def resolve(name, text):
        if not name.startswith("user:"):
            return name
        path = tmp_path / "mine.py"
        path.write_text(text)
        return f"{path}:{name.removeprefix('user:')}"

    return resolve


@pytest.fixture(params=ESTIMATORS)
def estimator(request, written):
    return load_estimator(written(request.param, USER_ESTIMATOR))


@pytest.fixture(params=LOSSES)
def loss(request, written):
    return load_loss(written(request.param, USER_LOSS))


def beside(mask, seed, dtype):
    """Random values at response tokens, NaN elsewhere."""
    values = torch.randn(mask.shape, generator=torch.Generator().manual_seed(seed), dtype=dtype) * 0.3
    return torch.where(mask.bool(), values, torch.full_like(values, NAN))


def advantage_inputs(dtype=torch.float32):
    mask = torch.tensor(MASK, dtype=torch.float32)
    parts = [beside(mask, seed, dtype) for seed in range(4)]
    rewards = torch.tensor([1.0, 0.25, 0.5, 0.0, 2.0, NAN], dtype=dtype)
    named = {"values": parts[1], "old_logprobs": parts[2], "teacher_logprobs": parts[3]}
    return AdvantageInputs(rewards, torch.tensor([4, 4, 9, 9, 4, 9]), mask, parts[0], **named)


def loss_inputs(dtype=torch.float32):
    mask = torch.tensor(MASK, dtype=torch.float32)
    logprobs, old, advantages = (beside(mask, seed, dtype) for seed in range(3))
    return LossInputs(logprobs.requires_grad_(), old, advantages, mask)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_advantages_have_the_shape_and_dtype_of_the_token_rewards(estimator, dtype):
    inputs = advantage_inputs(dtype)
    got = estimator.compute(inputs)
    assert got.advantages.shape == inputs.response_mask.shape
    assert got.advantages.dtype == dtype
    assert not got.advantages.requires_grad
    if estimator.needs_critic:
        assert got.returns.shape == inputs.response_mask.shape
        assert got.returns.dtype == dtype
    else:
        assert got.returns is None


def test_advantages_are_zero_where_masked_and_finite_beside_nan(estimator):
    inputs = advantage_inputs()
    got = estimator.compute(inputs)
    for result in (got.advantages, got.returns):
        if result is not None:
            assert torch.isfinite(result).all()
            assert result[~inputs.response_mask.bool()].count_nonzero() == 0
    assert got.advantages.count_nonzero() > 5


def test_an_excluded_row_has_no_advantage(estimator):
    assert estimator.compute(advantage_inputs()).advantages[EXCLUDED].count_nonzero() == 0


def test_a_batch_without_a_response_token_has_no_advantage(estimator):
    inputs = dataclasses.replace(advantage_inputs(), response_mask=torch.zeros(6, 5))
    assert estimator.compute(inputs).advantages.tolist() == [[0.0] * 5] * 6


def test_a_batch_without_a_reward_has_no_advantage(estimator):
    inputs = dataclasses.replace(advantage_inputs(), rewards=torch.full((6,), NAN))
    assert estimator.compute(inputs).advantages.tolist() == [[0.0] * 5] * 6


def test_advantages_do_not_see_the_order_of_rows(estimator):
    inputs = advantage_inputs(torch.float64)
    order = torch.tensor([3, 0, 5, 4, 2, 1])
    tensors = {
        f.name: getattr(inputs, f.name)[order]
        for f in dataclasses.fields(inputs)
        if isinstance(getattr(inputs, f.name), torch.Tensor)
    }
    shuffled = estimator.compute(dataclasses.replace(inputs, **tensors)).advantages
    torch.testing.assert_close(shuffled, estimator.compute(inputs).advantages[order], rtol=0, atol=1e-12)


def padded(x, left, right, fill):
    return torch.nn.functional.pad(x, (left, right), value=fill)


@pytest.mark.parametrize(("left", "right"), [(0, 3), (3, 0), (2, 1)])
def test_advantages_do_not_see_the_padding(estimator, left, right):
    inputs = advantage_inputs(torch.float64)
    names = ("token_rewards", "values", "old_logprobs", "teacher_logprobs")
    wider = {name: padded(getattr(inputs, name), left, right, NAN) for name in names}
    wider["response_mask"] = padded(inputs.response_mask, left, right, 0.0)
    got = estimator.compute(dataclasses.replace(inputs, **wider)).advantages
    expected = padded(estimator.compute(inputs).advantages, left, right, 0.0)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_token_losses_have_the_shape_and_dtype_of_the_logprobs(loss, dtype):
    inputs = loss_inputs(dtype)
    got = loss(inputs, LossOptions()).token_losses
    assert got.shape == inputs.response_mask.shape
    assert got.dtype == dtype
    assert torch.isfinite(got[inputs.response_mask.bool()]).all()


@pytest.mark.parametrize("options", [LossOptions(), LossOptions(dual_clip=3.0, drift_coef=0.1)])
def test_gradients_stay_within_the_mask(loss, options):
    inputs = loss_inputs()
    losses = loss(inputs, options).token_losses
    total = aggregate_loss(losses, inputs.response_mask, "token-mean", 5)
    (gradient,) = torch.autograd.grad(total, inputs.logprobs)
    inside = inputs.response_mask.bool()
    assert torch.isfinite(total)
    assert torch.isfinite(gradient).all()
    assert gradient[~inside].count_nonzero() == 0
    assert gradient[inside].count_nonzero() > 3


def test_metrics_are_detached_sums_and_counts(loss):
    for name, (total, count) in loss(loss_inputs(), LossOptions()).metrics.items():
        assert not total.requires_grad, name
        assert torch.isfinite(total), name
        assert float(count) == sum(map(sum, MASK)), name


def test_a_batch_without_a_response_token_has_loss_and_gradient_zero(loss):
    inputs = dataclasses.replace(loss_inputs(), response_mask=torch.zeros(6, 5))
    losses = loss(inputs, LossOptions(drift_coef=0.1)).token_losses
    total = aggregate_loss(losses, inputs.response_mask, "seq-mean-token-mean", 5)
    (gradient,) = torch.autograd.grad(total, inputs.logprobs)
    assert float(total.detach()) == 0.0
    assert gradient.count_nonzero() == 0


@pytest.mark.parametrize(("left", "right"), [(0, 3), (3, 0), (2, 1)])
def test_losses_do_not_see_the_padding_or_the_order(loss, left, right):
    inputs = loss_inputs(torch.float64)
    order = torch.tensor([3, 0, 5, 4, 2, 1])
    fields = (inputs.logprobs, inputs.old_logprobs, inputs.advantages)
    wider = LossInputs(
        *(padded(x[order], left, right, NAN) for x in fields),
        padded(inputs.response_mask[order], left, right, 0.0),
    )
    inside = inputs.response_mask[order].bool()
    got = loss(wider, LossOptions()).token_losses[:, left : left + 5][inside]
    expected = loss(inputs, LossOptions()).token_losses[order][inside]
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)


# --- Literals and errors ---

WANTS = {
    "NEEDS_GROUPS": {"cpgd", "group_norm", "reinforce_baseline", "rloo"},
    "NEEDS_CRITIC": {"gae"},
    "NEEDS_TEACHER": {"on_policy_distillation"},
    "WHITENS": {"reinforce++", "reinforce_baseline"},
    "KL_IN_REWARD": {"reinforce++"},
}


@pytest.mark.parametrize("literal", list(WANTS))
def test_built_in_literals(literal):
    names = registry.names("algorithms/advantages")
    assert {n for n in names if getattr(load_estimator(n), literal.lower())} == WANTS[literal]


@pytest.mark.parametrize("name", registry.names("algorithms/advantages"))
def test_literals_can_be_read_without_importing(name):
    path = registry.PACKAGE_ROOT / "algorithms/advantages" / f"{registry.module_name(name)}.py"
    literals = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.Assign)
    }
    assert {"NEEDS_GROUPS", "NEEDS_CRITIC", "WHITENS"} <= set(literals)
    assert all(type(value) is bool for value in literals.values())


def test_literals_of_a_users_estimator(written):
    function = load_estimator(written("user:twice", USER_ESTIMATOR))
    needy = load_estimator(written("user:WITH_COMPUTE", USER_ESTIMATOR))
    assert (function.needs_groups, function.whitens, function.needs_critic) == (False, False, False)
    assert (needy.needs_groups, needy.whitens, needy.needs_critic) == (True, True, False)


def test_literals_at_the_top_of_a_users_file_count_too(written):
    found = load_estimator(written("user:twice", "NEEDS_GROUPS = True\n" + USER_ESTIMATOR))
    assert (found.needs_groups, found.whitens) == (True, False)


def test_a_literal_that_is_no_bool_is_refused(written):
    with pytest.raises(ConfigError, match="WHITENS is 'no'; it must be True or False"):
        load_estimator(written("user:twice", "WHITENS = 'no'\n" + USER_ESTIMATOR))


@pytest.mark.parametrize("name", ["user:two_arguments", "user:NUMBER"])
def test_a_users_estimator_that_breaks_the_contract_is_told_so(written, name):
    with pytest.raises(
        ConfigError, match=r"(?s)--advantage_estimator .*expected \(inputs: AdvantageInputs\)"
    ):
        load_estimator(written(name, USER_ESTIMATOR))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("user:of_rows", r"advantages is torch.float32 \[6\]; .* \[6, 5\]"),
        ("user:nothing", "AdvantageOutputs"),
    ],
)
def test_a_users_result_of_another_form_is_refused(written, name, message):
    with pytest.raises(ConfigError, match=message):
        load_estimator(written(name, USER_ESTIMATOR)).compute(advantage_inputs())


def test_a_users_loss_that_breaks_the_contract_is_told_so(written):
    with pytest.raises(ConfigError, match=r"(?s)--policy_loss .*expected \(inputs: LossInputs, options"):
        load_loss(written("user:one_argument", USER_LOSS))


def test_a_class_in_the_place_of_its_instance_is_told_so(written):
    with pytest.raises(ConfigError, match="name an instance"):
        load_loss(written("user:Plain", USER_LOSS))


def test_an_unknown_name_lists_what_there_is():
    with pytest.raises(ConfigError, match="group_norm"):
        load_estimator("grpo")
    with pytest.raises(ConfigError, match="cispo"):
        load_loss("pg")
