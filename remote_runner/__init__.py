"""Run one training on a rented GPU over SSH and lose nothing.

Nothing heavy is imported here: this package also travels to the pod, where only the standard library exists.
"""

__version__ = "0.1.0"
