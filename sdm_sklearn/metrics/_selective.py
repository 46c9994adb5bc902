"""Coverage and the accuracy of the accepted rows, over all and by class."""

from numbers import Real

import numpy as np
from sklearn.utils._param_validation import Interval, StrOptions, validate_params

from ._checks import check_mask, check_weights, undefined
from ._rows import accepted_rows, accuracy_by, choose_labels, marginal_share, smallest

_LABELLED = {
    "y_true": ["array-like"],
    "y_pred": ["array-like"],
    "accepted": ["array-like"],
    "labels": ["array-like", None],
    "sample_weight": ["array-like", None],
    "replace_undefined_by": [Interval(Real, 0, 1, closed="both"), np.nan],
}
_UNLABELLED = {name: _LABELLED[name] for name in _LABELLED if name != "labels"}


@validate_params(
    {"accepted": ["array-like"], "sample_weight": ["array-like", None]},
    prefer_skip_nested_validation=True,
)
def coverage_score(accepted, *, sample_weight=None):
    """Compute the share of the rows that are accepted.

    Parameters
    ----------
    accepted : array-like of shape (n_samples,), dtype=bool
        True where the prediction stands, as returned by
        ``predict_selective(X, return_mask=True)``.

    sample_weight : array-like of shape (n_samples,), default=None
        Sample weights.

    Returns
    -------
    coverage : float
        Between 0 and 1, higher is better.

    Raises
    ------
    ValueError
        If `accepted` is not a boolean mask, or the lengths differ.

    See Also
    --------
    selective_accuracy_score : What the accepted rows are worth.

    Examples
    --------
    >>> from sdm_sklearn.metrics import coverage_score
    >>> coverage_score([True, True, False, True])
    0.75
    """
    accepted = check_mask(accepted, "accepted")
    weights = check_weights(sample_weight, len(accepted))
    return float(weights[accepted].sum() / weights.sum())


@validate_params(_UNLABELLED, prefer_skip_nested_validation=True)
def selective_accuracy_score(
    y_true, y_pred, accepted, *, sample_weight=None, replace_undefined_by=np.nan
):
    """Compute the accuracy among the accepted rows.

    Parameters
    ----------
    y_true : array-like of shape (n_samples,)
        True labels: strings, bools or whole numbers.

    y_pred : array-like of shape (n_samples,)
        Predicted labels. What stands at rejected rows (such as a reject label) is
        not looked at.

    accepted : array-like of shape (n_samples,), dtype=bool
        True where the prediction stands.

    sample_weight : array-like of shape (n_samples,), default=None
        Sample weights.

    replace_undefined_by : float in [0, 1] or np.nan, default=np.nan
        Value where nothing is accepted. NaN comes with an
        :class:`~sklearn.exceptions.UndefinedMetricWarning`.

    Returns
    -------
    accuracy : float
        Between 0 and 1, higher is better.

    Raises
    ------
    ValueError
        If lengths differ, labels are missing or of mixed kinds, or `accepted` is not
        a boolean mask.

    See Also
    --------
    coverage_score : How many rows are accepted.
    selective_risk : 1 minus this accuracy.
    worst_conditional_accuracy_score : The accuracy that holds for every class.

    Examples
    --------
    >>> from sdm_sklearn.metrics import selective_accuracy_score
    >>> y_true = ["cat", "dog", "dog", "cat"]
    >>> y_pred = ["cat", "dog", "cat", "rejected"]
    >>> selective_accuracy_score(y_true, y_pred, [True, True, True, False])
    0.666...
    """
    rows = accepted_rows(y_true, y_pred, accepted, sample_weight)
    accuracy = marginal_share(rows, rows.hits)
    if np.isnan(accuracy):
        return undefined(
            "The selective accuracy is undefined: no row is accepted.",
            replace_undefined_by,
            stacklevel=3,
        )
    return accuracy


@validate_params(_UNLABELLED, prefer_skip_nested_validation=True)
def selective_risk(
    y_true, y_pred, accepted, *, sample_weight=None, replace_undefined_by=np.nan
):
    """Compute the error rate among the accepted rows.

    This is the selective risk of [1]_ with the 0/1 loss.

    Parameters
    ----------
    y_true : array-like of shape (n_samples,)
        True labels: strings, bools or whole numbers.

    y_pred : array-like of shape (n_samples,)
        Predicted labels. What stands at rejected rows is not looked at.

    accepted : array-like of shape (n_samples,), dtype=bool
        True where the prediction stands.

    sample_weight : array-like of shape (n_samples,), default=None
        Sample weights.

    replace_undefined_by : float in [0, 1] or np.nan, default=np.nan
        Value where nothing is accepted. NaN comes with an
        :class:`~sklearn.exceptions.UndefinedMetricWarning`.

    Returns
    -------
    risk : float
        Between 0 and 1, lower is better.

    Raises
    ------
    ValueError
        As :func:`selective_accuracy_score`.

    See Also
    --------
    risk_coverage_curve : The risk at every coverage.

    References
    ----------
    .. [1] R. El-Yaniv and Y. Wiener, "On the Foundations of Noise-free Selective
       Classification", JMLR 11, 2010.

    Examples
    --------
    >>> from sdm_sklearn.metrics import selective_risk
    >>> selective_risk([0, 1, 1, 0], [0, 1, 0, 0], [True, False, True, True])
    0.333...
    """
    rows = accepted_rows(y_true, y_pred, accepted, sample_weight)
    risk = marginal_share(rows, ~rows.hits)
    if np.isnan(risk):
        return undefined(
            "The selective risk is undefined: no row is accepted.",
            replace_undefined_by,
            stacklevel=3,
        )
    return risk


@validate_params(_LABELLED, prefer_skip_nested_validation=True)
def class_conditional_accuracy_score(
    y_true,
    y_pred,
    accepted,
    *,
    labels=None,
    sample_weight=None,
    replace_undefined_by=np.nan,
):
    """Compute, for each true class, the accuracy of its accepted rows.

    Estimates P(prediction = y | y = c, accepted) for every class c. On the accepted
    rows this is the recall of each class.

    Parameters
    ----------
    y_true : array-like of shape (n_samples,)
        True labels: strings, bools or whole numbers.

    y_pred : array-like of shape (n_samples,)
        Predicted labels. What stands at rejected rows is not looked at.

    accepted : array-like of shape (n_samples,), dtype=bool
        True where the prediction stands.

    labels : array-like of shape (n_classes,), default=None
        The classes to report, in this order. None stands for all labels in `y_true`
        and in the accepted part of `y_pred`, sorted.

    sample_weight : array-like of shape (n_samples,), default=None
        Sample weights.

    replace_undefined_by : float in [0, 1] or np.nan, default=np.nan
        Value for a class without an accepted row. NaN comes with an
        :class:`~sklearn.exceptions.UndefinedMetricWarning` that names the classes.

    Returns
    -------
    accuracy : ndarray of shape (n_classes,), dtype=float64
        One value per class, in the order of `labels`.

    Raises
    ------
    ValueError
        As :func:`selective_accuracy_score`, or if `labels` repeats a label.

    See Also
    --------
    prediction_conditional_accuracy_score : The same by predicted class.
    worst_conditional_accuracy_score : The smallest of both.

    Examples
    --------
    >>> from sdm_sklearn.metrics import class_conditional_accuracy_score
    >>> y_true, y_pred = [0, 0, 0, 1, 1], [0, 0, 1, 1, 0]
    >>> accepted = [True, True, True, True, False]
    >>> class_conditional_accuracy_score(y_true, y_pred, accepted)
    array([0.66666667, 1.        ])
    """
    rows = accepted_rows(y_true, y_pred, accepted, sample_weight)
    names, wanted = choose_labels(rows, labels)
    accuracy, _ = accuracy_by(rows.true_codes, rows, wanted)
    return _replace_undefined(accuracy, names, "true class", replace_undefined_by)


@validate_params(_LABELLED, prefer_skip_nested_validation=True)
def prediction_conditional_accuracy_score(
    y_true,
    y_pred,
    accepted,
    *,
    labels=None,
    sample_weight=None,
    replace_undefined_by=np.nan,
):
    """Compute, for each predicted class, the accuracy of its accepted rows.

    Estimates P(prediction = y | prediction = c, accepted) for every class c. On the
    accepted rows this is the precision of each class.

    Parameters
    ----------
    y_true : array-like of shape (n_samples,)
        True labels: strings, bools or whole numbers.

    y_pred : array-like of shape (n_samples,)
        Predicted labels. What stands at rejected rows is not looked at.

    accepted : array-like of shape (n_samples,), dtype=bool
        True where the prediction stands.

    labels : array-like of shape (n_classes,), default=None
        The classes to report, in this order. None stands for all labels in `y_true`
        and in the accepted part of `y_pred`, sorted.

    sample_weight : array-like of shape (n_samples,), default=None
        Sample weights.

    replace_undefined_by : float in [0, 1] or np.nan, default=np.nan
        Value for a class that no accepted row is predicted as. NaN comes with an
        :class:`~sklearn.exceptions.UndefinedMetricWarning` that names the classes.

    Returns
    -------
    accuracy : ndarray of shape (n_classes,), dtype=float64
        One value per class, in the order of `labels`.

    Raises
    ------
    ValueError
        As :func:`selective_accuracy_score`, or if `labels` repeats a label.

    See Also
    --------
    class_conditional_accuracy_score : The same by true class.
    worst_conditional_accuracy_score : The smallest of both.

    Examples
    --------
    >>> from sdm_sklearn.metrics import prediction_conditional_accuracy_score
    >>> y_true, y_pred = [0, 0, 0, 1, 1], [0, 0, 1, 1, 0]
    >>> accepted = [True, True, True, True, False]
    >>> prediction_conditional_accuracy_score(y_true, y_pred, accepted)
    array([1. , 0.5])
    """
    rows = accepted_rows(y_true, y_pred, accepted, sample_weight)
    names, wanted = choose_labels(rows, labels)
    accuracy, _ = accuracy_by(rows.pred_codes, rows, wanted)
    return _replace_undefined(accuracy, names, "predicted class", replace_undefined_by)


@validate_params(
    {**_LABELLED, "condition": [StrOptions({"class", "prediction", "both"})]},
    prefer_skip_nested_validation=True,
)
def worst_conditional_accuracy_score(
    y_true,
    y_pred,
    accepted,
    *,
    condition="both",
    labels=None,
    sample_weight=None,
    replace_undefined_by=np.nan,
):
    """Compute the smallest class- or prediction-conditional accuracy of the accepted.

    A selective classifier keeps the promise `alpha` on a data set if this value is at
    least `alpha`: then neither a rare class nor a rare answer hides behind the mean.

    Parameters
    ----------
    y_true : array-like of shape (n_samples,)
        True labels: strings, bools or whole numbers.

    y_pred : array-like of shape (n_samples,)
        Predicted labels. What stands at rejected rows is not looked at.

    accepted : array-like of shape (n_samples,), dtype=bool
        True where the prediction stands.

    condition : {"class", "prediction", "both"}, default="both"
        Whether to go by the true class, the predicted class or both.

    labels : array-like of shape (n_classes,), default=None
        The classes to look at. None stands for all.

    sample_weight : array-like of shape (n_samples,), default=None
        Sample weights.

    replace_undefined_by : float in [0, 1] or np.nan, default=np.nan
        Value where nothing is accepted. NaN comes with an
        :class:`~sklearn.exceptions.UndefinedMetricWarning`. A single class without
        accepted rows has no accuracy and is left out, which is no evidence that it
        would be right; :func:`selective_classification_report` shows it.

    Returns
    -------
    accuracy : float
        Between 0 and 1, higher is better.

    Raises
    ------
    ValueError
        As :func:`class_conditional_accuracy_score`.

    Examples
    --------
    >>> from sdm_sklearn.metrics import worst_conditional_accuracy_score
    >>> y_true, y_pred = [0, 0, 0, 1, 1], [0, 0, 1, 1, 0]
    >>> accepted = [True, True, True, True, False]
    >>> worst_conditional_accuracy_score(y_true, y_pred, accepted)
    0.5
    >>> worst_conditional_accuracy_score(y_true, y_pred, accepted, condition="class")
    0.666...
    """
    rows = accepted_rows(y_true, y_pred, accepted, sample_weight)
    _, wanted = choose_labels(rows, labels)
    parts = []
    if condition != "prediction":
        parts.append(accuracy_by(rows.true_codes, rows, wanted)[0])
    if condition != "class":
        parts.append(accuracy_by(rows.pred_codes, rows, wanted)[0])
    accuracy = smallest(np.concatenate(parts))
    if np.isnan(accuracy):
        return undefined(
            "The worst conditional accuracy is undefined: no row is accepted.",
            replace_undefined_by,
            stacklevel=3,
        )
    return accuracy


def _replace_undefined(accuracy, names, kind, replacement):
    empty = np.isnan(accuracy)
    if empty.any():
        which = [name for name, gone in zip(names, empty, strict=True) if gone]
        accuracy[empty] = undefined(
            f"The conditional accuracy is undefined where no row is accepted: {kind} "
            f"{', '.join(map(repr, which))}.",
            replacement,
            stacklevel=4,
        )
    return accuracy
