"""Axes, and lines that stay apart without colour."""

import numpy as np
from sklearn.utils._optional_dependencies import check_matplotlib_support

from .._cross_fit import predict_with_confidence

# Of falling darkness, each with its own dash and marker.
DARK, MIDDLE, LIGHT = "#1f2a63", "#c4511d", "#6ba4c9"
GREY, PALE = "#6e6e6e", "#d9d9d9"
_LINES = (
    {"color": DARK, "linestyle": "-"},
    {"color": MIDDLE, "linestyle": "--"},
    {"color": LIGHT, "linestyle": "-."},
    {"color": "#1d6b52", "linestyle": (0, (3, 1, 1, 1, 1, 1))},
    {"color": "#b78fc0", "linestyle": ":"},
)


def get_axes(caller, ax):
    """Return the axes to draw on, new ones for None."""
    check_matplotlib_support(caller)
    if ax is None:
        import matplotlib.pyplot as plt

        _, ax = plt.subplots(layout="constrained")
    return ax


def next_line(ax, kind):
    """Return the style of the next curve of a kind on `ax`; mark it by its gid."""
    n_drawn = sum(line.get_gid() == kind for line in ax.get_lines())
    return {**_LINES[n_drawn % len(_LINES)], "gid": kind, "linewidth": 1.8}


def plain_symlog(ax):
    """Scale counts from 0 up by their logarithm, with plain numbers at the ticks."""
    ax.set_xscale("symlog", linthresh=1)
    ax.xaxis.set_major_formatter("{x:g}")


def score_predictions(estimator, X):
    """Return the most probable label of each row, and its probability."""
    codes, confidence = predict_with_confidence(estimator, X)
    return np.asarray(estimator.classes_)[codes], confidence
