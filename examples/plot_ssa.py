"""
==========================================
From scores to weights: SSA beside softmax
==========================================

One score grows while 31 others stay at 0. Softmax gives all the weight to it almost
at once. Under Scaled Signed Averaging (SSA) the rest keeps a share that falls as a
power of the score, so that a value far outside the training range does not silence the
others.
"""

# %%
# The weights of the growing score
# --------------------------------
# Softmax1 adds 1 to the denominator; sparsemax and 1.5-entmax give exact zeros. They
# all have closed forms here, since the 31 others are equal.

import matplotlib.pyplot as plt
import numpy as np
import torch

from sdm_sklearn.attention import ssa_weights

top = np.linspace(-8, 8, 321)
others = 31


def entmax15(score):
    """Solve the normalisation for one score against equal ones."""
    low, high = score / 2 - 1.0, score / 2
    low, high = max(low, -1.0), max(high, 0.0)
    for _ in range(60):
        middle = (low + high) / 2
        mass = max(score / 2 - middle, 0) ** 2 + others * max(-middle, 0) ** 2
        low, high = (middle, high) if mass > 1 else (low, middle)
    return max(score / 2 - low, 0) ** 2


def sparsemax(score):
    """Either all share the mass, or one side has it all."""
    shared = score - (score - 1) / (others + 1)
    threshold = (score - 1) / (others + 1)
    if threshold >= 0:
        return 1.0
    return max(shared, 0.0)


scores = torch.zeros(len(top), others + 1, dtype=torch.float64)
scores[:, 0] = torch.from_numpy(top)
curves = {
    "SSA, n = 1.5, b = 0.8": ssa_weights(scores, n=1.5, b=0.8)[:, 0].numpy(),
    "SSA, n = 3, b = 0.8": ssa_weights(scores, n=3.0, b=0.8)[:, 0].numpy(),
    "softmax": torch.softmax(scores, -1)[:, 0].numpy(),
    "softmax1": np.exp(top) / (1 + others + np.exp(top)),
    "1.5-entmax": np.array([entmax15(s) for s in top]),
    "sparsemax": np.array([sparsemax(s) for s in top]),
}

# Told apart without colour, too.
looks = {
    "SSA, n = 1.5, b = 0.8": {"color": "C0", "linewidth": 3},
    "SSA, n = 3, b = 0.8": {"color": "C0", "linestyle": "--", "linewidth": 3},
    "softmax": {"color": "black"},
    "softmax1": {"color": "C1", "marker": "o", "markevery": 20, "linestyle": ":"},
    "1.5-entmax": {"color": "C2", "linestyle": "-."},
    "sparsemax": {"color": "C3", "marker": "s", "markevery": 20, "markersize": 4},
}
_, ax = plt.subplots(layout="constrained")
for name, weights in curves.items():
    ax.plot(top, weights, label=name, **looks[name])
ax.set(xlabel="score", ylabel="weight", title="Weight of one score against 31 zeros")
ax.legend()
plt.show()

# %%
# What is left for the rest
# -------------------------
# On logarithmic axes the share of the rest is a straight line of slope -n for SSA; the
# exponential of softmax drops out of sight.

sizes = np.logspace(0, 4, 81)
scores = torch.zeros(len(sizes), others + 1, dtype=torch.float64)
scores[:, 0] = torch.from_numpy(sizes)
_, ax = plt.subplots(layout="constrained")
for n in (1.5, 3.0):
    rest = ssa_weights(scores, n=n, b=0.8)[:, 1:].sum(-1)
    name = f"SSA, n = {n:g}, b = 0.8"
    ax.loglog(sizes, rest, label=name, **looks[name])
rest = torch.softmax(scores, -1)[:, 1:].sum(-1).clamp(min=1e-300)
ax.loglog(sizes, rest, label="softmax", **looks["softmax"])
ax.set(
    ylim=(1e-12, 2), xlabel="score", ylabel="weight", title="Weight left for the others"
)
ax.legend()
plt.show()

# %%
# The same in numbers: after a score of 1000 the others together keep

for name, weights in {
    "softmax": torch.softmax(scores, -1),
    "SSA, n = 1.5": ssa_weights(scores, n=1.5, b=0.8),
}.items():
    row = int(np.argmin(abs(sizes - 1000)))
    print(f"{name:13} {weights[row, 1:].sum():.1e}")
