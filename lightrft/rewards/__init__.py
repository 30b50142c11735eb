"""Judging responses: rules, user functions, and how they are built, weighed and kept from hanging a run.

This file imports nothing: grader processes load `lightrft.rewards.rules` through it and must start without
torch.
"""
