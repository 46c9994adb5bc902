"""The SDM activation and its loss, for NumPy arrays and torch tensors.

One implementation serves both: every function runs in the array namespace of its
`logits`. NumPy input (and anything else that is no tensor) is computed in float64;
tensors keep the dtype and device of `logits` and stay differentiable through it. Half
precision, which holds no q beyond 65504, is computed in float32. torch itself is never
imported here.
"""

import math
import reprlib
import sys

import numpy as np

__all__ = ["log_sdm_activation", "sdm_activation", "sdm_loss"]


def sdm_activation(logits, similarity, distance):
    """Compute the SDM activation, a softmax with the base 2 + q and the exponent d z.

    Implements Eq. 6 of [1]_:
    ``sdm(z)_i = (2 + q)^(d z_i) / sum_c (2 + q)^(d z_c)``. At ``q = e - 2`` and
    ``d = 1`` it is the softmax; at ``d = 0`` every class gets the same probability.

    Parameters
    ----------
    logits : array-like or torch.Tensor of shape (..., n_classes)
        Magnitude z, one logit per class.

    similarity : array-like or torch.Tensor of shape (...)
        Similarity q >= 0, one value per row of `logits`, or a scalar.

    distance : array-like or torch.Tensor of shape (...)
        Distance d in [0, 1], one value per row of `logits`, or a scalar.

    Returns
    -------
    probabilities : ndarray or torch.Tensor of shape (..., n_classes)
        Rows sum to 1.

    Raises
    ------
    ValueError
        If a shape does not fit, a similarity is negative or NaN, or a distance lies
        outside [0, 1].

    See Also
    --------
    log_sdm_activation : Its logarithm, without loss of precision.
    sdm_loss : The loss that belongs to it.

    References
    ----------
    .. [1] A. Schmaltz, "Similarity-Distance-Magnitude Activations", Findings of ACL
       2026, arXiv:2509.12760, Eq. 6.

    Examples
    --------
    >>> from sdm_sklearn.activation import sdm_activation
    >>> sdm_activation([[2.0, 0.0], [2.0, 0.0]], similarity=[8, 8], distance=[0.5, 0.0])
    array([[0.909..., 0.0909...],
           [0.5       , 0.5       ]])
    """
    given = logits
    xp, logits, similarity, distance = _prepare(logits, similarity, distance)
    probabilities = xp.exp(_log_activation(xp, logits, similarity, distance))
    return _as_given(xp, probabilities, given)


def log_sdm_activation(logits, similarity, distance):
    """Compute the natural logarithm of the SDM activation.

    Computed as ``log_softmax(d ln(2 + q) z)`` with the largest logit subtracted
    first: no epsilon is added and nothing overflows.

    Parameters
    ----------
    logits : array-like or torch.Tensor of shape (..., n_classes)
        Magnitude z, one logit per class.

    similarity : array-like or torch.Tensor of shape (...)
        Similarity q >= 0, one value per row of `logits`, or a scalar.

    distance : array-like or torch.Tensor of shape (...)
        Distance d in [0, 1], one value per row of `logits`, or a scalar.

    Returns
    -------
    log_probabilities : ndarray or torch.Tensor of shape (..., n_classes)

    Raises
    ------
    ValueError
        As for :func:`sdm_activation`.

    Examples
    --------
    >>> from sdm_sklearn.activation import log_sdm_activation
    >>> log_sdm_activation([1e4, 0.0], similarity=1e9, distance=1.0)
    array([      0.        , -207232.658...])
    """
    given = logits
    xp, logits, similarity, distance = _prepare(logits, similarity, distance)
    log_probabilities = _log_activation(xp, logits, similarity, distance)
    return _as_given(xp, log_probabilities, given)


def sdm_loss(logits, y, similarity, distance, *, class_weight=None):
    """Compute the mean SDM loss, a cross-entropy in the base 2 + q of each row.

    Implements Eq. 7 of [1]_: the mean over rows of ``-log_(2+q) sdm(z)_y``. With
    `class_weight` it is the weighted mean ``sum w_y l / sum w_y``.

    Parameters
    ----------
    logits : array-like or torch.Tensor of shape (n_samples, n_classes)
        Magnitude z. For tensors the loss is differentiable through it.

    y : array-like or torch.Tensor of shape (n_samples,)
        True classes, coded as integers 0 to n_classes - 1.

    similarity : array-like or torch.Tensor of shape (n_samples,)
        Similarity q >= 0, or a scalar.

    distance : array-like or torch.Tensor of shape (n_samples,)
        Distance d in [0, 1], or a scalar.

    class_weight : array-like or torch.Tensor of shape (n_classes,), default=None
        Non-negative weight of every class. None weighs all rows the same.

    Returns
    -------
    loss : float or torch.Tensor of shape ()

    Raises
    ------
    ValueError
        As for :func:`sdm_activation`; also if there is no row, `y` holds a code
        outside 0 to n_classes - 1, or `class_weight` has another length, a negative
        entry, or none above 0 for the classes in `y`.

    References
    ----------
    .. [1] A. Schmaltz, "Similarity-Distance-Magnitude Activations", Findings of ACL
       2026, arXiv:2509.12760, Eq. 7.

    Examples
    --------
    >>> from sdm_sklearn.activation import sdm_loss
    >>> print(f"{sdm_loss([[0.0, 5.0]], [0], similarity=[998], distance=[1.0]):.4f}")
    5.0000
    """
    given = logits
    xp, logits, similarity, distance = _prepare(logits, similarity, distance)
    if logits.ndim != 2 or logits.shape[0] == 0:
        raise ValueError(
            "logits must have the shape (n_samples, n_classes) with at least one row. "
            f"Got {tuple(logits.shape)} instead."
        )
    n_samples, n_classes = logits.shape
    # As they are, bools and torch's uint8 would choose rows.
    y = np.asarray(y).astype(np.intp) if xp is np else y.long()
    if tuple(y.shape) != (n_samples,):
        raise ValueError(
            f"y must have the shape ({n_samples},), one code per row of logits. Got "
            f"{tuple(y.shape)} instead."
        )
    if int(y.min()) < 0 or int(y.max()) >= n_classes:
        raise ValueError(
            f"y must hold class codes from 0 to {n_classes - 1}. Got values from "
            f"{int(y.min())} to {int(y.max())}: encode the labels first, for example "
            "with numpy.unique(y, return_inverse=True)."
        )
    log_probabilities = _log_activation(xp, logits, similarity, distance)
    losses = -log_probabilities[xp.arange(n_samples), y] / xp.log(2 + similarity)
    if class_weight is None:
        return _as_given(xp, losses.mean(), given)
    class_weight = _like(xp, class_weight, logits)
    if tuple(class_weight.shape) != (n_classes,):
        raise ValueError(
            f"class_weight must have the shape ({n_classes},), one weight per class. "
            f"Got {tuple(class_weight.shape)} instead."
        )
    weights = class_weight[y]
    if not (bool((class_weight >= 0).all()) and 0 < float(weights.sum()) < math.inf):
        raise ValueError(
            "class_weight must hold finite non-negative weights, at least one of them "
            f"positive for a class in y. Got {reprlib.repr(class_weight.tolist())} "
            "instead."
        )
    return _as_given(xp, (weights * losses).sum() / weights.sum(), given)


def _prepare(logits, similarity, distance):
    """Bring the arguments into one namespace, dtype and shape, and check them."""
    xp = sys.modules["torch"] if type(logits).__module__.startswith("torch") else np
    if xp is np:
        logits = np.asarray(logits, dtype=np.float64)
    elif not logits.is_floating_point() or logits.dtype.itemsize < 4:
        logits = logits.float()
    if logits.ndim == 0 or logits.shape[-1] == 0:
        raise ValueError(
            "logits must have the shape (..., n_classes) with at least one class. Got "
            f"{tuple(logits.shape)} instead."
        )
    rows = tuple(logits.shape[:-1])
    checked = []
    for name, value in (("similarity", similarity), ("distance", distance)):
        value = _like(xp, value, logits)
        if value.ndim and tuple(value.shape) != rows:
            raise ValueError(
                f"{name} must be a scalar or have the shape {rows}, one value per row "
                f"of logits. Got {tuple(value.shape)} instead."
            )
        checked.append(xp.broadcast_to(value, rows))
    similarity, distance = checked
    if not bool((similarity >= 0).all()):
        raise ValueError("similarity must be non-negative, and not NaN, in every row.")
    if not bool(((distance >= 0) & (distance <= 1)).all()):
        raise ValueError("distance must lie in [0, 1], and not be NaN, in every row.")
    return xp, logits, similarity, distance


def _like(xp, value, logits):
    """Return `value` as an array of the namespace, dtype and device of `logits`."""
    if xp is np:
        return np.asarray(value, dtype=np.float64)
    return xp.as_tensor(value, dtype=logits.dtype, device=logits.device)


def _as_given(xp, values, logits):
    """Return tensors in the dtype of floating `logits`, anything else as it is."""
    if xp is np or not logits.is_floating_point():
        return values
    return values.to(logits.dtype)


def _log_activation(xp, logits, similarity, distance):
    # The largest logit goes first, so that a large exponent meets a difference only.
    centred = logits - xp.amax(logits, -1)[..., None]
    scaled = centred * (distance * xp.log(2 + similarity))[..., None]
    return scaled - xp.log(xp.exp(scaled).sum(-1))[..., None]
