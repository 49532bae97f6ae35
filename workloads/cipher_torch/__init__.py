"""Enciphered text back into plain text by a small character transformer, trained with PyTorch.

    python -m cipher_torch train|evaluate|check CONFIG

It obeys the workload contract (remote_runner/checkpoint/CONTRACT.md) and knows nothing of how it was started.
"""
