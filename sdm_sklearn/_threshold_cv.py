"""Choose and check alpha by cross-validation, for any probabilistic classifier."""

import warnings
from numbers import Integral, Real
from typing import ClassVar

import numpy as np
from sklearn.base import (
    BaseEstimator,
    ClassifierMixin,
    MetaEstimatorMixin,
    _fit_context,
    clone,
)
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import check_cv
from sklearn.utils import assert_all_finite, get_tags, indexable
from sklearn.utils._param_validation import HasMethods, Interval, StrOptions
from sklearn.utils.metadata_routing import (
    MetadataRouter,
    MethodMapping,
    _raise_for_params,
    process_routing,
)
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    check_is_fitted,
    column_or_1d,
)

from . import _validation
from ._cross_fit import check_final_classes, cross_fit, predict_with_confidence
from ._region import NoRegionWarning
from ._selective import (
    SelectiveClassifierMixin,
    alpha_parameter,
    check_alpha,
    resolve_reject_label,
    stack_level,
    unwrap,
)
from ._state import all_or_nothing
from ._threshold_rules import (
    class_thresholds,
    cross_fitted_masks,
    recommend,
    tabulate,
)
from .metrics._checks import check_classes, check_labels

DEFAULT_ALPHAS = (
    *(0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9),
    *(0.91, 0.92, 0.93, 0.94, 0.95, 0.96, 0.97, 0.98, 0.99, 0.995),
)
CONDITIONS = {
    "both": "worst_conditional_accuracy",
    "class": "worst_class_conditional_accuracy",
    "prediction": "worst_prediction_conditional_accuracy",
    "marginal": "selective_accuracy",
}


def _inner_has(method):
    def check(self):
        getattr(getattr(self, "estimator_", self.estimator), method)
        return True

    return check


class SelectiveThresholdCV(
    SelectiveClassifierMixin, ClassifierMixin, MetaEstimatorMixin, BaseEstimator
):
    """Choose the alpha that keeps an accuracy, by cross-validation without refits.

    The classifier is cross-fitted once. Its out-of-fold predictions are then judged at
    every alpha of a grid: coverage, and the worst class- and prediction-conditional
    accuracy with confidence intervals. The alpha with the most coverage that keeps the
    accuracy asked for is recommended and used by `predict_selective`.

    A selective classifier such as :class:`SDMClassifier`, bare or at the end of a
    Pipeline, accepts by its own rule at each alpha. Any other classifier with
    `predict_proba` is made selective: a prediction of class c stands if its
    probability reaches a threshold of that class, the lowest above which the
    out-of-fold rows predicted as c hold alpha. In the table each fold is judged by
    thresholds from the other folds, so that no row judges a threshold it has set.

    Read more in the :ref:`User Guide <choosing_alpha>`.

    .. versionadded:: 0.1

    Parameters
    ----------
    estimator : estimator
        A classifier with `predict_proba`, selective itself or not.

    alpha : float, default=0.95
        Accuracy to keep among the accepted rows, strictly between 1/2 and 1. A
        selective estimator's own `alpha` is not used.

    alphas : array-like of shape (n_alphas,), default=None
        The grid of alphas at which the estimator is judged, each strictly between 1/2
        and 1. None stands for 18 values from 0.55 to 0.995, and `alpha`.

    condition : {"both", "class", "prediction", "marginal"}, default="both"
        Which accuracies must reach `alpha`: those of every true class, of every
        predicted class, both, or the accuracy of all accepted rows together. With
        many classes of few rows the first three cannot be told from noise.

    criterion : {"estimate", "lower_bound"}, default="estimate"
        What must reach `alpha`: the worst out-of-fold accuracy, or the lower end of
        its confidence interval. The second is safer and needs more rows: with m
        accuracies and no error at all, ``ln(2 m / (1 - confidence_level)) /
        -ln(alpha)`` accepted rows for each.

    confidence_level : float, default=0.95
        Level of the intervals, strictly between 0 and 1. They take rows for independent
        draws: several of one patient or document make them too narrow.

    cv : int, cross-validation generator or iterable, default=None
        Splitting strategy, as in :func:`~sklearn.model_selection.cross_val_predict`;
        None stands for 5 stratified folds. No row may be held out twice.

    refit : bool, default=True
        Whether to fit the estimator on all rows, to predict with. Without, the table
        costs about what `cross_val_predict` does.

    n_jobs : int, default=None
        Number of folds fitted in parallel.

    reject_label : "auto", scalar or None, default="auto"
        Marks a rejection. `"auto"` is "rejected" for string classes, else the smaller
        of -1 and the smallest class minus 1.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        The class labels.

    cv_results_ : dict of ndarray
        One row per alpha of the grid; can be given to `pandas.DataFrame` but for the
        entries with one column per class. Keys: `alpha`, `coverage`,
        `selective_accuracy`, `worst_class_conditional_accuracy`,
        `worst_prediction_conditional_accuracy`, `worst_conditional_accuracy` (each of
        the four accuracies also with `_lower` and `_upper`), and of shape (n_alphas,
        n_classes) `class_conditional_accuracy` and `prediction_conditional_accuracy`,
        `accepted_of_class` and `accepted_as_class`, the rows they rest on, and for a
        classifier that is not selective itself `threshold`, inf for a class that is
        never answered. Where nothing is accepted an accuracy is NaN.

    best_alpha_ : float
        The recommended alpha of the grid, NaN if none keeps `alpha`.

    thresholds_ : ndarray of shape (n_classes,)
        Lowest probability at which a prediction of each class stands. Only for an
        estimator that is not selective itself.

    estimator_ : estimator
        Fitted on all rows, a selective classifier with `best_alpha_` as its `alpha`.
        Only if `refit=True`.

    reject_label_ : scalar or None
        The label of a rejected row.

    n_features_in_ : int
        Number of features seen during `fit`, if the estimator tells.

    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of features seen during `fit`, if the estimator tells.

    See Also
    --------
    SDMClassifier : A classifier that knows what it may accept.
    sklearn.model_selection.TunedThresholdClassifierCV : Tunes the cut-off of a binary
        classifier that must always answer.

    Notes
    -----
    The table counts rows without weights; weights given to `fit` (with metadata
    routing) reach the estimator alone. Choosing the best of a grid favours luck a
    little: with few rows per class use ``criterion="lower_bound"``.

    The `alpha` of a selective estimator is set here: to the lowest of the grid while
    the grid is judged, and to `best_alpha_` in the end.

    References
    ----------
    .. [1] C. J. Clopper and E. S. Pearson, "The Use of Confidence or Fiducial Limits
       Illustrated in the Case of the Binomial", Biometrika 26, 1934.

    Examples
    --------
    >>> from sdm_sklearn import SelectiveThresholdCV
    >>> from sklearn.datasets import make_blobs
    >>> from sklearn.linear_model import LogisticRegression
    >>> X, y = make_blobs(3000, centers=3, cluster_std=1.5, random_state=0)
    >>> clf = SelectiveThresholdCV(LogisticRegression(), alpha=0.9).fit(X, y)
    >>> clf.best_alpha_
    0.95
    >>> labels, accepted = clf.predict_selective(X, return_mask=True)
    >>> float(accepted.mean()), float((labels == y)[accepted].mean())
    (0.4..., 0.9...)
    >>> clf.recommend_alpha(0.8)
    0.9
    """

    _parameter_constraints: ClassVar[dict] = {
        "estimator": [HasMethods(["fit", "predict_proba"])],
        "alpha": "no_validation",  # check_alpha explains what is wrong with it
        "alphas": ["array-like", None],
        "condition": [StrOptions(set(CONDITIONS))],
        "criterion": [StrOptions({"estimate", "lower_bound"})],
        "confidence_level": [Interval(Real, 0, 1, closed="neither")],
        "cv": ["cv_object"],
        "refit": ["boolean"],
        "n_jobs": [Integral, None],
        "reject_label": "no_validation",
    }

    def __init__(
        self,
        estimator,
        *,
        alpha=0.95,
        alphas=None,
        condition="both",
        criterion="estimate",
        confidence_level=0.95,
        cv=None,
        refit=True,
        n_jobs=None,
        reject_label="auto",
    ):
        self.estimator = estimator
        self.alpha = alpha
        self.alphas = alphas
        self.condition = condition
        self.criterion = criterion
        self.confidence_level = confidence_level
        self.cv = cv
        self.refit = refit
        self.n_jobs = n_jobs
        self.reject_label = reject_label

    @_fit_context(prefer_skip_nested_validation=False)
    def fit(self, X, y, **params):
        """Cross-fit the estimator, judge every alpha and choose one.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Training data, as the estimator takes it.

        y : array-like of shape (n_samples,)
            Class labels.

        **params : dict
            Metadata for the estimator's `fit` and for the splitter, such as `groups`.
            Only with metadata routing enabled.

        Returns
        -------
        self : object
            The fitted meta-estimator.

        Raises
        ------
        ValueError
            If an alpha is not strictly between 1/2 and 1, `y` holds no classes or one
            class alone, a fitted estimator has other classes, or `cv` holds a row out
            twice or nothing.
        """
        _raise_for_params(params, self, None)
        with all_or_nothing(self, ("_held_out", "_accepts_itself")):
            return self._fit(X, y, params)

    def _fit(self, X, y, params):
        alpha, alphas = check_alpha(self.alpha), self._check_alphas()
        X, y = indexable(X, y)
        y = column_or_1d(_validation.checked_labels(y), warn=True)
        assert_all_finite(y, input_name="y")
        if y.dtype == object:
            check_classes(check_labels(y, "y"))
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) == 0:
            raise ValueError("Found array with 0 samples: X and y must hold rows.")
        if len(self.classes_) < 2:
            raise ValueError(
                f"y holds one class only, {self.classes_.tolist()[0]!r}: nothing can "
                "be told apart. At least 2 classes are needed."
            )
        self.reject_label_ = resolve_reject_label(self.reject_label, self.classes_)
        routed = process_routing(self, "fit", **params)
        # The estimator's own alpha decides nothing here. At the lowest of the grid a
        # fold without a region is worth a warning.
        name = alpha_parameter(self.estimator)
        lowest = {} if name is None else {name: float(alphas[0])}
        splits = check_cv(self.cv, y=y, classifier=True).split(
            X, y, **routed.splitter.split
        )
        held_out = cross_fit(
            _with_parameters(self.estimator, lowest),
            X,
            y,
            list(splits),
            alphas,
            routed.estimator.fit,
            self.n_jobs,
        )
        self._judge(held_out, codes, alphas)
        self.best_alpha_ = self.recommend_alpha(alpha)
        if np.isnan(self.best_alpha_):
            self._warn_unattainable(alpha)
        if not self._accepts_itself:
            self.thresholds_ = self._thresholds_at(self.best_alpha_)
        if self.refit:
            final = lowest
            if name is not None and not np.isnan(self.best_alpha_):
                final = {name: float(self.best_alpha_)}
            self.estimator_ = _with_parameters(self.estimator, final)
            self.estimator_.fit(X, y, **routed.estimator.fit)
            check_final_classes(self.estimator_, self.classes_)
            for name in ("n_features_in_", "feature_names_in_"):
                if hasattr(self.estimator_, name):
                    setattr(self, name, getattr(self.estimator_, name))
        return self

    def recommend_alpha(self, target=None):
        """Return the alpha with the most coverage that keeps an accuracy.

        Parameters
        ----------
        target : float, default=None
            Accuracy to keep, strictly between 1/2 and 1. None stands for `alpha`.

        Returns
        -------
        alpha : float
            An alpha of the grid, NaN if none keeps the target by `criterion`.

        Raises
        ------
        ValueError
            If `target` is not strictly between 1/2 and 1.
        """
        check_is_fitted(self, "cv_results_")
        target = check_alpha(self.alpha if target is None else target)
        column = self._deciding_column()
        return recommend(self.cv_results_, column, target, self._answers_every_class())

    def predict(self, X):
        """Predict labels as the estimator does; never rejects.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Input rows.

        Returns
        -------
        labels : ndarray of shape (n_samples,)
            The predicted classes.
        """
        self._check_refitted()
        return self.estimator_.predict(X)

    @available_if(_inner_has("predict_proba"))
    def predict_proba(self, X):
        """Predict the probabilities of the estimator fitted on all rows.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Input rows.

        Returns
        -------
        probabilities : ndarray of shape (n_samples, n_classes)
            In the order of `classes_`.
        """
        self._check_refitted()
        return self.estimator_.predict_proba(X)

    @available_if(_inner_has("decision_function"))
    def decision_function(self, X):
        """Compute the decision function of the estimator fitted on all rows.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Input rows.

        Returns
        -------
        decisions : ndarray of shape (n_samples,) or (n_samples, n_classes)
            As the estimator returns them.
        """
        self._check_refitted()
        return self.estimator_.decision_function(X)

    def _decide(self, X, alpha):
        if alpha is not None and np.isnan(self._choose(alpha)):
            self._warn_unattainable(alpha)
        codes, accepted = self._decide_at(X, [alpha])
        return codes, accepted[0]

    def _decide_at(self, X, alphas):
        self._check_refitted()
        chosen = np.array([self._choose(alpha) for alpha in alphas])
        if not self._accepts_itself:
            codes, confidence = predict_with_confidence(self.estimator_, X)
            thresholds = np.array([self._thresholds_at(alpha) for alpha in chosen])
            return codes, confidence >= thresholds[:, codes]
        classifier, inner_X = unwrap(self.estimator_, X)
        # Where no alpha keeps the accuracy any one serves to predict, none to accept.
        kept = ~np.isnan(chosen)
        asked = np.where(kept, chosen, self.cv_results_["alpha"][-1])
        codes, accepted = classifier._decide_at(inner_X, asked)
        return codes, accepted & kept[:, np.newaxis]

    def _choose(self, alpha):
        return self.best_alpha_ if alpha is None else self.recommend_alpha(alpha)

    def get_metadata_routing(self):
        """Get metadata routing of this object.

        Returns
        -------
        routing : MetadataRouter
            Sends metadata of `fit` to the estimator's `fit` and the splitter's
            `split`.
        """
        return (
            MetadataRouter(owner=self)
            .add(
                estimator=self.estimator,
                method_mapping=MethodMapping().add(caller="fit", callee="fit"),
            )
            .add(
                splitter=self.cv,
                method_mapping=MethodMapping().add(caller="fit", callee="split"),
            )
        )

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        inner = get_tags(self.estimator)
        tags.input_tags = inner.input_tags
        tags.classifier_tags = inner.classifier_tags
        return tags

    def _check_refitted(self):
        check_is_fitted(self, "cv_results_")
        if not hasattr(self, "estimator_"):
            raise NotFittedError(
                "This SelectiveThresholdCV was fitted with refit=False and holds no "
                "estimator to predict with: pass refit=True."
            )

    def _check_alphas(self):
        """Return the grid, sorted and without duplicates."""
        if self.alphas is None:
            return np.unique([*DEFAULT_ALPHAS, check_alpha(self.alpha)])
        alphas = np.asarray(self.alphas)
        if alphas.ndim != 1 or len(alphas) == 0:
            raise ValueError(
                "alphas must be a 1-D array of at least one accuracy. Got the shape "
                f"{alphas.shape}."
            )
        return np.unique([check_alpha(value) for value in alphas.tolist()])

    def _judge(self, held_out, codes, alphas):
        """Fill the table; keep what sets the thresholds at any alpha."""
        y, n_classes = codes[held_out.rows], len(self.classes_)
        self._accepts_itself = held_out.accepted is not None
        accepted = held_out.accepted
        if not self._accepts_itself:
            self._held_out = (
                held_out.codes,
                held_out.confidence,
                held_out.codes == y,
            )
            accepted = cross_fitted_masks(
                *self._held_out, held_out.fold, n_classes, alphas
            )
        self.cv_results_ = tabulate(
            alphas, y, held_out.codes, accepted, n_classes, self.confidence_level
        )
        if not self._accepts_itself:
            self.cv_results_["threshold"] = class_thresholds(
                *self._held_out, n_classes, alphas
            )

    def _answers_every_class(self):
        """Tell at which alphas a condition on classes can hold on new rows.

        A class that is never answered is answered wrongly wherever one of its rows is
        accepted, even if no row held out was.
        """
        if self._accepts_itself or self.condition not in ("both", "class"):
            return True
        return np.isfinite(self.cv_results_["threshold"]).all(axis=1)

    def _thresholds_at(self, alpha):
        """Return the thresholds of a classifier that is not selective itself."""
        n_classes = len(self.classes_)
        if np.isnan(alpha):
            return np.full(n_classes, np.inf)
        return class_thresholds(*self._held_out, n_classes, [alpha])[0]

    def _deciding_column(self):
        bound = "_lower" if self.criterion == "lower_bound" else ""
        return CONDITIONS[self.condition] + bound

    def _warn_unattainable(self, alpha):
        column = self._deciding_column()
        reached = self.cv_results_[column]
        best = "nothing is accepted at any alpha"
        if not np.isnan(reached).all():
            best = f"at best it is {np.nanmax(reached):.3f}"
        if not np.any(self._answers_every_class()):
            never = ~np.isfinite(self.cv_results_["threshold"]).any(axis=0)
            best += f"; never answered: {self.classes_[never].tolist()}"
        warnings.warn(
            f"No alpha of the grid keeps the out-of-fold {column} at {alpha:g} "
            f"({best}): every row will be rejected. See what is attainable in "
            "cv_results_; lower alpha, extend the grid alphas, choose a milder "
            "condition or criterion, or give more rows per class.",
            NoRegionWarning,
            stacklevel=stack_level(),
        )


def _with_parameters(estimator, parameters):
    """Return a clone with other parameters; a frozen estimator takes none."""
    estimator = clone(estimator)
    return estimator.set_params(**parameters) if parameters else estimator
