"""Axes, text, and lines that stay apart without colour."""

from unicodedata import east_asian_width

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


def count_lines(ax, kind):
    """Count the curves of a kind on `ax`, by their gid."""
    return sum(line.get_gid() == kind for line in ax.get_lines())


def next_line(ax, kind):
    """Return the style of the next curve of a kind on `ax`; mark it by its gid."""
    style = _LINES[count_lines(ax, kind) % len(_LINES)]
    if style["color"] == DARK:
        style = {**style, "color": dark()}
    return {**style, "gid": kind, "linewidth": 1.8}


def dark():
    """Return the darkest colour, or that of text on a dark background."""
    from matplotlib import rcParams
    from matplotlib.colors import to_rgb

    background = rcParams["axes.facecolor"]
    return DARK if np.mean(to_rgb(background)) > 0.5 else rcParams["text.color"]


def foreground():
    """Return the colour that stands out from the background, black by default."""
    from matplotlib import rcParams

    return rcParams["text.color"]


def line_style(defaults, kwargs):
    """Return `defaults` overridden by `kwargs` of a line, whatever their aliases."""
    from matplotlib.cbook import normalize_kwargs
    from matplotlib.lines import Line2D

    return {**defaults, **normalize_kwargs(kwargs, Line2D)}


def plain(text, width):
    """Return `text` on one line, cut to `width`, without a meaning for matplotlib.

    Wide characters, such as Chinese ones, count twice.
    """
    text = " ".join(str(text).split())
    ends = np.cumsum([1 + (east_asian_width(char) in "FW") for char in text])
    if len(text) and ends[-1] > width:
        text = text[: np.searchsorted(ends, width - 1, side="right")].rstrip() + "…"
    # matplotlib leaves labels with a leading underscore out of the legend.
    hidden = " " if text.startswith("_") else ""
    return hidden + text.replace("$", r"\$")


def plain_symlog(ax):
    """Scale counts from 0 up by their logarithm, with plain numbers at the ticks."""
    ax.set_xscale("symlog", linthresh=1)
    ax.xaxis.set_major_formatter("{x:g}")


def score_predictions(estimator, X):
    """Return the predicted label of each row, and its probability."""
    codes, confidence = predict_with_confidence(estimator, X)
    return np.asarray(estimator.classes_)[codes], confidence
