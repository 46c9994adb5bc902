"""Alpha by cross-validation: the rules by definition, the tool on any classifier."""

import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest
from sklearn import config_context
from sklearn.base import clone
from sklearn.datasets import make_blobs
from sklearn.dummy import DummyClassifier
from sklearn.exceptions import NotFittedError, UndefinedMetricWarning
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.model_selection import (
    FixedThresholdClassifier,
    GridSearchCV,
    GroupKFold,
    KFold,
    PredefinedSplit,
    RepeatedStratifiedKFold,
    StratifiedKFold,
    cross_val_predict,
)
from sklearn.naive_bayes import MultinomialNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import sdm_sklearn
from sdm_sklearn import SDMClassifier, SelectiveThresholdCV
from sdm_sklearn import metrics as m
from sdm_sklearn._region import NoRegionWarning
from sdm_sklearn._selective import alpha_parameter
from sdm_sklearn._threshold_rules import (
    class_thresholds,
    cross_fitted_masks,
    recommend,
    smallest_accuracy,
    tabulate,
)

from .toys import PlainThreshold

quick = settings(deadline=None, max_examples=50)

X, CODES = make_blobs(600, centers=3, cluster_std=1.2, random_state=0)
LABELS = {
    "int": CODES,
    "signed": np.where(CODES > 0, 1, -1),
    "unsigned": CODES.astype(np.uint8),
    "bool": CODES > 0,
    "str": np.array(["a", "b", "c"])[CODES],
    "object": np.array(["a", "b", "c"], dtype=object)[CODES],
}


# -------------------------------------------------------------------------- rules
@st.composite
def predictions(draw):
    n = draw(st.integers(1, 40))

    def lists(values):
        return np.array(draw(st.lists(values, min_size=n, max_size=n)))

    confidence = lists(st.sampled_from([0.4, 0.5, 0.6, 0.9, 1.0]))
    return lists(st.integers(0, 2)), confidence, lists(st.booleans())


def brute_threshold(confidence, hits, alpha):
    """Try every confidence; 100 times the rule, in whole numbers."""
    lost, best = round((1 - alpha) * 100), np.inf
    for t in confidence:
        n, wrong = (confidence >= t).sum(), (~hits[confidence >= t]).sum()
        if wrong < lost * (n + 1) // 100:
            best = min(best, t)
    return best


@quick
@given(predictions(), predictions())
def test_class_thresholds_by_definition(case, more):
    codes, confidence, hits = (np.append(a, b) for a, b in zip(case, more, strict=True))
    alphas = [0.55, 0.8, 0.95]
    got = class_thresholds(codes, confidence, hits, 4, alphas)
    for row, alpha in zip(got, alphas, strict=True):
        want = [
            brute_threshold(confidence[codes == c], hits[codes == c], alpha)
            for c in range(4)
        ]
        np.testing.assert_array_equal(row, want)
    assert (got[1:] >= got[:-1]).all()


@quick
@given(predictions(), st.integers(0, 5))
def test_cross_fitted_masks_by_definition(case, seed):
    codes, confidence, hits = case
    fold = np.random.default_rng(seed).integers(0, 3, len(codes))
    got = cross_fitted_masks(codes, confidence, hits, fold, 3, [0.55, 0.7])
    for mask, alpha in zip(got, (0.55, 0.7), strict=True):
        for i, code in enumerate(codes):
            rest = (fold != fold[i]) & (codes == code)
            threshold = brute_threshold(confidence[rest], hits[rest], alpha)
            assert mask[i] == (confidence[i] >= threshold)


@pytest.mark.parametrize("level", [0.5, 0.95])
def test_intervals_are_clopper_pearson(level):
    cases = [(0, 5), (3, 5), (5, 5), (0, 0), (199, 200)]
    for right, n in cases:
        accuracy, lower, upper = smallest_accuracy(
            np.array([[n]]), np.array([[right]]), level
        )
        if n == 0:
            assert np.isnan([accuracy, lower, upper]).all()
            continue
        want = binomtest(right, n).proportion_ci(level, method="exact")
        assert accuracy == right / n
        np.testing.assert_allclose([lower[0], upper[0]], [want.low, want.high])
    n, right = np.array([[5, 0, 200]]), np.array([[3, 0, 199]])
    accuracy, lower, upper = smallest_accuracy(n, right, level)
    shared = 1 - (1 - level) / 2  # two groups have rows
    want = [
        binomtest(k, size).proportion_ci(shared, method="exact")
        for k, size in ((3, 5), (199, 200))
    ]
    assert accuracy == 3 / 5
    np.testing.assert_allclose(lower, min(w.low for w in want))
    np.testing.assert_allclose(upper, min(w.high for w in want))


def test_the_interval_covers_the_worst():
    rng = np.random.default_rng(0)
    truth = np.array([0.9, 0.92, 0.99])
    n = np.full((2000, 3), 60)
    _, lower, upper = smallest_accuracy(n, rng.binomial(n, truth), 0.9)
    assert ((lower <= 0.9) & (upper >= 0.9)).mean() >= 0.9


@quick
@given(predictions(), st.integers(0, 9))
def test_table_is_what_the_metrics_say(case, seed):
    codes, _, hits = case
    y = np.where(hits, codes, (codes + 1) % 3)
    accepted = np.random.default_rng(seed).random((2, len(y))) < 0.5
    table = tabulate(np.array([0.6, 0.9]), y, codes, accepted, 3, 0.9)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UndefinedMetricWarning)
        for i, mask in enumerate(accepted):
            args = y, codes, mask
            worst = m.worst_conditional_accuracy_score
            want = {
                "coverage": m.coverage_score(mask),
                "selective_accuracy": m.selective_accuracy_score(*args),
                "worst_conditional_accuracy": worst(*args),
                "worst_class_conditional_accuracy": worst(*args, condition="class"),
                "worst_prediction_conditional_accuracy": worst(
                    *args, condition="prediction"
                ),
                "class_conditional_accuracy": m.class_conditional_accuracy_score(
                    *args, labels=range(3)
                ),
                "prediction_conditional_accuracy": (
                    m.prediction_conditional_accuracy_score(*args, labels=range(3))
                ),
            }
            for name, value in want.items():
                np.testing.assert_allclose(table[name][i], value, err_msg=name)


def test_recommend_takes_the_most_coverage():
    table = {
        "alpha": np.array([0.6, 0.7, 0.8, 0.9]),
        "coverage": np.array([0.9, 0.5, 0.5, 0.1]),
        "worst": np.array([0.8, 0.95, 0.95, np.nan]),
    }
    assert recommend(table, "worst", 0.75) == 0.6
    assert recommend(table, "worst", 0.95) == 0.8
    assert np.isnan(recommend(table, "worst", 0.96))


# ------------------------------------------------------------------------ the tool
@parametrize_with_checks([SelectiveThresholdCV(LogisticRegression(), cv=3)])
def test_sklearn_checks(estimator, check):
    with warnings.catch_warnings():
        # The data of many checks has no accuracy to keep.
        warnings.simplefilter("ignore", NoRegionWarning)
        check(estimator)


def test_table_of_an_ordinary_classifier_by_definition():
    cv = StratifiedKFold(4, shuffle=True, random_state=0)
    tool = SelectiveThresholdCV(LogisticRegression(), alpha=0.85, cv=cv).fit(X, CODES)
    proba = cross_val_predict(
        LogisticRegression(), X, CODES, cv=cv, method="predict_proba"
    )
    codes, confidence = proba.argmax(axis=1), proba.max(axis=1)
    hits = codes == CODES
    for i, alpha in enumerate(tool.cv_results_["alpha"]):
        accepted = np.zeros(len(X), dtype=bool)
        for train, test in cv.split(X, CODES):
            rows = codes[train], confidence[train], hits[train]
            thresholds = class_thresholds(*rows, 3, [alpha])[0]
            accepted[test] = confidence[test] >= thresholds[codes[test]]
        assert tool.cv_results_["coverage"][i] == accepted.mean()
    assert 0.85 in tool.cv_results_["alpha"]
    want = class_thresholds(codes, confidence, hits, 3, [tool.best_alpha_])[0]
    np.testing.assert_array_equal(tool.thresholds_, want)
    labels, mask = tool.predict_selective(X, return_mask=True)
    proba = LogisticRegression().fit(X, CODES).predict_proba(X)
    np.testing.assert_array_equal(mask, proba.max(axis=1) >= want[proba.argmax(axis=1)])
    np.testing.assert_array_equal(labels, np.where(mask, proba.argmax(axis=1), -1))


@pytest.mark.parametrize("kind", LABELS)
def test_labels_of_any_kind(kind):
    y = LABELS[kind]
    tool = SelectiveThresholdCV(LogisticRegression(), alpha=0.8, cv=3).fit(X, y)
    labels, accepted = tool.predict_selective(X, return_mask=True)
    assert 0 < accepted.mean() < 1
    assert (labels[~accepted] == tool.reject_label_).all()
    assert (labels[accepted] == tool.predict(X)[accepted]).all()
    assert tool.reject_label_ not in set(y.tolist())


def test_pandas_and_one_column_y():
    frame, y = pd.DataFrame(X, columns=["u", "v"]), pd.Series(LABELS["str"])
    tool = SelectiveThresholdCV(LogisticRegression(), alpha=0.8).fit(frame, y)
    assert list(tool.feature_names_in_) == ["u", "v"]
    table = pd.DataFrame(
        {name: column for name, column in tool.cv_results_.items() if column.ndim == 1}
    )
    assert all(dtype.kind == "f" for dtype in table.dtypes)


def test_alpha_at_predict_is_that_of_a_new_fit():
    tool = SelectiveThresholdCV(LogisticRegression(), alpha=0.8).fit(X, CODES)
    grid = tool.cv_results_["alpha"]
    for alpha in (0.7, 0.85):
        other = SelectiveThresholdCV(LogisticRegression(), alpha=alpha, alphas=grid)
        want = other.fit(X, CODES).predict_selective(X)
        np.testing.assert_array_equal(tool.predict_selective(X, alpha=alpha), want)
        assert tool.recommend_alpha(alpha) == other.best_alpha_


def test_a_selective_classifier_accepts_by_its_own_rule():
    cv = KFold(3)
    pipe = make_pipeline(StandardScaler(), PlainThreshold())
    alphas = [0.6, 0.8, 0.9]
    tool = SelectiveThresholdCV(pipe, alpha=0.8, alphas=alphas, cv=cv).fit(X, CODES)
    for i, alpha in enumerate(alphas):
        labels = np.empty(len(X), dtype=int)
        for train, test in cv.split(X):
            fitted = clone(pipe).fit(X[train], CODES[train])
            labels[test] = sdm_sklearn.predict_selective(fitted, X[test], alpha=alpha)
        assert tool.cv_results_["coverage"][i] == (labels >= 0).mean()
        worst = m.worst_conditional_accuracy_score(CODES, labels, labels >= 0)
        assert tool.cv_results_["worst_conditional_accuracy"][i] == worst
    assert not hasattr(tool, "thresholds_")
    got = tool.predict_selective(X)
    want = sdm_sklearn.predict_selective(tool.estimator_, X, alpha=tool.best_alpha_)
    np.testing.assert_array_equal(got, want)


def test_sdm_classifier_in_a_pipeline():
    X_wide, y = make_blobs(400, centers=2, n_features=8, random_state=0)
    y = np.array(["no", "yes"])[y]
    sdm = SDMClassifier(0.8, n_filters=8, max_epochs=20, random_state=0)
    pipe = make_pipeline(StandardScaler(), sdm)
    tool = SelectiveThresholdCV(pipe, alpha=0.9, alphas=[0.7, 0.8], cv=2)
    tool.fit(X_wide, y)
    for i, alpha in enumerate((0.7, 0.8)):
        masks = []
        for train, test in StratifiedKFold(2).split(X_wide, y):
            fitted = clone(pipe).fit(X_wide[train], y[train])
            masks.append(
                sdm_sklearn.predict_selective(
                    fitted, X_wide[test], alpha=alpha, return_mask=True
                )[1]
            )
        assert tool.cv_results_["coverage"][i] == np.concatenate(masks).mean()
    labels, accepted = tool.predict_selective(X_wide, return_mask=True)
    assert set(labels[~accepted]) <= {"rejected"}
    assert (labels[accepted] == y[accepted]).mean() > 0.9


def test_ordinary_pipelines_transform_the_rows_once():
    calls = []

    def count(X):
        calls.append(len(X))
        return X

    pipe = make_pipeline(FunctionTransformer(count), LogisticRegression())
    SelectiveThresholdCV(pipe, alpha=0.8, cv=3, refit=False).fit(X, CODES)
    assert calls == [400, 200] * 3


def test_lists_of_texts():
    texts = ["good film", "bad film", "good plot", "bad plot"] * 20
    y = ["pos", "neg"] * 40
    tool = SelectiveThresholdCV(make_pipeline(CountVectorizer(), MultinomialNB()))
    got = tool.fit(texts, y).predict_selective(["good good", "bad bad"])
    assert got.tolist() == ["pos", "neg"]


def test_a_fold_without_a_class_maps_its_codes():
    # Fold 0 holds class 0 out whole, so that its codes are those of classes 1 and 2.
    folds = np.where(CODES == 0, 0, 1 + np.arange(len(X)) % 2)
    cv = PredefinedSplit(folds)
    tool = SelectiveThresholdCV(LogisticRegression(), cv=cv, refit=False)
    with pytest.warns(NoRegionWarning):
        tool.fit(X, LABELS["str"])
    rest = LogisticRegression().fit(X[CODES > 0], CODES[CODES > 0])
    codes = tool._held_out[0][: (CODES == 0).sum()]
    np.testing.assert_array_equal(codes, rest.predict(X[CODES == 0]))


def test_frozen_estimator_is_judged_on_rows_it_has_not_seen():
    model = LogisticRegression().fit(X[:300], CODES[:300])
    tool = SelectiveThresholdCV(FrozenEstimator(model), alpha=0.8)
    tool.fit(X[300:], CODES[300:])
    np.testing.assert_array_equal(tool.predict(X), model.predict(X))
    assert tool.thresholds_.max() < np.inf


@pytest.mark.parametrize("estimator", [LogisticRegression(), PlainThreshold()])
def test_n_jobs_pickle_clone(estimator):
    tool = SelectiveThresholdCV(estimator, alpha=0.8, cv=3)
    want = tool.fit(X, LABELS["str"]).predict_selective(X)
    parallel = clone(tool).set_params(n_jobs=2).fit(X, LABELS["str"])
    for name, column in tool.cv_results_.items():
        np.testing.assert_array_equal(parallel.cv_results_[name], column)
    twin = pickle.loads(pickle.dumps(tool))
    np.testing.assert_array_equal(twin.predict_selective(X), want)


@pytest.mark.filterwarnings("ignore:No alpha of the grid")
@pytest.mark.parametrize("estimator", [LogisticRegression(), PlainThreshold()])
def test_many_alphas_at_once_are_each_alone(estimator):
    tool = SelectiveThresholdCV(estimator, alpha=0.8, alphas=[0.6, 0.8, 0.9], cv=3)
    tool.fit(X, CODES)
    alphas = [0.6, 0.8, None, 0.999]  # no alpha keeps the last
    codes, accepted = tool._decide_at(X, alphas)
    for mask, alpha in zip(accepted, alphas, strict=True):
        labels, want = tool.predict_selective(X, alpha=alpha, return_mask=True)
        np.testing.assert_array_equal(mask, want)
        np.testing.assert_array_equal(codes[mask], labels[mask])
    assert not accepted[-1].any()


def test_inside_searches_and_scorers():
    search = GridSearchCV(
        SelectiveThresholdCV(LogisticRegression(), alpha=0.8, cv=2),
        {"alpha": [0.7, 0.8], "estimator__C": [0.1, 1.0]},
        scoring={
            "coverage_at_accuracy": m.coverage_at_accuracy_scorer(0.6),
            "neg_aurc": m.neg_aurc_scorer(),
        },
        refit="coverage_at_accuracy",
        cv=2,
    ).fit(X, LABELS["str"])
    assert search.best_score_ > 0
    got = sdm_sklearn.predict_selective(search, X)
    np.testing.assert_array_equal(got, search.best_estimator_.predict_selective(X))


def test_condition_and_criterion():
    tools = {
        (condition, criterion): SelectiveThresholdCV(
            LogisticRegression(),
            alpha=0.75,
            condition=condition,
            criterion=criterion,
            refit=False,
        ).fit(X, CODES)
        for condition in ("both", "class", "prediction", "marginal")
        for criterion in ("estimate", "lower_bound")
    }
    for (condition, criterion), tool in tools.items():
        column = {
            "both": "worst_conditional_accuracy",
            "class": "worst_class_conditional_accuracy",
            "prediction": "worst_prediction_conditional_accuracy",
            "marginal": "selective_accuracy",
        }[condition]
        column += "_lower" if criterion == "lower_bound" else ""
        keeps = tool.cv_results_[column] >= 0.75
        want = tool.cv_results_["coverage"][keeps].max()
        chosen = tool.cv_results_["alpha"] == tool.best_alpha_
        assert tool.cv_results_["coverage"][chosen] == want
    both = tools["both", "estimate"]
    assert both.best_alpha_ >= tools["marginal", "estimate"].best_alpha_
    assert tools["both", "lower_bound"].best_alpha_ >= both.best_alpha_


def test_nothing_attainable_rejects_everything():
    y = np.random.default_rng(0).integers(0, 2, 200)
    tool = SelectiveThresholdCV(LogisticRegression(), alpha=0.99)
    with pytest.warns(NoRegionWarning, match="worst_conditional_accuracy at 0.99") as r:
        tool.fit(X[:200], y)
    assert r[0].filename == __file__
    assert np.isnan(tool.best_alpha_)
    assert np.isinf(tool.thresholds_).all()
    labels, accepted = tool.predict_selective(X, return_mask=True)
    assert not accepted.any()
    assert (labels == -1).all()
    assert set(tool.predict(X)) <= {0, 1}
    selective = SelectiveThresholdCV(PlainThreshold(), alpha=0.99)
    with pytest.warns(NoRegionWarning, match="nothing is accepted at any alpha"):
        selective.set_params(alphas=[0.99]).fit(X[:200], y)
    assert (selective.predict_selective(X) == -1).all()


def test_metadata_routing():
    groups = np.arange(len(X)) % 7
    weights = np.where(CODES == 0, 20.0, 1.0)
    with config_context(enable_metadata_routing=True):
        model = LogisticRegression().set_fit_request(sample_weight=True)
        tool = SelectiveThresholdCV(model, alpha=0.8, cv=GroupKFold(7))
        tool.fit(X, CODES, groups=groups, sample_weight=weights)
        want = LogisticRegression().fit(X, CODES, weights)
        np.testing.assert_allclose(tool.predict_proba(X), want.predict_proba(X))
        proba = cross_val_predict(
            model,
            X,
            CODES,
            cv=GroupKFold(7),
            method="predict_proba",
            params={"groups": groups, "sample_weight": weights},
        )
    np.testing.assert_allclose(np.sort(tool._held_out[1]), np.sort(proba.max(axis=1)))
    with pytest.raises(ValueError, match="metadata"):
        SelectiveThresholdCV(LogisticRegression()).fit(X, CODES, sample_weight=weights)


def test_refit_false_cannot_predict_and_leaves_nothing_behind():
    tool = SelectiveThresholdCV(LogisticRegression(), alpha=0.8).fit(X, CODES)
    tool.set_params(refit=False, estimator=PlainThreshold()).fit(X, CODES)
    assert not hasattr(tool, "thresholds_")
    for method in (tool.predict, tool.predict_selective, tool.predict_proba):
        with pytest.raises(NotFittedError, match="pass refit=True"):
            method(X)


@pytest.mark.parametrize(
    ("params", "y", "message"),
    [
        ({"alpha": 0.05}, CODES, "alpha is not an error rate"),
        ({"alpha": "0.9"}, CODES, "alpha must be an accuracy"),
        ({"alphas": [0.9, 1.0]}, CODES, "alpha must be an accuracy.*1.0"),
        ({"alphas": []}, CODES, r"alphas must be a 1-D array.*\(0,\)"),
        ({"alphas": [[0.9]]}, CODES, r"alphas must be a 1-D array.*\(1, 1\)"),
        ({"confidence_level": 1.0}, CODES, "'confidence_level'"),
        ({"condition": "worst"}, CODES, "'condition'"),
        ({"reject_label": 1}, CODES, "reject_label=1 is one of the classes"),
        ({"cv": RepeatedStratifiedKFold()}, CODES, "holds rows out more than once"),
        ({"cv": [(np.arange(300), np.arange(300, 600))]}, CODES, "makes one split"),
        ({"cv": []}, CODES, "cv makes no split"),
        ({"estimator": RidgeClassifier()}, CODES, "'estimator'.*predict_proba"),
        ({}, np.zeros(600), "one class only, 0.0"),
        ({}, np.linspace(0, 1, 600), "Unknown label type"),
        ({}, np.array(["a", None] * 300, dtype=object), "y must hold labels.*None"),
        ({}, np.array(["a", 1] * 300, dtype=object), "of one kind.*Got 1 at 1"),
        ({}, np.array([np.nan, 1] * 300), "y contains NaN"),
    ],
)
def test_refusals(params, y, message):
    params = {"estimator": DummyClassifier(), **params}
    with pytest.raises(ValueError, match=message):
        SelectiveThresholdCV(**params).fit(X, y)


def test_recommend_needs_a_fit_and_an_accuracy():
    with pytest.raises(NotFittedError):
        SelectiveThresholdCV(LogisticRegression()).recommend_alpha()
    tool = SelectiveThresholdCV(LogisticRegression(), alpha=0.8).fit(X, CODES)
    with pytest.raises(ValueError, match="alpha must be an accuracy"):
        tool.recommend_alpha(1.5)


def test_the_alpha_of_a_selective_estimator_is_set_by_the_tool():
    X, y = make_blobs(240, centers=3, random_state=0)
    for wrap in (lambda clf: clf, make_pipeline):
        # No region reaches .99 on so few rows: fit alone would warn.
        clf = wrap(
            SDMClassifier(alpha=0.99, n_restarts=1, max_epochs=5, random_state=0)
        )
        tool = SelectiveThresholdCV(clf, alpha=0.8, alphas=[0.6, 0.8], cv=3).fit(X, y)
        name = alpha_parameter(clf)
        assert tool.estimator_.get_params()[name] == tool.best_alpha_
        assert clf.get_params()[name] == 0.99


def test_alpha_parameter_of_what_is_not_selective():
    assert alpha_parameter(LogisticRegression()) is None
    assert alpha_parameter(make_pipeline(LogisticRegression())) is None
    assert alpha_parameter(make_pipeline(SDMClassifier())) == "sdmclassifier__alpha"


def rare_class(seed, n):
    random = np.random.RandomState(seed)
    y = random.choice(3, n, p=[0.47, 0.47, 0.06])
    centers = 2.2 * np.array([[0, 0], [1, 0], [0, 1]])
    return centers[y] + random.normal(size=(n, 2)), y


@pytest.mark.parametrize("criterion", ["estimate", "lower_bound"])
def test_an_alpha_at_which_a_class_is_never_answered_is_not_recommended(criterion):
    X, y = rare_class(6, 1000)
    tool = SelectiveThresholdCV(LogisticRegression(), alpha=0.8, criterion=criterion)
    with pytest.warns(NoRegionWarning):
        tool.fit(X, y)
    assert np.isnan(tool.best_alpha_)
    table = tool.cv_results_
    unanswered = np.isinf(table["threshold"]).any(axis=1)
    assert unanswered.any()
    # The rare class is there, so that nothing accepted of it is no evidence for it.
    empty = (table["accepted_of_class"][:, 2] == 0) & (table["coverage"] > 0)
    assert empty.any()
    assert (table["worst_conditional_accuracy_lower"][empty] == 0).all()
    # No promise on classes: the same alphas may be recommended.
    tool.set_params(condition="prediction", criterion="estimate").fit(X, y)
    assert tool.best_alpha_ >= 0.8


def test_intervals_count_classes_without_accepted_rows():
    n_accepted, n_right = np.array([[50, 0]]), np.array([[49, 0]])
    alone = smallest_accuracy(n_accepted, n_right, 0.9)
    owed = smallest_accuracy(n_accepted, n_right, 0.9, np.array([True, True]))
    assert alone[0] == owed[0] == 0.98
    assert owed[1] == 0 < alone[1]
    assert owed[2] >= alone[2]


def test_a_tuned_cut_off_decides_what_is_predicted():
    X, y = make_blobs(900, centers=3, cluster_std=3, random_state=2)
    y = (y == 0).astype(int)
    inner = FixedThresholdClassifier(
        LogisticRegression(), threshold=0.1, response_method="predict_proba"
    )
    tool = SelectiveThresholdCV(make_pipeline(inner), alpha=0.7).fit(X, y)
    assert (tool.predict_proba(X).argmax(axis=1) != tool.predict(X)).any()
    labels, accepted = tool.predict_selective(X, return_mask=True)
    assert accepted.any()
    np.testing.assert_array_equal(labels[accepted], tool.predict(X)[accepted])


def test_a_failed_fit_leaves_nothing_fitted():
    X, y = make_blobs(200, centers=2, random_state=0)
    tool = SelectiveThresholdCV(LogisticRegression(), alpha=0.8).fit(X, y)
    with pytest.raises(ValueError, match="one class only"):
        tool.fit(X, np.zeros(200))
    assert not [name for name in vars(tool) if name.endswith("_")]
    with pytest.raises(NotFittedError):
        tool.predict_selective(X)


def test_rows_trained_on_and_held_out_at_once_are_refused():
    X, y = make_blobs(200, centers=2, random_state=0)
    rows = np.arange(200)
    cv = [(rows, rows[:100]), (rows, rows[100:])]
    with pytest.raises(ValueError, match="trained on and held out at once"):
        SelectiveThresholdCV(LogisticRegression(), cv=cv).fit(X, y)


def test_probabilities_that_are_not_finite_are_refused():
    class Broken(LogisticRegression):
        def predict_proba(self, X):
            return np.full((len(X), 2), np.nan)

    X, y = make_blobs(200, centers=2, random_state=0)
    with pytest.raises(ValueError, match="Broken.predict_proba gave values"):
        SelectiveThresholdCV(Broken()).fit(X, y)


@pytest.mark.parametrize("odd", [float("nan"), 1, None])
def test_lists_with_odd_labels_are_refused(odd):
    X, y = make_blobs(200, centers=2, random_state=0)
    with pytest.raises(ValueError, match="labels of one kind, none of them missing"):
        SelectiveThresholdCV(LogisticRegression()).fit(
            X, ["x" if code else odd for code in y]
        )


def test_an_alpha_out_of_reach_warns_at_prediction_as_in_fit():
    X, y = make_blobs(200, centers=2, cluster_std=6, random_state=0)
    tool = SelectiveThresholdCV(LogisticRegression(), alpha=0.55, alphas=[0.55, 0.99])
    tool.fit(X, y)
    with pytest.warns(NoRegionWarning, match="at 0.999") as record:
        _, accepted = tool.predict_selective(X, alpha=0.999, return_mask=True)
    assert record[0].filename == __file__
    assert not accepted.any()


@pytest.mark.filterwarnings("ignore::sdm_sklearn.NoRegionWarning")
def test_an_estimator_with_other_classes_is_refused():
    X, y = make_blobs(300, centers=3, random_state=0)
    fitted = LogisticRegression().fit(X, y)
    some = y != 1
    with pytest.raises(ValueError, match=r"knows the classes \[1\], of which y has no"):
        SelectiveThresholdCV(FrozenEstimator(fitted)).fit(X[some], y[some])
    two = FrozenEstimator(LogisticRegression().fit(X[some], y[some]))
    with pytest.raises(
        ValueError, match=r"has classes_ \[0, 2\], but y holds \[0, 1, 2"
    ):
        SelectiveThresholdCV(two, alpha=0.6).fit(X, y)
    with pytest.raises(ValueError, match="knows the classes"):
        SelectiveThresholdCV(FrozenEstimator(fitted)).fit(X, y.astype(str))
