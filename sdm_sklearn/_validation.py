"""Checks of inputs that scikit-learn's own checks leave open."""

import numpy as np
from sklearn.utils import assert_all_finite

# Finiteness is tested in blocks of this many rows, not on a mask of all of X.
_CHUNK_ROWS = 65536


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
        assert_all_finite(X, estimator_name=estimator_name, input_name="X")
        return
    for start in range(0, len(X), _CHUNK_ROWS):
        chunk = X[start : start + _CHUNK_ROWS]
        if np.isfinite(chunk).all():
            continue
        if np.isnan(chunk).any():
            raise ValueError(
                f"Input X contains NaN. {estimator_name} does not accept missing "
                "values: drop or recompute these embeddings. If they come from a "
                "scaler, cast before it, X.astype(np.float32): the scale of a nearly "
                "constant feature is 0 in float16."
            )
        raise ValueError(
            "Input X contains infinity or a value too large for dtype('float16'), "
            "which overflows beyond 65504: cache these embeddings as float32."
        )


def check_same_kind(y, classes):
    """Raise if labels are strings and the classes are not, or the other way round.

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
    if isinstance(label, str) != isinstance(known, str):
        raise ValueError(
            f"y must hold labels of the kind of the classes, such as {known!r}. Got "
            f"{label!r}: pass the labels that fit was given, not their codes."
        )


def check_labels(y):
    """Raise if labels are missing, or strings stand beside other kinds.

    Parameters
    ----------
    y : array-like of shape (n_samples,)
        Class labels.

    Raises
    ------
    ValueError
        Naming the first odd label.
    """
    if isinstance(y, list | tuple):
        labels = y
    elif getattr(getattr(y, "dtype", None), "kind", None) == "O":
        labels = np.ravel(y).tolist()
    else:
        return  # one kind by its dtype, checked for NaN by scikit-learn
    strings = sum(isinstance(label, str) for label in labels)
    for position, label in enumerate(labels):
        missing = label is None or (
            # NaN is unlike itself, and pandas.NA is neither like nor unlike.
            not isinstance(label, str | list | tuple | np.ndarray)
            and (label != label) is not False
            and (label != label) is not np.False_
        )
        if missing or (strings and not isinstance(label, str)):
            raise ValueError(
                "y must hold labels of one kind, none of them missing. Got "
                f"{label!r} at {position}: drop such rows, or convert all labels to "
                "strings."
            )
