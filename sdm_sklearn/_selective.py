"""Selective prediction: labels where a row is accepted, a reject label elsewhere."""

import sys
from numbers import Integral, Real
from types import FrameType
from typing import Any

import numpy as np
from sklearn.frozen import FrozenEstimator
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted


class SelectiveClassifierMixin:
    """Add `predict_selective` to a classifier that knows which rows it accepts.

    A class that uses this mixin has the constructor parameters `alpha` and
    `reject_label`, sets `reject_label_ = resolve_reject_label(self.reject_label,
    self.classes_)` in `fit`, and implements::

        _decide(self, X, alpha) -> (codes, accepted)

    where `codes` (n,) indexes `classes_`, `accepted` (n,) is bool and `alpha` is a
    checked float or None for the fitted one. Where one measurement of `X` serves
    several values of alpha, it overrides `_decide_at`, too.
    """

    classes_: np.ndarray
    reject_label_: Any

    def _decide(self, X, alpha) -> tuple[np.ndarray, np.ndarray]:
        raise NotImplementedError

    def predict_selective(self, X, *, alpha=None, return_mask=False):
        """Predict labels, and the reject label where the answer is not reliable.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Input rows, as `predict` takes them.

        alpha : float, default=None
            Accuracy to hold among the accepted rows, strictly between 1/2 and 1. It
            needs no refit. None stands for the `alpha` of `fit`.

        return_mask : bool, default=False
            Whether to return the acceptance mask, too.

        Returns
        -------
        labels : ndarray of shape (n_samples,)
            The predicted classes, `reject_label_` where a row is rejected. Its dtype
            holds both the classes and the reject label.

        accepted : ndarray of shape (n_samples,), dtype=bool
            True where the prediction stands. Only if `return_mask=True`.

        Raises
        ------
        ValueError
            If `alpha` is not strictly between 1/2 and 1.
        """
        check_is_fitted(self)
        if alpha is not None:
            alpha = check_alpha(alpha)
        codes, accepted = self._decide(X, alpha)
        labels = reject(self.classes_, codes, accepted, self.reject_label_)
        return (labels, accepted) if return_mask else labels

    def _decide_at(self, X, alphas):
        """Return `codes` (n,) and what is accepted at each alpha, (n_alphas, n)."""
        decisions = [self._decide(X, alpha) for alpha in alphas]
        return decisions[0][0], np.array([accepted for _, accepted in decisions])


def predict_selective(estimator, X, *, alpha=None, return_mask=False):
    """Call `predict_selective` of a selective classifier inside meta-estimators.

    Pipelines and searches forward scikit-learn's own methods only. This function
    walks through :class:`~sklearn.pipeline.Pipeline` (transforming `X` on the way),
    fitted searches such as :class:`~sklearn.model_selection.GridSearchCV`, and
    :class:`~sklearn.frozen.FrozenEstimator`, nested in any way, and asks the
    classifier found inside.

    Parameters
    ----------
    estimator : estimator
        A fitted selective classifier, bare or inside meta-estimators.

    X : array-like of shape (n_samples, n_features)
        Input rows, as `estimator.predict` takes them.

    alpha : float, default=None
        Accuracy to hold among accepted rows, strictly between 1/2 and 1. None stands
        for the classifier's own `alpha`.

    return_mask : bool, default=False
        Whether to return the acceptance mask, too.

    Returns
    -------
    labels : ndarray of shape (n_samples,)
        Predicted classes, the classifier's `reject_label_` where rejected.

    accepted : ndarray of shape (n_samples,), dtype=bool
        True where the prediction stands. Only if `return_mask=True`.

    Raises
    ------
    TypeError
        If no classifier with a `predict_selective` method is found inside.

    Examples
    --------
    >>> import sdm_sklearn
    >>> from sklearn.datasets import make_blobs
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> X, y = make_blobs(400, centers=2, n_features=8, random_state=0)
    >>> clf = sdm_sklearn.SDMClassifier(alpha=0.9, max_epochs=20, random_state=0)
    >>> pipe = make_pipeline(StandardScaler(), clf).fit(X, y)
    >>> sdm_sklearn.predict_selective(pipe, [[1e3] * 8])
    array([-1])
    """
    classifier, X = unwrap(estimator, X)
    return classifier.predict_selective(X, alpha=alpha, return_mask=return_mask)


def unwrap(estimator, X):
    """Return the selective classifier inside `estimator` and `X` as it sees it.

    `X=None` asks for the classifier alone: nothing is transformed.
    """
    outer = estimator
    while not hasattr(estimator, "predict_selective"):
        if isinstance(estimator, Pipeline):
            check_is_fitted(estimator)
            if len(estimator) > 1 and X is not None:
                X = estimator[:-1].transform(X)
            estimator = estimator[-1]
        elif isinstance(estimator, FrozenEstimator):
            estimator = estimator.estimator
        elif _is_search(estimator):
            check_is_fitted(estimator)
            if not hasattr(estimator, "best_estimator_"):
                raise TypeError(
                    f"{type(estimator).__name__} was fitted with refit="
                    f"{estimator.refit!r} and holds no estimator to predict with: "
                    "search with refit=True or the name of a metric."
                )
            estimator = estimator.best_estimator_
        else:
            inside = "" if estimator is outer else f" inside {type(outer).__name__}"
            raise TypeError(
                f"{type(estimator).__name__}{inside} has no predict_selective: pass a "
                "selective classifier such as SDMClassifier, or a Pipeline, search or "
                "FrozenEstimator around one."
            )
    return estimator, X


def alpha_parameter(estimator):
    """Return the parameter of `estimator` that sets its selective classifier's alpha.

    None if there is no selective classifier at its end, or it is fitted already.
    """
    if isinstance(estimator, Pipeline):
        name, last = estimator.steps[-1]
        inner = alpha_parameter(last)
        return None if inner is None else f"{name}__{inner}"
    is_selective = hasattr(estimator, "predict_selective")
    if is_selective and "alpha" in estimator.get_params(deep=False):
        return "alpha"
    return None


def _is_search(estimator):
    """Tell a search from other estimators with a parameter `refit`."""
    if not hasattr(estimator, "get_params"):
        return False
    return {"estimator", "refit", "error_score"} <= set(
        estimator.get_params(deep=False)
    )


def check_alpha(alpha):
    """Return `alpha` as a float, or say why it is not an accuracy above 1/2."""
    is_number = isinstance(alpha, Real) and not isinstance(alpha, bool)
    value = float(alpha) if is_number else np.nan
    if 0.5 < value < 1:
        return value
    message = f"alpha must be an accuracy with 1/2 < alpha < 1. Got {alpha!r} instead."
    if 1 < value < 100:
        message += f" For {value:g} % pass alpha={value / 100:g}."
    if 0 < value <= 0.5:
        message += (
            " alpha is not an error rate: for 5 % errors pass alpha=0.95. At or below "
            "1/2 more than one class could reach its threshold."
        )
    raise ValueError(message)


def resolve_reject_label(reject_label, classes):
    """Choose or check the label that marks a rejection.

    Parameters
    ----------
    reject_label : "auto", scalar or None
        `"auto"`: for strings "rejected", prefixed with underscores while that is a
        class; for numbers and bools the smaller of -1 and the smallest class minus 1.

    classes : ndarray of shape (n_classes,)
        The class labels.

    Returns
    -------
    reject_label : scalar or None

    Raises
    ------
    ValueError
        If the label is a class, or of a kind that cannot stand beside the classes.
    """
    if classes.dtype.kind not in "biufUOT" or not isinstance(
        classes.tolist()[0], str | Real
    ):
        raise ValueError(
            f"Labels of dtype {classes.dtype} have no reject label: convert them to "
            "strings or numbers first."
        )
    strings = isinstance(classes[0], str)
    if isinstance(reject_label, str) and reject_label == "auto":
        if not strings:
            label = min(-1, int(np.floor(classes.min())) - 1)
            while classes.dtype.kind == "f" and classes.dtype.type(label) in classes:
                label *= 2  # so large that 1 less rounds to the class
            return label
        reject_label = "rejected"
        while reject_label in classes:
            reject_label = f"_{reject_label}"
        return reject_label
    known = classes.tolist()
    if reject_label in known:
        raise ValueError(
            f"reject_label={reject_label!r} is one of the classes {known!r}: pass a "
            "value that is no class, or 'auto'."
        )
    if strings:
        fits = isinstance(reject_label, str) or (
            reject_label is None and classes.dtype == object
        )
        hint = "a string"
    else:
        fits = isinstance(reject_label, Real | np.bool_)
        hint = "a number"
    if not fits:
        raise ValueError(
            f"reject_label={reject_label!r} cannot stand in one array with the "
            f"classes {known!r}: pass {hint} that is no class, or 'auto'."
        )
    _check_stored(classes, reject_label)
    return reject_label


def _check_stored(classes, reject_label):
    """Raise if the reject label or a class is another value once in one array."""
    codes = np.append(np.arange(len(classes)), 0)
    accepted = np.append(np.ones(len(classes), dtype=bool), False)
    *stored, out = reject(classes, codes, accepted, reject_label).tolist()
    is_nan = reject_label is not None and reject_label != reject_label
    same = out == reject_label or (is_nan and out != out)
    if not same or out in stored or stored != classes.tolist():
        raise ValueError(
            f"reject_label={reject_label!r} would be stored as {out!r} beside the "
            f"classes {classes.tolist()!r}: pass a value that their type can hold, or "
            "'auto'."
        )


def reject(classes, codes, accepted, reject_label):
    """Return `classes[codes]` with `reject_label` where not `accepted`.

    The dtype is widened first: assigning in place would cut strings ("rej"), wrap
    unsigned integers (255) and turn a bool into True.
    """
    kind = np.min_scalar_type(reject_label)
    if kind.kind == "f":
        kind = np.dtype(np.float64)  # -9999.0 is -10000 in the smallest float
    dtype = np.result_type(classes.dtype, kind)
    if classes.dtype.kind in "iu" and isinstance(reject_label, Integral):
        # int64 beside uint64 would become float64, which rounds labels above 2**53.
        low, high = min(classes.min(), reject_label), max(classes.max(), reject_label)
        bounds = np.iinfo(np.int64)
        if dtype.kind not in "iu":
            fits = bounds.min <= int(low) and int(high) <= bounds.max
            dtype = np.dtype(np.int64 if fits else object)
    out = classes.astype(dtype)[codes]
    out[~accepted] = reject_label
    return out


def stack_level():
    """Return the stack level of the first caller outside this package."""
    frame: FrameType | None = sys._getframe(1)
    level = 1
    while frame is not None and frame.f_globals.get("__name__", "").startswith(
        ("sdm_sklearn.", "sklearn.", "joblib.")
    ):
        frame, level = frame.f_back, level + 1
    return level
