"""Display that explains the decision about one row."""

from textwrap import shorten

import numpy as np
from sklearn.utils import Bunch, _safe_indexing
from sklearn.utils._optional_dependencies import check_matplotlib_support
from sklearn.utils.validation import _num_samples

from .._selective import unwrap
from ..metrics._checks import check_1d, check_length
from ._signals import explain, measure_signals
from ._style import DARK, GREY, MIDDLE, PALE, plain_symlog


class ExemplarCardDisplay:
    """Card of one row: its signals, nearest exemplars and the calibration rows near it.

    Answers "why was this accepted, or rejected?" with rows that can be read: the
    nearest training exemplars up to the first that breaks the run, and how calibration
    rows with the same prediction and like signals turned out. Use
    :meth:`from_estimator` to create a display.

    Parameters
    ----------
    row : Bunch
        Signals of the row, and `q_min`, `threshold` and `reason`.

    exemplars : Bunch
        `distance`, `label`, `prediction`, `index` and `text` of the nearest training
        exemplars.

    calibration : Bunch
        `rescaled_similarity`, `probability`, `hit` and `index` of the calibration rows
        with the same prediction.

    Attributes
    ----------
    bars_ : matplotlib BarContainer
        Distances of the exemplars.

    right_, wrong_ : matplotlib Artist
        Calibration rows that were predicted right and wrong.

    row_ : matplotlib Artist
        The row among them.

    axes_ : ndarray of matplotlib Axes
        Left: the exemplars. Right: the calibration rows.

    figure_ : matplotlib Figure
        Figure with the axes.

    Examples
    --------
    >>> import matplotlib.pyplot as plt
    >>> from sklearn.datasets import make_blobs
    >>> from sdm_sklearn import SDMClassifier
    >>> from sdm_sklearn.plotting import ExemplarCardDisplay
    >>> X, y = make_blobs(600, centers=2, n_features=8, random_state=0)
    >>> clf = SDMClassifier(alpha=0.9, max_epochs=20, random_state=0)
    >>> clf = clf.fit(X[:500], y[:500])
    >>> ExemplarCardDisplay.from_estimator(clf, X[500], X[:500], y[:500])
    <...>
    >>> plt.show()
    """

    def __init__(self, *, row, exemplars, calibration):
        self.row = row
        self.exemplars = exemplars
        self.calibration = calibration

    @classmethod
    def from_estimator(
        cls,
        estimator,
        x,
        X_train,
        y_train,
        *,
        texts=None,
        n_neighbors=8,
        alpha=None,
        figure=None,
        title=None,
    ):
        """Explain what a fitted SDMClassifier decides about one row.

        Parameters
        ----------
        estimator : estimator
            Fitted :class:`~sdm_sklearn.SDMClassifier`, bare or inside Pipelines,
            searches and :class:`~sdm_sklearn.SelectiveThresholdCV`.

        x : array-like of shape (n_features,) or (1, n_features)
            The row.

        X_train : array-like of shape (n_samples, n_features)
            The rows given to `fit`.

        y_train : array-like of shape (n_samples,)
            Their labels.

        texts : array-like of str of shape (n_samples,), default=None
            The texts behind `X_train`, shown beside the exemplars.

        n_neighbors : int, default=8
            Number of exemplars to show.

        alpha : float, default=None
            Accuracy asked for. None stands for what `predict_selective` of the
            estimator asks for.

        figure : matplotlib Figure, default=None
            Empty figure to draw on. None makes a new one.

        title : str, default=None
            What to write above, such as the text of the row.

        Returns
        -------
        display : ExemplarCardDisplay

        Raises
        ------
        ValueError
            If `x` is not one row, or `y_train` or `texts` do not have one entry per row
            of the `X` given to `fit`.
        """
        x = _one_row(x)
        classifier, signals, region = measure_signals(estimator, x, alpha)
        n_fitted = 1 + max(
            classifier.support_indices_.max(), classifier.calibration_indices_.max()
        )
        y_train = check_1d(y_train, "y_train")
        if len(y_train) < n_fitted:
            raise ValueError(
                f"y_train has {len(y_train)} rows, but the classifier was fitted on at "
                f"least {n_fitted}: pass the X and y given to fit, with what was added "
                "to the support behind them."
            )
        if _num_samples(X_train) != len(y_train):
            raise ValueError(
                f"X_train has {_num_samples(X_train)} rows where {len(y_train)} are "
                "needed, one for each of y_train."
            )
        inner = unwrap(estimator, x)[1]
        if classifier is not unwrap(estimator, None)[0]:
            inner = unwrap(unwrap(estimator, None)[0].estimator_, inner)[1]
        distance, index = classifier.kneighbors(inner, n_neighbors=n_neighbors)
        of_exemplars, of_calibration = (
            measure_signals(estimator, _safe_indexing(X_train, rows), alpha)[1]
            for rows in (index[0], classifier.calibration_indices_)
        )
        same = of_calibration.prediction == signals.prediction[0]
        code = np.searchsorted(classifier.classes_, signals.prediction[0])
        row = Bunch(
            **{name: values[0] for name, values in signals.items()},
            q_min=region.q_min[code],
            threshold=region.thresholds[code],
        )
        row.reason = explain(row)
        calibration_y = y_train[classifier.calibration_indices_]
        if texts is not None:
            texts = check_length(check_1d(texts, "texts"), "texts", len(y_train))
        display = cls(
            row=row,
            exemplars=Bunch(
                distance=distance[0],
                label=y_train[index[0]],
                prediction=of_exemplars.prediction,
                index=index[0],
                text=None if texts is None else texts[index[0]],
            ),
            calibration=Bunch(
                rescaled_similarity=of_calibration.rescaled_similarity[same],
                probability=of_calibration.probability[same],
                hit=(calibration_y == of_calibration.prediction)[same],
                index=classifier.calibration_indices_[same],
            ),
        )
        return display.plot(figure=figure, title=title)

    def plot(self, figure=None, *, title=None):
        """Draw the stored card.

        Parameters
        ----------
        figure : matplotlib Figure, default=None
            Empty figure to draw on. None makes a new one.

        title : str, default=None
            What to write above.

        Returns
        -------
        display : ExemplarCardDisplay
        """
        check_matplotlib_support("ExemplarCardDisplay")
        if figure is None:
            import matplotlib.pyplot as plt

            figure = plt.figure(figsize=(11, 4.8), layout="constrained")
        self.figure_ = figure
        self.axes_ = figure.subplots(1, 2, width_ratios=[1.35, 1])
        self._plot_exemplars(self.axes_[0])
        self._plot_calibration(self.axes_[1])
        row = self.row
        verdict = "accepted" if row.accepted else "rejected"
        lines = [] if title is None else [_plain(title, 110)]
        lines += [
            f"Predicted {_plain(row.prediction, 60)}, {verdict}: {row.reason}",
            f"q = {row.similarity:g}   d = {row.distance:.3f}   "
            f"probability = {row.probability:.4f}   q' = {row.rescaled_similarity:.2f}",
        ]
        figure.suptitle("\n".join(lines), fontsize="medium", ha="left", x=0.01)
        return self

    def _plot_exemplars(self, ax):
        """Draw the distances of the exemplars, the nearest on top."""
        near = self.exemplars
        supports = (near.label == near.prediction) & (near.label == self.row.prediction)
        position = np.arange(len(near.distance))
        self.bars_ = ax.barh(
            position,
            near.distance,
            color=[PALE if support else "white" for support in supports],
            edgecolor=[DARK if support else MIDDLE for support in supports],
            hatch=["" if support else "///" for support in supports],
        )
        for i in position:
            text = f"{near.label[i]!s}"
            if near.prediction[i] != near.label[i]:
                text += f" (predicted {near.prediction[i]!s})"
            if near.text is not None:
                text += f": {near.text[i]!s}"
            ax.annotate(
                _plain(text, 66),
                (0, i),
                xytext=(4, 0),
                textcoords="offset points",
                va="center",
                fontsize="small",
                bbox={
                    "facecolor": "white",
                    "alpha": 0.8,
                    "edgecolor": "none",
                    "pad": 1,
                },
            )
        ax.invert_yaxis()
        ax.set_yticks(position, [f"row {index}" for index in near.index])
        ax.set(
            title="Nearest training exemplars (rows of the training data)",
            xlabel="Distance (plain: supports the prediction, hatched: breaks the run)",
        )

    def _plot_calibration(self, ax):
        """Draw the calibration rows with the same prediction, and the row."""
        near, row = self.calibration, self.row
        self.right_ = ax.scatter(
            near.rescaled_similarity[near.hit],
            near.probability[near.hit],
            s=22,
            facecolors="none",
            edgecolors=DARK,
            label=f"calibration row, right: {near.hit.sum()}",
        )
        self.wrong_ = ax.scatter(
            near.rescaled_similarity[~near.hit],
            near.probability[~near.hit],
            s=40,
            marker="x",
            color=MIDDLE,
            label=f"calibration row, wrong: {(~near.hit).sum()}",
        )
        self.row_ = ax.scatter(
            row.rescaled_similarity,
            row.probability,
            s=190,
            marker="*",
            color="black",
            edgecolors="white",
            zorder=3,
            label="this row",
        )
        if np.isfinite(row.q_min):
            style = {"color": GREY, "linestyle": "--", "linewidth": 1}
            ax.axvline(row.q_min, **style, label="edge of the region")
            ax.axhline(row.threshold, **style)
        plain_symlog(ax)
        ax.set(
            title=f"Calibration rows predicted {_plain(row.prediction, 40)}",
            xlabel="Rescaled similarity q'",
            ylabel="Probability of the prediction",
            ylim=(-0.03, 1.05),
        )
        ax.set_xlim(left=-0.15)
        ax.legend(loc="best", fontsize="small")


def _one_row(x):
    """Return `x` as one row of two dimensions, whatever holds it."""
    shape = np.shape(x)
    if len(shape) == 1:
        return np.asarray(x).reshape(1, -1)
    if shape[0] != 1 or len(shape) != 2:
        raise ValueError(
            "x must be one row, of shape (n_features,) or (1, n_features). Got "
            f"{shape}."
        )
    return x


def _plain(text, width):
    """Return `text` on one line, cut to `width`, without a meaning for "$"."""
    return shorten(str(text), width, placeholder=" …").replace("$", r"\$")
