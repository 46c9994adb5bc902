"""Corrections of label probabilities: class prior, BCTS, a certified threshold."""

import warnings
from collections.abc import Mapping

import numpy as np
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax
from scipy.stats import beta

# Confidence of the lower bound on the accuracy of the accepted rows.
CONFIDENCE = 0.95
# A label without a vote has log-probability -inf; calibration needs a number.
LOG_FLOOR = np.log(1e-15)


def check_prior(prior, classes, in_order):
    """Return the prior as an array in the order of `classes`, or None."""
    if prior is None:
        return None
    if isinstance(prior, str):
        return np.full(len(classes), 1 / len(classes))
    if isinstance(prior, Mapping):
        names = classes.tolist()
        if set(prior) != set(names):
            raise ValueError(
                f"prior must give a share to each of the classes {names!r}. Got "
                f"{list(prior)!r} instead."
            )
        prior = [prior[name] for name in names]
    elif not in_order:
        raise ValueError(
            "The labels were not given in sorted order, so the order of an array prior "
            f"would be ambiguous (classes_ is {classes.tolist()!r}): pass a dict of "
            "class to share."
        )
    shares = np.asarray(prior)
    good = shares.dtype.kind in "fiu" and shares.shape == classes.shape
    if not good or not (shares > 0).all() or abs(shares.sum() - 1) > 1e-6:
        raise ValueError(
            f"prior must hold {len(classes)} positive shares that sum to 1, one for "
            f"each class. Got {shares.tolist()!r} instead."
        )
    return shares / shares.sum()


def choose_scaling(calibration, y):
    """Return the scaling to learn, or None."""
    if y is not None:
        return "bcts" if calibration == "auto" else calibration
    if calibration in ("temperature", "bcts"):
        raise ValueError(
            f"calibration={calibration!r} learns from labels, but fit got no y: pass "
            "y, or calibration='auto' or None."
        )
    return None


def match_prior(log_proba, prior):
    """Find the biases that make the mean prediction equal a class prior.

    The biases b minimise the convex function mean_i logsumexp(log p_i + b) - prior b,
    whose gradient is the mean of softmax(log p_i + b) minus the prior.

    Parameters
    ----------
    log_proba : ndarray of shape (n, n_labels)
    prior : ndarray of shape (n_labels,), positive, sums to 1

    Returns
    -------
    bias : ndarray of shape (n_labels,), sums to 0
    """

    # The last label's bias is held at 0: a common shift changes nothing.
    def value(free):
        shifted = log_proba + np.append(free, 0.0)
        top = shifted.max(axis=1)
        log_sum = np.log(np.exp(shifted - top[:, None]).sum(axis=1)) + top
        return log_sum.mean() - prior[:-1] @ free

    def gradient(free):
        return (softmax(log_proba + np.append(free, 0.0), axis=1).mean(0) - prior)[:-1]

    def hessian(free):
        p = softmax(log_proba + np.append(free, 0.0), axis=1)
        return (np.diag(p.mean(0)) - p.T @ p / len(p))[:-1, :-1]

    # A start near the answer: the shift that would match if labels did not compete.
    start = np.log(prior) - log_proba.mean(axis=0)
    result = minimize(
        value,
        (start - start[-1])[:-1],
        jac=gradient,
        hess=hessian,
        method="trust-exact",
        options={"gtol": 1e-10, "maxiter": 1000},
    )
    bias = np.append(result.x, 0.0)
    return bias - bias.mean()


def fit_scaling(log_proba, codes, bias):
    """Fit a temperature and, if asked, class biases by penalised likelihood.

    Bias-corrected temperature scaling, softmax(log p / T + b), at the maximum of the
    posterior with standard normal priors on log T and each b.

    Parameters
    ----------
    log_proba : ndarray of shape (n, n_labels)
    codes : ndarray of shape (n,), int
    bias : bool

    Returns
    -------
    temperature : float
    bias : ndarray of shape (n_labels,)
    """
    n, n_labels = log_proba.shape
    rows = np.arange(n)

    def objective(parameters):
        scaled = log_proba * np.exp(-parameters[0])
        shifted = scaled + parameters[1:] if bias else scaled
        loss = -log_softmax(shifted, axis=1)[rows, codes].sum()
        slope = softmax(shifted, axis=1)
        slope[rows, codes] -= 1.0
        gradient = np.append(-(slope * scaled).sum(), slope.sum(axis=0) if bias else [])
        return loss + parameters @ parameters / 2, gradient + parameters

    start = np.zeros(1 + n_labels if bias else 1)
    options = {"maxiter": 1000, "ftol": 1e-14, "gtol": 1e-8}
    best = minimize(objective, start, jac=True, method="L-BFGS-B", options=options).x
    return float(np.exp(best[0])), best[1:] if bias else np.zeros(n_labels)


def certified_threshold(confidence, correct, alpha):
    """Find the smallest confidence above which an accuracy of `alpha` is certified.

    Parameters
    ----------
    confidence : ndarray of shape (n,)
    correct : ndarray of shape (n,), dtype=bool
    alpha : float

    Returns
    -------
    threshold : float
        Accept where the confidence is at least this; inf if no threshold will do.

    Notes
    -----
    The bound is the one-sided Clopper-Pearson bound at 95 % for the rows that reach
    the threshold. Taking the smallest threshold whose empirical accuracy is `alpha`
    would miss `alpha` on new rows about as often as not.
    """
    order = np.argsort(-confidence, kind="stable")
    confidence = confidence[order]
    hits = np.cumsum(correct[order])
    count = np.arange(1, len(order) + 1)
    with np.errstate(invalid="ignore"):
        lower = beta.ppf(1 - CONFIDENCE, hits, count - hits + 1)
    lower[hits == 0] = 0.0
    # Rows of equal confidence are accepted together or not at all.
    whole = np.append(confidence[1:] != confidence[:-1], True)
    good = np.flatnonzero(whole & (lower >= alpha))
    return float(confidence[good[-1]]) if len(good) else np.inf


def warn_uncertified(alpha, confidence, correct):
    accuracy = f"{correct.mean():.2f}" if len(correct) else "undefined"
    warnings.warn(
        f"No threshold certifies an accuracy of alpha={alpha} on these {len(correct)} "
        f"labelled rows (accuracy without rejection {accuracy}): predict_selective "
        "rejects every row. Pass more labelled rows or a lower alpha.",
        UserWarning,
        stacklevel=4,
    )
