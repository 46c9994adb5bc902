"""Checks of inputs that scikit-learn's own checks leave open."""

from typing import Any

import numpy as np
from sklearn.utils import assert_all_finite

# Finiteness is tested in blocks of this many rows, not on a mask of all of X.
_CHUNK_ROWS = 65536

_SCALER = (
    " If they come from a scaler, cast before it, X.astype(np.float32): the scale of a "
    "nearly constant feature is 0 in float16."
)


def check_finite(X, estimator_name):
    """Raise if a value of X is NaN or infinite.

    scikit-learn sums the array first, and a float16 sum of finite values overflows.

    Parameters
    ----------
    X : ndarray of shape (n_samples, n_features)
        Floating-point values.
    estimator_name : str
        Name for the message.

    Raises
    ------
    ValueError
        Naming what was found, and a way out for float16.
    """
    if X.dtype != np.float16:
        try:
            assert_all_finite(X)
        except ValueError:
            pass  # scikit-learn's message advises imputation
        else:
            return
    for start in range(0, len(X), _CHUNK_ROWS):
        chunk = X[start : start + _CHUNK_ROWS]
        if np.isfinite(chunk).all():
            continue
        if np.isnan(chunk).any():
            raise ValueError(
                f"Input X contains NaN. {estimator_name} does not accept missing "
                "values: drop or recompute these embeddings."
                + _SCALER
                * (X.dtype == np.float16)
            )
        message = (
            f"Input X contains infinity or a value too large for dtype('{X.dtype}')"
        )
        if X.dtype == np.float16:
            message += (
                ", which overflows beyond 65504: cache these embeddings as float32."
            )
        else:
            message += ": drop or recompute these embeddings."
        raise ValueError(message)


def refuse_masked(array, name):
    """Raise if an array has masked entries, which would be taken as they are.

    Parameters
    ----------
    array : object
        `X` or `y` as they were given.
    name : str
        Name for the message.

    Raises
    ------
    ValueError
        Saying how many are masked.
    """
    if isinstance(array, np.ma.MaskedArray) and np.ma.is_masked(array):
        raise ValueError(
            f"{name} has {np.ma.count_masked(array)} masked entries, which would be "
            "taken as they are: drop their rows, or fill them."
        )


def refuse_other_kinds(X):
    """Raise if X holds texts, or dates, which scikit-learn takes for numbers.

    Parameters
    ----------
    X : object
        As it was given.

    Raises
    ------
    TypeError
        Saying what X has to hold.
    """
    one_dimension = isinstance(X, list | tuple) or getattr(X, "ndim", None) == 1
    if one_dimension and isinstance(next(iter(X), None), str):
        raise TypeError(
            "X must hold embeddings, one row of numbers for each text. Got texts, such "
            f"as {next(iter(X))[:40]!r}: embed them first."
        )
    dtype = getattr(X, "dtype", None)
    if getattr(dtype, "kind", None) in ("m", "M"):
        raise TypeError(f"X must hold numbers. Got dtype {dtype}.")


def check_same_kind(y, classes):
    """Raise if labels are strings or dates and the classes are not, or vice versa.

    Parameters
    ----------
    y : ndarray of shape (n_samples,)
        Labels.
    classes : ndarray of shape (n_classes,)
        Class labels.

    Raises
    ------
    ValueError
        Naming a label and a class.
    """
    label, known = y.tolist()[0], classes.tolist()[0]
    dates = [array.dtype.kind in "mM" for array in (y, classes)]
    if isinstance(label, str) != isinstance(known, str) or dates[0] != dates[1]:
        raise ValueError(
            f"y must hold labels of the kind of the classes, such as {known!r}. Got "
            f"{label!r}: pass the labels that fit was given, not their codes."
        )


def checked_labels(y):
    """Return labels, or raise if some are missing or strings stand beside other kinds.

    Parameters
    ----------
    y : array-like of shape (n_samples,)
        Class labels.

    Returns
    -------
    y : array-like
        As it was given, but integers and bools of a nullable dtype of pandas as those
        of NumPy: scikit-learn makes them float64, which merges large integers.

    Raises
    ------
    ValueError
        Naming the first odd label.
    """
    refuse_masked(y, "y")
    dtype: Any = getattr(y, "dtype", None)
    if hasattr(dtype, "numpy_dtype") and dtype.kind in "iub":
        positions = np.flatnonzero(y.isna())
        if len(positions):
            raise _odd_label(None, positions[0])
        return y.to_numpy(dtype=dtype.numpy_dtype)
    if isinstance(y, list | tuple):
        labels = y
    elif dtype is not None and getattr(dtype, "kind", "O") == "O":
        # The dtypes of polars do not tell a kind.
        labels = np.ravel(np.asarray(y, dtype=object)).tolist()
    else:
        return y  # one kind by its dtype, checked for NaN by scikit-learn
    strings = sum(isinstance(label, str) for label in labels)
    for position, label in enumerate(labels):
        missing = label is None or (
            # NaN is unlike itself, and pandas.NA is neither like nor unlike.
            not isinstance(label, str | list | tuple | np.ndarray)
            and (label != label) is not False
            and (label != label) is not np.False_
        )
        if missing or (strings and not isinstance(label, str)):
            raise _odd_label(label, position)
    return y


def _odd_label(label, position):
    return ValueError(
        "y must hold labels of one kind, none of them missing. Got "
        f"{label!r} at {position}: drop such rows, or convert all labels to strings."
    )
