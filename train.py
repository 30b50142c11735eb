#!/usr/bin/env python3
"""Reinforcement fine-tuning of language models: `python train.py --help`."""

import sys

from lightrft.config.cli import exit_status, start


def main() -> int:
    config = start(sys.argv[1:], modality="text")
    from lightrft.trainer.run import run  # torch is imported only once the flags are right

    return run(config)


if __name__ == "__main__":
    sys.exit(exit_status(main))
