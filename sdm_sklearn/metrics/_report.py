"""The table that shows what is accepted and how right it is."""

import warnings
from numbers import Integral

import numpy as np
from sklearn.exceptions import UndefinedMetricWarning
from sklearn.utils._param_validation import Interval, validate_params

from ._rows import accepted_rows, accuracy_by, choose_labels, marginal_share, smallest


@validate_params(
    {
        "y_true": ["array-like"],
        "y_pred": ["array-like"],
        "accepted": ["array-like"],
        "labels": ["array-like", None],
        "target_names": ["array-like", None],
        "sample_weight": ["array-like", None],
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
    rows = accepted_rows(y_true, y_pred, accepted, sample_weight)
    names, wanted = choose_labels(rows, labels)
    names = [str(name) for name in names]
    if target_names is not None:
        given = [str(name) for name in target_names]
        if len(given) != len(names) or len(set(given)) < len(given):
            raise ValueError(
                f"target_names must hold {len(names)} distinct names for the labels "
                f"{names}. Got {given}."
            )
        names = given
    by_class = accuracy_by(rows.true_codes, rows, wanted)
    by_prediction = accuracy_by(rows.pred_codes, rows, wanted)
    accuracy = marginal_share(rows, rows.hits)
    if np.isnan(accuracy):
        warnings.warn(
            "Every accuracy in the report is undefined: no row is accepted.",
            UndefinedMetricWarning,
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
        "worst_conditional_accuracy": smallest(
            np.concatenate([by_class[0], by_prediction[0]])
        ),
        "support": dict(
            zip(names, map(as_count, np.append(rows.support, 0)[wanted]), strict=True)
        ),
    }
    if output_dict:
        return report
    return _format_report(report, as_count(rows.total), digits)


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
        [smallest(np.array([entry["accuracy"] for entry in part.values()]))]
        for part in (by_class, by_prediction)
    ]
    lines += [
        "",
        line("worst", *worst),
        line("marginal", marginal, marginal, n_samples),
    ]
    return "\n".join(lines)
