"""The accepted rows as integer codes, and the shares counted on them."""

from typing import NamedTuple

import numpy as np

from ._checks import (
    check_1d,
    check_classes,
    check_labels,
    check_length,
    check_mask,
    check_weights,
)


class Rows(NamedTuple):
    """The accepted rows as codes into `classes`, and what all rows weigh."""

    classes: list
    true_codes: np.ndarray
    pred_codes: np.ndarray
    hits: np.ndarray
    weights: np.ndarray
    total: float
    support: np.ndarray


def accepted_rows(y_true, y_pred, accepted, sample_weight):
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
    return Rows(
        classes=classes,
        true_codes=codes[accepted],
        pred_codes=pred_codes,
        hits=codes[accepted] == pred_codes,
        weights=weights[accepted],
        total=float(weights.sum()),
        support=np.bincount(codes, weights, minlength=len(classes)),
    )


def choose_labels(rows, labels):
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


def marginal_share(rows, which):
    """Return the share of `which` among the accepted rows, NaN without any."""
    n_accepted = rows.weights.sum()
    return float(rows.weights[which].sum() / n_accepted) if n_accepted else np.nan


def accuracy_by(group, rows, wanted):
    """Return accuracy (NaN where empty) and accepted weight of each wanted group."""
    n_classes = len(rows.classes)
    # One empty class behind the last stands for labels that never occur (code -1).
    accepted = np.bincount(group, rows.weights, minlength=n_classes + 1)[wanted]
    right = np.bincount(group, rows.weights * rows.hits, minlength=n_classes + 1)
    accuracy = np.full(len(wanted), np.nan)
    np.divide(right[wanted], accepted, out=accuracy, where=accepted > 0)
    return accuracy, accepted


def smallest(accuracy):
    """Return the smallest value that is defined, NaN if none is."""
    return float(np.nanmin(accuracy)) if not np.isnan(accuracy).all() else np.nan
