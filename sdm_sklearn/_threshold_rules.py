"""Thresholds on out-of-fold predictions, and what they cost: pure functions."""

import numpy as np
from scipy.stats import beta

from ._region import quantile_index


def class_thresholds(codes, confidence, hits, n_classes, alphas):
    """Find, for each predicted class, the lowest confidence that holds each alpha.

    Among the n rows predicted as c with at least this confidence, the errors must be
    fewer than ``floor((1 - alpha)(n + 1))``, the rank that Algorithm 1 of SDM uses.

    Parameters
    ----------
    codes : ndarray of shape (n_samples,)
        Predicted class codes.
    confidence : ndarray of shape (n_samples,)
        Confidence in each prediction.
    hits : ndarray of shape (n_samples,), dtype=bool
        Whether each prediction is right.
    n_classes : int
        Number of classes.
    alphas : ndarray of shape (n_alphas,)
        Accuracies, 0 < alpha < 1.

    Returns
    -------
    thresholds : ndarray of shape (n_alphas, n_classes)
        inf for a class that cannot hold alpha: none of its predictions stands.
    """
    thresholds = np.full((len(alphas), n_classes), np.inf)
    if len(codes) == 0:
        return thresholds
    # Within each class from the surest row down; a threshold can only lie at the last
    # of equal confidences.
    order = np.lexsort((-confidence, codes))
    codes, confidence = codes[order], confidence[order]
    first = np.searchsorted(codes, codes, side="left")
    n_wrong = np.append(0, np.cumsum(~hits[order]))
    last = np.flatnonzero(_steps(codes) | _steps(confidence))
    n_above = last + 1 - first[last]
    n_wrong = n_wrong[last + 1] - n_wrong[first[last]]
    for row, alpha in zip(thresholds, alphas, strict=True):
        holds = last[n_wrong < quantile_index(n_above, alpha)]
        np.minimum.at(row, codes[holds], confidence[holds])
    return thresholds


def cross_fitted_masks(codes, confidence, hits, fold, n_classes, alphas):
    """Accept each row by thresholds from the rows of all other folds.

    Parameters
    ----------
    codes, confidence, hits, n_classes, alphas
        As for :func:`class_thresholds`.
    fold : ndarray of shape (n_samples,)
        The fold that held each row out.

    Returns
    -------
    accepted : ndarray of shape (n_alphas, n_samples), dtype=bool
    """
    accepted = np.zeros((len(alphas), len(codes)), dtype=bool)
    for held_out in np.unique(fold):
        inside = fold == held_out
        thresholds = class_thresholds(
            codes[~inside], confidence[~inside], hits[~inside], n_classes, alphas
        )
        accepted[:, inside] = confidence[inside] >= thresholds[:, codes[inside]]
    return accepted


def tabulate(alphas, y, codes, accepted, n_classes, confidence_level):
    """Measure coverage and conditional accuracies at each alpha.

    The intervals are those of Clopper and Pearson; for the worst of m accuracies they
    hold for all m at once (each at a level of ``1 - (1 - confidence_level) / m``).

    Parameters
    ----------
    alphas : ndarray of shape (n_alphas,)
        Accuracies asked for.
    y, codes : ndarray of shape (n_samples,)
        True and predicted class codes.
    accepted : ndarray of shape (n_alphas, n_samples), dtype=bool
        What is accepted at each alpha.
    n_classes : int
        Number of classes.
    confidence_level : float
        Level of the intervals.

    Returns
    -------
    table : dict of ndarray
        Columns with one row per alpha, NaN where nothing is accepted.
    """
    hits = y == codes

    def counts(group):
        rows = [
            [np.bincount(group[mask & which], minlength=n_classes) for mask in accepted]
            for which in (True, hits)
        ]
        return np.array(rows)

    by_class, by_prediction = counts(y), counts(codes)
    total = by_class.sum(axis=-1, keepdims=True)
    table = {"alpha": alphas, "coverage": accepted.mean(axis=1)}
    both = np.concatenate([by_class, by_prediction], axis=-1)
    columns = {
        "selective_accuracy": total,
        "worst_class_conditional_accuracy": by_class,
        "worst_prediction_conditional_accuracy": by_prediction,
        "worst_conditional_accuracy": both,
    }
    present = np.bincount(y, minlength=n_classes) > 0
    owed = {
        "worst_class_conditional_accuracy": present,
        "worst_conditional_accuracy": np.append(present, np.zeros(n_classes, bool)),
    }
    for name, (n_accepted, n_right) in columns.items():
        bounds = smallest_accuracy(
            n_accepted, n_right, confidence_level, owed.get(name, False)
        )
        for suffix, values in zip(("", "_lower", "_upper"), bounds, strict=True):
            table[name + suffix] = values
    table["accepted_of_class"] = by_class[0]
    table["accepted_as_class"] = by_prediction[0]
    table["class_conditional_accuracy"] = divide(*by_class)
    table["prediction_conditional_accuracy"] = divide(*by_prediction)
    return table


def smallest_accuracy(n_accepted, n_right, confidence_level, owed=False):
    """Return the smallest accuracy of each row of groups, and its interval.

    Groups without accepted rows have no accuracy. If one is owed, nothing is known of
    it: its interval is all of [0, 1].

    Parameters
    ----------
    n_accepted, n_right : ndarray of shape (n_alphas, n_groups)
        Rows accepted, and accepted and right, in each group.
    confidence_level : float
        Level of the interval, simultaneous over the groups of a row.
    owed : bool or ndarray of shape (n_groups,), dtype=bool
        Groups for which an accuracy is promised: classes that there are.

    Returns
    -------
    accuracy, lower, upper : ndarray of shape (n_alphas,)
        NaN where no group has accepted rows.
    """
    filled = n_accepted > 0
    stated = filled | owed
    tail = (1 - confidence_level) / 2 / np.maximum(stated.sum(axis=1), 1)[:, None]
    n_wrong = n_accepted - n_right
    lower = lower_bound(n_accepted, n_right, tail)
    # At no error the upper bound is 1, by definition.
    upper = np.where(n_wrong > 0, beta.isf(tail, n_right + 1, n_wrong), 1.0)
    none = ~filled.any(axis=1)
    smallest = []
    groups = (filled, stated, filled)
    for values, counted in zip(
        (divide(n_accepted, n_right), lower, upper), groups, strict=True
    ):
        worst = np.where(counted, values, np.inf).min(axis=1)
        smallest.append(np.where(none, np.nan, worst))
    return tuple(smallest)


def lower_bound(n_accepted, n_right, tail):
    """Return the one-sided lower bound of Clopper and Pearson on an accuracy.

    Parameters
    ----------
    n_accepted, n_right : ndarray of int
        Rows, and right ones among them.
    tail : float or ndarray
        One minus the confidence of the bound.

    Returns
    -------
    bound : ndarray
        0 where nothing is right, by definition.
    """
    bound = beta.ppf(tail, n_right, n_accepted - n_right + 1)
    return np.where(n_right > 0, bound, 0.0)


def recommend(table, column, target, allowed=True):
    """Return the alpha with the most coverage at which `column` reaches `target`.

    Parameters
    ----------
    table : dict of ndarray
        As from :func:`tabulate`.
    column : str
        The accuracy that decides.
    target : float
        What it must reach.
    allowed : bool or ndarray of shape (n_alphas,), dtype=bool
        Alphas to choose from.

    Returns
    -------
    alpha : float
        At equal coverage the largest; NaN if none reaches the target.
    """
    keeps = (table[column] >= target) & allowed
    if not keeps.any():
        return np.nan
    alphas, coverage = table["alpha"][keeps], table["coverage"][keeps]
    return float(alphas[np.lexsort((alphas, coverage))[-1]])


def divide(n_accepted, n_right):
    """Return the accuracy of each group, NaN where nothing is accepted."""
    accuracy = np.full(n_accepted.shape, np.nan)
    np.divide(n_right, n_accepted, out=accuracy, where=n_accepted > 0)
    return accuracy


def _steps(values):
    return np.append(values[1:] != values[:-1], True)
