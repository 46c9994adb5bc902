"""Checks shared by the metrics: every refusal names the argument and the way out."""

import warnings
from collections.abc import Hashable
from numbers import Real

import numpy as np
from sklearn.exceptions import UndefinedMetricWarning

from sdm_sklearn._validation import refuse_masked


def check_1d(values, name):
    """Return a 1-D array of at least one value."""
    refuse_masked(values, name)
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise ValueError(f"{name} must be a 1-D array, one value per row.") from error
    if array.ndim != 1:
        raise ValueError(
            f"{name} must be a 1-D array, one value per row. Got the shape "
            f"{array.shape}."
        )
    if len(array) == 0:
        raise ValueError(f"{name} is empty: there must be at least one row.")
    return array


def check_labels(values, name):
    """Return labels as a 1-D array, none of them missing.

    Parameters
    ----------
    values : array-like of shape (n_samples,)
        Labels: strings, bytes, bools or whole numbers.
    name : str
        The caller's name for them.

    Returns
    -------
    labels : ndarray of shape (n_samples,)
    """
    labels = check_1d(values, name)
    if isinstance(values, list | tuple) and labels.dtype.kind in "USbiuf":
        # NumPy turns numbers beside strings into strings, and bools into numbers.
        labels = np.array([*values, None], dtype=object)[:-1]
    # Unhashable values, such as lists, are no labels either.
    hashable = labels.dtype != object or all(isinstance(v, Hashable) for v in labels)
    for label in set(labels.tolist()) if hashable else labels:
        if isinstance(label, str | bytes | bool | np.bool_):
            continue
        if not isinstance(label, Real) or label % 1 != 0:
            raise ValueError(
                f"{name} must hold labels: strings, bools or whole numbers, none "
                f"missing. Got {label!r}."
            )
    return labels


def check_classes(*label_arrays):
    """Return the sorted list of all labels, which must be of one kind."""
    classes = set().union(*(labels.tolist() for labels in label_arrays))
    kinds = {(isinstance(label, str), isinstance(label, bytes)) for label in classes}
    # False equals 0 and True 1, but a bool beside -1 or 2 is none of the classes.
    bools = any(
        isinstance(label, bool) for labels in label_arrays for label in labels.tolist()
    )
    if len(kinds) > 1 or (bools and not classes <= {0, 1}):
        raise ValueError(
            "The labels are of different kinds, such as strings and numbers, and "
            f"never match: {sorted(map(repr, classes))[:6]}."
        )
    return sorted(classes)


def check_mask(values, name):
    """Return a 1-D boolean array."""
    mask = check_1d(values, name)
    if mask.dtype == object and all(isinstance(v, bool | np.bool_) for v in mask):
        mask = mask.astype(bool)  # pandas' nullable booleans arrive as objects
    if mask.dtype != bool:
        raise ValueError(
            f"{name} must be a boolean mask. Got an array of dtype {mask.dtype}: pass "
            "the mask of predict_selective(X, return_mask=True), or cast with "
            "astype(bool)."
        )
    return mask


def check_real(values, name, *, low=-np.inf, high=np.inf):
    """Return a 1-D finite float array with values between `low` and `high`.

    Floating dtypes up to float64 are kept: a float32 confidence belongs in the bin
    whose edge has the same float32 value.
    """
    array = check_1d(values, name)
    if array.dtype.kind not in "biufO":
        raise ValueError(
            f"{name} must hold numbers. Got an array of dtype {array.dtype}."
        )
    try:
        if array.dtype not in (np.float16, np.float32, np.float64):
            array = array.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{name} must hold numbers. Got an array of dtype {array.dtype}."
        ) from error
    outside = ~(np.isfinite(array) & (array >= low) & (array <= high))
    if outside.any():
        bounds = "" if low == -np.inf else f" between {low:g} and {high:g}"
        raise ValueError(
            f"{name} must hold finite numbers{bounds}. Got {array[outside][0]} at "
            f"index {np.flatnonzero(outside)[0]}."
        )
    return array


def check_weights(sample_weight, n_samples):
    """Return weights as float64, ones for None."""
    if sample_weight is None:
        return np.ones(n_samples)
    weights = check_real(sample_weight, "sample_weight").astype(np.float64)
    check_length(weights, "sample_weight", n_samples)
    if (weights < 0).any():
        raise ValueError(
            f"sample_weight must not be negative. Got {weights.min():g} at index "
            f"{weights.argmin()}."
        )
    if not weights.any():
        raise ValueError("sample_weight is zero for every row: nothing to weigh.")
    if weights.max() > np.finfo(np.float64).max / len(weights):
        raise ValueError(
            f"sample_weight is too large to be summed. Got {weights.max():g}."
        )
    return weights


def check_length(array, name, n_samples):
    """Return `array`, refuse one of another length than `n_samples`."""
    if len(array) != n_samples:
        raise ValueError(
            f"{name} has {len(array)} rows where {n_samples} are needed: all "
            "arguments must describe the same rows."
        )
    return array


def undefined(what, replacement, *, stacklevel):
    """Return `replacement`, with a warning where it is NaN."""
    if np.isnan(replacement):
        warnings.warn(
            f"{what} It is set to NaN. Pass replace_undefined_by to choose another "
            "value and silence this warning.",
            UndefinedMetricWarning,
            stacklevel=stacklevel + 1,
        )
    return float(replacement)
