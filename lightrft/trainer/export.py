"""A plain Hugging Face folder of the policy: config, safetensors, tokenizer or processor, chat template."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from lightrft.distributed.collectives import barrier, rank
from lightrft.distributed.strategy import TrainableModel
from lightrft.trainer.checkpoint import replace_folder

PREFIX = "model."  # the policy wraps the Hugging Face model under this name


class Exporter:
    """Writes the policy's current weights, under the names and in the form that `from_pretrained` reads."""

    def __init__(
        self, policy: TrainableModel, model: PreTrainedModel, processor: Any, save_path: Path, run_id: str
    ) -> None:
        self.policy = policy
        self.model = model
        self.processor = processor
        self.save_path = save_path
        self.run_id = run_id

    def write(self, folder: Path, parameters: Iterable[tuple[str, Tensor]] | None = None) -> None:
        """Write into `folder`. Collective: the weights may be spread over ranks.

        `parameters` stand in for the policy's own (their moving averages); only rank 0 needs any.
        """
        state = {}
        for name, parameter in self.policy.full_parameters() if parameters is None else parameters:
            if rank() == 0:
                state[name.removeprefix(PREFIX)] = parameter.cpu()
        if rank() == 0:
            folder.mkdir(parents=True, exist_ok=True)
            self.model.save_pretrained(folder, state_dict=state)
            self.processor.save_pretrained(folder)
        barrier()

    def export_final(self, name: str = "hf", parameters: Iterable[tuple[str, Tensor]] | None = None) -> Path:
        """`<save_path>/<name>`, replaced as a whole. Collective."""
        final = self.save_path / name
        temporary = self.save_path / f".tmp_{self.run_id}_{name}"
        if rank() == 0:
            shutil.rmtree(temporary, ignore_errors=True)
        self.write(temporary, parameters)
        if rank() == 0:
            replace_folder(temporary, final)
        barrier()
        return final
