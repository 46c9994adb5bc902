"""Class-wise empirical CDFs of nearest distances: the Distance d and its DKW band."""

import numpy as np


def fit_class_ecdf(nearest_distance, y, similarity, n_classes):
    """Collect the nearest distances that make up each class's empirical CDF.

    Only points with q > 0 count: the CDF describes what it means to be close to
    training data that supports the prediction (SDM, Eq. 5).

    Parameters
    ----------
    nearest_distance : ndarray of shape (n_samples,)
        Distance of each point to its nearest training point.
    y : ndarray of shape (n_samples,)
        True class codes; codes outside 0 to n_classes - 1 belong to no class.
    similarity : ndarray of shape (n_samples,)
        Similarity q of each point.
    n_classes : int
        Number of classes.

    Returns
    -------
    ecdf : list of ndarray
        Sorted nearest distances of each class, possibly empty.
    """
    supported = similarity > 0
    return [
        np.sort(nearest_distance[supported & (y == code)]) for code in range(n_classes)
    ]


def evaluate_distance(nearest_distance, ecdf):
    """Compute the Distance d = min_c [1 - eCDF_c(d_nearest)].

    ``1 - eCDF_c(x) = 1 - #{values < x} / n_c`` is 1 at x = 0 and 0 once x exceeds
    every value of the class. A class without a value gives d = 0.

    Parameters
    ----------
    nearest_distance : ndarray of shape (n_samples,)
        Distance of each point to its nearest training point.
    ecdf : list of ndarray
        As returned by :func:`fit_class_ecdf`.

    Returns
    -------
    distance : ndarray of shape (n_samples,)
        Values in [0, 1].
    """
    distance = np.ones(len(nearest_distance))
    for values in ecdf:
        if len(values) == 0:
            return np.zeros(len(nearest_distance))
        # The share of values at or beyond x, as an exact ratio of counts.
        beyond = len(values) - np.searchsorted(values, nearest_distance, side="left")
        np.minimum(distance, beyond / len(values), out=distance)
    return distance


def dkw_epsilon(sample_size, alpha):
    """Half-width of the Dvoretzky-Kiefer-Wolfowitz band at confidence `alpha`.

    ``sqrt(ln(2 / (1 - alpha)) / (2 n))``, and 1 where n = 0 (SDM, A.5).

    Parameters
    ----------
    sample_size : ndarray of shape (n_samples,)
        Number of values n behind each point.
    alpha : float
        Confidence of the band.

    Returns
    -------
    epsilon : ndarray of shape (n_samples,)
    """
    epsilon = np.sqrt(np.log(2 / (1 - alpha)) / (2 * np.maximum(sample_size, 1)))
    return np.where(sample_size > 0, epsilon, 1.0)
