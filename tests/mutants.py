"""Single mutations of the numeric core, each of which a fast test must catch. Applied by tests/sabotage.py.

A snippet stands exactly once in its file. A mutation that changes no result (another way to write the same
formula) has no place here.
"""

from __future__ import annotations

from dataclasses import dataclass

ESTIMATOR = (
    "tests/algorithms/test_advantages.py",
    "tests/algorithms/test_estimator_values.py",
    "tests/algorithms/test_contract.py",
)
LOSS = (
    "tests/algorithms/test_losses.py",
    "tests/algorithms/test_loss_values.py",
    "tests/algorithms/test_contract.py",
)
SHAPING = ("tests/algorithms/test_kl_and_shaping.py",)
CORRECTION = ("tests/algorithms/test_correction.py",)
FILTERING = ("tests/algorithms/test_filtering.py", "tests/algorithms/test_caught.py")
UPDATE = ("tests/trainer/test_update.py", "tests/trainer/test_update_caught.py")
POLICY = ("tests/models/test_policy.py",)
ROLLOUT = ("tests/rollout/test_hf.py", "tests/rollout/test_hf_caught.py")
BATCHING = ("tests/data/test_batching.py", "tests/data/test_batching_caught.py")
VISION = ("tests/models/test_vision.py",)
PICTURES = ("tests/data/test_vision_prompts.py", "tests/models/test_vision.py")
MAKING = ("tests/trainer/test_experience.py",)


@dataclass(frozen=True)
class Mutant:
    """`old` becomes `new` in `file`, and one of `tests` must fail."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


def of(file: str, tests: tuple[str, ...], *mutations: tuple[str, str, str]) -> list[Mutant]:
    """Mutants of one file, each (name, old, new)."""
    return [Mutant(name, f"lightrft/{file}", old, new, tests) for name, old, new in mutations]


ESTIMATORS = [
    *of(
        "algorithms/advantages/_common.py",
        ESTIMATOR,
        (
            "sign of the advantage",
            "inputs.rewards.double() - stats.mean",
            "stats.mean - inputs.rewards.double()",
        ),
        ("biased std", "(size - 1).clamp(min=1)).sqrt()", "size.clamp(min=1)).sqrt()"),
        ("no square root of the variance", "(size - 1).clamp(min=1)).sqrt()", "(size - 1).clamp(min=1))"),
        ("large epsilon beside the std", "EPSILON = 1e-6", "EPSILON = 1e-2"),
        ("--no_group_std ignored", "if inputs.group_std:", "if True:"),
        ("group std never used", "if inputs.group_std:", "if False:"),
        ("group ids ignored", ".contiguous(), group_ids)", ".contiguous(), 0 * group_ids)"),
        ("tied check removed", "(2 * largest <= TIE * scale)", "(2 * largest < 0 * scale)"),
        (
            "missing reward counted as 0",
            "valid = ~rewards.isnan()",
            "valid = torch.ones_like(rewards).bool()",
        ),
        (
            "excluded rows take part",
            "& ~inputs.rewards.isnan().unsqueeze(-1)",
            "| inputs.rewards.isnan()[:, None]",
        ),
        (
            "reward at the first token",
            "* mask).amax(-1, keepdim=True)",
            "* mask).argmax(-1, keepdim=True) * 0",
        ),
        (
            "reward one token early",
            "* mask).amax(-1, keepdim=True)",
            "* mask).amax(-1, keepdim=True).sub(1).clamp(0)",
        ),
        ("reward written over the KL", "rewards.scatter_add(1", "rewards.scatter(1"),
        ("sum from the wrong end", "rewards.flip(-1).cumsum(-1).flip(-1)", "rewards.cumsum(-1)"),
        ("gamma ignored", "+ inputs.gamma * running, running)", "+ running, running)"),
        ("a gap ends the return", "inputs.gamma * running, running)", "inputs.gamma * running, 0 * running)"),
    ),
    *of(
        "algorithms/advantages/gae.py",
        ESTIMATOR,
        ("gamma ignored in delta", "inputs.gamma * next_value", "next_value"),
        ("lambda ignored", "inputs.gamma * inputs.lambd * next_advantage", "inputs.gamma * next_advantage"),
        ("value not subtracted", " - values[:, t]\n", "\n"),
        ("returns without values", "masked(advantages + values, mask)", "masked(advantages, mask)"),
        (
            "value of the same token",
            "next_value = torch.where(here, values[:, t]",
            "next_value = torch.where(here, 0",
        ),
    ),
    *of(
        "algorithms/advantages/rloo.py",
        ESTIMATOR,
        ("own reward kept in the baseline", "stats.size - rewards) /", "stats.size) /"),
        ("divided by n instead of n - 1", "(stats.size - 1).clamp(min=1)", "stats.size.clamp(min=1)"),
    ),
    *of(
        "algorithms/advantages/reinforce_baseline.py",
        ESTIMATOR,
        ("no baseline", "inputs.rewards.double() - stats.mean", "inputs.rewards.double()"),
        ("not whitened", "WHITENS = True", "WHITENS = False"),
    ),
    *of(
        "algorithms/advantages/on_policy_distillation.py",
        ESTIMATOR,
        (
            "sign of the teacher's gap",
            "inputs.teacher_logprobs - inputs.old_logprobs",
            "inputs.old_logprobs - inputs.teacher_logprobs",
        ),
        ("coefficient ignored", "inputs.opd_kl_coef * gap", "gap"),
        ("--no_task_reward ignored", "if inputs.task_reward:", "if True:"),
    ),
]

LOSSES = [
    *of(
        "algorithms/losses/_common.py",
        LOSS,
        ("sign of the loss", "-torch.minimum(ratio", "torch.minimum(ratio"),
        ("max for min", "-torch.minimum(ratio", "-torch.maximum(ratio"),
        (
            "clip sides swapped",
            "ratio.clamp(1 - options.clip_low, 1 + options.clip_high)",
            "ratio.clamp(1 - options.clip_high, 1 + options.clip_low)",
        ),
        ("ratio inverted", "masked(logprobs - old_logprobs, mask)", "masked(old_logprobs - logprobs, mask)"),
        ("ratio not masked", "masked(logprobs - old_logprobs, mask)", "(logprobs - old_logprobs)"),
        ("ratio not bounded", ".clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)", ""),
        ("clip fraction counts all advantages", " & (advantages > 0), mask)", ", mask)"),
    ),
    *of(
        "algorithms/losses/ppo.py",
        LOSS,
        ("dual clip sign", "cap = -options.dual_clip", "cap = options.dual_clip"),
        ("dual clip for every advantage", "(inputs.advantages < 0) & (outputs", "(outputs"),
        ("dual clip off", "if options.dual_clip == 0:", "if True:"),
    ),
    *of(
        "algorithms/losses/cpgd.py",
        LOSS,
        ("cap and floor swapped", "torch.where(rewarded, torch", "torch.where(~rewarded, torch"),
        ("drift sign", "losses + options.drift_coef", "losses - options.drift_coef"),
        ("drift weight not capped", ".clamp(max=MAX_DRIFT_WEIGHT).detach()", ".detach()"),
        ("drift not added", "if options.drift_coef:", "if False:"),
    ),
    *of(
        "algorithms/losses/gspo.py",
        LOSS,
        ("missing detach of the mean", "mean.detach() +", "mean +"),
        (
            "sum for mean",
            "log.sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp(min=1)",
            "log.sum(-1, keepdim=True)",
        ),
        ("mean over padding", "mask.sum(-1, keepdim=True).clamp(min=1)", "mask.shape[-1]"),
    ),
    *of(
        "algorithms/losses/gmpo.py",
        LOSS,
        (
            "clip sides by the wrong sign",
            "inputs.advantages > 0, inputs.advantages < 0",
            "inputs.advantages < 0, inputs.advantages > 0",
        ),
        ("clip after the mean", "mean = masked(clipped, mask)", "mean = masked(log, mask)"),
    ),
    *of(
        "algorithms/losses/cispo.py",
        LOSS,
        ("missing detach", ".exp().detach()", ".exp()"),
        ("weight not clipped", "(-weight * inputs", "(-ratio * inputs"),
    ),
    *of(
        "algorithms/losses/sapo.py",
        LOSS,
        (
            "temperatures swapped",
            "inputs.advantages > 0, TAU_POSITIVE",
            "inputs.advantages <= 0, TAU_POSITIVE",
        ),
        ("gate around 0", "tau * (ratio - 1)", "tau * ratio"),
        ("scale dropped", "-gate * 4 / tau", "-gate"),
    ),
    *of(
        "algorithms/value_loss.py",
        LOSS,
        ("min for max", "torch.maximum(plain, bounded)", "torch.minimum(plain, bounded)"),
        ("half dropped", "0.5 * torch", "torch"),
        ("clip around the return", "clipped = old_values +", "clipped = returns +"),
    ),
]

REST = [
    *of(
        "algorithms/kl.py",
        SHAPING,
        ("sign of the KL", "x = logprobs - ref_logprobs", "x = ref_logprobs - logprobs"),
        ("k3 exponent sign", "torch.exp((-x)", "torch.exp((x)"),
        ("k2 without the half", "x.square() / 2", "x.square()"),
        ("controller turned round", "kl / self.target - 1))", "1 - kl / self.target))"),
        ("controller's clip off", "MAX_ERROR = 0.2", "MAX_ERROR = 20.0"),
    ),
    *of(
        "algorithms/masking.py",
        LOSS,
        (
            "masked by multiplying",
            "torch.where(mask.bool(), x, torch.full((), fill, dtype=x.dtype, device=x.device))",
            "x * mask",
        ),
        (
            "tokens for sequences",
            'if mode == "token-mean" else sequence_count(mask)',
            "if True else sequence_count(mask)",
        ),
        (
            "sequences for tokens",
            'mask.float().sum() if mode == "token-mean" else',
            "mask.float().sum() if False else",
        ),
        ("empty rows counted", "(mask.sum(-1) > 0)", "(mask.sum(-1) >= 0)"),
        ("mean over padding", "mask.sum(-1).clamp(min=1)).sum()", "mask.shape[-1]).sum()"),
        ("length norm off", "losses.sum() / max_response_len", "losses.sum()"),
    ),
    *of(
        "algorithms/shaping.py",
        SHAPING,
        (
            "whitened without the mask",
            "centred = masked(x.double() - mean, mask)",
            "centred = torch.nan_to_num(x.double() - mean)",
        ),
        (
            "variance with n - 1",
            "sum()) / count.clamp(min=1)\n    whitened",
            "sum()) / (count - 1).clamp(min=1)\n    whitened",
        ),
        ("whitened by each rank's own mean", "count, total = reduce_sum(torch", "count, total = (torch"),
        ("whitened by the variance", "torch.rsqrt(variance + 1e-8)", "1 / (variance + 1e-8)"),
        ("clip on one side", "x.clamp(-limit, limit)", "x.clamp(max=limit)"),
        ("overlong becomes a bonus", "return -(beyond", "return (beyond"),
        ("overlong without its buffer", "(max_len - buffer)", "max_len"),
        (
            "moments forget the past mean",
            "self.m2 += m2 + delta**2 * self.count * count / merged",
            "self.m2 += m2",
        ),
        ("running std is biased", "(self.m2 / (self.count - 1))", "(self.m2 / self.count)"),
        ("running mean always off", "values - self.mean if minus_mean else values", "values"),
        ("missing reward counted as 0", "values[~values.isnan()].double()", "values.nan_to_num().double()"),
    ),
    *of(
        "algorithms/correction.py",
        CORRECTION,
        (
            "weight inverted",
            "gap = masked(old_logprobs - rollout_logprobs, known).detach()",
            "gap = masked(rollout_logprobs - old_logprobs, known).detach()",
        ),
        ("missing detach", "known).detach()", "known)"),
        ("cap ignored", "return weight.clamp(max=cap)", "return weight"),
        ("one-sided mask", "((weight >= 1 / cap) & (weight <= cap))", "(weight <= cap)"),
        ("sequence mode by token", 'if mode == "sequence":', "if False:"),
        ("unknown log-probs used", "mask.bool() & ~rollout_logprobs.isnan()", "mask.bool()"),
    ),
    *of(
        "algorithms/filtering.py",
        FILTERING,
        ("uninformative groups kept", "return ~group_stats", "return group_stats"),
        ("low entropy kept", "clamp(min=0.0) >= threshold", "clamp(min=0.0) < threshold"),
        ("prompt tokens kept", "return masked(high.to(mask.dtype), mask)", "return high.to(mask.dtype)"),
        (
            "share of this rank's tokens",
            "float(reduce_sum(mask.double().sum()))",
            "float(mask.double().sum())",
        ),
        ("share of the low tokens", "math.ceil(ratio *", "math.ceil((1 - ratio) *"),
    ),
    *of(
        "algorithms/schedule.py",
        SHAPING,
        ("warm-up off", "if step < warmup_steps:", "if False:"),
        ("warm-up starts at 0", "peak * (step + 1) / (warmup_steps + 1)", "peak * step / (warmup_steps + 1)"),
    ),
]

PIPELINE = [
    *of(
        "models/policy.py",
        POLICY,
        ("log-probs shifted by one", "out[:, 1:][wanted] = values", "out[:, :-1][wanted] = values"),
        (
            "targets shifted by one",
            "targets = input_ids[:, 1:][wanted]",
            "targets = input_ids[:, :-1][wanted]",
        ),
        (
            "hidden state of the token itself",
            "hidden[:, :-1][wanted]",
            "hidden[:, 1:][wanted]",
        ),
        ("temperature dropped", "logits = logits / (", "logits = logits / (1.0 or "),
        ("temperature multiplied", "logits = logits / (", "logits = logits * ("),
        (
            "sign of the entropy",
            "log_z - (logits.softmax(-1) * logits).sum(-1)",
            "(logits.softmax(-1) * logits).sum(-1) - log_z",
        ),
        ("head shortcut not checked", "(short - whole).abs().max() <=", "(short - whole).abs().max() >= 0 *"),
    ),
    *of(
        "models/policy.py",
        VISION,
        (
            "placeholders scored",
            "logits.index_fill(-1, banned, BANNED)",
            "logits.index_fill(-1, banned, 0.0)",
        ),
    ),
    *of(
        "models/multimodal.py",
        VISION,
        ("filler in the loss", "rows + 0.0 * values", "rows + 1e-3 * values"),
        ("filler left out", "if filler.is_missing(rows)]", "if False]"),
        ("text within a video's time", "run += end - run.min()", "run += 0"),
        ("response on its prompt's positions", "int(prompt.max()) + 1 if", "int(prompt.max()) if"),
        ("axes of the positions mixed", ".permute(2, 0, 1)", ".flip(-1).permute(2, 0, 1)"),
        ("head frozen with the tower", "id(p) not in kept", "True"),
    ),
    *of(
        "data/multimodal.py",
        PICTURES,
        ("token types on the wrong side", "start = width - lengths[i] if left else 0", "start = 0"),
        ("pictures without their digest", "digest.update(kind.encode() +", "digest.update(kind.encode() or"),
    ),
    *of(
        "data/batching.py",
        BATCHING,
        (
            "response mask shifted by one",
            "response_mask[i, start:end] = 1",
            "response_mask[i, start - 1 : end - 1] = 1",
        ),
        ("prompt trained", "response_mask[i, start:end] = 1", "response_mask[i, :end] = 1"),
        ("end token not trained", "response_mask[i, start:end] = 1", "response_mask[i, start : end - 1] = 1"),
        ("excluded rows trained", "if reward is not None:", "if True:"),
        (
            "engine log-probs shifted by one",
            "rollout_logprobs[i, start:end] =",
            "rollout_logprobs[i, start - 1 : end - 1] =",
        ),
        ("missing reward becomes 0", "[NAN if r is None else r for", "[0.0 if r is None else r for"),
        ("groups of a repeated prompt merged", "i == 0 or rollout.sample_index == 0 or", "i == 0 or"),
        (
            "last samples dropped",
            "min(start + local_train_batch_size, num_local_samples)",
            "min(start + local_train_batch_size, num_local_samples - 1)",
        ),
    ),
    *of(
        "rollout/hf.py",
        ROLLOUT,
        (
            "seeds shared between samples",
            'f"{seed}:{prompt_index}:{sample_index}"',
            'f"{seed}:{prompt_index}"',
        ),
        (
            "seed of the run ignored",
            'f"{seed}:{prompt_index}:{sample_index}"',
            'f"{prompt_index}:{sample_index}"',
        ),
        ("top-p off by one", "probs.cumsum(-1) - probs >= top_p", "probs.cumsum(-1) >= top_p"),
        ("top-k off by one", "logits.topk(top_k, dim", "logits.topk(top_k + 1, dim"),
        ("temperature dropped", "scores.float() / (o.temperature or 1.0)", "scores.float()"),
        ("log-prob after truncation", "chosen = logits.gather", "logits = allowed; chosen = logits.gather"),
        (
            "first token's temperature inverted",
            "(o.temperature / o.first_token_temperature)",
            "(o.first_token_temperature / o.temperature)",
        ),
        ("end token dropped", "kept = tokens[:end]", "kept = tokens[: end and end - 1]"),
        (
            "prompts padded on the wrong side",
            "attention_mask[row, width - lengths[row] :] = 1",
            "attention_mask[row, : lengths[row]] = 1",
        ),
    ),
    *of(
        "trainer/update.py",
        UPDATE,
        ("loss not weighted", "losses = losses * batch.loss_weights", "losses = losses * 1.0"),
        (
            "KL weighted too",
            "losses = losses * batch.loss_weights",
            "reg = self._regularisation(inputs); losses = (losses + reg) * batch.loss_weights - reg",
        ),
        ("loss divided twice", "response_mask) / denominator", "response_mask) / denominator / denominator"),
        (
            "mean of each micro-batch",
            "response_mask) / denominator",
            "response_mask) / self.batch_options.denominator(part, self.optimizer.device)",
        ),
        ("sign of the KL term", "out + self.kl_controller.coef * kl", "out - self.kl_controller.coef * kl"),
        ("sign of the entropy bonus", "out - o.entropy_coef", "out + o.entropy_coef"),
        ("KL estimator ignored", "inputs.ref_logprobs, o.kl_estimator)", 'inputs.ref_logprobs, "k1")'),
        (
            "ratio metric of the log",
            'metrics.add("policy/ratio_mean", masked_sum(ratio, mask)',
            'metrics.add("policy/ratio_mean", masked_sum(log, mask)',
        ),
        ("one epoch only", "for _ in range(self.max_epochs)", "for _ in range(1)"),
        ("an empty batch takes a step", "if denominator == 0:", "if False:"),
    ),
    *of(
        "trainer/optimize.py",
        UPDATE,
        ("skipped step counted as taken", "counters.skipped_steps += 1", "counters.optimizer_steps += 1"),
        ("skips in a row never forgotten", "counters.skipped_in_a_row = 0", "counters.skipped_in_a_row += 0"),
        (
            "non-finite loss let through",
            "finite = all_ranks(bool(torch.isfinite(loss)), self.device)",
            "finite = True",
        ),
        (
            "gradient of the last micro-batch only",
            "self.model.backward(loss,",
            "self.model.backward(loss * (i == len(losses) - 1),",
        ),
        ("reported loss doubled", "1.0 / (len(losses)", "0.5 / (len(losses)"),
        (
            "schedule stands still",
            "counters.optimizer_steps, o.learning_rate, o.warmup_steps",
            "0, o.learning_rate, o.warmup_steps",
        ),
    ),
]

EXPERIENCE = [
    *of(
        "trainer/experience.py",
        MAKING,
        ("KL rewarded", "token_rewards = -self.kl_controller", "token_rewards = self.kl_controller"),
        ("overlong penalty rewarded", "rewards = rewards + penalty", "rewards = rewards - penalty"),
        (
            "prompts count as length",
            "lengths = experience.response_mask.sum(-1)",
            "lengths = experience.attention_mask.sum(-1)",
        ),
        ("reward clip off", "rewards = clip_symmetric(rewards, o.reward_clip)", "rewards = rewards * 1"),
        ("rewards unshaped", "rewards=rewards,", "rewards=experience.rewards,"),
        ("whitening forgotten", "o.advantages_norm or self.estimator.whitens", "o.advantages_norm"),
        (
            "whitened over masked tokens",
            "whiten(advantages.to(self.device), mask.to(self.device), reduce_sum)",
            "whiten(advantages.to(self.device), torch.ones_like(mask), reduce_sum)",
        ),
        ("advantage clip off", "clip_symmetric(advantages, o.advantage_clip)", "advantages"),
        ("KL left out of the reward", "o.kl_in_reward or self.estimator.kl_in_reward", "o.kl_in_reward"),
        ("returns are advantages", "experience.returns = outputs.returns", "experience.returns = advantages"),
        ("filter in the place of correction", "weights = weights * kept", "weights = kept"),
        ("filter turned round", "weights = weights * kept", "weights = weights * (1 - kept)"),
    ),
    *of(
        "trainer/rollout_metrics.py",
        MAKING,
        (
            "failed rewards in the mean",
            "sum(scored), len(scored)",
            "sum(scored), n",
        ),
        (
            "padding counted as tokens",
            'metrics.add_total("train/tokens", mask.sum())',
            'metrics.add_total("train/tokens", mask.numel())',
        ),
    ),
]

ENGINES = [
    *of(
        "rollout/checksum.py",
        ("tests/rollout/test_checksum.py",),
        (
            "bits not mixed",
            "x = bits[start : start + CHUNK].to(torch.int64) * _MIX_1",
            "x = bits[start : start + CHUNK].to(torch.int64)",
        ),
        (
            "only the last chunk counts",
            "total = total + (x ^ (x >> 31)).sum()",
            "total = (x ^ (x >> 31)).sum()",
        ),
        ("one equal rank suffices", "if all(value & MASK", "if any(value & MASK"),
        ("shards not added up", "return sum(held) & MASK in", "return held[0] & MASK in"),
        ("shared heads counted once more", "* (kv_copies - 1)", "* kv_copies"),
        ("a tied head goes unseen", "expected[head] = embedding", "names.discard(head)"),
        (
            "what was never sent goes unseen",
            "keys = list(dict.fromkeys([*expected, *(k for t in totals for k in t)]))",
            "keys = list(expected)",
        ),
    ),
    *of(
        "rollout/weight_sync.py",
        ("tests/rollout/test_weight_sync.py",),
        ("the trainer's dtype travels", "return tensor.to(self.dtype) if", "return tensor if"),
        ("the trainer's names travel", "name.removeprefix(PREFIX))", "name)"),
        ("compared once", "self.count % self.check_every == 0", "self.count == 0"),
        (
            "compared one sync late",
            "self.count % self.check_every == 0",
            "(self.count + 1) % self.check_every == 0",
        ),
        ("a difference is let through", "        if wrong:\n", "        if False:\n"),
    ),
    *of(
        "distributed/strategy.py",
        ("tests/rollout/test_weight_sync.py",),
        ("a bucket overflows", "held + size > max_bytes", "held > max_bytes"),
        ("the last bucket is lost", "    if bucket:\n        yield bucket\n", ""),
    ),
    *of(
        "rollout/self_test.py",
        ("tests/rollout/test_self_test.py",),
        (
            "the changed tensor may have no effect",
            '_expect(changed > floor, f"a sync',
            '_expect(True, f"a sync',
        ),
        ("the end is not looked at", '_expect(after <= max_gap, "a sync back', '_expect(True, "a sync back'),
        ("the start is not looked at", '_expect(before <= max_gap, "gen', '_expect(True, "gen'),
        ("the self-test counts as syncs", "    engine.policy_version = version\n", ""),
        ("nothing is changed", "tensor.roll(1, 0) if name == self.name", "tensor if name == self.name"),
    ),
    *of(
        "rollout/groups.py",
        ("tests/rollout/test_groups.py",),
        ("a sample may be empty", "i % step == seed % step", "i % step == step"),
        ("the same sample every time", "i % step == seed % step", "i % step == 0"),
    ),
    *of(
        "rollout/process.py",
        ("tests/rollout/test_groups.py",),
        ("torch's generator is not put back", "        torch.set_rng_state(torch_state)\n", "        pass\n"),
        ("draws do not follow the seed", "    torch.manual_seed(seed)\n", ""),
    ),
    *of(
        "rollout/watchdog.py",
        ("tests/rollout/test_watchdog.py",),
        (
            "progress is not seen",
            "        self._moved_at = time.monotonic()\n\n    def check",
            "\n    def check",
        ),
        ("a stall is not seen", "if time.monotonic() - self._moved_at > self.timeout:", "if False:"),
    ),
    *of(
        "rollout/base.py",
        ("tests/rollout/test_sglang_requests.py", "tests/rollout/test_sglang.py"),
        ("an end at the limit counts as cut", 'return "stop" if reason', "return reason if reason"),
        (
            "samples of a prompt share a number",
            "            sample_index=i,\n",
            "            sample_index=0,\n",
        ),
    ),
]

MUTANTS = [*ESTIMATORS, *LOSSES, *REST, *PIPELINE, *EXPERIENCE, *ENGINES]
