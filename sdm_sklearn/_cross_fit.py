"""Out-of-fold predictions, with what decides which of them stand."""

import numpy as np
from sklearn.base import clone
from sklearn.pipeline import Pipeline
from sklearn.utils import Bunch
from sklearn.utils.metaestimators import _safe_split
from sklearn.utils.parallel import Parallel, delayed
from sklearn.utils.validation import _check_method_params

from ._selective import SelectiveClassifierMixin, unwrap


def cross_fit(estimator, X, y, splits, alphas, fit_params, n_jobs):
    """Fit a clone on each split and predict the rows that it leaves out.

    Parameters
    ----------
    estimator : estimator
        Unfitted classifier with `predict_proba`.
    X : array-like of shape (n_samples, n_features)
        Input rows.
    y : ndarray of shape (n_samples,)
        Labels.
    splits : list of (train, test)
        Row indices; no row in two test sets.
    alphas : ndarray of shape (n_alphas,)
        Where a selective classifier is asked what it accepts.
    fit_params : dict
        Metadata for `fit`, by row where it has as many rows as `X`.
    n_jobs : int or None
        Number of splits fitted in parallel.

    Returns
    -------
    held_out : Bunch
        In the order of `splits`: `rows` of X, `fold` and predicted `codes` of
        (n_held_out,); `accepted` (n_alphas, n_held_out) of a selective classifier, else
        None; `confidence` (n_held_out,) of any other, else None.
    """
    if not splits:
        raise ValueError("cv makes no split: at least one is needed.")
    rows = np.concatenate([np.arange(len(y))[test] for _, test in splits])
    if len(np.unique(rows)) < len(rows):
        raise ValueError(
            "cv holds rows out more than once, which would count them twice: pass a "
            "splitter whose test sets are disjoint, such as StratifiedKFold."
        )
    for train, test in splits:
        if len(np.intersect1d(np.arange(len(y))[train], np.arange(len(y))[test])):
            raise ValueError(
                "cv has rows that are trained on and held out at once, which would "
                "make every accuracy look better than it is: pass a splitter whose "
                "training and test sets are disjoint."
            )
    classes = np.unique(y)
    parts = Parallel(n_jobs=n_jobs)(
        delayed(_fit_and_predict)(
            clone(estimator), X, y, train, test, classes, alphas, fit_params
        )
        for train, test in splits
    )
    if parts[0].accepted is None and len(splits) < 2:
        raise ValueError(
            "cv makes one split. Thresholds for a classifier that is not selective "
            "itself are judged on other folds than they are chosen on: at least 2 are "
            "needed."
        )
    held_out = Bunch(
        rows=rows, fold=np.repeat(np.arange(len(parts)), [len(p.codes) for p in parts])
    )
    for name in ("codes", "confidence", "accepted"):
        values = [part[name] for part in parts]
        missing = values[0] is None
        held_out[name] = None if missing else np.concatenate(values, axis=-1)
    return held_out


def predict_with_confidence(estimator, X):
    """Return the code of each row's prediction, and the probability of that class.

    The prediction need not be the most probable class: a classifier with a tuned
    cut-off predicts by that.
    """
    while isinstance(estimator, Pipeline):  # so that rows are transformed once
        X = estimator[:-1].transform(X) if len(estimator) > 1 else X
        estimator = estimator[-1]
    probability = np.asarray(estimator.predict_proba(X))
    if not np.isfinite(probability).all():
        raise ValueError(
            f"{type(estimator).__name__}.predict_proba gave values that are not "
            "finite: thresholds cannot be set on them."
        )
    order = np.argsort(estimator.classes_)
    labels = estimator.predict(X)
    codes = order[np.searchsorted(estimator.classes_, labels, sorter=order)]
    return codes, probability[np.arange(len(codes)), codes]


def _fit_and_predict(estimator, X, y, train, test, classes, alphas, fit_params):
    """Fit on one fold and predict the rows that it leaves out."""
    X_train, y_train = _safe_split(estimator, X, y, train)
    X_test, _ = _safe_split(estimator, X, y, test, train)
    estimator.fit(X_train, y_train, **_check_method_params(X, fit_params, train))
    known = _find_classes(estimator, classes)
    if is_selective(estimator):
        classifier, inner_X = unwrap(estimator, X_test)
        codes, accepted = classifier._decide_at(inner_X, alphas)
        return Bunch(codes=known[codes], confidence=None, accepted=accepted)
    codes, confidence = predict_with_confidence(estimator, X_test)
    return Bunch(codes=known[codes], confidence=confidence, accepted=None)


def _find_classes(estimator, classes):
    """Return the code of each class of a fitted estimator; all have to be known."""
    code_of = {label: code for code, label in enumerate(classes.tolist())}
    own = np.asarray(estimator.classes_).tolist()
    strange = [label for label in own if label not in code_of]
    if strange:
        raise ValueError(
            f"{type(estimator).__name__} knows the classes {strange!r}, of which y has "
            "no row: its answers could be neither judged nor named. Give rows of all "
            "its classes, or fit an estimator on these."
        )
    return np.array([code_of[label] for label in own])


def check_final_classes(estimator, classes):
    """Raise unless a fitted estimator has these classes, in this order."""
    _find_classes(estimator, classes)
    if not np.array_equal(estimator.classes_, classes):
        raise ValueError(
            f"{type(estimator).__name__} has classes_ "
            f"{np.asarray(estimator.classes_).tolist()!r}, but y holds "
            f"{classes.tolist()!r}: they must be the same, sorted, as codes and "
            "probabilities follow their order."
        )


def is_selective(estimator):
    """Tell whether a selective classifier stands at the end of a fitted estimator."""
    try:
        return isinstance(unwrap(estimator, None)[0], SelectiveClassifierMixin)
    except TypeError:
        return False
