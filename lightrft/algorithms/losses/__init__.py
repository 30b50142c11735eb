"""Policy losses: the file name is the value of `--policy_loss`.

A file offers `compute(inputs: LossInputs, options: LossOptions) -> LossOutputs` with the loss of every token,
unmasked and unaveraged: masking, averaging, KL and entropy terms are the same for all and live in the update.
"""
