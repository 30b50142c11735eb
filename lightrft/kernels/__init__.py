"""Kernels of our own. `linear_logprob` is the public one."""
