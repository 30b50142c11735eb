"""The few records that the parts of LightRFT hand to each other, with shapes under every field.

Letters: `B` samples, `T` padded length of prompt + response, `N` flattened response tokens, `V` vocabulary,
`D` hidden. Every token-level tensor is `[B, T]` and aligned with `input_ids`: position t holds the value **of
token t**, so index 0 (which no token predicts) is 0 and masked. There is no second axis for actions.

A worked example: prompt ids `[7, 8]`, response ids `[5, 6, 2]` (2 ends it), one row, T = 6:

    input_ids      7    8    5    6    2    0
    attention_mask 1    1    1    1    1    0
    response_mask  0    0    1    1    1    0
    old_logprobs   0    0   -.1  -.7  -.2   0      <- log p(5 | 7 8) stands at the 5
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

import torch
from torch import Tensor

FinishReason = Literal["stop", "length", "abort"]
RewardStatus = Literal["ok", "unparsed", "timeout", "error"]


@dataclass(frozen=True)
class Prompt:
    """One row of a data set, encoded once.

    Example: `Prompt(index=3, token_ids=[7, 8], text="<u>1+1=<a>", references=["2"], source="train.jsonl:4")`.
    """

    index: int  # row number in the (mixed, filtered) prompt set: the identity that seeds its sampling
    token_ids: list[int]  # what the policy sees, chat template applied
    text: str  # the same as a string, for logs and rewards
    references: list[str] = field(default_factory=list)  # accepted answers; [] where the data has none
    label: str | None = None  # chooses a reward recipe per row
    source: str = ""  # "file:row", for messages
    messages: list[dict[str, Any]] | None = None  # the chat before the template, where the data had one
    multimodal: dict[str, Any] = field(default_factory=dict)  # files, not pixels; {} for text


@dataclass(frozen=True)
class Rollout:
    """One sampled response.

    Example: `Rollout(prompt, 0, token_ids=[5, 2], text="a", finish_reason="stop", logprobs=[-.1, -.7])`.
    """

    prompt: Prompt
    sample_index: int  # 0 .. n_samples_per_prompt - 1
    token_ids: list[int]  # the end token included when it was sampled; nothing is appended to a cut response
    text: str  # decoded response without special tokens: what rewards score
    finish_reason: FinishReason
    # Log-prob of each sampled token by the engine, at the sampling temperature, before top-p and top-k.
    logprobs: list[float] | None = None
    policy_version: int = 0  # how many weight syncs the sampling policy had seen


@dataclass(frozen=True)
class RewardResult:
    """Scores of a list of rollouts, in their order, one entry each.

    `None` excludes its sample from training (it is counted and reported); it never becomes 0.
    Example: `RewardResult([1.0, None], {"answer": [1.0, None]}, ["ok", "timeout"])`.
    """

    rewards: list[float | None]
    parts: dict[str, list[float | None]] = field(default_factory=dict)  # named components, for metrics
    statuses: list[RewardStatus] = field(default_factory=list)  # "unparsed" is not "wrong"
    seconds: list[float | None] = field(default_factory=list)  # that grading took, where it was measured

    def __post_init__(self) -> None:
        lengths = {name: len(values) for name, values in self.parts.items()}
        for name in ("statuses", "seconds"):
            if getattr(self, name):
                lengths[name] = len(getattr(self, name))
        for name, length in lengths.items():
            if length != len(self.rewards):  # a short list would shift later scores to the wrong sample
                raise ValueError(f"{len(self.rewards)} rewards but {length} values in {name!r}")


def _role(role: str, **kwargs: Any) -> Any:
    return field(metadata={"role": role}, **kwargs)


@dataclass
class Experience:
    """A batch that is ready to train on.

    A field's role decides how it is selected and moved, so that a new field is one line: `token` tensors
    `[B, T]`, `sequence` tensors `[B]`, `list` Python lists of length B. `None` where a run has no use for it.
    """

    input_ids: Tensor = _role("token")  # int64, right-padded
    attention_mask: Tensor = _role("token")  # int64
    response_mask: Tensor = _role("token")  # float32; all zero in an excluded row
    group_ids: Tensor = _role("sequence")  # int64: samples of one prompt share it, within a rank's step
    rewards: Tensor = _role("sequence")  # float32; NaN in an excluded row
    policy_version: Tensor = _role("sequence")  # int64
    rollout_logprobs: Tensor | None = _role("token", default=None)  # float32 by the engine; NaN where unknown
    old_logprobs: Tensor | None = _role("token", default=None)  # float32 by the trainer before the update
    ref_logprobs: Tensor | None = _role("token", default=None)  # float32 by the reference
    values: Tensor | None = _role("token", default=None)  # float32 by the critic before the update
    advantages: Tensor | None = _role("token", default=None)  # float32
    returns: Tensor | None = _role("token", default=None)  # float32
    loss_weights: Tensor | None = _role("token", default=None)  # float32: off-policy correction, token filter
    # int64 [B, T, A]: A positions for each token, where pictures shape them (M-RoPE: 3); None: 0, 1, …
    position_ids: Tensor | None = _role("token", default=None)
    multimodal: list[dict[str, Tensor]] = _role("list", default_factory=list)  # features of each row

    def __len__(self) -> int:
        return self.input_ids.shape[0]

    def _map(self, **by_role: Callable[[Any], Any]) -> Experience:
        changed = {}
        for f in fields(self):
            value = getattr(self, f.name)
            if value is not None:
                changed[f.name] = by_role[f.metadata["role"]](value)
        return replace(self, **changed)

    def select(self, indices: Sequence[int]) -> Experience:
        """Rows `indices`, in that order, trimmed to the longest of them: `[len(indices), T']`."""
        index = torch.as_tensor(indices, dtype=torch.long)
        longest = int(self.attention_mask[index].sum(-1).max()) if len(indices) else 0
        return self._map(
            token=lambda t: t[index, :longest],
            sequence=lambda t: t[index],
            list=lambda rows: [rows[i] for i in indices] if rows else rows,
        )

    def to(self, device: torch.device | str) -> Experience:
        """The same batch with its tensors on `device`; lists stay where they are."""
        return self._map(
            token=lambda t: t.to(device), sequence=lambda t: t.to(device), list=lambda rows: rows
        )


@dataclass(frozen=True)
class LossInputs:
    """What a policy loss may look at: one micro-batch. All fields `[B, T]` float32.

    `logprobs` (and `entropy`, where asked for) carry gradients; everything else is data.
    """

    logprobs: Tensor  # current policy
    old_logprobs: Tensor  # policy before this rollout's updates
    advantages: Tensor
    response_mask: Tensor
    entropy: Tensor | None = None
    ref_logprobs: Tensor | None = None
    rollout_logprobs: Tensor | None = None


@dataclass(frozen=True)
class LossOutputs:
    """Loss of each token, `[B, T]`, not yet masked or averaged; and sums to report.

    `metrics` maps a name to `(sum, count)`: they are added over micro-batches and ranks and divided once.
    """

    token_losses: Tensor
    metrics: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
