"""Display of the plane of Similarity and Distance."""

import numpy as np

from ._signals import find_region, find_sdm, measure_signals, unwrap_sdm
from ._style import MIDDLE, PALE, dark, get_axes, plain, plain_symlog

# More than any count of neighbours: where the shaded region ends, out of sight.
_NO_END = 1e15


class SimilarityDistanceDisplay:
    """Rows in the plane of Similarity q and Distance d, with the accepted region.

    In-distribution rows have long runs of like-minded neighbours (q) and lie close to
    the training data (d near 1); out-of-distribution rows have q = 0 or d near 0. The
    region demands q' >= q'_min, and as q' <= q, no accepted row stands left of it. Use
    :meth:`from_estimator` to create a display.

    Parameters
    ----------
    similarity : ndarray of shape (n_samples,)
        q of each row.

    distance : ndarray of shape (n_samples,)
        d of each row.

    accepted : ndarray of shape (n_samples,), dtype=bool
        Whether the row is accepted.

    out_of_distribution : ndarray of shape (n_samples,), dtype=bool
        Whether the row is known to be out of distribution.

    q_min : float
        Smallest rescaled similarity of the region, inf if there is none.

    Attributes
    ----------
    points_ : dict of matplotlib Artist
        The points of "accepted", "rejected", "ood accepted" and "ood rejected".

    region_ : matplotlib Artist or None
        The shaded part that holds every accepted row.

    ax_ : matplotlib Axes
        Axes with the points.

    figure_ : matplotlib Figure
        Figure with the axes.

    Examples
    --------
    >>> import matplotlib.pyplot as plt
    >>> from sklearn.datasets import make_blobs
    >>> from sdm_sklearn import SDMClassifier
    >>> from sdm_sklearn.plotting import SimilarityDistanceDisplay
    >>> X, y = make_blobs(600, centers=2, n_features=8, random_state=0)
    >>> clf = SDMClassifier(alpha=0.9, max_epochs=20, random_state=0)
    >>> clf = clf.fit(X[:400], y[:400])
    >>> SimilarityDistanceDisplay.from_estimator(clf, X[400:], X_ood=X[400:] * 9)
    <...>
    >>> plt.show()
    """

    def __init__(self, *, similarity, distance, accepted, out_of_distribution, q_min):
        self.similarity = similarity
        self.distance = distance
        self.accepted = accepted
        self.out_of_distribution = out_of_distribution
        self.q_min = q_min

    @classmethod
    def from_estimator(cls, estimator, X, *, X_ood=None, alpha=None, ax=None, **kwargs):
        """Draw rows as a fitted SDMClassifier sees them.

        Parameters
        ----------
        estimator : estimator
            Fitted :class:`~sdm_sklearn.SDMClassifier`, bare or inside Pipelines,
            searches and :class:`~sdm_sklearn.SelectiveThresholdCV`.

        X : array-like of shape (n_samples, n_features)
            In-distribution rows.

        X_ood : array-like of shape (n_ood, n_features), default=None
            Rows known to be out of distribution.

        alpha : float, default=None
            Accuracy asked for. None stands for what `predict_selective` of the
            estimator asks for.

        ax : matplotlib Axes, default=None
            Axes to draw on. None makes new ones.

        **kwargs : dict
            Passed to matplotlib's `scatter` for all points.

        Returns
        -------
        display : SimilarityDistanceDisplay
        """
        classifier, alpha = find_sdm(estimator, alpha)
        signals = [
            measure_signals(classifier, unwrap_sdm(estimator, rows)[1], alpha)
            for rows in (X, X_ood)
            if rows is not None
        ]
        columns = {
            name: np.concatenate([part[name] for part in signals])
            for name in ("similarity", "distance", "accepted")
        }
        sizes = [len(part.similarity) for part in signals]
        display = cls(
            **columns,
            out_of_distribution=np.repeat([False, True][: len(sizes)], sizes),
            q_min=float(find_region(classifier, alpha).q_min.min()),
        )
        return display.plot(ax=ax, **kwargs)

    def plot(self, ax=None, **kwargs):
        """Draw the stored rows.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Axes to draw on. None makes new ones.

        **kwargs : dict
            Passed to matplotlib's `scatter` for all points. A `label` stands before
            each entry of the legend, for several models on one pair of axes.

        Returns
        -------
        display : SimilarityDistanceDisplay
        """
        self.ax_ = ax = get_axes("SimilarityDistanceDisplay", ax)
        self.figure_ = ax.figure
        drawn_to = ax.get_xlim()[1]  # 1 on new axes
        kwargs = _point_style(kwargs)
        label = kwargs.pop("label", None)
        prefix = "" if label is None else f"{plain(label, 40)}: "
        self.region_ = None
        largest = max(self.similarity.max(), 1)
        if np.isfinite(self.q_min):
            largest = max(largest, self.q_min)
            self.region_ = ax.axvspan(
                self.q_min,
                _NO_END,
                facecolor=PALE,
                alpha=0.45,
                zorder=0,
                label=f"{prefix}region: q ≥ {self.q_min:.3g} holds every accepted row",
            )
        self.points_ = {}
        styles = {
            ("in distribution", False): {"color": dark(), "marker": "o"},
            ("OOD", True): {"color": MIDDLE, "marker": "^"},
        }
        for (kind, is_ood), style in styles.items():
            for verdict in ("accepted", "rejected"):
                rows = self.out_of_distribution == is_ood
                total = rows.sum()
                rows = rows & (self.accepted == (verdict == "accepted"))
                if not total:
                    continue
                key = f"ood {verdict}" if is_ood else verdict
                look = {"s": 26, "linewidth": 0.8, "alpha": 0.7, **style, **kwargs}
                if verdict == "rejected":
                    color = look.pop("color")
                    look = {"facecolor": "none", "edgecolor": color, **look}
                self.points_[key] = ax.scatter(
                    self.similarity[rows],
                    self.distance[rows],
                    **look,
                    label=f"{prefix}{kind}, {verdict}: {rows.sum()} of {total}",
                )
        plain_symlog(ax)
        ax.set(
            xlabel="Similarity q (like-minded nearest neighbours in a row)",
            ylabel="Distance d (1: near the training data)",
            xlim=(-0.15, max(largest * 1.3, drawn_to)),
            ylim=(-0.04, 1.04),
        )
        ax.legend(loc="best")
        return self


def _point_style(kwargs):
    """Return `kwargs` of `scatter` by their full names."""
    from matplotlib.cbook import normalize_kwargs
    from matplotlib.collections import PathCollection

    kwargs = normalize_kwargs(kwargs, PathCollection)
    if "c" in kwargs:
        kwargs["color"] = kwargs.pop("c")
    return kwargs
