"""The HIGH-RELIABILITY region: rescaled similarity, Algorithm 1, membership."""

import math
from fractions import Fraction
from typing import NamedTuple

import numpy as np


class Region(NamedTuple):
    """The smallest q' and SDM output of an accepted prediction of each class.

    Both are of shape (n_classes,), and inf for a class that is not answered.
    """

    q_min: np.ndarray
    thresholds: np.ndarray

    @property
    def answered(self):
        """Which classes are answered."""
        return np.isfinite(self.thresholds)


class NoRegionWarning(UserWarning):
    """No region reaches the alpha asked for, so that every row is rejected."""


def rescale_similarity(similarity, probability):
    """Compute q' = min(q, (2 + q)^p) for the probability p of the prediction.

    Parameters
    ----------
    similarity : ndarray of shape (n_samples,)
        Similarity q.
    probability : ndarray of shape (n_samples,)
        SDM output of the predicted class.

    Returns
    -------
    rescaled_similarity : ndarray of shape (n_samples,)
        SDM, Eq. 8.
    """
    return np.minimum(similarity, (2.0 + similarity) ** probability)


def quantile_index(n_samples, alpha):
    """Compute k = floor((1 - alpha)(n + 1)), the split-conformal rank, exactly.

    `alpha` is taken as the decimal number that it prints as: in floating point
    1 - 0.95 is above 0.05 and 1 - 0.9 below 0.1, which moves the rank by one at exact
    multiples.

    Parameters
    ----------
    n_samples : int or ndarray of int
        Sample sizes n.
    alpha : float
        Accuracy, 0 < alpha < 1.

    Returns
    -------
    index : ndarray of int
        0 where n is too small for `alpha`.
    """
    n_plus_one = np.asarray(n_samples, dtype=np.int64) + 1
    miss = 1 - Fraction(repr(float(alpha)))
    product = float(miss) * n_plus_one
    index = np.asarray(np.floor(product), dtype=np.int64)
    # Only next to an integer can rounding have crossed it; there, count in integers.
    near = np.abs(product - np.rint(product)) < 1e-6
    exact = [int(n) * miss.numerator // miss.denominator for n in n_plus_one[near]]
    index[near] = exact
    return index


def smallest_sample(alpha):
    """Return the smallest n whose :func:`quantile_index` is at least 1."""
    return math.ceil(1 / (1 - Fraction(repr(float(alpha))))) - 1


def class_threshold(values, alpha):
    """Return the floor((1 - alpha)(n + 1))-th smallest of `values`.

    Parameters
    ----------
    values : ndarray of shape (n_samples,)
        SDM outputs of the true class.
    alpha : float
        Accuracy, 0 < alpha < 1.

    Returns
    -------
    threshold : float
        -inf where there are too few values for `alpha`, so that no test passes.
    """
    index = int(quantile_index(len(values), alpha))
    if index == 0:
        return -np.inf
    return float(np.partition(values, index - 1)[index - 1])


class Rule(NamedTuple):
    """How a fitted classifier decides which rows it answers: parameters as of `fit`."""

    region: str
    guarantee: str
    confidence: float
    conservative: bool


class CalibrationRows(NamedTuple):
    """What a region is found on, each of shape (n_calibration,).

    q', the SDM output of the true class, true class codes, and predicted codes with
    the SDM output of the prediction.
    """

    rescaled_similarity: np.ndarray
    true_probability: np.ndarray
    y: np.ndarray
    prediction: np.ndarray
    probability: np.ndarray


def find_region(rows, n_classes, alpha, kind="joint"):
    """Find the region in which every class, or each that can, reaches `alpha`.

    Parameters
    ----------
    rows : CalibrationRows
        The calibration half.
    n_classes : int
        Number of classes.
    alpha : float
        Accuracy, 1/2 < alpha < 1.
    kind : {"joint", "per_class"}
        See :func:`find_joint_region` and :func:`find_class_regions`.

    Returns
    -------
    region : Region
        All inf if there is no region.
    """
    find = find_joint_region if kind == "joint" else find_class_regions
    return find(rows, n_classes, alpha)


def find_joint_region(rows, n_classes, alpha):
    """Find the region in which every class reaches `alpha` (SDM, Algorithm 1).

    Over the candidates q* ascending among the q' > 0, the first is taken at which
    every class's threshold psi_c is at least `alpha`; psi_c is the
    :func:`class_threshold` of the true-class outputs of the points with label c and
    q' >= q*. As psi_c >= alpha exactly if fewer than k of the values lie below alpha,
    one sort and cumulative counts find q* in O(n log n).
    """
    candidates = np.unique(rows.rescaled_similarity[rows.rescaled_similarity > 0])
    # failing[i] counts the classes that miss alpha at candidates[i]. For one class the
    # test changes only at its own q', so the changes are added at those places.
    change = np.zeros(len(candidates) + 1, dtype=np.int64)
    no_extra = np.zeros(len(rows.y), dtype=bool)
    for code in range(n_classes):
        steps, fails = _failing_steps(rows, rows.y == code, no_extra, alpha)
        fails = fails.astype(np.int64)
        change[0] += fails[0]
        np.add.at(
            change, np.searchsorted(candidates, steps, side="right"), np.diff(fails)
        )
    passing = np.flatnonzero(np.cumsum(change)[:-1] == 0)
    if len(passing) == 0:
        return Region(np.full(n_classes, np.inf), np.full(n_classes, np.inf))
    q_min = candidates[passing[0]]
    inside = rows.rescaled_similarity >= q_min
    thresholds = [
        class_threshold(rows.true_probability[inside & (rows.y == code)], alpha)
        for code in range(n_classes)
    ]
    return Region(np.full(n_classes, q_min), np.asarray(thresholds))


def find_class_regions(rows, n_classes, alpha):
    """Find a q* of its own for each class that can reach `alpha`; reject the others.

    A first pass takes, for each class c by itself, the first q* at which psi_c is at
    least `alpha`. With one q* for all, errors on rows of class c can only come from
    q' >= q*, the set in which psi_c bounds them. With a q* for each prediction they may
    also come from below c's own. So a second pass counts, for class c, the rows of
    label c that another class's first-pass region could accept, whatever their q'.
    psi_c is a quantile over U_c: the rows of label c with q' >= q*_c, and those.

    For fixed sets U_c the argument is that of Algorithm 1: a new row of class c inside
    U_c has an output of at least psi_c >= alpha > 1/2, and so is answered right, with
    a chance of at least alpha; all its wrong answers lie in U_c as well. So the
    accuracy of the accepted rows of an answered class is at least alpha. Nothing is
    said of rows whose class is not answered: no answer to them can be right.
    """
    no_extra = np.zeros(len(rows.y), dtype=bool)
    first = np.array(
        [
            _first_passing(rows, rows.y == code, no_extra, alpha)
            for code in range(n_classes)
        ]
    )
    mistaken = (
        (rows.prediction != rows.y)
        & (rows.rescaled_similarity >= first[rows.prediction])
        & (rows.probability >= alpha)
    )
    q_min, thresholds = np.full(n_classes, np.inf), np.full(n_classes, np.inf)
    for code in np.flatnonzero(np.isfinite(first)):
        members = rows.y == code
        q_min[code] = _first_passing(rows, members, mistaken, alpha)
        if np.isfinite(q_min[code]):
            inside = (rows.rescaled_similarity >= q_min[code]) | mistaken
            thresholds[code] = class_threshold(
                rows.true_probability[members & inside], alpha
            )
    return Region(q_min, thresholds)


def _first_passing(rows, members, extra, alpha):
    """Return the smallest q' at which a class reaches `alpha`, inf if none."""
    steps, fails = _failing_steps(rows, members, extra, alpha)
    passing = np.flatnonzero(~fails[:-1])
    return steps[passing[0]] if len(passing) else np.inf


def _failing_steps(rows, members, extra, alpha):
    """Tell at which of its own q', and beyond, a class misses `alpha`.

    Parameters
    ----------
    rows : CalibrationRows
        The calibration half.
    members, extra : ndarray of shape (n_calibration,), dtype=bool
        The rows of the class; rows that count at any q*, if they are of the class.
    alpha : float
        Accuracy.

    Returns
    -------
    steps : ndarray of shape (n_steps,)
        The distinct q' > 0 of the class, ascending.
    fails : ndarray of shape (n_steps + 1,), dtype=bool
        Whether ``psi_c < alpha`` with q* at each step, and above all of them.
    """
    members = members & (rows.rescaled_similarity > 0)
    values = rows.rescaled_similarity[members]
    order = np.argsort(values)
    steps, first = np.unique(values[order], return_index=True)
    low = rows.true_probability[members][order] < alpha
    extra = extra[members][order]

    def count(which):
        """Count what lies at or above each step, or is extra below it."""
        n_extra_below = np.append(0, np.cumsum(which & extra))
        n_below = np.append(0, np.cumsum(which))
        starts = np.append(first, len(order))
        return n_below[-1] - n_below[starts] + n_extra_below[starts]

    n_above = count(np.ones(len(order), dtype=bool))
    return steps, count(low) >= quantile_index(n_above, alpha)


def find_largest_alpha(rows, n_classes, kind="joint"):
    """Return the largest alpha, to four decimals, for which a region exists.

    At a fixed candidate a higher alpha lowers the rank and raises the bar, so that
    reaching alpha implies reaching every smaller one: bisection is exact. (For
    `kind="per_class"` this holds of each class by itself, and near the largest alpha
    hardly another class is left to add errors.)

    Parameters
    ----------
    rows, n_classes, kind
        As for :func:`find_region`.

    Returns
    -------
    alpha : float
        A value in (1/2, 1) that has a region, or NaN if no alpha above 1/2 has one.
    """
    low, high = 5000, 10000
    while high - low > 1:
        middle = (low + high) // 2
        if find_region(rows, n_classes, middle / 10000, kind).answered.any():
            low = middle
        else:
            high = middle
    return low / 10000 if low > 5000 else np.nan


def describe_missing_region(alpha, alpha_found, y, classes, by_class, n_set_aside):
    """Say that there is no region, why as far as is known, and what to do.

    Parameters
    ----------
    alpha : float
        The accuracy that was not reached.
    alpha_found : float
        What :func:`find_largest_alpha` returned.
    y : ndarray of shape (n_calibration,)
        True class codes.
    classes : ndarray of shape (n_classes,)
        Class labels.
    by_class : bool
        Whether ``region="per_class"`` would answer some class.
    n_set_aside : int
        Rows that the certificate took from the calibration half.

    Returns
    -------
    message : str
    """
    counts = np.bincount(y, minlength=len(classes))
    needed = smallest_sample(alpha)
    short = [
        f"{label!r} has {count}"
        for label, count in zip(classes.tolist(), counts, strict=True)
        if count < needed
    ]
    message = (
        f"No region of the calibration half reaches alpha={alpha:g}: every row will be "
        "rejected. "
    )
    if short:
        shown = ", ".join(short[:5]) + (", ..." if len(short) > 5 else "")
        aside = f" ({n_set_aside} rows are set aside by certify_size)"
        message += (
            f"Class {shown} calibration rows, and this alpha needs at least {needed} "
            f"in every class{aside if n_set_aside else ''}. "
        )
    if np.isnan(alpha_found):
        message += "No alpha above 1/2 is attainable on this data (alpha_found_). "
    else:
        message += (
            f"The largest alpha attainable on this data is {alpha_found:g} "
            "(alpha_found_). "
        )
    if by_class:
        message += 'Pass region="per_class" to answer without a class that fails. '
    advice = "add labelled rows, or merge classes that are taken for each other."
    if np.isnan(alpha_found):
        return message + advice.capitalize()
    return f"{message}Lower alpha, {advice}"


def in_region(similarity, rescaled_similarity, probability, prediction, region):
    """Tell which points lie in the region (SDM, Eq. 9).

    Parameters
    ----------
    similarity, rescaled_similarity, probability : ndarray of shape (n_samples,)
        q, q' and the SDM output of the prediction.
    prediction : ndarray of shape (n_samples,)
        Predicted class codes.
    region : Region
        As returned by :func:`find_region`.

    Returns
    -------
    accepted : ndarray of shape (n_samples,), dtype=bool
    """
    return (
        (similarity > 0)
        & (rescaled_similarity >= region.q_min[prediction])
        & (probability >= region.thresholds[prediction])
    )


def sort_by_class(values, y, n_classes):
    """Return the sorted values of each class, as :func:`effective_sample_size` needs.

    Done once, so that the answer for one row does not take a pass over all of them.
    """
    return [np.sort(values[y == code]) for code in range(n_classes)]


def effective_sample_size(rescaled_similarity, calibration_rescaled):
    """Count the calibration points of each class below a point's q' (SDM, A.5).

    Parameters
    ----------
    rescaled_similarity : ndarray of shape (n_samples,)
        q' of the points asked for.
    calibration_rescaled : list of ndarray
        q' of the calibration points of each true class, ascending.

    Returns
    -------
    effective_sample_size : ndarray of shape (n_samples, n_classes), dtype=int64
        ``#{class c with q' below the point's}``, at most the class size minus 1.
    """
    sizes = np.empty(
        (len(rescaled_similarity), len(calibration_rescaled)), dtype=np.int64
    )
    for code, values in enumerate(calibration_rescaled):
        below = np.searchsorted(values, rescaled_similarity, side="left")
        sizes[:, code] = np.minimum(below, max(len(values) - 1, 0))
    return sizes
