"""Display that explains the decision about one row."""

import numpy as np
from sklearn.utils import Bunch, _safe_indexing
from sklearn.utils._optional_dependencies import check_matplotlib_support
from sklearn.utils.validation import _num_samples

from .._validation import check_same_kind
from ..metrics._checks import check_1d, check_length
from ._signals import (
    explain,
    find_region,
    find_sdm,
    measure_signals,
    unwrap_sdm,
)
from ._style import GREY, MIDDLE, PALE, dark, foreground, plain, plain_symlog

# A transformer may round its output in `fit_transform` and `transform` differently, by
# millionths in float32. Wrong rows differ by about the length of the vectors.
_ROUNDING = 1e-3


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
            The row, such as ``X[i]``, or ``X.iloc[i]`` where `X_train` is a DataFrame.

        X_train : array-like of shape (n_samples, n_features)
            The rows given to `fit`.

        y_train : array-like of shape (n_samples,)
            Their labels.

        texts : array-like of str of shape (n_samples,), default=None
            The texts behind `X_train`, shown beside the exemplars.

        n_neighbors : int, default=8
            Number of exemplars to show, or all if there are fewer.

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
            If `x` is not one row, if `X_train` and `y_train` are not what `fit` was
            given, or `texts` does not have one entry per row.
        """
        x = _one_row(x, X_train)
        classifier, alpha = find_sdm(estimator, alpha)
        inner = unwrap_sdm(estimator, x)[1]
        signals = measure_signals(classifier, inner, alpha)
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
        _check_labels(classifier, y_train)
        n_neighbors = min(n_neighbors, len(classifier.support_indices_))
        distance, index = classifier.kneighbors(inner, n_neighbors=n_neighbors)
        exemplars, calibration = (
            unwrap_sdm(estimator, _safe_indexing(X_train, rows))[1]
            for rows in (index[0], classifier.calibration_indices_)
        )
        _check_exemplars(classifier, inner, exemplars, distance[0])
        of_exemplars = measure_signals(classifier, exemplars, alpha)
        of_calibration = measure_signals(classifier, calibration, alpha)
        region = find_region(classifier, alpha)
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

            figure = plt.figure(figsize=(11, 4.8))
        if figure.get_layout_engine() is None:
            figure.figure.set_layout_engine("constrained")  # that of a SubFigure, too
        self.figure_ = figure
        self.axes_ = figure.subplots(1, 2, width_ratios=[1.35, 1])
        self._plot_exemplars(self.axes_[0])
        self._plot_calibration(self.axes_[1])
        row = self.row
        verdict = "accepted" if row.accepted else "rejected"
        lines = [] if title is None else [plain(title, 110)]
        lines += [
            f"Predicted {plain(row.prediction, 60)}, {verdict}: {row.reason}",
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
        background, ink = ax.get_facecolor(), dark()
        self.bars_ = ax.barh(
            position,
            near.distance,
            color=[PALE if support else background for support in supports],
            edgecolor=[ink if support else MIDDLE for support in supports],
            hatch=["" if support else "///" for support in supports],
        )
        for i in position:
            text = f"{near.label[i]!s}"
            if near.prediction[i] != near.label[i]:
                text += f" (predicted {near.prediction[i]!s})"
            if near.text is not None:
                text += f": {near.text[i]!s}"
            ax.annotate(
                plain(text, 66),
                (0, i),
                xytext=(4, 0),
                textcoords="offset points",
                va="center",
                fontsize="small",
                bbox={
                    "facecolor": background,
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
            edgecolors=dark(),
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
            color=foreground(),
            edgecolors=ax.get_facecolor(),
            zorder=3,
            label="this row",
        )
        if np.isfinite(row.q_min):
            style = {"color": GREY, "linestyle": "--", "linewidth": 1}
            ax.axvline(row.q_min, **style, label="edge of the region")
            ax.axhline(row.threshold, **style)
        plain_symlog(ax)
        ax.set(
            title=f"Calibration rows predicted {plain(row.prediction, 40)}",
            xlabel="Rescaled similarity q'",
            ylabel="Probability of the prediction",
            ylim=(-0.03, 1.05),
        )
        ax.set_xlim(left=-0.15)
        ax.legend(loc="best", fontsize="small")


def _one_row(x, X_train):
    """Return `x` as one row of two dimensions, whatever holds it."""
    if hasattr(X_train, "iloc") and hasattr(x, "iloc") and x.ndim == 1:
        return x.to_frame().T.infer_objects()  # a row of a DataFrame, by name
    shape = np.shape(x)
    if len(shape) == 1:
        return np.asarray(x).reshape(1, -1)
    if shape[0] != 1 or len(shape) != 2:
        raise ValueError(
            "x must be one row, of shape (n_features,) or (1, n_features). Got "
            f"{shape}."
        )
    return x


def _check_labels(classifier, y):
    """Raise if the labels of exemplars are not those that they were fitted with."""
    check_same_kind(y, classifier.classes_)
    codes = classifier._model.support[1]
    known = codes >= 0  # rows of other classes may have been added to the support
    rows = classifier.support_indices_[known]
    fitted = classifier.classes_[codes[known]]
    wrong = np.flatnonzero(y[rows] != fitted)
    if len(wrong):
        row = rows[wrong[0]]
        raise ValueError(
            f"y_train holds {y[row : row + 1].tolist()[0]!r} at {row} where fit was "
            f"given {fitted[wrong].tolist()[0]!r}: pass the X and y given to fit, in "
            "their order, with what was added to the support behind them."
        )


def _check_exemplars(classifier, row, exemplars, distance):
    """Raise if the exemplars are not at the distances at which they were found."""
    row, exemplars = (
        np.asarray(classifier.transform(rows)) for rows in (row, exemplars)
    )
    measured = np.linalg.norm(exemplars - row, axis=1)
    rounding = 1e-9 * distance + _ROUNDING * np.linalg.norm(exemplars, axis=1)
    if (np.abs(measured - distance) > rounding).any():
        worst = np.argmax(np.abs(measured - distance))
        raise ValueError(
            "X_train does not hold the exemplars: the row found at a distance of "
            f"{distance[worst]:.6g} is at {measured[worst]:.6g}. Pass the X and y "
            "given to fit, in their order, with what was added to the support behind "
            "them."
        )
