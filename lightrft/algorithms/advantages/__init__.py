"""Advantage estimators: the file name is the value of `--advantage_estimator`.

A file offers `compute(inputs: AdvantageInputs) -> AdvantageOutputs` and, as literals that the front end reads
without importing it, `NEEDS_GROUPS`, `NEEDS_CRITIC` and `WHITENS`. Masked positions of the result are exactly
0. Whitening is done once, over all ranks, by the caller: an estimator that wants it says `WHITENS = True`.
"""
