"""What accepted rows say of the region: counts, bounds, reports, and a warning."""

from typing import NamedTuple

import numpy as np
from scipy.stats import binom
from sklearn.utils import Bunch

from sdm_sklearn._region import Region, in_region
from sdm_sklearn._threshold_rules import divide, lower_bound


class ThinEvidenceWarning(UserWarning):
    """A region rests on so few calibration rows that its `alpha` is not credible."""


class Scored(NamedTuple):
    """Rows with their predicted codes, true codes, and scores to accept them by.

    A score of 0 marks a row that no threshold accepts.
    """

    codes: np.ndarray
    y: np.ndarray
    score: np.ndarray


class Certificate(Bunch):
    """The table of a certificate, one row per statement, that prints as its verdict.

    Columns `class`, `answered`, `kind`, `n`, `accuracy`, `bound` and `alpha`, each an
    ndarray; it can be given to `pandas.DataFrame`.
    """

    def __repr__(self):
        alpha = self["alpha"][0]
        holds = (self["bound"] >= alpha).reshape(2, -1).all(axis=0)
        # The HTML repr of scikit-learn shows 30 characters.
        return f"{holds.sum()} of {len(holds)} classes hold {alpha:g}"


def as_region(thresholds):
    """Return the region of all rows with q > 0 that reach the thresholds.

    q' >= 1 exactly if q >= 1.
    """
    return Region(np.where(np.isfinite(thresholds), 1.0, np.inf), thresholds)


def score_rows(models, measured, y, alpha, conservative):
    """Score rows so that thresholds on the scores accept what the classifier accepts.

    Parameters
    ----------
    models : list of SDMModel
        The best one, and the others of an ensemble.
    measured : list of Bunch
        What each model's `measure` returned for the rows.
    y : ndarray of shape (n_samples,)
        True class codes.
    alpha : float
        Level of the band of d.
    conservative : bool
        Whether the lower end of that band decides.

    Returns
    -------
    rows : Scored
        The score is the SDM output of the prediction, the smallest one in an ensemble;
        0 where q = 0 or the models disagree.
    """
    name = "lower_probability" if conservative else "probability"
    codes = measured[0].prediction
    score = np.ones(len(codes))
    everything = as_region(np.zeros(models[0].n_classes))
    for model, values in zip(models, measured, strict=True):
        signals = model.signals(values, everything, alpha)
        usable = (signals.similarity > 0) & (signals.prediction == codes)
        np.minimum(score, np.where(usable, signals[name], 0.0), out=score)
    return Scored(codes, y, score)


def score_calibration(model):
    """Score a model's calibration half as :func:`score_rows` does without the band."""
    rows = model.calibration_rows
    score = np.where(rows.rescaled_similarity > 0, rows.probability, 0.0)
    return Scored(rows.prediction, rows.y, score)


def count_errors(rows, thresholds):
    """Count accepted rows, and errors among them, of each statement.

    Parameters
    ----------
    rows : Scored
        Rows to count.
    thresholds : ndarray of shape (n_levels, n_classes)
        Thresholds of each predicted class.

    Returns
    -------
    n_accepted, n_wrong : ndarray of shape (2, n_levels, n_classes)
        By predicted class, and by true class.
    """
    n_classes = thresholds.shape[1]
    wrong = rows.codes != rows.y
    masks = [rows.score >= level[rows.codes] for level in thresholds]

    def count(group, which):
        return [np.bincount(group[mask & which], minlength=n_classes) for mask in masks]

    groups = (rows.codes, rows.y)
    n_accepted = [count(group, True) for group in groups]
    n_wrong = [count(group, wrong) for group in groups]
    shape = (2, len(thresholds), n_classes)
    return np.reshape(n_accepted, shape), np.reshape(n_wrong, shape)


def count_accepted(codes, y, accepted, n_classes):
    """Count as :func:`count_errors` for one acceptance mask; shape (2, n_classes)."""
    rows = Scored(codes, y, accepted.astype(float))
    n_accepted, n_wrong = count_errors(rows, np.ones((1, n_classes)))
    return n_accepted[:, 0], n_wrong[:, 0]


def tabulate_certificate(codes, y, accepted, classes, answered, alpha, level):
    """Bound every conditional accuracy of the accepted rows from below.

    Parameters
    ----------
    codes, y : ndarray of shape (n_certify,)
        Predicted and true class codes of the certify rows.
    accepted : ndarray of shape (n_certify,), dtype=bool
        What is accepted of them.
    classes : ndarray of shape (n_classes,)
        Class labels.
    answered : ndarray of shape (n_classes,), dtype=bool
        Which of them are ever answered.
    alpha : float
        Accuracy that was asked for.
    level : float
        One minus the confidence of each bound by itself.

    Returns
    -------
    certificate : Certificate
        First the prediction-conditional accuracies, then the class-conditional ones.
        Without accepted rows an accuracy is NaN and its bound 0.
    """
    n_classes = len(classes)
    n_accepted, n_wrong = count_accepted(codes, y, accepted, n_classes)
    return Certificate(
        **{
            "class": np.tile(classes, 2),
            "answered": np.tile(answered, 2),
            "kind": np.repeat(["prediction", "class"], n_classes),
            "n": n_accepted.ravel(),
            "accuracy": divide(n_accepted, n_accepted - n_wrong).ravel(),
            "bound": lower_bound(n_accepted, n_accepted - n_wrong, level).ravel(),
            "alpha": np.full(2 * n_classes, alpha),
        }
    )


def report_region(model, region, classes):
    """Tell of each class whether it is answered, and on which evidence.

    Parameters
    ----------
    model : SDMModel
        Whose calibration half to count.
    region : Region
        Its region.
    classes : ndarray of shape (n_classes,)
        Class labels.

    Returns
    -------
    report : dict of ndarray
        One entry per class in each column, copies of what decides.
    """
    n_accepted, n_wrong = _count_calibration(model, region)
    accuracy = divide(n_accepted, n_accepted - n_wrong)
    return {
        "class": classes.copy(),
        "answered": region.answered,
        "q_min": region.q_min.copy(),
        "threshold": region.thresholds.copy(),
        "n_calibration": np.bincount(model.calibration_rows.y, minlength=len(classes)),
        "n_predicted": n_accepted[0],
        "prediction_accuracy": accuracy[0],
        "n_of_class": n_accepted[1],
        "class_accuracy": accuracy[1],
    }


def describe_thin_evidence(model, region, alpha, confidence):
    """Say that a region's calibration rows do not make `alpha` credible, if so.

    All accepted calibration rows are taken together: if their common accuracy is not
    shown to be above `alpha`, that of single classes cannot be. An exact binomial test
    is corrected for the number of regions that Algorithm 1 tried until one passed, one
    for each smaller q' of the calibration half. So a region of a few dozen rows has to
    be better than `alpha` by more than luck, the more so the longer the search was.

    Returns
    -------
    message : str or None
    """
    n_accepted, n_wrong = _count_calibration(model, region)
    n, errors = int(n_accepted[0].sum()), int(n_wrong[0].sum())
    q = model.calibration_rows.rescaled_similarity
    last = region.q_min[region.answered].max(initial=0)
    n_regions = len(np.unique(q[(q > 0) & (q <= last)]))
    if n == 0 or n_regions * binom.cdf(errors, n, 1 - alpha) <= 1 - confidence:
        return None
    return (
        f"The region at alpha={alpha:g} rests on thin evidence: it accepts {n} rows of "
        f"the calibration half, {errors} of them wrong, and was chosen on them, the "
        f"last of {n_regions} regions tried. An accuracy of {alpha:g} on new rows is "
        f'not shown at confidence {confidence:g}. Pass guarantee="certified", lower '
        "alpha, or add labelled rows; region_report_ has the counts."
    )


def describe_missing_certificate(alpha, confidence, n_certify, classes, joint, failure):
    """Say that nothing could be certified, and what to do.

    Parameters
    ----------
    alpha, confidence : float
        What was asked for.
    n_certify : ndarray of shape (n_classes,)
        Certify rows of each class.
    classes : ndarray of shape (n_classes,)
        Class labels.
    joint : bool
        Whether one class that fails rejected everything.
    failure : Failure or None
        See :func:`~sdm_sklearn._certify.find_first_failure`.

    Returns
    -------
    message : str
    """
    needed = int(np.ceil(np.log(1 - confidence) / np.log(alpha)))
    code = int(n_certify.argmin())
    if n_certify[code] < needed:
        reason = f"class {classes.tolist()[code]!r} has {n_certify[code]} in all"
    elif failure is None:
        reason = "the calibration half gives no class a fair chance of that"
    else:
        which = {"prediction": "predicted as", "class": "of"}[failure.kind]
        allowed = f"at most {failure.n_allowed} may be"
        if failure.n_allowed < 0:
            allowed = f"{failure.n} rows are too few"
        reason = (
            f"the first test failed: of {failure.n} accepted certify rows {which} "
            f"class {classes.tolist()[failure.code]!r} {failure.n_wrong} are wrong, "
            f"and {allowed}"
        )
    return (
        f"No class is certified to reach alpha={alpha:g} at confidence {confidence:g}: "
        "every row will be rejected. Without a single error that takes at least "
        f"{needed} accepted certify rows of a class, and {reason}. "
        + ('Pass region="per_class" to answer without a class that fails. ' * joint)
        + "Lower alpha or confidence, add labelled rows, or give more of them to the "
        "certificate: certify_size is a share of the calibration_size."
    )


def _count_calibration(model, region):
    """Count the calibration rows in a region, and errors among them."""
    rows = model.calibration_rows
    # q' > 0 exactly if q > 0.
    q = rows.rescaled_similarity
    accepted = in_region(q, q, rows.probability, rows.prediction, region)
    return count_accepted(rows.prediction, rows.y, accepted, model.n_classes)
