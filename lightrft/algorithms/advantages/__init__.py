"""Advantage estimators: the file name is the value of `--advantage_estimator`.

A file offers `compute(inputs: AdvantageInputs) -> Tensor [B, T]` and, as literals that the front end reads
without importing it, `NEEDS_GROUPS` and `NEEDS_CRITIC`. Masked positions of the result are exactly 0.
"""
