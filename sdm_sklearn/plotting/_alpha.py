"""Display of accuracy and coverage against alpha."""

import numpy as np

from .._selective import check_alpha, unwrap
from .._threshold_cv import CONDITIONS, DEFAULT_ALPHAS
from .._threshold_rules import tabulate
from ..metrics._checks import check_classes, check_labels, check_length
from ._style import GREY, LIGHT, MIDDLE, count_lines, dark, foreground, get_axes, plain

_LABELS = {
    "both": "worst class- or prediction-conditional accuracy",
    "class": "worst class-conditional accuracy",
    "prediction": "worst prediction-conditional accuracy",
    "marginal": "accuracy of all accepted rows",
}


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

    condition : {"both", "class", "prediction", "marginal"}, default="both"
        Which accuracy is to be kept, as in :class:`~sdm_sklearn.SelectiveThresholdCV`.

    name : str, default=None
        Name of the model, for the legend.

    Attributes
    ----------
    coverage_line_, worst_line_ : matplotlib Artist
        Coverage, and the accuracy to be kept by `condition`.

    accuracy_line_ : matplotlib Artist or None
        Accuracy of all accepted rows, None where `worst_line_` is that.

    band_ : matplotlib Artist
        Confidence interval of `worst_line_`.

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

    def __init__(
        self, *, table, best_alpha=None, target=None, condition="both", name=None
    ):
        self.table = table
        self.best_alpha = best_alpha
        self.target = target
        self.condition = condition
        self.name = name

    @classmethod
    def from_estimator(
        cls,
        estimator,
        X,
        y,
        *,
        alphas=None,
        confidence_level=0.95,
        condition="both",
        name=None,
        ax=None,
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

        condition : {"both", "class", "prediction", "marginal"}, default="both"
            Which accuracy to draw beside that of all accepted rows.

        name : str, default=None
            Name for the legend.

        ax : matplotlib Axes, default=None
            Axes to draw on. None makes new ones.

        Returns
        -------
        display : AlphaDisplay

        Raises
        ------
        ValueError
            If `alphas` is empty or holds a value that is not strictly between 1/2 and
            1, or `confidence_level` is not strictly between 0 and 1.
        """
        grid = DEFAULT_ALPHAS if alphas is None else np.asarray(alphas).tolist()
        grid = np.unique([check_alpha(alpha) for alpha in grid])
        if not len(grid):
            raise ValueError("alphas is empty: pass at least one, or None.")
        if not 0 < confidence_level < 1:
            raise ValueError(
                "confidence_level must be strictly between 0 and 1. Got "
                f"{confidence_level!r} instead: for 95 % pass 0.95."
            )
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
        return cls(table=table, condition=condition, name=name).plot(ax=ax)

    @classmethod
    def from_cv_results(
        cls,
        cv_results,
        *,
        best_alpha=None,
        target=None,
        condition="both",
        name=None,
        ax=None,
    ):
        """Draw the table of a SelectiveThresholdCV.

        Parameters
        ----------
        cv_results : dict of ndarray
            `cv_results_` of a fitted :class:`~sdm_sklearn.SelectiveThresholdCV`.

        best_alpha : float, default=None
            Its `best_alpha_`, to be marked.

        target : float, default=None
            Its `alpha`, the accuracy to keep, to be marked.

        condition : {"both", "class", "prediction", "marginal"}, default="both"
            Its `condition`, the accuracy that decided.

        name : str, default=None
            Name for the legend.

        ax : matplotlib Axes, default=None
            Axes to draw on. None makes new ones.

        Returns
        -------
        display : AlphaDisplay

        Raises
        ------
        ValueError
            If `cv_results` is not such a table, or `condition` is unknown.
        """
        column = _deciding_column(condition)
        needed = {"alpha", "coverage", "selective_accuracy"}
        needed |= {column, column + "_lower", column + "_upper"}
        missing = sorted(needed - set(cv_results))
        if missing:
            raise ValueError(
                "cv_results must be the cv_results_ of a SelectiveThresholdCV. It "
                f"lacks the keys {missing}."
            )
        display = cls(
            table=cv_results,
            best_alpha=best_alpha,
            target=target,
            condition=condition,
            name=name,
        )
        return display.plot(ax=ax)

    def plot(self, ax=None, *, name=None):
        """Draw the stored table.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Axes to draw on. None makes new ones.

        name : str, default=None
            Name for the legend. None stands for the stored one.

        Returns
        -------
        display : AlphaDisplay

        Raises
        ------
        ValueError
            If `condition` is unknown.
        """
        column = _deciding_column(self.condition)
        self.ax_ = ax = get_axes("AlphaDisplay", ax)
        self.figure_ = ax.figure
        # Colour and dash tell the quantities apart, markers the models.
        kind = "alpha-worst"
        marker = "os^Dv"[count_lines(ax, kind) % 5]
        name = self.name if name is None else name
        prefix = "" if name is None else f"{plain(name, 40)}: "
        table, alpha = self.table, self.table["alpha"]

        def draw(values, label, **style):
            (line,) = ax.plot(
                alpha,
                values,
                marker=marker,
                markersize=4,
                label=prefix + label,
                **style,
            )
            return line

        self.coverage_line_ = draw(
            table["coverage"], "coverage", color=LIGHT, linestyle="-."
        )
        self.accuracy_line_ = None
        if self.condition != "marginal":
            self.accuracy_line_ = draw(
                table["selective_accuracy"],
                "accuracy of all accepted rows",
                color=MIDDLE,
                linestyle="--",
            )
        self.worst_line_ = draw(
            table[column], _LABELS[self.condition], color=dark(), gid=kind
        )
        self.band_ = ax.fill_between(
            alpha,
            table[column + "_lower"],
            table[column + "_upper"],
            color=dark(),
            alpha=0.15,
            linewidth=0,
            label=f"{prefix}its confidence interval",
        )
        drawn = ax.get_legend_handles_labels()[1]
        if self.target is None:
            label = "accuracy = alpha"
            (self.target_line_,) = ax.plot(alpha, alpha, color=GREY, linestyle=":")
        else:
            label = f"accuracy to keep: {self.target:g}"
            self.target_line_ = ax.axhline(self.target, color=GREY, linestyle=":")
        if label not in drawn:
            self.target_line_.set_label(label)
        self.best_alpha_line_ = None
        if self.best_alpha is not None and not np.isnan(self.best_alpha):
            self.best_alpha_line_ = ax.axvline(
                self.best_alpha,
                color=foreground(),
                linewidth=1,
                linestyle=(0, (6, 4)),
                label=f"{prefix}recommended alpha: {self.best_alpha:g}",
            )
        ax.set(xlabel="alpha", ylabel="Share of rows, accuracy", ylim=(0, 1.03))
        ax.legend(loc="best", fontsize="small")
        return self


def _deciding_column(condition):
    """Return the column of the table that holds the accuracy to keep."""
    if condition not in CONDITIONS:
        raise ValueError(
            f"condition must be one of {sorted(CONDITIONS)}. Got {condition!r}."
        )
    return CONDITIONS[condition]
