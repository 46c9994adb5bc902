"""Scorers in cross-validation and searches, on any selective classifier."""

import pickle
import warnings

import numpy as np
import pytest
from sklearn import config_context
from sklearn.base import clone
from sklearn.datasets import make_blobs
from sklearn.exceptions import UndefinedMetricWarning, UnsetMetadataPassedError
from sklearn.experimental import enable_halving_search_cv  # noqa: F401 (imported for its effect)
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import (
    GridSearchCV,
    HalvingGridSearchCV,
    RandomizedSearchCV,
    cross_val_score,
    cross_validate,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from sdm_sklearn import metrics as m

from .toys import PlainThreshold

X, CODES = make_blobs(180, centers=3, cluster_std=4.0, random_state=0)
LABELS = {
    "int": CODES,
    "signed": CODES - 1,
    "str": np.array(["a", "b", "c"])[CODES],
    "object": np.array(["a", "b", "c"], dtype=object)[CODES],
    "bool": CODES == 1,
}
SCORERS = {
    "coverage": m.coverage_scorer(alpha=0.8),
    "selective_accuracy": m.selective_accuracy_scorer(alpha=0.8),
    "worst_conditional_accuracy": m.worst_conditional_accuracy_scorer(alpha=0.8),
    "coverage_at_accuracy": m.coverage_at_accuracy_scorer(target=0.6, alpha=0.8),
    "neg_aurc": m.neg_aurc_scorer(),
}


def by_hand(model, X, y, alpha=0.8, target=0.6):
    """Score a fitted model with the metrics themselves."""
    labels, accepted = model.predict_selective(X, alpha=alpha, return_mask=True)
    worst = m.worst_conditional_accuracy_score(y, labels, accepted)
    coverage = m.coverage_score(accepted)
    proba = model.predict_proba(X)
    return {
        "coverage": coverage,
        "selective_accuracy": m.selective_accuracy_score(y, labels, accepted),
        "worst_conditional_accuracy": worst,
        "coverage_at_accuracy": coverage if worst >= target else 0.0,
        "neg_aurc": -m.aurc(y, model.predict(X), proba.max(axis=1)),
    }


@pytest.mark.parametrize("kind", LABELS)
def test_scores_are_the_metrics(kind):
    y = LABELS[kind]
    model = PlainThreshold().fit(X, y)
    want = by_hand(model, X, y)
    assert 0 < want["coverage"] < 1
    for name, scorer in SCORERS.items():
        assert scorer(model, X, y) == want[name]
        assert scorer(FrozenEstimator(model), X, y) == want[name]


def test_alpha_is_the_scorers_own_or_the_estimators():
    model = PlainThreshold(alpha=0.6).fit(X, CODES)
    coverage = {a: m.coverage_scorer(alpha=a)(model, X, CODES) for a in (0.6, 0.9)}
    assert coverage[0.6] > coverage[0.9]
    assert m.coverage_scorer()(model, X, CODES) == coverage[0.6]


def test_coverage_at_accuracy_weighs_both():
    model = PlainThreshold().fit(X, CODES)
    coverage = m.coverage_scorer(alpha=0.8)(model, X, CODES)
    worst = m.worst_conditional_accuracy_scorer(alpha=0.8)(model, X, CODES)
    for target, want in ((worst, coverage), (np.nextafter(worst, 1), 0.0)):
        scorer = m.coverage_at_accuracy_scorer(target=target, alpha=0.8)
        assert scorer(model, X, CODES) == want


def test_nothing_accepted():
    model = PlainThreshold().fit(np.zeros((9, 1)), [0, 1, 2] * 3)
    for make in (m.selective_accuracy_scorer, m.worst_conditional_accuracy_scorer):
        with pytest.warns(UndefinedMetricWarning, match="no row is accepted"):
            assert np.isnan(make(alpha=0.8)(model, [[0.0]], [1]))
        assert make(alpha=0.8, replace_undefined_by=0.0)(model, [[0.0]], [1]) == 0
    for scorer in (
        m.coverage_scorer(alpha=0.8),
        m.coverage_at_accuracy_scorer(target=0.5, alpha=0.8),
    ):
        assert scorer(model, [[0.0]], [1]) == 0


@pytest.mark.parametrize("n_jobs", [None, 2])
def test_search_over_a_pipeline_refits_on_the_weighed_score(n_jobs):
    pipe = make_pipeline(StandardScaler(), PlainThreshold())
    scoring = {
        "coverage": m.coverage_scorer(),
        "worst": m.worst_conditional_accuracy_scorer(replace_undefined_by=0.0),
        "coverage_at_accuracy": m.coverage_at_accuracy_scorer(target=0.7),
    }
    alphas = [0.51, 0.7, 0.8, 0.9, 0.99]
    search = GridSearchCV(
        pipe,
        {"plainthreshold__alpha": alphas, "plainthreshold__C": [0.1, 1.0]},
        scoring=scoring,
        refit="coverage_at_accuracy",
        cv=3,
        n_jobs=n_jobs,
        error_score="raise",
    ).fit(X, LABELS["str"])
    got = search.cv_results_["mean_test_coverage_at_accuracy"]
    assert search.best_score_ == got.max() > 0
    for fold in range(3):
        kept = search.cv_results_[f"split{fold}_test_worst"] >= 0.7
        np.testing.assert_array_equal(
            search.cv_results_[f"split{fold}_test_coverage_at_accuracy"],
            np.where(kept, search.cv_results_[f"split{fold}_test_coverage"], 0.0),
        )
    # The search itself is a selective classifier to the scorers.
    nested = cross_validate(search, X, LABELS["str"], cv=2, scoring=scoring)
    assert np.isfinite(nested["test_coverage_at_accuracy"]).all()


def test_other_searches_and_a_search_over_the_scorer():
    grid = {"alpha": [0.6, 0.8]}
    scorer = m.coverage_at_accuracy_scorer(target=0.3)
    for kind, kwargs in (
        (RandomizedSearchCV, {"n_iter": 2}),
        (HalvingGridSearchCV, {"min_resources": 60}),
    ):
        search = kind(
            PlainThreshold(), grid, scoring=scorer, cv=2, random_state=0, **kwargs
        )
        assert search.fit(X, CODES).best_score_ > 0
    inner = GridSearchCV(PlainThreshold(), grid, scoring=scorer, cv=2)
    outer = GridSearchCV(inner, {"scoring__target": [0.5, 1.0]}, cv=2)
    assert set(outer.fit(X, CODES).best_params_) == {"scoring__target"}


def test_neg_aurc_takes_any_probabilistic_classifier():
    y = LABELS["str"]
    scores = cross_val_score(
        make_pipeline(StandardScaler(), LogisticRegression()),
        X,
        y,
        scoring=m.neg_aurc_scorer(),
    )
    assert (scores < 0).all()
    assert (scores > -1).all()


@pytest.mark.parametrize("name", SCORERS)
def test_pickle_clone_repr(name):
    scorer = SCORERS[name]
    model = PlainThreshold().fit(X, CODES)
    want = scorer(model, X, CODES)
    for twin in (pickle.loads(pickle.dumps(scorer)), clone(scorer)):
        assert twin(model, X, CODES) == want
        assert repr(twin) == repr(scorer)
    if "alpha" in scorer.get_params():
        assert "alpha=0.8" in repr(scorer)


@pytest.mark.parametrize("name", SCORERS)
def test_sample_weight(name):
    model = PlainThreshold().fit(X, CODES)
    w = np.arange(len(X)) % 4
    scorer = SCORERS[name]
    got = scorer(model, X, CODES, sample_weight=w)
    repeated = scorer(model, np.repeat(X, w, axis=0), np.repeat(CODES, w))
    assert got == pytest.approx(repeated)


def test_sample_weight_is_routed_when_asked_for():
    w = np.where(CODES == 0, 5.0, 1.0)
    with config_context(enable_metadata_routing=True):
        scorers = {
            "weighted": m.coverage_scorer(0.8).set_score_request(sample_weight=True),
            "plain": m.coverage_scorer(0.8).set_score_request(sample_weight=False),
        }
        model = PlainThreshold().set_fit_request(sample_weight=False)
        search = GridSearchCV(
            model, {"C": [1.0]}, scoring=scorers, refit=False, cv=2
        ).fit(X, CODES, sample_weight=w)
        results = search.cv_results_
        assert results["mean_test_weighted"] != results["mean_test_plain"]
        single = GridSearchCV(model, {"C": [1.0]}, scoring=scorers["weighted"], cv=2)
        single.fit(X, CODES, sample_weight=w)
        assert single.best_score_ == results["mean_test_weighted"][0]
        unasked = GridSearchCV(
            model, {"C": [1.0]}, scoring=m.coverage_scorer(0.8), cv=2
        )
        with pytest.raises(UnsetMetadataPassedError):
            unasked.fit(X, CODES, sample_weight=w)
        renamed = m.coverage_scorer(0.8).set_score_request(sample_weight="w")
        got = cross_validate(
            model, X, CODES, scoring=clone(renamed), params={"w": w}, cv=2
        )
        assert got["test_score"].mean() == single.best_score_
    with pytest.raises(RuntimeError, match="needs metadata routing"):
        m.coverage_scorer().set_score_request(sample_weight=True)


@pytest.mark.parametrize(
    "make",
    [
        m.coverage_scorer,
        m.selective_accuracy_scorer,
        m.worst_conditional_accuracy_scorer,
        lambda alpha: m.coverage_at_accuracy_scorer(alpha=alpha),
    ],
)
def test_alpha_is_refused_at_once(make):
    with pytest.raises(ValueError, match="alpha is not an error rate"):
        make(0.05)


def test_other_refusals():
    with pytest.raises(ValueError, match="'target'"):
        m.coverage_at_accuracy_scorer(target=95)
    with pytest.raises(ValueError, match="'replace_undefined_by'"):
        m.selective_accuracy_scorer(replace_undefined_by="zero")
    ordinary = LogisticRegression().fit(X, CODES)
    with pytest.raises(TypeError, match="has no predict_selective"):
        m.coverage_scorer()(ordinary, X, CODES)


def test_no_warning_in_a_search_that_replaces():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cross_validate(
            PlainThreshold(),
            np.zeros((30, 1)),
            [0, 1, 2] * 10,
            scoring=m.selective_accuracy_scorer(0.9, replace_undefined_by=0.0),
        )
