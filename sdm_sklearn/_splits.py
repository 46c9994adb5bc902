"""Training and calibration halves: random ones, and checks of given ones."""

from numbers import Integral
from typing import NamedTuple

import numpy as np
from sklearn.model_selection import PredefinedSplit, check_cv


class Split(NamedTuple):
    """Rows that train, those of them that are exemplars, and rows that calibrate."""

    train: np.ndarray  # (n_train,) row numbers
    calibration: np.ndarray  # (n_calibration,) row numbers
    exemplars: np.ndarray  # (n_support,) ascending positions in `train`

    @property
    def kept(self):
        """Row numbers of exemplars and calibration half, which a model keeps."""
        return self.train[self.exemplars], self.calibration


def stratified_halves(y, calibration_size, random_state):
    """Draw a calibration half from each class, rounded down but never empty.

    :class:`~sklearn.model_selection.StratifiedShuffleSplit` hands out the rounding of
    class sizes at random, and may so leave a small class with one training row.

    Parameters
    ----------
    y : ndarray of shape (n_samples,)
        Class codes.
    calibration_size : float
        Share of each class for the calibration half.
    random_state : RandomState
        Source of randomness.

    Returns
    -------
    train, calibration : ndarray of int
        Ascending row numbers.
    """
    held_out = np.zeros(len(y), dtype=bool)
    for code in np.unique(y):
        members = random_state.permutation(np.flatnonzero(y == code))
        # Rounded down, but for what floating point leaves below an integer.
        n_held_out = max(1, int(calibration_size * len(members) + 1e-9))
        held_out[members[:n_held_out]] = True
    return np.flatnonzero(~held_out), np.flatnonzero(held_out)


def random_halves(y, calibration_size, certify_size, n_splits, random_state):
    """Draw rows for the certificate, if any, and halves of the other rows.

    Parameters
    ----------
    y : ndarray of shape (n_samples,)
        Class codes.
    calibration_size : float
        Share of all rows for calibration and certificate together.
    certify_size : float or None
        The certificate's share of these.
    n_splits : int
        Number of random halves.
    random_state : RandomState
        Source of randomness.

    Returns
    -------
    certify : ndarray of int or None
        Rows of the certificate, the same for all splits.
    splits : list of tuple of ndarray
        Training and calibration rows.
    """
    certify, rest = None, np.arange(len(y))
    if certify_size is not None:
        size = calibration_size * certify_size * len(y)
        certify = draw_certify(rest, size, random_state)
        rest = np.setdiff1d(rest, certify)
        calibration_size *= (1 - certify_size) * len(y) / len(rest)
    splits = []
    for _ in range(n_splits):
        halves = stratified_halves(y[rest], calibration_size, random_state)
        splits.append(tuple(rest[half] for half in halves))
    return certify, splits


def set_aside(splits, certify_size, random_state):
    """Take rows for the certificate, if any, out of splits that were given.

    They are drawn from all rows that stand in a calibration half, as many as
    `certify_size` of the mean such half, and leave every split.

    Parameters
    ----------
    splits : list of tuple of ndarray
        Training and calibration rows.
    certify_size : float or None
        Share of the calibration half.
    random_state : RandomState
        Source of randomness.

    Returns
    -------
    certify : ndarray of int or None
        Rows of the certificate.
    splits : list of tuple of ndarray
        What is left.
    """
    if certify_size is None:
        return None, splits
    held_out = [calibration for _, calibration in splits]
    certify = draw_certify(
        np.unique(np.concatenate(held_out)),
        certify_size * np.mean([len(rows) for rows in held_out]),
        random_state,
    )
    splits = [
        tuple(half[~np.isin(half, certify)] for half in split) for split in splits
    ]
    return certify, splits


def describe_dependence(cv):
    """Say that a certificate takes rows for independent, if `cv` names the rows.

    As row numbers or folds, it may keep groups together, and nothing here knows them.

    Returns
    -------
    message : str or None
    """
    named = isinstance(cv, PredefinedSplit) or not hasattr(cv, "split")
    if isinstance(cv, Integral) or not named:
        return None
    return (
        "cv names the rows of each half, and the certificate takes some from the "
        "calibration halves, one by one, as independent draws. If these hold several "
        "rows of a group, such as one patient, or a training half holds others of its "
        "rows, the certificate is void: see the user guide."
    )


def draw_certify(candidates, size, random_state):
    """Draw the rows that are set aside for a certificate.

    It is a simple random sample, without regard to the classes: only then are its rows
    independent, and the errors among those predicted as one class binomial.

    Parameters
    ----------
    candidates : ndarray of int
        Row numbers to draw from.
    size : float
        Number of rows to draw, rounded down but at least one.
    random_state : RandomState
        Source of randomness.

    Returns
    -------
    certify : ndarray of int
        Ascending row numbers.
    """
    n_certify = max(1, int(size + 1e-9))
    return np.sort(random_state.permutation(candidates)[:n_certify])


def list_splits(cv, X, y):
    """Return the splits of a splitter or an iterable, or say what is wrong with it.

    Parameters
    ----------
    cv : int, splitter or iterable
        See :class:`~sdm_sklearn.SDMClassifier`.
    X : ndarray of shape (n_samples, n_features)
        Embeddings.
    y : ndarray of shape (n_samples,)
        Labels.

    Returns
    -------
    splits : list of tuple

    Raises
    ------
    ValueError
        If there is no split, a predefined one is of another length, or the splitter
        needs groups.
    """
    if isinstance(cv, PredefinedSplit) and len(cv.test_fold) != len(y):
        raise ValueError(
            f"cv={type(cv).__name__} tells the fold of {len(cv.test_fold)} rows, but X "
            f"has {len(y)}: make it for the rows of this fit. Inside a search or "
            "cross-validation, which fit on part of the rows, pass a splitter instead."
        )
    if not (isinstance(cv, Integral) or hasattr(cv, "split")):
        cv = list(cv)
        _check_pairs(cv)
    try:
        splits = list(check_cv(cv, y, classifier=True).split(X, y))
    except ValueError as error:
        if "groups" not in str(error):
            raise
        raise ValueError(
            f"cv={type(cv).__name__} needs groups, which fit does not take: pass its "
            "splits as cv=list(splitter.split(X, y, groups)). Inside a search or "
            "cross-validation that is not possible: fit on one row of each group there."
        ) from error
    if not splits:
        raise ValueError(
            "cv gives no split: pass at least one pair of training and calibration "
            "rows. An iterator is exhausted after one fit; pass a list."
        )
    return splits


def _check_pairs(pairs):
    for pair in pairs:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise ValueError(
                "cv must give pairs of training and calibration rows. Got "
                f"{pair!r}: pass cv=[(training, calibration)]."
            )


def check_split(train, calibration, y, classes):
    """Return both halves as row numbers, or say which class they leave short.

    Parameters
    ----------
    train, calibration : array-like of int or bool
        Row numbers or masks.
    y : ndarray of shape (n_samples,)
        Class codes.
    classes : ndarray of shape (n_classes,)
        Class labels, for the messages.

    Returns
    -------
    train, calibration : ndarray of int

    Raises
    ------
    ValueError
        If a half is no set of row numbers, a row stands twice, or a class has fewer
        than 2 training rows or no calibration row.
    """
    halves = []
    for half in (train, calibration):
        half = np.asarray(half)
        if half.dtype == bool and half.shape == y.shape:
            half = np.flatnonzero(half)
        rows_are_known = half.dtype.kind in "iu" and half.ndim == 1
        if rows_are_known and len(half):
            rows_are_known = half.min() >= 0 and half.max() < len(y)
        if not (rows_are_known or half.size == 0):
            raise ValueError(
                f"cv must give row numbers from 0 to {len(y) - 1}, or masks of "
                f"{len(y)} rows. Got {half!r} instead. Inside a search or "
                "cross-validation, which fit on part of the rows, pass a splitter."
            )
        halves.append(half.astype(np.intp).ravel())
    train, calibration = halves
    rows = np.concatenate(halves)
    n_repeated = len(rows) - len(np.unique(rows))
    if n_repeated:
        raise ValueError(
            f"cv puts {n_repeated} rows twice into the training and calibration "
            "halves: a row must stand in at most one half, and once, for the "
            "calibration to be honest."
        )
    totals = np.bincount(y, minlength=len(classes))
    for half, name, least in (
        (train, "training", 2),
        (calibration, "calibration", 1),
    ):
        counts = np.bincount(y[half], minlength=len(classes))
        if counts.min() < least:
            code = int(counts.argmin())
            raise ValueError(
                f"Class {classes.tolist()[code]!r} has {counts[code]} of its "
                f"{totals[code]} rows in the {name} half, and needs at least {least} "
                "there: add rows of this class, merge it with another, or change cv or "
                "calibration_size."
            )
    return train, calibration
