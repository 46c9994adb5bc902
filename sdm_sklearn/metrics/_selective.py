"""Coverage, accuracy of the accepted rows, and the report that shows both."""

from numbers import Integral, Real
from typing import NamedTuple

import numpy as np
from sklearn.utils._param_validation import Interval, StrOptions, validate_params

from ._checks import (
    check_1d,
    check_classes,
    check_labels,
    check_length,
    check_mask,
    check_weights,
    undefined,
)

_REPLACEMENT = [Interval(Real, 0, 1, closed="both"), np.nan]
_LABELLED = {
    "y_true": ["array-like"],
    "y_pred": ["array-like"],
    "accepted": ["array-like"],
    "labels": ["array-like", None],
    "sample_weight": ["array-like", None],
    "replace_undefined_by": _REPLACEMENT,
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
    rows = _accepted_rows(y_true, y_pred, accepted, sample_weight)
    accuracy = _marginal_share(rows, rows.hits)
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
    rows = _accepted_rows(y_true, y_pred, accepted, sample_weight)
    risk = _marginal_share(rows, ~rows.hits)
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
    rows = _accepted_rows(y_true, y_pred, accepted, sample_weight)
    names, wanted = _choose_labels(rows, labels)
    accuracy, _ = _accuracy_by(rows.true_codes, rows, wanted)
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
    rows = _accepted_rows(y_true, y_pred, accepted, sample_weight)
    names, wanted = _choose_labels(rows, labels)
    accuracy, _ = _accuracy_by(rows.pred_codes, rows, wanted)
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
        accepted rows breaks no promise and is left out;
        :func:`selective_classification_report` shows it.

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
    rows = _accepted_rows(y_true, y_pred, accepted, sample_weight)
    _, wanted = _choose_labels(rows, labels)
    parts = []
    if condition != "prediction":
        parts.append(_accuracy_by(rows.true_codes, rows, wanted)[0])
    if condition != "class":
        parts.append(_accuracy_by(rows.pred_codes, rows, wanted)[0])
    accuracy = _smallest(np.concatenate(parts))
    if np.isnan(accuracy):
        return undefined(
            "The worst conditional accuracy is undefined: no row is accepted.",
            replace_undefined_by,
            stacklevel=3,
        )
    return accuracy


@validate_params(
    {
        **{name: _LABELLED[name] for name in _LABELLED if name[0] != "r"},
        "target_names": ["array-like", None],
        "digits": [Interval(Integral, 0, None, closed="left")],
        "output_dict": ["boolean"],
    },
    prefer_skip_nested_validation=True,
)
def selective_classification_report(
    y_true,
    y_pred,
    accepted,
    *,
    labels=None,
    target_names=None,
    sample_weight=None,
    digits=3,
    output_dict=False,
):
    """Build the table by which a selective classifier is judged.

    Like the result tables of [1]_ it sets side by side the accuracy of the accepted
    rows by true class, by predicted class and over all, each with its share of *all*
    rows, so that no accuracy is read without what it costs.

    Parameters
    ----------
    y_true : array-like of shape (n_samples,)
        True labels: strings, bools or whole numbers.

    y_pred : array-like of shape (n_samples,)
        Predicted labels. What stands at rejected rows is not looked at.

    accepted : array-like of shape (n_samples,), dtype=bool
        True where the prediction stands.

    labels : array-like of shape (n_classes,), default=None
        The classes to list, in this order. None stands for all labels in `y_true`
        and in the accepted part of `y_pred`, sorted. The last line counts all rows.

    target_names : array-like of str of shape (n_classes,), default=None
        Names to show for the classes, in the order of `labels`.

    sample_weight : array-like of shape (n_samples,), default=None
        Sample weights.

    digits : int, default=3
        Decimals shown.

    output_dict : bool, default=False
        Whether to return the numbers as a dict.

    Returns
    -------
    report : str or dict
        The text, or a dict with the keys `"class_conditional"` and
        `"prediction_conditional"` (each a dict from class name to `"accuracy"`,
        `"share"` of all rows and `"accepted"` rows), `"marginal"` (the same three),
        `"worst_conditional_accuracy"`, and `"support"` (all rows per true class). An
        accuracy without accepted rows is NaN, in the text "n/a".

    Raises
    ------
    ValueError
        As :func:`class_conditional_accuracy_score`, or if `target_names` does not
        hold one distinct name per label.

    Warns
    -----
    UndefinedMetricWarning
        If no row is accepted.

    References
    ----------
    .. [1] A. Schmaltz, "Similarity-Distance-Magnitude Activations", Findings of ACL
       2026, arXiv:2509.12760.

    Examples
    --------
    >>> from sdm_sklearn.metrics import selective_classification_report
    >>> y_true, y_pred = [0, 0, 0, 1, 1], [0, 0, 1, 1, 0]
    >>> accepted = [True, True, True, True, False]
    >>> print(selective_classification_report(
    ...     y_true, y_pred, accepted, target_names=["ham", "spam"]
    ... ))
                   class-conditional   prediction-conditional
                 accuracy      share      accuracy      share   support
    <BLANKLINE>
          ham       0.667      0.600         1.000      0.400         3
         spam       1.000      0.200         0.500      0.400         2
    <BLANKLINE>
        worst       0.667                    0.500
     marginal       0.750      0.800         0.750      0.800         5
    """
    rows = _accepted_rows(y_true, y_pred, accepted, sample_weight)
    names, wanted = _choose_labels(rows, labels)
    names = [str(name) for name in names]
    if target_names is not None:
        given = [str(name) for name in target_names]
        if len(given) != len(names) or len(set(given)) < len(given):
            raise ValueError(
                f"target_names must hold {len(names)} distinct names for the labels "
                f"{names}. Got {given}."
            )
        names = given
    by_class = _accuracy_by(rows.true_codes, rows, wanted)
    by_prediction = _accuracy_by(rows.pred_codes, rows, wanted)
    accuracy = _marginal_share(rows, rows.hits)
    if np.isnan(accuracy):
        undefined(
            "Every accuracy in the report is undefined: no row is accepted.",
            np.nan,
            stacklevel=3,
        )
    as_count = float if sample_weight is not None else int

    def entry(accuracy, accepted):
        return {
            "accuracy": float(accuracy),
            "share": float(accepted / rows.total),
            "accepted": as_count(accepted),
        }

    def by_name(accuracies, counts):
        entries = map(entry, accuracies, counts)
        return dict(zip(names, entries, strict=True))

    report = {
        "class_conditional": by_name(*by_class),
        "prediction_conditional": by_name(*by_prediction),
        "marginal": entry(accuracy, rows.weights.sum()),
        "worst_conditional_accuracy": _smallest(
            np.concatenate([by_class[0], by_prediction[0]])
        ),
        "support": dict(
            zip(names, map(as_count, np.append(rows.support, 0)[wanted]), strict=True)
        ),
    }
    if output_dict:
        return report
    return _format_report(report, as_count(rows.total), digits)


class _Rows(NamedTuple):
    """The accepted rows as codes into `classes`, and what all rows weigh."""

    classes: list
    true_codes: np.ndarray
    pred_codes: np.ndarray
    hits: np.ndarray
    weights: np.ndarray
    total: float
    support: np.ndarray


def _accepted_rows(y_true, y_pred, accepted, sample_weight):
    """Check the arguments and cut out the accepted rows."""
    y_true = check_labels(y_true, "y_true")
    y_pred = check_length(check_1d(y_pred, "y_pred"), "y_pred", len(y_true))
    accepted = check_length(check_mask(accepted, "accepted"), "accepted", len(y_true))
    weights = check_weights(sample_weight, len(y_true))
    answers = y_pred[accepted]
    if len(answers):
        answers = check_labels(answers, "y_pred")
    classes = check_classes(y_true, answers)
    code_of = {label: code for code, label in enumerate(classes)}
    codes = np.array([code_of[label] for label in y_true.tolist()])
    pred_codes = np.array([code_of[label] for label in answers.tolist()], dtype=int)
    return _Rows(
        classes=classes,
        true_codes=codes[accepted],
        pred_codes=pred_codes,
        hits=codes[accepted] == pred_codes,
        weights=weights[accepted],
        total=float(weights.sum()),
        support=np.bincount(codes, weights, minlength=len(classes)),
    )


def _choose_labels(rows, labels):
    """Return the labels to report and their codes, -1 for one that never occurs."""
    if labels is None:
        return rows.classes, np.arange(len(rows.classes))
    labels = check_labels(labels, "labels")
    check_classes(labels, np.array(rows.classes, dtype=object))
    labels = labels.tolist()
    if len(set(labels)) < len(labels):
        raise ValueError(f"labels must not repeat a label. Got {labels!r}.")
    code_of = {label: code for code, label in enumerate(rows.classes)}
    return labels, np.array([code_of.get(label, -1) for label in labels])


def _marginal_share(rows, which):
    """Return the share of `which` among the accepted rows, NaN without any."""
    n_accepted = rows.weights.sum()
    return float(rows.weights[which].sum() / n_accepted) if n_accepted else np.nan


def _accuracy_by(group, rows, wanted):
    """Return accuracy (NaN where empty) and accepted weight of each wanted group."""
    n_classes = len(rows.classes)
    # One empty class behind the last stands for labels that never occur (code -1).
    accepted = np.bincount(group, rows.weights, minlength=n_classes + 1)[wanted]
    right = np.bincount(group, rows.weights * rows.hits, minlength=n_classes + 1)
    accuracy = np.full(len(wanted), np.nan)
    np.divide(right[wanted], accepted, out=accuracy, where=accepted > 0)
    return accuracy, accepted


def _smallest(accuracy):
    """Return the smallest value that is defined, NaN if none is."""
    return float(np.nanmin(accuracy)) if not np.isnan(accuracy).all() else np.nan


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


def _format_report(report, n_samples, digits):
    """Lay the numbers of a report out as text."""
    by_class, by_prediction = (
        report["class_conditional"],
        report["prediction_conditional"],
    )
    width = max(len("marginal"), *map(len, by_class)) + 1
    column = max(11, digits + 3)  # two hold "prediction-conditional"

    def cell(value):
        return ("n/a" if np.isnan(value) else f"{value:.{digits}f}").rjust(column)

    def line(name, first, second, support=""):
        pair = "".join(map(cell, first)).ljust(2 * column)
        other = "".join(map(cell, second)).ljust(2 * column)
        if isinstance(support, float):
            support = f"{support:.1f}"
        return f"{name:>{width}} {pair}   {other} {support:>9}".rstrip()

    head = f"{'accuracy':>{column}}{'share':>{column}}"
    lines = [
        f"{'':{width}} {'class-conditional':>{2 * column}}   "
        f"{'prediction-conditional':>{2 * column}}".rstrip(),
        f"{'':{width}} {head}   {head} {'support':>9}",
        "",
    ]
    lines += [
        line(
            name,
            (by_class[name]["accuracy"], by_class[name]["share"]),
            (by_prediction[name]["accuracy"], by_prediction[name]["share"]),
            report["support"][name],
        )
        for name in by_class
    ]
    marginal = (report["marginal"]["accuracy"], report["marginal"]["share"])
    worst = [
        [_smallest(np.array([entry["accuracy"] for entry in part.values()]))]
        for part in (by_class, by_prediction)
    ]
    lines += [
        "",
        line("worst", *worst),
        line("marginal", marginal, marginal, n_samples),
    ]
    return "\n".join(lines)
