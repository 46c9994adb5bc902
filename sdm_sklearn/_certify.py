"""Certificates: conditional accuracies tested on rows that chose nothing.

What is promised. Once thresholds are fixed, each class c that is answered has two
statements: its prediction-conditional accuracy P(y = c | predicted c, accepted) and its
class-conditional accuracy P(predicted c | y = c, accepted) are at least alpha. The
probability, over the draw of the rows, that any statement about the thresholds in use
is false is at most 1 - confidence.

Why it holds. The certify rows are a simple random sample of the rows, and took no part
in training, in the choice of the epoch, in the eCDFs or in the plan made here. Given
all of these they are independent and identically distributed, so that among the n of
them that are accepted and predicted as c (or accepted and of class c) the number of
errors is binomial, given n. A false statement therefore has a p-value
P(Binomial(n, 1 - alpha) <= errors) of at most u with a probability of at most u. The
hypotheses are tested in an order that was fixed before: see
:func:`reject_in_sequence`.

One hypothesis may join many statements ("all of these are at least alpha"). It is
rejected if every one of their p-values is small enough; that needs no correction, as
one false statement suffices to keep the hypothesis true (intersection-union test). A
correction is paid for classes that may fail one by one only.
"""

from itertools import product
from typing import NamedTuple

import numpy as np
from scipy.stats import binom, nbinom

from sdm_sklearn._evidence import count_errors
from sdm_sklearn._threshold_rules import class_thresholds

# Candidate thresholds accept these shares of the rows of a prediction, or aim at error
# rates of these shares of 1 - alpha.
_SHARES = np.geomspace(0.02, 1, 25)
_MISSES = np.linspace(0.05, 1, 20)
# Exponent of the share when a joint plan chooses its start.
_PREFERENCE = 0.25
# Exponents of the power when a plan chooses its thresholds.
_CAUTION = (1, 4, 16)
# Classes less likely than this to be certified are not tried.
_LEAST_POWER = 0.5


class Failure(NamedTuple):
    """A statement that failed its test.

    Class code, "prediction" or "class", and the certify rows that it is about, how many
    of them are wrong, and how many may be: -1 if even none would be too many.
    """

    code: int
    kind: str
    n: int
    n_wrong: int
    n_allowed: int


class Plan(NamedTuple):
    """What is to be tested, in order, fixed before the certify rows are looked at.

    `classes` are tried one by one with `thresholds` (inf for all other classes), each
    at `level`, until more than `n_failures` fail. If none does, each row of `path` is
    tried, for all `classes` at once. With `together` the classes stand or fall as one.
    """

    classes: np.ndarray
    thresholds: np.ndarray
    path: np.ndarray
    level: float
    n_failures: int
    together: bool


def certify_thresholds(planning, certify, n_classes, alpha, confidence, per_class):
    """Find thresholds whose accuracies are at least alpha, with the confidence asked.

    Parameters
    ----------
    planning : Scored
        Calibration rows. They fix what is tested, and in which order.
    certify : Scored
        Rows that had no part in anything before. They decide.
    n_classes : int
        Number of classes.
    alpha : float
        Accuracy, 1/2 < alpha < 1.
    confidence : float
        Probability that all statements hold.
    per_class : bool
        Whether classes may be left out. Otherwise all are certified, or none is.

    Returns
    -------
    thresholds : ndarray of shape (n_classes,)
        inf for a class that is not certified.
    level : float
        What the p-value of each statement had to reach.
    """
    plan = make_plan(planning, certify, n_classes, alpha, confidence, per_class)
    return run_plan(plan, certify, alpha), plan.level


def find_first_failure(planning, certify, n_classes, alpha, confidence, per_class):
    """Find the statement at which :func:`certify_thresholds` failed first.

    Parameters are those of that function.

    Returns
    -------
    failure : Failure or None
        The worst statement of the first test, None if that passed, or if there was
        none: no class had a fair chance.
    """
    plan = make_plan(planning, certify, n_classes, alpha, confidence, per_class)
    n_accepted, n_wrong = count_errors(certify, plan.thresholds[np.newaxis])
    n_accepted, n_wrong = n_accepted[:, 0, plan.classes], n_wrong[:, 0, plan.classes]
    p = p_values(n_accepted, n_wrong, alpha)
    failed = p > plan.level
    if not failed.any():
        return None
    # All classes are one hypothesis, or the first that fails is looked at.
    column = failed.any(axis=0).argmax()
    if plan.together:
        column = p.max(axis=0).argmax()
    kind = int(p[:, column].argmax())
    n = int(n_accepted[kind, column])
    return Failure(
        int(plan.classes[column]),
        ("prediction", "class")[kind],
        n,
        int(n_wrong[kind, column]),
        int(count_allowed(n, alpha, plan.level)),
    )


def make_plan(planning, certify, n_classes, alpha, confidence, per_class):
    """Plan the tests; of the certify rows only their number is looked at."""
    share = len(certify.y) / max(len(planning.y), 1)
    plan = plan_per_class if per_class else plan_joint
    return plan(planning, n_classes, alpha, 1 - confidence, share)


def thresholds_by_share(rows, n_classes, alpha):
    """Return nested thresholds that accept the same share of each predicted class.

    None lies below `alpha`: an SDM output below it would let rows in that are unlike
    the training data.

    Returns
    -------
    thresholds : ndarray of shape (n_levels, n_classes)
        From strict to lenient; inf for a class without rows above `alpha`.
    """
    thresholds = np.full((len(_SHARES), n_classes), np.inf)
    for code in range(n_classes):
        score = rows.score[(rows.codes == code) & (rows.score >= alpha)]
        if len(score):
            order = np.sort(score)[::-1]
            last = np.ceil(_SHARES * len(score)).astype(int) - 1
            thresholds[:, code] = order[last]
    finite = np.isfinite(thresholds[-1])
    thresholds[-1, finite] = alpha
    return thresholds


def thresholds_by_accuracy(rows, n_classes, alpha):
    """Return nested thresholds that aim at the same accuracy of each prediction.

    From accuracies near 1 down to `alpha`, by
    :func:`~sdm_sklearn._threshold_rules.class_thresholds`. As above, none lies below
    `alpha`.

    Returns
    -------
    thresholds : ndarray of shape (n_levels, n_classes)
        From strict to lenient; inf where a class does not reach the accuracy.
    """
    usable = rows.score > 0
    thresholds = class_thresholds(
        rows.codes[usable],
        rows.score[usable],
        (rows.codes == rows.y)[usable],
        n_classes,
        1 - _MISSES * (1 - alpha),
    )
    return np.maximum(thresholds, alpha)


def p_values(n_accepted, n_wrong, alpha):
    """Return P(Binomial(n, 1 - alpha) <= errors), 1 without accepted rows."""
    return binom.cdf(n_wrong, n_accepted, 1 - alpha)


def reject_in_sequence(p, level, n_failures):
    """Reject hypotheses in order until more than `n_failures` stand.

    With ``level = (1 - confidence) / (n_failures + 1)`` the probability that any true
    hypothesis is rejected is at most 1 - confidence, whatever the dependence: take the
    first ``n_failures + 1`` true ones in the order. If none of them is rejected, they
    are that many failures, and nothing behind the last of them is tested. So a false
    rejection needs one of these p-values to reach the level. ``n_failures=0`` is the
    fixed-sequence test, one less than there are hypotheses that of Bonferroni.

    Parameters
    ----------
    p : ndarray of shape (n_hypotheses,)
        p-values in an order that does not depend on them.
    level : float
        What a p-value has to reach.
    n_failures : int
        Number of failures after which the test goes on.

    Returns
    -------
    rejected : ndarray of shape (n_hypotheses,), dtype=bool
    """
    passed = p <= level
    failures_before = np.cumsum(~passed) - ~passed
    return passed & (failures_before <= n_failures)


def count_allowed(n, alpha, level):
    """Return the largest number of errors of `n` that passes the test, or -1."""
    allowed = binom.ppf(level, n, 1 - alpha)
    return allowed - (binom.cdf(allowed, n, 1 - alpha) > level)


def predict_power(n_accepted, n_wrong, share, alpha, level):
    """Predict from calibration rows how likely each statement passes its test.

    Errors are rare, so their number is taken as Poisson. The prior of each error rate
    is exponential, with the rate of all statements together as its mean, so that the
    number among the certify rows is negative binomial.

    Parameters
    ----------
    n_accepted, n_wrong : ndarray
        Calibration rows accepted, and wrong among them.
    share : float
        Number of certify rows for each calibration row.
    alpha, level : float
        Accuracy to certify, and what the p-value has to reach.

    Returns
    -------
    power : ndarray
        Values in [0, 1].
    """
    n_expected = np.floor(n_accepted * share)
    allowed = count_allowed(n_expected, alpha, level)
    n_known = n_accepted + max(n_accepted.sum(), 1) / (n_wrong.sum() + 0.5)
    power = nbinom.cdf(allowed, n_wrong + 1, n_known / (n_known + n_expected))
    return np.where(allowed >= 0, power, 0.0)


def plan_joint(planning, n_classes, alpha, risk, share):
    """Plan to certify all classes together, and then ever more lenient thresholds.

    All hangs on the first test. It is the one most likely to pass, with a slight
    preference for many rows: the power predicted for few rows is the less certain.
    """
    levels = thresholds_by_share(planning, n_classes, alpha)
    n_accepted, n_wrong = count_errors(planning, levels)
    power = predict_power(n_accepted, n_wrong, share, alpha, risk).prod(axis=(0, 2))
    start = int((power * _SHARES**_PREFERENCE).argmax())
    return Plan(np.arange(n_classes), levels[start], levels[start + 1 :], risk, 0, True)


def plan_per_class(planning, n_classes, alpha, risk, share):
    """Plan to certify class by class, the surest first.

    Each class gets the threshold with the most rows to expect, rows times power, or a
    stricter one, as one failure may end the sequence: rows times a power of the power.
    Of these plans, and of the numbers of failures to allow, the one is taken that lets
    most rows be expected in all.
    """
    levels = thresholds_by_accuracy(planning, n_classes, alpha)
    n_accepted, n_wrong = count_errors(planning, levels)
    best, best_expected = None, -1.0
    for n_failures, caution in product(_doubling(n_classes), _CAUTION):
        level = risk / (n_failures + 1)
        power = predict_power(n_accepted, n_wrong, share, alpha, level).prod(axis=0)
        worth = n_accepted[0] * power**caution
        chosen = worth.argmax(axis=0), np.arange(n_classes)
        power, gain = power[chosen], n_accepted[0][chosen]
        order = np.lexsort((-gain, -power))
        order = order[power[order] >= _LEAST_POWER]
        expected = expected_gain(power[order], gain[order], n_failures)
        if expected > best_expected:
            thresholds = np.full(n_classes, np.inf)
            thresholds[order] = levels[chosen][order]
            path = np.minimum(levels, thresholds)
            path[:, np.isinf(thresholds)] = np.inf
            more = (path < thresholds).any(axis=1)
            best = Plan(order, thresholds, path[more], level, n_failures, False)
            best_expected = expected
    return best


def expected_gain(power, gain, n_failures):
    """Return the rows to expect from a sequence of tests that may fail.

    Parameters
    ----------
    power, gain : ndarray of shape (n_hypotheses,)
        Chance of each to pass, and the rows that it brings.
    n_failures : int
        Number of failures after which the sequence goes on.

    Returns
    -------
    expected : float
    """
    # The chance to be still testing, after 0, 1, ... failures.
    alive = np.zeros(n_failures + 1)
    alive[0], expected = 1.0, 0.0
    for chance, rows in zip(power, gain, strict=True):
        expected += alive.sum() * chance * rows
        alive = alive * chance + np.append(0.0, alive[:-1]) * (1 - chance)
    return float(expected)


def run_plan(plan, certify, alpha):
    """Test what was planned on the certify rows, and return what passed.

    Returns
    -------
    thresholds : ndarray of shape (n_classes,)
        inf for a class that is not certified.
    """
    rules = np.concatenate([plan.thresholds[np.newaxis], plan.path])
    # A class is charged with all errors that the plan could let in, whichever of the
    # other classes pass: leaving one out can only raise its accuracy.
    n_accepted, n_wrong = count_errors(certify, rules)
    p = p_values(n_accepted, n_wrong, alpha).max(axis=0)[:, plan.classes]
    rejected = reject_in_sequence(p[0], plan.level, plan.n_failures)
    thresholds = np.full(len(plan.thresholds), np.inf)
    if not rejected.all():
        if not plan.together:
            passed = plan.classes[rejected]
            thresholds[passed] = plan.thresholds[passed]
        return thresholds
    if not len(rejected):
        return thresholds
    n_passed = int(reject_in_sequence(p.max(axis=1), plan.level, 0).sum())
    return rules[n_passed - 1]


def _doubling(n_classes):
    """Return 0, 1, 3, 7, ... below `n_classes`, and `n_classes` - 1."""
    powers = 2 ** np.arange(int(np.log2(n_classes)) + 1) - 1
    return np.unique([*powers, n_classes - 1])
