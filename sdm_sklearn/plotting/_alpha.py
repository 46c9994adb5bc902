"""Display of accuracy and coverage against alpha."""

import numpy as np

from .._selective import check_alpha, unwrap
from .._threshold_cv import DEFAULT_ALPHAS
from .._threshold_rules import tabulate
from ..metrics._checks import check_classes, check_labels, check_length
from ._style import DARK, GREY, LIGHT, MIDDLE, get_axes


class AlphaDisplay:
    """Coverage and accuracy of the accepted rows at every alpha.

    The picture to choose alpha by: how many rows each value answers, whether the worst
    class- or prediction-conditional accuracy keeps up with it, and how sure the data
    are of that. Use :meth:`from_estimator` on held-out rows, or :meth:`from_cv_results`
    on the table of a :class:`~sdm_sklearn.SelectiveThresholdCV`, to create a display.

    Parameters
    ----------
    table : dict of ndarray
        As `cv_results_` of :class:`~sdm_sklearn.SelectiveThresholdCV`.

    best_alpha : float, default=None
        The recommended alpha, to be marked.

    target : float, default=None
        The accuracy to keep, to be marked.

    Attributes
    ----------
    coverage_line_, accuracy_line_, worst_line_ : matplotlib Artist
        Coverage, accuracy of all accepted rows, and worst conditional accuracy.

    band_ : matplotlib Artist
        Confidence interval of the worst conditional accuracy.

    target_line_ : matplotlib Artist
        The accuracy to keep: `target`, or alpha itself.

    best_alpha_line_ : matplotlib Artist or None
        The mark of the recommended alpha.

    ax_ : matplotlib Axes
        Axes with the lines.

    figure_ : matplotlib Figure
        Figure with the axes.

    Examples
    --------
    >>> import matplotlib.pyplot as plt
    >>> from sklearn.datasets import make_blobs
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sdm_sklearn import SelectiveThresholdCV
    >>> from sdm_sklearn.plotting import AlphaDisplay
    >>> X, y = make_blobs(3000, centers=3, cluster_std=1.5, random_state=0)
    >>> clf = SelectiveThresholdCV(LogisticRegression(), alpha=0.9).fit(X, y)
    >>> AlphaDisplay.from_cv_results(
    ...     clf.cv_results_, best_alpha=clf.best_alpha_, target=0.9
    ... )
    <...>
    >>> plt.show()
    """

    def __init__(self, *, table, best_alpha=None, target=None):
        self.table = table
        self.best_alpha = best_alpha
        self.target = target

    @classmethod
    def from_estimator(
        cls, estimator, X, y, *, alphas=None, confidence_level=0.95, ax=None
    ):
        """Draw what a fitted selective classifier does on held-out rows.

        Parameters
        ----------
        estimator : estimator
            Fitted selective classifier, bare or inside Pipelines and searches.

        X : array-like of shape (n_samples, n_features)
            Input rows that were not used to fit.

        y : array-like of shape (n_samples,)
            True labels.

        alphas : array-like of shape (n_alphas,), default=None
            Where to ask, each strictly between 1/2 and 1. None stands for 18 values
            from 0.55 to 0.995.

        confidence_level : float, default=0.95
            Level of the intervals.

        ax : matplotlib Axes, default=None
            Axes to draw on. None makes new ones.

        Returns
        -------
        display : AlphaDisplay
        """
        grid = DEFAULT_ALPHAS if alphas is None else np.asarray(alphas).tolist()
        grid = np.unique([check_alpha(alpha) for alpha in grid])
        classifier, inner_X = unwrap(estimator, X)
        codes, accepted = classifier._decide_at(inner_X, grid)
        y = check_length(check_labels(y, "y"), "y", len(codes)).tolist()
        known = classifier.classes_.tolist()
        # Rows of unknown classes form classes of their own, in which all is wrong.
        classes = known + sorted(set(y) - set(known))
        check_classes(np.array(classes, dtype=object))
        code_of = {label: code for code, label in enumerate(classes)}
        table = tabulate(
            grid,
            np.array([code_of[label] for label in y]),
            codes,
            accepted,
            len(classes),
            confidence_level,
        )
        return cls(table=table).plot(ax=ax)

    @classmethod
    def from_cv_results(cls, cv_results, *, best_alpha=None, target=None, ax=None):
        """Draw the table of a SelectiveThresholdCV.

        Parameters
        ----------
        cv_results : dict of ndarray
            `cv_results_` of a fitted :class:`~sdm_sklearn.SelectiveThresholdCV`.

        best_alpha : float, default=None
            Its `best_alpha_`, to be marked.

        target : float, default=None
            Its `alpha`, the accuracy to keep, to be marked.

        ax : matplotlib Axes, default=None
            Axes to draw on. None makes new ones.

        Returns
        -------
        display : AlphaDisplay

        Raises
        ------
        ValueError
            If `cv_results` is not such a table.
        """
        needed = {"alpha", "coverage", "worst_conditional_accuracy_lower"}
        if not needed <= set(cv_results):
            raise ValueError(
                "cv_results must be the cv_results_ of a SelectiveThresholdCV. Got the "
                f"keys {sorted(cv_results)}."
            )
        return cls(table=cv_results, best_alpha=best_alpha, target=target).plot(ax=ax)

    def plot(self, ax=None):
        """Draw the stored table.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Axes to draw on. None makes new ones.

        Returns
        -------
        display : AlphaDisplay
        """
        self.ax_ = ax = get_axes("AlphaDisplay", ax)
        self.figure_ = ax.figure
        table, alpha = self.table, self.table["alpha"]
        (self.coverage_line_,) = ax.plot(
            alpha,
            table["coverage"],
            color=LIGHT,
            linestyle="-.",
            marker="s",
            markersize=4,
            label="coverage: share of rows accepted",
        )
        (self.accuracy_line_,) = ax.plot(
            alpha,
            table["selective_accuracy"],
            color=MIDDLE,
            linestyle="--",
            marker="^",
            markersize=4,
            label="accuracy of all accepted rows",
        )
        (self.worst_line_,) = ax.plot(
            alpha,
            table["worst_conditional_accuracy"],
            color=DARK,
            marker="o",
            markersize=4,
            label="worst class- or prediction-conditional accuracy",
        )
        self.band_ = ax.fill_between(
            alpha,
            table["worst_conditional_accuracy_lower"],
            table["worst_conditional_accuracy_upper"],
            color=DARK,
            alpha=0.15,
            linewidth=0,
            label="its confidence interval",
        )
        if self.target is None:
            (self.target_line_,) = ax.plot(
                alpha, alpha, color=GREY, linestyle=":", label="accuracy = alpha"
            )
        else:
            self.target_line_ = ax.axhline(
                self.target,
                color=GREY,
                linestyle=":",
                label=f"accuracy to keep: {self.target:g}",
            )
        self.best_alpha_line_ = None
        if self.best_alpha is not None and not np.isnan(self.best_alpha):
            self.best_alpha_line_ = ax.axvline(
                self.best_alpha,
                color="black",
                linewidth=1,
                linestyle=(0, (6, 4)),
                label=f"recommended alpha: {self.best_alpha:g}",
            )
        ax.set(xlabel="alpha", ylabel="Share of rows, accuracy", ylim=(0, 1.03))
        ax.legend(loc="lower left")
        return self
