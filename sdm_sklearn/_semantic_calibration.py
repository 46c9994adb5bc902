"""Corrections of label probabilities: class prior, BCTS, a certified threshold."""

import reprlib
from collections.abc import Mapping

import numpy as np
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax
from sklearn.model_selection import KFold

from ._threshold_rules import lower_bound

# Probability with which the accepted rows have the accuracy asked for.
CONFIDENCE = 0.95
# Thresholds are tried where they accept this factor more rows than the one before.
_STEP = 2**0.5
# A label without a vote has log-probability -inf; calibration needs a number. Finite
# values stay what they are as long as sums of them can be had.
_LOG_OF_NOTHING, _LOWEST = np.log(1e-15), -1e4
# Confidences this close are equal: rounding must not part a row from its threshold.
SLACK = 1e-12
_FOLDS = 10


def bounded_log_softmax(scores):
    """Return finite log-probabilities of labels, in the order of their scores.

    A label of probability 0 gets 1e-15, or what the least probable other label has.
    """
    with np.errstate(over="ignore"):
        log_proba = log_softmax(scores, axis=1)
    zero = np.isneginf(log_proba)
    lowest = np.where(zero, _LOG_OF_NOTHING, log_proba).min(axis=1, keepdims=True)
    return np.maximum(np.where(zero, lowest, log_proba), _LOWEST)


def check_prior(prior, classes, in_order):
    """Return the prior as an array in the order of `classes`, or None."""
    if prior is None:
        return None
    if isinstance(prior, str):
        return np.full(len(classes), 1 / len(classes))
    if hasattr(prior, "to_dict"):  # a pandas Series, whose index names the classes
        prior = prior.to_dict()
    if isinstance(prior, Mapping):
        names = classes.tolist()
        if set(prior) != set(names):
            raise ValueError(
                f"prior must give a share to each of the classes {names!r}. Got "
                f"{reprlib.repr(list(prior))} instead."
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
    if not good or not (shares > 0).all() or not np.isfinite(shares).all():
        raise ValueError(
            f"prior must hold {len(classes)} positive shares that sum to 1, one for "
            f"each class. Got {reprlib.repr(shares.tolist())} instead."
        )
    total = shares.sum()
    if abs(total - 1) > 1e-6:
        raise ValueError(
            "prior must hold shares that sum to 1. Got "
            f"{reprlib.repr(shares.tolist())}, whose sum is {total:.7g}: divide them "
            "by it."
        )
    return shares / total


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


def held_out_proba(log_proba, codes, bias):
    """Scale each row's probabilities by what the rows of other folds teach.

    A threshold certified on probabilities that have seen their own labels would be too
    low: with 50 labels and 200 rows it misses its accuracy far too often.

    Parameters
    ----------
    log_proba : ndarray of shape (n, n_labels)
    codes : ndarray of shape (n,), int
    bias : bool

    Returns
    -------
    proba : ndarray of shape (n, n_labels)
    """
    proba = np.empty_like(log_proba)
    folds = KFold(min(_FOLDS, len(codes)), shuffle=True, random_state=0)
    for fit_rows, rows in folds.split(log_proba):
        temperature, biases = fit_scaling(log_proba[fit_rows], codes[fit_rows], bias)
        proba[rows] = softmax(log_proba[rows] / temperature + biases, axis=1)
    return proba


def certified_threshold(confidence, correct, alpha):
    """Find a low confidence above which an accuracy of `alpha` is certified.

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
    The probability that the accuracy above the threshold is below `alpha` is at most
    1 - ``CONFIDENCE``. A few thresholds are tested, by one-sided Clopper-Pearson bounds
    for the rows that reach them, and share that probability (Bonferroni); which ones
    follows from the confidences alone. The smallest of *all* thresholds whose bound
    reaches `alpha` would be wrong the more often the more rows there are.
    """
    thresholds, lower = _tests(confidence, correct, alpha)
    good = np.flatnonzero(lower >= alpha)
    return float(thresholds[good[-1]]) if len(good) else np.inf


def highest_bound(confidence, correct):
    """Return the highest accuracy in steps of .001 that is certified; 0 if none is."""
    for alpha in np.arange(999, 500, -1) / 1000:
        if np.isfinite(certified_threshold(confidence, correct, alpha)):
            return float(alpha)
    return 0.0


def _tests(confidence, correct, alpha):
    """Return the thresholds to test, falling, and the bounds on the accuracy above."""
    order = np.argsort(-confidence, kind="stable")
    confidence = confidence[order]
    # Rows of equal confidence are accepted together or not at all.
    whole = np.append(confidence[:-1] - confidence[1:] > SLACK, True)[: len(order)]
    count = np.arange(1, len(order) + 1)[whole]
    hits = np.cumsum(correct[order])[whole]
    # From all rows down to as few as could show alpha by themselves, if all are right.
    least = np.log(1 - CONFIDENCE) / np.log(alpha)
    n_steps = max(int(np.log(max(len(order), 1) / least) / np.log(_STEP)), -1)
    wanted = len(order) / _STEP ** np.arange(n_steps, -1, -1)
    place = np.unique(np.searchsorted(count, np.floor(wanted)))
    level = (1 - CONFIDENCE) / max(len(place), 1)
    return confidence[whole][place], lower_bound(count[place], hits[place], level)
