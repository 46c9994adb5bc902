"""Display of the risk-coverage curve."""

import numpy as np
from sklearn.utils import _safe_indexing

from .._cross_fit import is_selective
from .._selective import predict_selective
from ..metrics import aurc, coverage_score, risk_coverage_curve, selective_risk
from ._style import (
    foreground,
    get_axes,
    line_style,
    next_line,
    plain,
    score_predictions,
)


class RiskCoverageDisplay:
    """Risk-coverage curve: the error rate among the rows that are accepted.

    Use :meth:`from_estimator`, :meth:`from_predictions` or :meth:`from_cv_results` to
    create a display. All parameters are stored as attributes.

    Parameters
    ----------
    coverage : list of ndarray
        Share of the rows accepted, ascending, one array per curve.

    risk : list of ndarray
        Error rate among the accepted rows, one array per curve.

    aurc : list of float, default=None
        Area under each curve, for the legend.

    accepted_point : tuple of float, default=None
        Coverage and risk of what a selective classifier accepts by its own rule.

    name : str, default=None
        Name of the model, for the legend.

    Attributes
    ----------
    lines_ : list of matplotlib Artist
        The curves.

    accepted_point_ : matplotlib Artist or None
        The mark of the accepted rows.

    chance_level_ : matplotlib Artist or None
        The line of a confidence that knows nothing.

    oracle_ : matplotlib Artist or None
        The line of the best confidence in hindsight.

    ax_ : matplotlib Axes
        Axes with the curves.

    figure_ : matplotlib Figure
        Figure with the axes.

    See Also
    --------
    sdm_sklearn.metrics.risk_coverage_curve : The numbers.

    Examples
    --------
    >>> import matplotlib.pyplot as plt
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sdm_sklearn.plotting import RiskCoverageDisplay
    >>> X, y = load_iris(return_X_y=True)
    >>> clf = LogisticRegression(max_iter=1000).fit(X, y)
    >>> RiskCoverageDisplay.from_estimator(clf, X, y)
    <...>
    >>> plt.show()
    """

    def __init__(self, *, coverage, risk, aurc=None, accepted_point=None, name=None):
        self.coverage = coverage
        self.risk = risk
        self.aurc = aurc
        self.accepted_point = accepted_point
        self.name = name

    @classmethod
    def from_estimator(
        cls,
        estimator,
        X,
        y,
        *,
        alpha=None,
        sample_weight=None,
        name=None,
        ax=None,
        plot_chance_level=False,
        plot_oracle=False,
        **kwargs,
    ):
        """Draw the curve of a fitted classifier.

        Rows are ranked by the probability of the prediction. For a selective
        classifier, bare or inside Pipelines and searches, the rows that it accepts by
        its own rule are marked by a star.

        Parameters
        ----------
        estimator : estimator
            Fitted classifier with `predict_proba`.

        X : array-like of shape (n_samples, n_features)
            Input rows.

        y : array-like of shape (n_samples,)
            True labels.

        alpha : float, default=None
            Accuracy at which a selective classifier accepts. None stands for its own.

        sample_weight : array-like of shape (n_samples,), default=None
            Sample weights.

        name : str, default=None
            Name for the legend. None stands for the class name.

        ax : matplotlib Axes, default=None
            Axes to draw on, for several models on one pair of axes. None makes new
            ones.

        plot_chance_level : bool, default=False
            Whether to draw the risk of a confidence that knows nothing.

        plot_oracle : bool, default=False
            Whether to draw the curve of the best confidence in hindsight.

        **kwargs : dict
            Passed to matplotlib's `plot` for the curve.

        Returns
        -------
        display : RiskCoverageDisplay
        """
        labels, confidence = score_predictions(estimator, X)
        accepted = None
        if alpha is not None or is_selective(estimator):
            _, accepted = predict_selective(estimator, X, alpha=alpha, return_mask=True)
        return cls.from_predictions(
            y,
            labels,
            confidence,
            accepted=accepted,
            sample_weight=sample_weight,
            name=type(estimator).__name__ if name is None else name,
            ax=ax,
            plot_chance_level=plot_chance_level,
            plot_oracle=plot_oracle,
            **kwargs,
        )

    @classmethod
    def from_predictions(
        cls,
        y_true,
        y_pred,
        confidence,
        *,
        accepted=None,
        sample_weight=None,
        name=None,
        ax=None,
        plot_chance_level=False,
        plot_oracle=False,
        **kwargs,
    ):
        """Draw the curve of given predictions.

        Parameters
        ----------
        y_true : array-like of shape (n_samples,)
            True labels.

        y_pred : array-like of shape (n_samples,)
            Predicted labels, none rejected.

        confidence : array-like of shape (n_samples,)
            Confidence in each prediction, higher for more certain.

        accepted : array-like of shape (n_samples,), dtype=bool, default=None
            What a selective classifier accepts, to be marked by a star.

        sample_weight : array-like of shape (n_samples,), default=None
            Sample weights.

        name : str, default=None
            Name for the legend.

        ax : matplotlib Axes, default=None
            Axes to draw on. None makes new ones.

        plot_chance_level : bool, default=False
            Whether to draw the risk of a confidence that knows nothing.

        plot_oracle : bool, default=False
            Whether to draw the curve of the best confidence in hindsight.

        **kwargs : dict
            Passed to matplotlib's `plot` for the curve.

        Returns
        -------
        display : RiskCoverageDisplay
        """
        coverage, risk, _ = risk_coverage_curve(
            y_true, y_pred, confidence, sample_weight=sample_weight
        )
        point = None
        if accepted is not None:
            share = coverage_score(accepted, sample_weight=sample_weight)
            if share > 0:
                point = (
                    share,
                    selective_risk(
                        y_true, y_pred, accepted, sample_weight=sample_weight
                    ),
                )
        display = cls(
            coverage=[coverage],
            risk=[risk],
            aurc=[aurc(y_true, y_pred, confidence, sample_weight=sample_weight)],
            accepted_point=point,
            name=name,
        )
        return display.plot(
            ax=ax,
            plot_chance_level=plot_chance_level,
            plot_oracle=plot_oracle,
            **kwargs,
        )

    @classmethod
    def from_cv_results(
        cls,
        cv_results,
        X,
        y,
        *,
        sample_weight=None,
        name=None,
        ax=None,
        plot_chance_level=False,
        plot_oracle=False,
        **kwargs,
    ):
        """Draw one curve per fold of a cross-validation.

        Parameters
        ----------
        cv_results : dict
            From :func:`~sklearn.model_selection.cross_validate` with
            ``return_estimator=True`` and ``return_indices=True``.

        X : array-like of shape (n_samples, n_features)
            The rows given to `cross_validate`.

        y : array-like of shape (n_samples,)
            Their labels.

        sample_weight : array-like of shape (n_samples,), default=None
            Sample weights.

        name : str, default=None
            Name for the legend. None stands for the class name.

        ax : matplotlib Axes, default=None
            Axes to draw on. None makes new ones.

        plot_chance_level : bool, default=False
            Whether to draw the mean risk of a confidence that knows nothing.

        plot_oracle : bool, default=False
            Whether to draw the mean of the folds' curves of the best confidence. It
            lies below the mean of the folds' curves, not below each of them.

        **kwargs : dict
            Passed to matplotlib's `plot` for the curves.

        Returns
        -------
        display : RiskCoverageDisplay

        Raises
        ------
        ValueError
            If `cv_results` lacks the estimators or the indices.
        """
        if not {"estimator", "indices"} <= set(cv_results):
            raise ValueError(
                "cv_results must hold 'estimator' and 'indices': call cross_validate "
                "with return_estimator=True and return_indices=True. Got the keys "
                f"{sorted(cv_results)}."
            )
        coverage, risk, areas = [], [], []
        for estimator, test in zip(
            cv_results["estimator"], cv_results["indices"]["test"], strict=True
        ):
            labels, confidence = score_predictions(estimator, _safe_indexing(X, test))
            weight = None
            if sample_weight is not None:
                weight = _safe_indexing(sample_weight, test)
            ranked = _safe_indexing(y, test), labels, confidence
            fold = risk_coverage_curve(*ranked, sample_weight=weight)
            coverage.append(fold[0])
            risk.append(fold[1])
            areas.append(aurc(*ranked, sample_weight=weight))
        if name is None:
            name = type(cv_results["estimator"][0]).__name__
        display = cls(coverage=coverage, risk=risk, aurc=areas, name=name)
        return display.plot(
            ax=ax,
            plot_chance_level=plot_chance_level,
            plot_oracle=plot_oracle,
            **kwargs,
        )

    def plot(
        self,
        ax=None,
        *,
        name=None,
        plot_chance_level=False,
        plot_oracle=False,
        **kwargs,
    ):
        """Draw the stored curves.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Axes to draw on. None makes new ones.

        name : str, default=None
            Name for the legend. None stands for the stored one.

        plot_chance_level : bool, default=False
            Whether to draw the risk of a confidence that knows nothing.

        plot_oracle : bool, default=False
            Whether to draw the curve of the best confidence in hindsight.

        **kwargs : dict
            Passed to matplotlib's `plot` for the curves.

        Returns
        -------
        display : RiskCoverageDisplay
        """
        self.ax_ = ax = get_axes("RiskCoverageDisplay", ax)
        self.figure_ = ax.figure
        name = self.name if name is None else name
        style = next_line(ax, "risk-coverage")
        if len(self.coverage) > 1:
            style["alpha"] = 0.6
        style = line_style({**style, "label": self._label(name)}, kwargs)
        self.lines_ = []
        for coverage, risk in zip(self.coverage, self.risk, strict=True):
            self.lines_ += ax.plot(coverage, risk, **style)
            style["label"] = None
        # What belongs to the curve has its colour and follows it in the legend.
        color = self.lines_[0].get_color()
        self.accepted_point_ = self.chance_level_ = self.oracle_ = None
        if self.accepted_point is not None:
            (self.accepted_point_,) = ax.plot(
                *self.accepted_point,
                linestyle="none",
                marker="*",
                markersize=15,
                color=color,
                markeredgecolor=foreground(),
                zorder=3,
                clip_on=False,  # a risk of 0 lies on the edge
                label="accepted: coverage {:.2f}, risk {:.3f}".format(
                    *self.accepted_point
                ),
            )
        error_rates = np.array([risk[-1] for risk in self.risk])
        mean = "" if len(error_rates) == 1 else f", mean of {len(error_rates)} folds"
        if plot_chance_level:
            error_rate = error_rates.mean()
            self.chance_level_ = ax.axhline(
                error_rate,
                color=color,
                linestyle=(0, (6, 4)),
                linewidth=1,
                label=f"chance: no ranking, risk {error_rate:.3f}{mean}",
            )
        if plot_oracle:
            grid = np.linspace(0, 1, 501)[1:]
            best = np.maximum(grid - (1 - error_rates[:, np.newaxis]), 0) / grid
            (self.oracle_,) = ax.plot(
                grid,
                best.mean(axis=0),
                color=color,
                linestyle=(0, (1, 2)),
                linewidth=1.4,
                label=f"oracle: every error ranked last{mean}",
            )
        ax.set(xlabel="Coverage", ylabel="Selective risk", xlim=(0, 1.02))
        ax.set_ylim(bottom=0, auto=True)  # a later curve may be higher
        ax.legend()
        return self

    def _label(self, name):
        area = ""
        if self.aurc is not None:
            area = f"AURC = {np.mean(self.aurc):.4f}"
            if len(self.aurc) > 1:
                area += f" ± {np.std(self.aurc):.4f}, {len(self.aurc)} folds"
        if name is None:
            return area or None
        name = plain(name, 40)
        return f"{name} ({area})" if area else name
