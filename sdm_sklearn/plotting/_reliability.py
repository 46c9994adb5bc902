"""Display of a reliability diagram with counts."""

from ..metrics import expected_calibration_error
from ..metrics._calibration import bin_means, check_hits
from ..metrics._checks import (
    check_classes,
    check_labels,
    check_length,
)
from ._style import (
    GREY,
    PALE,
    count_lines,
    get_axes,
    line_style,
    next_line,
    plain,
    score_predictions,
)


class ReliabilityDisplay:
    """Reliability diagram: accuracy against confidence, with the rows in each bin.

    Use :meth:`from_estimator` or :meth:`from_predictions` to create a display. Unlike
    :class:`~sklearn.calibration.CalibrationDisplay` it is for the predicted class of
    any number of classes, and shows how many rows stand behind each point.

    Parameters
    ----------
    accuracy : ndarray of shape (n_bins,)
        Accuracy in each bin, NaN where it is empty.

    confidence : ndarray of shape (n_bins,)
        Mean confidence in each bin, NaN where it is empty.

    mass : ndarray of shape (n_bins,)
        Rows, or weight, in each bin.

    calibration_error : float, default=None
        Expected calibration error, for the legend.

    name : str, default=None
        Name of the model, for the legend.

    Attributes
    ----------
    line_ : matplotlib Artist
        Accuracy against confidence.

    bars_ : matplotlib BarContainer or None
        Share of the rows at each point.

    diagonal_ : matplotlib Artist or None
        The line of perfect calibration, drawn once on any axes.

    ax_ : matplotlib Axes
        Axes with the curve.

    counts_ax_ : matplotlib Axes or None
        Axes with the shares, above.

    figure_ : matplotlib Figure
        Figure with the axes.

    See Also
    --------
    sdm_sklearn.metrics.expected_calibration_error : The number in the legend.

    Examples
    --------
    >>> import matplotlib.pyplot as plt
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sdm_sklearn.plotting import ReliabilityDisplay
    >>> X, y = load_iris(return_X_y=True)
    >>> clf = LogisticRegression(max_iter=1000).fit(X, y)
    >>> ReliabilityDisplay.from_estimator(clf, X, y)
    <...>
    >>> plt.show()
    """

    def __init__(
        self, *, accuracy, confidence, mass, calibration_error=None, name=None
    ):
        self.accuracy = accuracy
        self.confidence = confidence
        self.mass = mass
        self.calibration_error = calibration_error
        self.name = name

    @classmethod
    def from_estimator(
        cls,
        estimator,
        X,
        y,
        *,
        n_bins=10,
        strategy="uniform",
        sample_weight=None,
        name=None,
        ax=None,
        plot_counts=True,
        **kwargs,
    ):
        """Draw the diagram of a fitted classifier.

        Parameters
        ----------
        estimator : estimator
            Fitted classifier with `predict_proba`.

        X : array-like of shape (n_samples, n_features)
            Input rows.

        y : array-like of shape (n_samples,)
            True labels.

        n_bins : int, default=10
            Number of bins.

        strategy : {"uniform", "quantile"}, default="uniform"
            Whether bins have equal width or equal mass.

        sample_weight : array-like of shape (n_samples,), default=None
            Sample weights.

        name : str, default=None
            Name for the legend. None stands for the class name.

        ax : matplotlib Axes, default=None
            Axes to draw on. None makes new ones.

        plot_counts : bool, default=True
            Whether to draw the share of the rows at each point.

        **kwargs : dict
            Passed to matplotlib's `plot` for the curve.

        Returns
        -------
        display : ReliabilityDisplay
        """
        labels, confidence = score_predictions(estimator, X)
        y = check_length(check_labels(y, "y"), "y", len(labels))
        check_classes(y, labels)
        return cls.from_predictions(
            y == labels,
            confidence,
            n_bins=n_bins,
            strategy=strategy,
            sample_weight=sample_weight,
            name=type(estimator).__name__ if name is None else name,
            ax=ax,
            plot_counts=plot_counts,
            **kwargs,
        )

    @classmethod
    def from_predictions(
        cls,
        hits,
        confidences,
        *,
        n_bins=10,
        strategy="uniform",
        sample_weight=None,
        name=None,
        ax=None,
        plot_counts=True,
        **kwargs,
    ):
        """Draw the diagram of given predictions.

        Parameters
        ----------
        hits : array-like of shape (n_samples,)
            Whether each prediction is right, as in ``y_true == y_pred``.

        confidences : array-like of shape (n_samples,)
            Probability of the predicted class, between 0 and 1.

        n_bins : int, default=10
            Number of bins.

        strategy : {"uniform", "quantile"}, default="uniform"
            Whether bins have equal width or equal mass.

        sample_weight : array-like of shape (n_samples,), default=None
            Sample weights.

        name : str, default=None
            Name for the legend.

        ax : matplotlib Axes, default=None
            Axes to draw on. None makes new ones.

        plot_counts : bool, default=True
            Whether to draw the share of the rows at each point.

        **kwargs : dict
            Passed to matplotlib's `plot` for the curve.

        Returns
        -------
        display : ReliabilityDisplay
        """
        error = expected_calibration_error(
            hits,
            confidences,
            n_bins=n_bins,
            strategy=strategy,
            sample_weight=sample_weight,
        )
        hits, confidences, weights = check_hits(hits, confidences, sample_weight)
        mass, accuracy, confidence = bin_means(
            hits, confidences, weights, n_bins, strategy
        )
        display = cls(
            accuracy=accuracy,
            confidence=confidence,
            mass=mass,
            calibration_error=error,
            name=name,
        )
        return display.plot(ax=ax, plot_counts=plot_counts, **kwargs)

    def plot(self, ax=None, *, name=None, plot_counts=True, **kwargs):
        """Draw the stored diagram.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Axes to draw on. None makes new ones.

        name : str, default=None
            Name for the legend. None stands for the stored one.

        plot_counts : bool, default=True
            Whether to draw the share of the rows at each point.

        **kwargs : dict
            Passed to matplotlib's `plot` for the curve.

        Returns
        -------
        display : ReliabilityDisplay
        """
        self.ax_ = ax = get_axes("ReliabilityDisplay", ax)
        self.figure_ = ax.figure
        style = next_line(ax, "reliability")
        n_drawn = count_lines(ax, "reliability")
        name = self.name if name is None else name
        label = "accuracy" if name is None else plain(name, 40)
        if self.calibration_error is not None:
            label += f" (ECE = {self.calibration_error:.3f})"
        filled = self.mass > 0
        (self.line_,) = ax.plot(
            self.confidence[filled],
            self.accuracy[filled],
            **line_style(
                {**style, "marker": "os^Dv"[n_drawn % 5], "label": label}, kwargs
            ),
        )
        self.diagonal_ = None
        if n_drawn == 0:
            (self.diagonal_,) = ax.plot(
                [0, 1],
                [0, 1],
                color=GREY,
                linestyle=(0, (1, 2)),
                label="perfectly calibrated",
            )
        ax.set(
            xlabel="Confidence (probability of the prediction)",
            ylabel="Accuracy",
            xlim=(0, 1.02),
            ylim=(0, 1.05),
        )
        self.bars_ = self.counts_ax_ = None
        if plot_counts:
            self._plot_counts(filled)
        ax.legend(loc="best")
        return self

    def _plot_counts(self, filled):
        """Draw shares as bars on a strip above the diagram."""
        ax, gid = self.ax_, "reliability-counts"
        strips = [axes for axes in ax.child_axes if axes.get_gid() == gid]
        if not strips:
            from matplotlib.ticker import MaxNLocator, PercentFormatter
            from mpl_toolkits.axes_grid1 import make_axes_locatable

            strip = make_axes_locatable(ax).new_vertical("22%", pad=0.12, sharex=ax)
            # Above its child axes the title of `ax` is in nobody's way.
            strips = [ax.add_child_axes(strip)]
            strip.set(gid=gid, ylabel="Rows")
            strip.yaxis.set_major_locator(MaxNLocator(2))
            strip.yaxis.set_major_formatter(PercentFormatter(1))
            strip.tick_params(labelbottom=False)
        (self.counts_ax_,) = strips
        self.bars_ = self.counts_ax_.bar(
            self.confidence[filled],
            self.mass[filled] / self.mass.sum(),
            width=0.03,
            color=PALE,
            edgecolor=self.line_.get_color(),
            linestyle=self.line_.get_linestyle(),
            alpha=0.8,
        )
