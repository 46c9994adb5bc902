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


def find_sdm(estimator, alpha=None):
    """Return the SDMClassifier inside `estimator`, and the alpha to ask it for.

    A :class:`~sdm_sklearn.SelectiveThresholdCV` asks at the alpha that it recommends.

    Parameters
    ----------
    estimator : estimator
        Fitted SDMClassifier, bare or inside Pipelines, searches and
        SelectiveThresholdCV.
    alpha : float, default=None
        Accuracy to ask for. None stands for that of `predict_selective`.

    Returns
    -------
    classifier : SDMClassifier
    alpha : float or None
        None stands for the alpha that it was fitted with.
    """
    outer = unwrap(estimator, None)[0]
    if _accepts_for_another(outer):
        alpha = outer._choose(alpha)
        if np.isnan(alpha):
            raise ValueError(
                f"{type(outer).__name__} knows no alpha that keeps this accuracy, "
                "and rejects every row: there is no region to show. Pass an alpha that "
                "it reaches, see cv_results_."
            )
    classifier = unwrap_sdm(estimator, None)[0]
    if not hasattr(classifier, "signals"):
        raise TypeError(
            f"{type(classifier).__name__} has no signals: pass an SDMClassifier, or a "
            "Pipeline, search, FrozenEstimator or SelectiveThresholdCV around one."
        )
    return classifier, alpha


def unwrap_sdm(estimator, X):
    """Return the SDMClassifier inside `estimator`, and `X` as it sees it."""
    classifier, X = unwrap(estimator, X)
    if _accepts_for_another(classifier):
        classifier, X = unwrap(classifier.estimator_, X)
    return classifier, X


def _accepts_for_another(classifier):
    """Tell a SelectiveThresholdCV around a selective classifier."""
    return getattr(classifier, "_accepts_itself", False)


def measure_signals(classifier, X, alpha):
    """Return signals of rows as `classifier` sees them, each of shape (n_samples,)."""
    signals = classifier.signals(X, alpha=alpha)  # a DataFrame after set_output
    return Bunch(**{name: np.asarray(signals[name]) for name in _USED})


def find_region(classifier, alpha):
    """Return the region of a fitted SDMClassifier at `alpha`, None for the fitted."""
    return classifier._find_regions(alpha)[1][0]


def explain(row):
    """Say in one line why a row is accepted or rejected.

    Parameters
    ----------
    row : Bunch
        `accepted`, `similarity`, `distance`, `rescaled_similarity` and `probability` of
        the row; `q_min` and `threshold`, the smallest q' of the region and the smallest
        probability of an accepted prediction of its class.

    Returns
    -------
    reason : str
    """
    if row.accepted:
        return (
            f"q' ≥ {row.q_min:.2f} and probability ≥ {row.threshold:.4f}: in the region"
        )
    if not np.isfinite(row.q_min):
        return "no region reaches alpha on the calibration data"
    if row.similarity == 0:
        return "q = 0: the nearest exemplar does not support the prediction"
    if row.distance == 0:
        return "d = 0: farther from the exemplars than all calibration rows of a class"
    missed = []
    if row.rescaled_similarity < row.q_min:
        pair = _tell_apart(row.rescaled_similarity, row.q_min, 2)
        missed.append("q' = {} < {}".format(*pair))
    if row.probability < row.threshold:
        pair = _tell_apart(row.probability, row.threshold, 4)
        missed.append("probability = {} < {}".format(*pair))
    return " and ".join(missed) or "the models or the lower bound of d disagree"


def _tell_apart(first, second, digits):
    """Format two numbers with as many digits as it takes to see the difference."""
    while digits < 17 and f"{first:.{digits}f}" == f"{second:.{digits}f}":
        digits += 1
    return f"{first:.{digits}f}", f"{second:.{digits}f}"
