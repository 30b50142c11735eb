"""The one table of flags, in the groups and the order of the reference configuration.

A new flag is one entry here, an effect in the code that reads it, and a run of `lightrft.config.flags_doc`.
"""

from __future__ import annotations

from lightrft.config.flag import Flag
from lightrft.config.flags.algorithm import ALGORITHM
from lightrft.config.flags.data import DATA, EVALUATION, REWARD_PROCESSING, REWARDS
from lightrft.config.flags.model import MODEL, MULTIMODAL
from lightrft.config.flags.output import CHECKPOINTS, LOGGING
from lightrft.config.flags.system import DISTRIBUTED, INFERENCE_ENGINE, LAUNCH, MEMORY
from lightrft.config.flags.training import BATCH_SIZE, TRAINING

GROUPS = (
    MODEL,
    TRAINING,
    BATCH_SIZE,
    ALGORITHM,
    DISTRIBUTED,
    INFERENCE_ENGINE,
    MEMORY,
    LOGGING,
    CHECKPOINTS,
    REWARD_PROCESSING,
    MULTIMODAL,
    DATA,
    REWARDS,
    EVALUATION,
    LAUNCH,
)
FLAGS: dict[str, Flag] = {flag.name: flag for group in GROUPS for flag in group.flags}
ALIASES: dict[str, str] = {alias: flag.name for flag in FLAGS.values() for alias in flag.aliases}
