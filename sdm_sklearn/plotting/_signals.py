"""The signals behind a decision, as arrays and as a sentence."""

import numpy as np
from sklearn.utils import Bunch

from .._selective import unwrap

_USED = (
    "prediction",
    "similarity",
    "distance",
    "probability",
    "rescaled_similarity",
    "accepted",
    "is_ood",
    "nearest_distance",
)


def measure_signals(estimator, X):
    """Return the SDMClassifier inside `estimator`, and its signals of `X` as arrays."""
    classifier, inner_X = unwrap(estimator, X)
    if not hasattr(classifier, "signals"):
        raise TypeError(
            f"{type(classifier).__name__} has no signals: pass an SDMClassifier, or a "
            "Pipeline, search or FrozenEstimator around one."
        )
    signals = classifier.signals(inner_X)  # a DataFrame after set_output
    return classifier, Bunch(**{name: np.asarray(signals[name]) for name in _USED})


def explain(accepted, similarity, rescaled, probability, q_min, threshold):
    """Say in one line why a row is accepted or rejected.

    Parameters
    ----------
    accepted : bool
        The decision.
    similarity, rescaled, probability : float
        q, q' and the SDM output of the prediction.
    q_min, threshold : float
        Smallest q' of the region, and smallest output for the predicted class.

    Returns
    -------
    reason : str
    """
    if accepted:
        return f"q' ≥ {q_min:.2f} and probability ≥ {threshold:.3f}: in the region"
    if not np.isfinite(q_min):
        return "no region reaches alpha on the calibration data"
    if similarity == 0:
        return "q = 0: no like-minded exemplar is nearest, out of distribution"
    missed = []
    if rescaled < q_min:
        missed.append("q' = {} < {}".format(*_tell_apart(rescaled, q_min, 2)))
    if probability < threshold:
        pair = _tell_apart(probability, threshold, 3)
        missed.append("probability = {} < {}".format(*pair))
    return " and ".join(missed) or "the models or the lower bound of d disagree"


def _tell_apart(first, second, digits):
    """Format two numbers with as many digits as it takes to see the difference."""
    while digits < 17 and f"{first:.{digits}f}" == f"{second:.{digits}f}":
        digits += 1
    return f"{first:.{digits}f}", f"{second:.{digits}f}"
