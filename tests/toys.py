"""A small selective classifier to test what takes any selective classifier."""

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.linear_model import LogisticRegression
from sklearn.utils.validation import check_is_fitted, validate_data

from sdm_sklearn._selective import SelectiveClassifierMixin, resolve_reject_label


class PlainThreshold(SelectiveClassifierMixin, ClassifierMixin, BaseEstimator):
    """Accept where a logistic regression's largest probability reaches alpha."""

    def __init__(self, alpha=0.95, C=1.0, reject_label="auto"):
        self.alpha = alpha
        self.C = C
        self.reject_label = reject_label

    def fit(self, X, y, sample_weight=None):
        X, y = validate_data(self, X, y)
        self.model_ = LogisticRegression(C=self.C).fit(X, y, sample_weight)
        self.classes_ = self.model_.classes_
        self.reject_label_ = resolve_reject_label(self.reject_label, self.classes_)
        return self

    def predict_proba(self, X):
        check_is_fitted(self)
        return self.model_.predict_proba(validate_data(self, X, reset=False))

    def predict(self, X):
        return self.classes_[self.predict_proba(X).argmax(axis=1)]

    def _decide(self, X, alpha):
        probability = self.predict_proba(X)
        accepted = probability.max(axis=1) >= (self.alpha if alpha is None else alpha)
        return probability.argmax(axis=1), np.asarray(accepted)
