import numpy as np


def batch(step):
    x = np.random.default_rng(step).normal(size=(16, 4))
    return x, x.sum(1)
