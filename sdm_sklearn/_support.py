"""Which training rows become exemplars."""

from numbers import Integral

import numpy as np


def count_exemplars(support_size, n_train, n_classes):
    """Return how many training rows become exemplars.

    Parameters
    ----------
    support_size : int, float or None
        See :class:`~sdm_sklearn.SDMClassifier`.
    n_train : int
        Number of rows of the training half.
    n_classes : int
        Number of classes.

    Returns
    -------
    n_exemplars : int

    Raises
    ------
    ValueError
        If there are fewer than classes.
    """
    if support_size is None:
        return n_train
    if isinstance(support_size, Integral):
        n_exemplars = min(int(support_size), n_train)
    else:
        # Rounded down, but for what floating point leaves below an integer.
        n_exemplars = int(support_size * n_train + 1e-9)
    if n_exemplars < n_classes:
        raise ValueError(
            f"support_size={support_size!r} makes {n_exemplars} of the {n_train} "
            f"training rows exemplars, and each of the {n_classes} classes needs at "
            f"least one: pass an int of at least {n_classes}, a larger share, or None "
            "for all rows."
        )
    return n_exemplars


def choose_exemplars(y, n_exemplars, random_state):
    """Draw exemplars at random, as many of each class as of any other.

    A class with fewer rows gives all it has.

    Parameters
    ----------
    y : ndarray of shape (n_train,)
        Class codes of the training half.
    n_exemplars : int
        How many to draw.
    random_state : RandomState
        Source of randomness.

    Returns
    -------
    exemplars : ndarray of shape (n_exemplars,)
        Ascending positions in the training half.
    """
    if n_exemplars == len(y):
        return np.arange(len(y))
    turn = np.empty(len(y), dtype=np.int64)
    for code in np.unique(y):
        members = random_state.permutation(np.flatnonzero(y == code))
        turn[members] = np.arange(len(members))
    return np.sort(np.argsort(turn, kind="stable")[:n_exemplars])
