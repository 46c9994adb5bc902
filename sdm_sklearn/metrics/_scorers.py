"""Scorers for cross-validation and searches over selective classifiers."""

from numbers import Real

import numpy as np
from sklearn import get_config
from sklearn.base import BaseEstimator
from sklearn.utils._param_validation import Interval, validate_params
from sklearn.utils.metadata_routing import MetadataRequest

from .._cross_fit import predict_with_confidence
from .._selective import check_alpha, predict_selective
from ._risk_coverage import aurc
from ._selective import (
    coverage_score,
    selective_accuracy_score,
    worst_conditional_accuracy_score,
)

_UNDEFINED = [Interval(Real, 0, 1, closed="both"), np.nan]


def coverage_scorer(alpha=None):
    """Make a scorer of the coverage.

    Parameters
    ----------
    alpha : float, default=None
        Accuracy at which to predict, strictly between 1/2 and 1. None stands for the
        estimator's own.

    Returns
    -------
    scorer : callable
        To be called as ``scorer(estimator, X, y)`` and given as `scoring` to
        scikit-learn; higher is better. The estimator is a selective classifier, bare
        or inside Pipelines, searches and FrozenEstimators.

    Raises
    ------
    ValueError
        If `alpha` is not strictly between 1/2 and 1.

    See Also
    --------
    coverage_at_accuracy_scorer : What to refit a search on.

    Examples
    --------
    >>> from sklearn.datasets import make_blobs
    >>> from sklearn.model_selection import cross_validate
    >>> from sdm_sklearn import SDMClassifier
    >>> from sdm_sklearn.metrics import coverage_scorer, selective_accuracy_scorer
    >>> X, y = make_blobs(600, centers=2, n_features=8, random_state=0)
    >>> scoring = {
    ...     "coverage": coverage_scorer(alpha=0.9),
    ...     "accuracy": selective_accuracy_scorer(alpha=0.9),
    ... }
    >>> clf = SDMClassifier(max_epochs=20, n_restarts=1, random_state=0)
    >>> cv_results = cross_validate(clf, X, y, cv=3, scoring=scoring)
    >>> float(cv_results["test_accuracy"].mean())
    1.0
    """
    return _CoverageScorer(alpha=None if alpha is None else check_alpha(alpha))


@validate_params(
    {"alpha": "no_validation", "replace_undefined_by": _UNDEFINED},
    prefer_skip_nested_validation=True,
)
def selective_accuracy_scorer(alpha=None, *, replace_undefined_by=np.nan):
    """Make a scorer of the accuracy among the accepted rows.

    Parameters
    ----------
    alpha : float, default=None
        Accuracy at which to predict, strictly between 1/2 and 1. None stands for the
        estimator's own.

    replace_undefined_by : float in [0, 1] or np.nan, default=np.nan
        Score where nothing is accepted. NaN comes with an
        :class:`~sklearn.exceptions.UndefinedMetricWarning`, and searches rank it last.

    Returns
    -------
    scorer : callable
        To be called as ``scorer(estimator, X, y)``; higher is better.

    Raises
    ------
    ValueError
        If `alpha` is not strictly between 1/2 and 1.

    Examples
    --------
    >>> from sdm_sklearn.metrics import selective_accuracy_scorer
    >>> selective_accuracy_scorer(alpha=0.9, replace_undefined_by=0.0)
    _SelectiveAccuracyScorer(alpha=0.9, replace_undefined_by=0.0)
    """
    return _SelectiveAccuracyScorer(
        alpha=None if alpha is None else check_alpha(alpha),
        replace_undefined_by=replace_undefined_by,
    )


@validate_params(
    {"alpha": "no_validation", "replace_undefined_by": _UNDEFINED},
    prefer_skip_nested_validation=True,
)
def worst_conditional_accuracy_scorer(alpha=None, *, replace_undefined_by=np.nan):
    """Make a scorer of the smallest class- or prediction-conditional accuracy.

    Parameters
    ----------
    alpha : float, default=None
        Accuracy at which to predict, strictly between 1/2 and 1. None stands for the
        estimator's own.

    replace_undefined_by : float in [0, 1] or np.nan, default=np.nan
        Score where nothing is accepted. NaN comes with an
        :class:`~sklearn.exceptions.UndefinedMetricWarning`, and searches rank it last.

    Returns
    -------
    scorer : callable
        To be called as ``scorer(estimator, X, y)``; higher is better.

    Raises
    ------
    ValueError
        If `alpha` is not strictly between 1/2 and 1.

    Examples
    --------
    >>> from sdm_sklearn.metrics import worst_conditional_accuracy_scorer
    >>> worst_conditional_accuracy_scorer(alpha=0.9)
    _WorstConditionalAccuracyScorer(alpha=0.9)
    """
    return _WorstConditionalAccuracyScorer(
        alpha=None if alpha is None else check_alpha(alpha),
        replace_undefined_by=replace_undefined_by,
    )


@validate_params(
    {
        "target": [Interval(Real, 0, 1, closed="right")],
        "alpha": "no_validation",
    },
    prefer_skip_nested_validation=True,
)
def coverage_at_accuracy_scorer(target=0.95, *, alpha=None):
    """Make a scorer that weighs coverage and accuracy, to refit a search on.

    The score is the coverage if the class- and the prediction-conditional accuracy of
    every class reach `target` among the accepted rows, else 0. Its mean over the folds
    is largest for the candidate that accepts the most and keeps the promise in most
    folds, so that a search over `alpha` and other parameters picks what is wanted.

    Parameters
    ----------
    target : float in (0, 1], default=0.95
        Accuracy that must be reached.

    alpha : float, default=None
        Accuracy at which to predict, strictly between 1/2 and 1. None stands for the
        estimator's own, which a search may vary.

    Returns
    -------
    scorer : callable
        To be called as ``scorer(estimator, X, y)``; between 0 and 1, higher is better.

    Raises
    ------
    ValueError
        If `target` is not in (0, 1] or `alpha` not strictly between 1/2 and 1.

    See Also
    --------
    worst_conditional_accuracy_scorer : The accuracy that is compared with `target`.

    Examples
    --------
    >>> from sklearn.datasets import make_blobs
    >>> from sklearn.model_selection import GridSearchCV
    >>> from sdm_sklearn import SDMClassifier
    >>> from sdm_sklearn.metrics import coverage_at_accuracy_scorer
    >>> X, y = make_blobs(600, centers=2, n_features=8, random_state=0)
    >>> search = GridSearchCV(
    ...     SDMClassifier(max_epochs=20, n_restarts=1, random_state=0),
    ...     {"alpha": [0.8, 0.9]},
    ...     scoring=coverage_at_accuracy_scorer(target=0.9),
    ...     cv=3,
    ... ).fit(X, y)
    >>> search.best_params_
    {'alpha': 0.9}
    """
    return _CoverageAtAccuracyScorer(
        target=target, alpha=None if alpha is None else check_alpha(alpha)
    )


def neg_aurc_scorer():
    """Make a scorer of the negative area under the risk-coverage curve.

    Rows are ranked by their largest probability, so that the scorer takes any
    classifier with `predict_proba` and needs no `alpha`.

    Returns
    -------
    scorer : callable
        To be called as ``scorer(estimator, X, y)``; at most 0, higher is better.

    See Also
    --------
    aurc : The area.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.model_selection import cross_val_score
    >>> from sdm_sklearn.metrics import neg_aurc_scorer
    >>> X, y = load_iris(return_X_y=True)
    >>> clf = LogisticRegression(max_iter=1000)
    >>> scores = cross_val_score(clf, X, y, scoring=neg_aurc_scorer())
    >>> scores.shape
    (5,)
    """
    return _NegAurcScorer()


class _Scorer(BaseEstimator):
    """A scorer with visible parameters: BaseEstimator brings repr and clone."""

    def set_score_request(self, *, sample_weight):
        """Ask for sample weights where metadata is routed, as scikit-learn's scorers.

        Parameters
        ----------
        sample_weight : bool, None or str
            Whether to take weights, or the name under which they are passed.

        Returns
        -------
        self : object
        """
        if not get_config()["enable_metadata_routing"]:
            raise RuntimeError(
                "set_score_request needs metadata routing: call "
                "sklearn.set_config(enable_metadata_routing=True) first."
            )
        self._metadata_request = self._request(sample_weight)
        return self

    def get_metadata_routing(self):
        """Return what the scorer asks for."""
        return getattr(self, "_metadata_request", self._request(None))

    def _request(self, sample_weight):
        request = MetadataRequest(owner=self)
        request.score.add_request(param="sample_weight", alias=sample_weight)
        return request


class _SelectiveScorer(_Scorer):
    """Score the selective predictions at `alpha`."""

    def __init__(self, alpha=None):
        self.alpha = alpha

    def __call__(self, estimator, X, y, *, sample_weight=None):
        labels, accepted = predict_selective(
            estimator, X, alpha=self.alpha, return_mask=True
        )
        return self._score(y, labels, accepted, sample_weight)


class _CoverageScorer(_SelectiveScorer):
    def _score(self, y, labels, accepted, sample_weight):
        return coverage_score(accepted, sample_weight=sample_weight)


class _SelectiveAccuracyScorer(_SelectiveScorer):
    _metric = staticmethod(selective_accuracy_score)

    def __init__(self, alpha=None, replace_undefined_by=np.nan):
        super().__init__(alpha)
        self.replace_undefined_by = replace_undefined_by

    def _score(self, y, labels, accepted, sample_weight):
        return self._metric(
            y,
            labels,
            accepted,
            sample_weight=sample_weight,
            replace_undefined_by=self.replace_undefined_by,
        )


class _WorstConditionalAccuracyScorer(_SelectiveAccuracyScorer):
    _metric = staticmethod(worst_conditional_accuracy_score)


class _CoverageAtAccuracyScorer(_SelectiveScorer):
    def __init__(self, target=0.95, alpha=None):
        super().__init__(alpha)
        self.target = target

    def _score(self, y, labels, accepted, sample_weight):
        # Nothing accepted has coverage 0, whatever stands for its accuracy.
        worst = worst_conditional_accuracy_score(
            y, labels, accepted, sample_weight=sample_weight, replace_undefined_by=0.0
        )
        coverage = coverage_score(accepted, sample_weight=sample_weight)
        return coverage if worst >= self.target else 0.0


class _NegAurcScorer(_Scorer):
    def __call__(self, estimator, X, y, *, sample_weight=None):
        codes, confidence = predict_with_confidence(estimator, X)
        labels = np.asarray(estimator.classes_)[codes]
        return -aurc(y, labels, confidence, sample_weight=sample_weight)
