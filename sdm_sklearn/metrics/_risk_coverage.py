"""The risk-coverage curve and the areas under it."""

import numpy as np
from sklearn.metrics import auc
from sklearn.utils._param_validation import validate_params

from ._checks import (
    check_classes,
    check_labels,
    check_length,
    check_real,
    check_weights,
)

_RANKED = {
    "y_true": ["array-like"],
    "y_pred": ["array-like"],
    "confidence": ["array-like"],
    "sample_weight": ["array-like", None],
}


@validate_params(_RANKED, prefer_skip_nested_validation=True)
def risk_coverage_curve(y_true, y_pred, confidence, *, sample_weight=None):
    """Compute the selective risk at every coverage that a threshold can reach.

    A threshold on the confidence accepts the rows that reach it. Lowering it from the
    largest confidence to the smallest walks along the curve of [1]_. Rows with equal
    confidence are accepted together: no threshold can tell them apart.

    Parameters
    ----------
    y_true : array-like of shape (n_samples,)
        True labels: strings, bools or whole numbers.

    y_pred : array-like of shape (n_samples,)
        Predicted labels.

    confidence : array-like of shape (n_samples,)
        Confidence in each prediction, higher for more certain, on any scale.

    sample_weight : array-like of shape (n_samples,), default=None
        Sample weights. Rows with weight 0 do not count.

    Returns
    -------
    coverage : ndarray of shape (n_thresholds,), dtype=float64
        Share of the rows accepted, ascending; the last is 1.

    risk : ndarray of shape (n_thresholds,), dtype=float64
        Error rate among the accepted rows.

    thresholds : ndarray of shape (n_thresholds,)
        The distinct confidences, descending: accepted are the rows with
        ``confidence >= thresholds[i]``.

    Raises
    ------
    ValueError
        If lengths differ, labels are missing or of mixed kinds, or a confidence is
        not finite.

    See Also
    --------
    aurc : Area under this curve.
    augrc : Area under the curve of the generalized risk.

    References
    ----------
    .. [1] R. El-Yaniv and Y. Wiener, "On the Foundations of Noise-free Selective
       Classification", JMLR 11, 2010.

    Examples
    --------
    >>> from sdm_sklearn.metrics import risk_coverage_curve
    >>> coverage, risk, thresholds = risk_coverage_curve(
    ...     [0, 1, 1, 0], [0, 1, 0, 0], confidence=[0.9, 0.8, 0.7, 0.7]
    ... )
    >>> coverage
    array([0.25, 0.5 , 1.  ])
    >>> risk
    array([0.  , 0.  , 0.25])
    >>> thresholds
    array([0.9, 0.8, 0.7])
    """
    errors, confidence, weights = _check_ranked(
        y_true, y_pred, confidence, sample_weight
    )
    accepted, wrong, thresholds = _accumulate(errors, confidence, weights)
    return accepted / accepted[-1], wrong / accepted, thresholds


@validate_params(_RANKED, prefer_skip_nested_validation=True)
def aurc(y_true, y_pred, confidence, *, sample_weight=None):
    """Compute the area under the risk-coverage curve (AURC).

    The mean, over all rows, of the selective risk at the threshold that just accepts
    the row [1]_: 0 if there are no errors, about the error rate for a confidence that
    knows nothing.

    Parameters
    ----------
    y_true : array-like of shape (n_samples,)
        True labels: strings, bools or whole numbers.

    y_pred : array-like of shape (n_samples,)
        Predicted labels.

    confidence : array-like of shape (n_samples,)
        Confidence in each prediction, higher for more certain, on any scale.

    sample_weight : array-like of shape (n_samples,), default=None
        Sample weights. A weight of 2 is the same as the row given twice.

    Returns
    -------
    area : float
        Between 0 and 1, lower is better.

    Raises
    ------
    ValueError
        As :func:`risk_coverage_curve`.

    See Also
    --------
    excess_aurc : The part of it that a better confidence would remove.
    augrc : An area that does not overweight the most confident rows.

    References
    ----------
    .. [1] Y. Geifman, G. Uziel and R. El-Yaniv, "Bias-Reduced Uncertainty Estimation
       for Deep Neural Classifiers", ICLR 2019, arXiv:1805.08206.

    Examples
    --------
    >>> from sdm_sklearn.metrics import aurc
    >>> aurc([0, 1, 1, 0], [0, 1, 0, 0], confidence=[0.9, 0.8, 0.7, 0.7])
    0.125
    """
    errors, confidence, weights = _check_ranked(
        y_true, y_pred, confidence, sample_weight
    )
    return _aurc(errors, confidence, weights)


@validate_params(_RANKED, prefer_skip_nested_validation=True)
def excess_aurc(y_true, y_pred, confidence, *, sample_weight=None):
    """Compute the excess of the AURC over that of the best possible confidence.

    The best confidence in hindsight ranks every correct row above every error. What
    AURC it leaves is owed to the errors themselves; the excess (E-AURC) of [1]_ is
    owed to their ranking. The best AURC is computed exactly on the given rows, not by
    the approximation ``r + (1 - r) ln(1 - r)`` for error rate r, so that a perfect
    ranking has an excess of 0.

    Parameters
    ----------
    y_true : array-like of shape (n_samples,)
        True labels: strings, bools or whole numbers.

    y_pred : array-like of shape (n_samples,)
        Predicted labels.

    confidence : array-like of shape (n_samples,)
        Confidence in each prediction, higher for more certain, on any scale.

    sample_weight : array-like of shape (n_samples,), default=None
        Sample weights. The best confidence takes each row whole, whatever it weighs.

    Returns
    -------
    excess : float
        Between 0 and 1, lower is better.

    Raises
    ------
    ValueError
        As :func:`risk_coverage_curve`.

    References
    ----------
    .. [1] Y. Geifman, G. Uziel and R. El-Yaniv, "Bias-Reduced Uncertainty Estimation
       for Deep Neural Classifiers", ICLR 2019, arXiv:1805.08206.

    Examples
    --------
    >>> from sdm_sklearn.metrics import excess_aurc
    >>> excess_aurc([0, 1, 1, 0], [0, 1, 0, 0], confidence=[0.9, 0.8, 0.6, 0.7])
    0.0
    >>> excess_aurc([0, 1, 1, 0], [0, 1, 0, 0], confidence=[0.6, 0.7, 0.9, 0.8])
    0.458...
    """
    errors, confidence, weights = _check_ranked(
        y_true, y_pred, confidence, sample_weight
    )
    best = _aurc(errors, _oracle_confidence(errors, weights), weights)
    return max(_aurc(errors, confidence, weights) - best, 0.0)


@validate_params(_RANKED, prefer_skip_nested_validation=True)
def augrc(y_true, y_pred, confidence, *, sample_weight=None):
    """Compute the area under the generalized risk-coverage curve (AUGRC).

    The generalized risk is the share of all rows that are accepted and wrong, so that
    every error counts the same wherever it stands; the area under it over the
    coverage is the mean risk of an undetected error [1]_. With straight lines between
    the points of the curve it equals
    ``(1 - AUROC) acc (1 - acc) + (1 - acc)^2 / 2``, where AUROC is that of the
    confidence for telling correct rows from errors.

    Parameters
    ----------
    y_true : array-like of shape (n_samples,)
        True labels: strings, bools or whole numbers.

    y_pred : array-like of shape (n_samples,)
        Predicted labels.

    confidence : array-like of shape (n_samples,)
        Confidence in each prediction, higher for more certain, on any scale.

    sample_weight : array-like of shape (n_samples,), default=None
        Sample weights. A weight of 2 is the same as the row given twice.

    Returns
    -------
    area : float
        Between 0 and 1/2, lower is better.

    Raises
    ------
    ValueError
        As :func:`risk_coverage_curve`.

    References
    ----------
    .. [1] J. Traub et al., "Overcoming Common Flaws in the Evaluation of Selective
       Classification Systems", NeurIPS 2024, arXiv:2407.01032.

    Examples
    --------
    >>> from sdm_sklearn.metrics import augrc
    >>> augrc([0, 1, 1, 0], [0, 1, 0, 0], confidence=[0.9, 0.8, 0.7, 0.7])
    0.0625
    """
    errors, confidence, weights = _check_ranked(
        y_true, y_pred, confidence, sample_weight
    )
    accepted, wrong, _ = _accumulate(errors, confidence, weights)
    coverage = np.append(0.0, accepted) / accepted[-1]
    return float(auc(coverage, np.append(0.0, wrong) / accepted[-1]))


def _check_ranked(y_true, y_pred, confidence, sample_weight):
    """Return errors (bool), confidences and weights of the rows that weigh anything."""
    y_true = check_labels(y_true, "y_true")
    y_pred = check_length(check_labels(y_pred, "y_pred"), "y_pred", len(y_true))
    check_classes(y_true, y_pred)
    confidence = check_real(confidence, "confidence")
    check_length(confidence, "confidence", len(y_true))
    weights = check_weights(sample_weight, len(y_true))
    errors = np.fromiter(
        (t != p for t, p in zip(y_true.tolist(), y_pred.tolist(), strict=True)),
        dtype=bool,
        count=len(y_true),
    )
    counts = weights > 0
    return errors[counts], confidence[counts], weights[counts]


def _accumulate(errors, confidence, weights):
    """Return accepted and wrong weight at each distinct confidence, descending."""
    order = np.argsort(-confidence, kind="stable")
    confidence = confidence[order]
    last_of_tie = np.append(np.flatnonzero(np.diff(confidence)), len(order) - 1)
    accepted = np.cumsum(weights[order])[last_of_tie]
    wrong = np.cumsum((weights * errors)[order])[last_of_tie]
    return accepted, wrong, confidence[last_of_tie]


def _aurc(errors, confidence, weights):
    accepted, wrong, _ = _accumulate(errors, confidence, weights)
    return float(np.diff(accepted, prepend=0.0) @ (wrong / accepted) / accepted[-1])


def _oracle_confidence(errors, weights):
    """Return the confidence with the smallest AURC: errors last, the heaviest last.

    Light errors come first because ``E / (correct + E)`` is concave in the weight E of
    the errors accepted so far.
    """
    confidence = np.ones(len(errors))
    heavy_last = np.argsort(weights[errors], kind="stable")
    confidence[np.flatnonzero(errors)[heavy_last]] = -np.arange(len(heavy_last))
    confidence[~errors] = 1.0
    return confidence
