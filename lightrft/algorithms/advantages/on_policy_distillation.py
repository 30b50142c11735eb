"""On-policy distillation: towards what a teacher finds likely, on the policy's own responses.

A_t = task + opd_kl_coef (teacher_logprob_t - logprob_t): the second part is the reverse KL's own per-token
estimate (Agarwal et al., arXiv 2306.13649). `task` is the group-normalised reward; `--no_task_reward` leaves
it out, and then one sample a prompt is enough.
"""

from __future__ import annotations

from lightrft.algorithms.advantages._common import (
    AdvantageInputs,
    AdvantageOutputs,
    included,
    normalised_in_group,
    spread_over_response,
)
from lightrft.algorithms.masking import masked

NEEDS_GROUPS = False
NEEDS_CRITIC = False
NEEDS_TEACHER = True
WHITENS = False


def compute(inputs: AdvantageInputs) -> AdvantageOutputs:
    """Task advantage plus the teacher's, `[B, T]`; 0 in excluded rows."""
    if inputs.teacher_logprobs is None or inputs.old_logprobs is None:
        raise ValueError("on_policy_distillation needs the teacher's and the policy's log-probs")
    gap = masked(inputs.teacher_logprobs - inputs.old_logprobs, included(inputs))
    advantages = inputs.opd_kl_coef * gap
    if inputs.task_reward:
        advantages = advantages + spread_over_response(normalised_in_group(inputs), inputs)
    return AdvantageOutputs(advantages)
