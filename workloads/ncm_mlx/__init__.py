"""Sudoku by a masked token model over the codes of a small VQ codec, trained with MLX.

    python -m ncm_mlx train|evaluate|benchmark|check CONFIG

It obeys the workload contract (remote_runner/checkpoint/CONTRACT.md) and knows nothing of how it was started.
"""
