"""Calibration errors of probabilities, binned."""

from numbers import Integral

import numpy as np
from sklearn.utils._param_validation import Interval, StrOptions, validate_params

from ._checks import (
    check_classes,
    check_labels,
    check_length,
    check_real,
    check_weights,
)

_BINS = {
    "n_bins": [Interval(Integral, 1, None, closed="left")],
    "strategy": [StrOptions({"uniform", "quantile"})],
    "sample_weight": ["array-like", None],
}


@validate_params(
    {"hits": ["array-like"], "confidences": ["array-like"], **_BINS},
    prefer_skip_nested_validation=True,
)
def expected_calibration_error(
    hits, confidences, *, n_bins=10, strategy="uniform", sample_weight=None
):
    """Compute the expected calibration error (ECE) of the confidence in predictions.

    Rows are put into bins by their confidence; the ECE is the mean over all rows of
    the distance between accuracy and mean confidence in the row's bin [1]_. Bins are
    closed on the right, the first one on the left, too: a confidence of exactly 1
    lies in the last bin, one of exactly 0 in the first.

    Parameters
    ----------
    hits : array-like of shape (n_samples,)
        Whether each prediction is right: bools, or 0 and 1, as in
        ``y_true == y_pred``.

    confidences : array-like of shape (n_samples,)
        Probability of the predicted class, between 0 and 1.

    n_bins : int, default=10
        Number of bins.

    strategy : {"uniform", "quantile"}, default="uniform"
        Whether bins have equal width, or equal mass (the adaptive variant; equal
        confidences stay together).

    sample_weight : array-like of shape (n_samples,), default=None
        Sample weights.

    Returns
    -------
    error : float
        Between 0 and 1, lower is better.

    Raises
    ------
    ValueError
        If lengths differ, a hit is neither 0 nor 1, or a confidence lies outside
        [0, 1].

    See Also
    --------
    classwise_calibration_error : The same over the probabilities of all classes.
    sklearn.metrics.brier_score_loss : A proper score that needs no bins.
    sklearn.metrics.log_loss : Another.

    References
    ----------
    .. [1] C. Guo et al., "On Calibration of Modern Neural Networks", ICML 2017,
       arXiv:1706.04599.

    Examples
    --------
    >>> from sdm_sklearn.metrics import expected_calibration_error
    >>> expected_calibration_error([1, 0, 1, 1], [0.75, 0.75, 0.5, 0.5])
    0.375
    """
    hits, confidences, weights = check_hits(hits, confidences, sample_weight)
    return _binned_error(hits, confidences, weights, n_bins, strategy)


@validate_params(
    {
        "y_true": ["array-like"],
        "y_proba": ["array-like"],
        "labels": ["array-like", None],
        **_BINS,
    },
    prefer_skip_nested_validation=True,
)
def classwise_calibration_error(
    y_true,
    y_proba,
    *,
    labels=None,
    n_bins=10,
    strategy="uniform",
    sample_weight=None,
):
    """Compute the mean over classes of the calibration error of their probabilities.

    For each class c, the probabilities of c are binned and compared with the share of
    rows that are of class c [1]_. Unlike the expected calibration error it looks at
    all probabilities, not at the largest of each row alone.

    Parameters
    ----------
    y_true : array-like of shape (n_samples,)
        True labels: strings, bools or whole numbers.

    y_proba : array-like of shape (n_samples, n_classes)
        Probabilities, as returned by `predict_proba`.

    labels : array-like of shape (n_classes,), default=None
        The class of each column, such as `classes_`. None stands for the sorted
        labels in `y_true`, which must then be as many as there are columns.

    n_bins : int, default=10
        Number of bins.

    strategy : {"uniform", "quantile"}, default="uniform"
        Whether bins have equal width or equal mass.

    sample_weight : array-like of shape (n_samples,), default=None
        Sample weights.

    Returns
    -------
    error : float
        Between 0 and 1, lower is better.

    Raises
    ------
    ValueError
        If shapes differ, a probability lies outside [0, 1], `labels` does not fit the
        columns, or `y_true` holds a label that is not in `labels`.

    References
    ----------
    .. [1] M. Kull et al., "Beyond temperature scaling: Obtaining well-calibrated
       multiclass probabilities with Dirichlet calibration", NeurIPS 2019,
       arXiv:1910.12656.

    Examples
    --------
    >>> from sdm_sklearn.metrics import classwise_calibration_error
    >>> proba = [[0.9, 0.1], [0.9, 0.1], [0.2, 0.8], [0.4, 0.6]]
    >>> classwise_calibration_error([0, 0, 1, 1], proba)
    0.2
    """
    y_true = check_labels(y_true, "y_true")
    y_proba = np.asarray(y_proba)
    if y_proba.ndim != 2:
        raise ValueError(
            "y_proba must have the shape (n_samples, n_classes). Got "
            f"{y_proba.shape}: pass the array of predict_proba whole."
        )
    check_length(y_proba, "y_proba", len(y_true))
    given = y_true if labels is None else check_labels(labels, "labels")
    classes = check_classes(y_true, given)
    columns = classes if labels is None else given.tolist()
    if len(columns) != y_proba.shape[1] or len(set(columns)) != len(columns):
        raise ValueError(
            f"y_proba has {y_proba.shape[1]} columns for the labels {columns}: pass "
            "labels=estimator.classes_, one distinct label per column."
        )
    if len(classes) != len(columns):
        unknown = [label for label in classes if label not in columns]
        raise ValueError(f"y_true holds labels that are not in labels: {unknown}.")
    y_proba = check_real(y_proba.ravel(), "y_proba", low=0, high=1).reshape(
        y_proba.shape
    )
    weights = check_weights(sample_weight, len(y_true))
    code_of = {label: code for code, label in enumerate(columns)}
    codes = np.array([code_of[label] for label in y_true.tolist()])
    errors = [
        _binned_error(codes == code, y_proba[:, code], weights, n_bins, strategy)
        for code in range(len(columns))
    ]
    return float(np.mean(errors))


def check_hits(hits, confidences, sample_weight):
    """Return hits (0 or 1), confidences and weights as arrays of one length."""
    hits = check_real(hits, "hits", low=0, high=1)
    if not np.isin(hits, (0, 1)).all():
        raise ValueError(
            "hits must be 0 or 1, whether each prediction is right. Got "
            f"{hits[~np.isin(hits, (0, 1))][0]}: pass y_true == y_pred."
        )
    confidences = check_real(confidences, "confidences", low=0, high=1)
    check_length(confidences, "confidences", len(hits))
    weights = check_weights(sample_weight, len(hits))
    return hits, confidences, weights


def assign_bins(confidences, weights, n_bins, strategy):
    """Return the bin of each confidence, 0 to n_bins - 1.

    Uniform bins are ((b) / B, (b + 1) / B], the first closed. Quantile bins go by the
    weighted share F of rows at or below: bin b holds b / B < F <= (b + 1) / B, so that
    ties stay together.
    """
    if strategy == "uniform":
        # In the dtype of the confidences: float32(0.3) lies at the edge 0.3.
        edges = (np.arange(1, n_bins) / n_bins).astype(confidences.dtype)
        return np.searchsorted(edges, confidences, side="left")
    values, member = np.unique(confidences, return_inverse=True)
    below = np.cumsum(np.bincount(member, weights, minlength=len(values)))
    # Sums of weights round; a share within rounding of an edge lies on it.
    bins = np.ceil(np.round(below / below[-1] * n_bins, 9)) - 1
    return np.clip(bins, 0, n_bins - 1).astype(int)[member]


def bin_means(hits, confidences, weights, n_bins, strategy):
    """Return weight, accuracy and mean confidence of each bin, NaN where empty."""
    bins = assign_bins(confidences, weights, n_bins, strategy)
    mass, hit, confidence = (
        np.bincount(bins, values, minlength=n_bins)
        for values in (weights, weights * hits, weights * confidences)
    )
    means = np.full((2, n_bins), np.nan)
    np.divide((hit, confidence), mass, out=means, where=mass > 0)
    return mass, means[0], means[1]


def _binned_error(hits, confidences, weights, n_bins, strategy):
    mass, accuracy, confidence = bin_means(hits, confidences, weights, n_bins, strategy)
    gaps = np.abs(accuracy - confidence)[mass > 0]
    return float(gaps @ mass[mass > 0] / mass.sum())
