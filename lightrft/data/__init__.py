"""Prompts: reading and checking rows, encoding them, and the order in which training and evaluation see
them.
"""
