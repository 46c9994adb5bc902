"""SemanticSoftmaxCalibrator: the rule, its inspection and the estimator contract."""

import copy
import pickle
import subprocess
import sys
import time
import tracemalloc
import warnings
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from scipy.special import log_softmax, softmax
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import estimator_checks_generator

from sdm_sklearn import (
    OutputEmbeddings,
    SemanticSoftmaxCalibrator,
    predict_selective,
)

# Toy kernels have lonely or close labels by design; their warnings have own tests.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*labels have no neighbour"),
    pytest.mark.filterwarnings("ignore:.*labels are more similar"),
    pytest.mark.filterwarnings("ignore:.*is reached by chance"),
]


@contextmanager
def at_most(n_bytes):
    """Fail if more memory is allocated inside."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < n_bytes
    finally:
        tracemalloc.stop()


def toy_embeddings():
    """Tokens 0 and 1 are orthogonal; 2 is at .9 from 0 and 3 at .95 from 1."""
    E = np.zeros((8, 4))
    E[0, 0] = E[1, 1] = 1
    E[2, [0, 2]] = 0.9, np.sqrt(1 - 0.81)
    E[3, [1, 2]] = 0.95, np.sqrt(1 - 0.9025)
    E[4:, 3] = 1
    return E * np.linspace(0.5, 3, 8)[:, None]


def planted(n=2000, V=4000, D=64, L=4, m=8, seed=0, common=0.0):
    """A vocabulary whose labels share their mass with planted synonyms.

    Each label has m - 1 synonyms at cosines .5 to .7. Of the probability .6 goes to the
    labels' groups by a known posterior, split within each by a Dirichlet(.3).
    """
    rng = np.random.default_rng(seed)
    E = rng.standard_normal((V, D))
    E /= np.linalg.norm(E, axis=1, keepdims=True)
    label_ids = np.arange(L) * m
    for label in label_ids:
        for token in range(label + 1, label + m):
            cosine = rng.uniform(0.5, 0.7)
            side = rng.standard_normal(D)
            side -= (side @ E[label]) * E[label]
            side /= np.linalg.norm(side)
            E[token] = cosine * E[label] + np.sqrt(1 - cosine**2) * side
    E += common / np.sqrt(D)
    y = rng.integers(0, L, n)
    evidence = 2.0 * np.eye(L)[y] + rng.standard_normal((n, L))
    posterior = softmax(2.0 * evidence, axis=1)
    p = np.zeros((n, V))
    for code, label in enumerate(label_ids):
        split = rng.dirichlet(np.full(m, 0.3), n)
        p[:, label : label + m] = 0.6 * posterior[:, [code]] * split
    p[:, L * m :] = 0.4 * rng.dirichlet(np.full(V - L * m, 0.05), n)
    return E, label_ids.tolist(), np.log(np.maximum(p, 1e-30)), y


def calibration_error(y, proba, n_bins=15):
    confidence = proba.max(axis=1)
    gap = (proba.argmax(axis=1) == y) - confidence
    bins = np.minimum((confidence * n_bins).astype(int), n_bins - 1)
    return np.abs(np.bincount(bins, gap)).sum() / len(y)


def published_by_loop(E, labels, logits, top_k, tau):
    """The published rule, Section 3, as plain loops; all-zero rows have no vote."""
    rows = []
    for z in logits:
        p = np.exp(z - z.max()) / np.exp(z - z.max()).sum()
        scores = []
        for label in labels:
            score = 0.0
            for v in range(len(z)):
                if sum(z > z[v]) < top_k:
                    norms = np.linalg.norm(E[v]) * np.linalg.norm(E[label])
                    cosine = E[v] @ E[label] / norms if norms else -1.0
                    score += p[v] * max(0.0, cosine - tau)
            scores.append(score)
        if not sum(scores):  # no vote: constrained softmax
            scores = [p[label] for label in labels]
        rows.append(np.array(scores) / sum(scores))
    return np.array(rows)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    top_k=st.sampled_from([1, 50, "V"]),
    tau=st.sampled_from([0.8, 0.3, -0.2]),
    ties=st.booleans(),
)
def test_published_preset_equals_a_literal_loop(seed, top_k, tau, ties):
    rng = np.random.default_rng(seed)
    n_tokens = int(rng.integers(51, 70))
    E = rng.standard_normal((n_tokens, 5))
    E[10:14] = E[:4] + 0.2 * rng.standard_normal((4, 5))
    E[[7, 20, 30]] = 0.0
    logits = 3 * rng.standard_normal((3, n_tokens))
    if ties:
        logits = np.round(logits)
    top_k = n_tokens if top_k == "V" else top_k
    cal = SemanticSoftmaxCalibrator.published(
        [0, 1, 2], E, input="logits", top_k=top_k, similarity_threshold=tau
    ).fit(logits)
    expected = published_by_loop(E, [0, 1, 2], logits, top_k, tau)
    np.testing.assert_allclose(cal.predict_proba(logits), expected, rtol=0, atol=1e-12)


def test_without_embeddings_equals_constrained_softmax_exactly():
    logits = 30 * np.random.default_rng(0).standard_normal((50, 20))
    cal = SemanticSoftmaxCalibrator([3, 7, 11], input="logits").fit(logits)
    np.testing.assert_array_equal(
        cal.predict_proba(logits), softmax(logits[:, [3, 7, 11]], axis=1)
    )
    np.testing.assert_array_equal(
        cal.predict_log_proba(logits), log_softmax(logits[:, [3, 7, 11]], axis=1)
    )


def test_threshold_one_equals_constrained_softmax():
    E, logits = toy_embeddings(), np.random.default_rng(0).standard_normal((9, 8))
    cal = SemanticSoftmaxCalibrator(
        [0, 1], E, input="logits", similarity_threshold=1
    ).fit(logits)
    np.testing.assert_array_equal(cal.predict_proba(logits), softmax(logits[:, :2], 1))


def test_surface_forms_add_up_and_neighbours_count_by_similarity():
    p = np.array([[0.2, 0.1, 0.3, 0.2, 0.2, 0, 0, 0]])
    raw = {"geometry": "raw", "similarity_threshold": 0.8}
    cal = SemanticSoftmaxCalibrator([0, 1], toy_embeddings(), input="proba", **raw)
    a, b = 0.2 * 0.2 + 0.3 * 0.1, 0.1 * 0.2 + 0.2 * 0.15
    np.testing.assert_allclose(
        cal.fit(p).predict_proba(p), [[a / (a + b), b / (a + b)]]
    )
    forms = SemanticSoftmaxCalibrator([[0, 4], [1]], input="proba").fit(p)
    np.testing.assert_allclose(forms.predict_proba(p), [[0.8, 0.2]])


@pytest.mark.parametrize(("vote", "expected"), [("exclusive", 0.0), ("shared", 0.6)])
def test_exclusive_voters_have_one_label_and_label_tokens_are_their_own(vote, expected):
    E = np.array([[1, 0], [0.6, 0.8], [0.8, 0.6]], float)
    cal = SemanticSoftmaxCalibrator(
        [0, 1], E, input="proba", geometry="raw", similarity_threshold=0.0, vote=vote
    ).fit([[0.5, 0.3, 0.2]])
    kernel = dict(zip(cal._kernel.token_ids, cal._kernel.weight, strict=True))
    np.testing.assert_allclose(kernel[0], [1, expected])
    np.testing.assert_allclose(kernel[1], [expected, 1])
    np.testing.assert_allclose(kernel[2], [0.8 if vote == "shared" else 0, 0.96])


def test_whitened_cosines_by_hand():
    rng = np.random.default_rng(0)
    E = rng.standard_normal((40, 3)) @ rng.standard_normal((3, 3)) + 2
    centred = E - E.mean(axis=0)
    precision = np.linalg.inv(centred.T @ centred / len(E))
    inner = centred @ precision @ centred.T
    cosine = inner / np.sqrt(np.outer(np.diag(inner), np.diag(inner)))
    cal = SemanticSoftmaxCalibrator([0, 1], E, similarity_threshold=-1, vote="shared")
    cal.fit(rng.standard_normal((2, 3)))
    similarity = np.empty((40, 2))
    similarity[cal._kernel.token_ids] = cal._kernel.similarity
    np.testing.assert_allclose(similarity, cosine[:, :2], atol=1e-10)
    np.testing.assert_allclose(cal.label_similarity_, cosine[:2, :2], atol=1e-10)


@pytest.mark.parametrize("common", [0.0, 1.0])
def test_planted_synonyms_are_heard(common):
    E, labels, logp, y = planted(common=common)
    rows = np.arange(len(y))
    proba = SemanticSoftmaxCalibrator(labels, E, input="logprobs").fit(logp)
    proba = proba.predict_proba(logp)
    assert -np.log(proba[rows, y]).mean() <= 0.50
    assert roc_auc_score(y, proba, multi_class="ovr") >= 0.955
    assert calibration_error(y, proba) <= 0.05
    deaf = softmax(logp[:, labels], axis=1)
    assert -np.log(deaf[rows, y]).mean() > 1.3


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    shift=st.floats(-1e4, 1e4),
    top_k=st.sampled_from([None, 4]),
)
def test_shifts_and_vocabulary_order_change_nothing(seed, shift, top_k):
    rng = np.random.default_rng(seed)
    E, logits = rng.standard_normal((30, 4)), 3 * rng.standard_normal((5, 30))
    options = {"input": "logits", "top_k": top_k}
    cal = SemanticSoftmaxCalibrator([0, 5, 9], E, **options).fit(logits)
    proba = cal.predict_proba(logits)
    np.testing.assert_allclose(cal.predict_proba(logits + shift), proba, atol=1e-9)
    order = rng.permutation(30)
    ids = [int(np.flatnonzero(order == i)[0]) for i in (0, 5, 9)]
    moved = SemanticSoftmaxCalibrator(ids, E[order], **options).fit(logits[:, order])
    np.testing.assert_allclose(moved.predict_proba(logits[:, order]), proba, atol=1e-9)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**31), scale=st.sampled_from([1e-3, 1.0, 1e3]))
def test_probabilities_are_positive_and_sum_to_one(seed, scale):
    rng = np.random.default_rng(seed)
    E, logits = rng.standard_normal((60, 4)), scale * rng.standard_normal((5, 60))
    for make in (SemanticSoftmaxCalibrator.published, SemanticSoftmaxCalibrator):
        cal = make([0, 5, 9], E, input="logits").fit(logits)
        proba = cal.predict_proba(logits)
        assert (proba > 0).all()
        np.testing.assert_allclose(proba.sum(axis=1), 1, rtol=1e-12)
        assert np.isfinite(cal.predict_log_proba(logits)).all()


@pytest.mark.parametrize("vote", ["exclusive", "shared"])
@pytest.mark.parametrize("top_k", [None, 20])
@pytest.mark.parametrize("input", ["hidden", "logits", "proba", "topk"])
def test_rows_do_not_depend_on_their_batch_or_order(input, top_k, vote):
    rng = np.random.default_rng(0)
    E, hidden = rng.standard_normal((300, 48)), rng.standard_normal((60, 48))
    proba = softmax(0.5 * hidden @ E.T, axis=1)
    X = {
        "hidden": hidden,
        "logits": np.asfortranarray(hidden @ E.T),
        "proba": proba,
        "topk": [
            {i: np.log(p) for i, p in enumerate(row) if p > 1e-4} for row in proba
        ],
    }[input]
    cal = SemanticSoftmaxCalibrator(
        [0, 5, 9], E, input=input, top_k=top_k, vote=vote, similarity_threshold=0.1
    ).fit(X, rng.integers(3, size=60))
    for ask in (cal.predict_proba, cal.captured_mass):
        together = ask(X)
        for size in (1, 7):
            parts = [ask(X[start : start + size]) for start in range(0, 60, size)]
            np.testing.assert_array_equal(np.concatenate(parts), together)
        order = rng.permutation(60)
        moved = [X[i] for i in order] if input == "topk" else X[order]
        np.testing.assert_array_equal(ask(moved), together[order])


@pytest.mark.parametrize(
    ("fallback", "expected"),
    [("constrained", [0.8, 0.2]), ("uniform", [0.5, 0.5]), ("reject", [0.8, 0.2])],
)
def test_rows_without_votes_fall_back(fallback, expected):
    p = np.array([[0.08, 0.02, 0, 0, 0.9, 0, 0, 0], [0.9, 0.02, 0, 0, 0.08, 0, 0, 0]])
    cal = SemanticSoftmaxCalibrator.published(
        [0, 1], toy_embeddings(), input="proba", top_k=1, fallback=fallback, alpha=0.6
    ).fit(p)
    np.testing.assert_allclose(cal.predict_proba(p)[0], expected)
    with pytest.warns(UserWarning, match="fit saw no y"):
        accepted = cal.predict_selective(p, return_mask=True)[1]
    assert accepted.tolist() == [fallback == "constrained", True]


def test_rows_without_any_label_mass_are_uniform():
    p = np.array([[0, 0, 0, 0, 1.0, 0, 0, 0]])
    cal = SemanticSoftmaxCalibrator([0, 1], input="proba")
    with pytest.warns(UserWarning, match="In 1 of 1 rows of X no token that votes"):
        cal.fit(p)
    with pytest.warns(UserWarning, match="In 1 of 1 rows of X no token that votes"):
        np.testing.assert_array_equal(cal.predict_proba(p), [[0.5, 0.5]])


def test_inspection_names_neighbours_voters_and_required_ids():
    words = ["joy", "fear", "delight", "dread", "of", "the", "a", "to"]
    p = np.array([[0.2, 0.1, 0.3, 0.2, 0.2, 0, 0, 0]])
    cal = SemanticSoftmaxCalibrator(
        {"joy": 0, "fear": 1},
        toy_embeddings(),
        vocabulary=words,
        input="proba",
        geometry="raw",
        similarity_threshold=0.8,
    ).fit(p)
    assert cal.classes_.tolist() == ["fear", "joy"]
    assert cal.required_token_ids_.tolist() == [0, 1, 2, 3]
    table = cal.neighbors_["joy"]
    assert table.tokens.tolist() == ["delight"]
    assert table.token_ids.tolist() == [2]
    np.testing.assert_allclose(table.similarity, [0.9])
    np.testing.assert_allclose(table.weight, [0.5])
    np.testing.assert_allclose(cal.label_similarity_, np.eye(2), atol=1e-12)
    voters = cal.top_voters(p, n_voters=2)[0]
    total = 0.2 + 0.3 * 0.5 + 0.1 + 0.2 * 0.75
    assert [v[:2] for v in voters] == [("joy", "joy"), ("delight", "joy")]
    np.testing.assert_allclose([v[2] for v in voters], [0.2 / total, 0.15 / total])
    np.testing.assert_allclose(cal.captured_mass(p), [total])
    assert len(cal.top_voters(p)[0]) == 4
    ids = cal.set_params(vocabulary=None).fit(p).top_voters(p)[0]
    assert {v[0] for v in ids} == {0, 1, 2, 3}


@pytest.mark.parametrize("n_voters", [0, 1.5, "2"])
def test_n_voters_must_be_a_positive_integer(n_voters):
    cal = SemanticSoftmaxCalibrator([0, 1], input="logits").fit([[0.0, 1.0]])
    with pytest.raises(ValueError, match=r"n_voters must be .* Got "):
        cal.top_voters([[0.0, 1.0]], n_voters=n_voters)


def test_captured_mass_counts_a_shared_vote_once_and_gates_selection():
    E = np.array([[1, 0], [0.6, 0.8], [0.8, 0.6], [-1, 0]], float)
    p = np.array([[0.5, 0.1, 0.2, 0.2], [0.1, 0.0, 0.0, 0.9]])
    cal = SemanticSoftmaxCalibrator(
        [0, 1],
        E,
        input="proba",
        geometry="raw",
        similarity_threshold=0.0,
        vote="shared",
        alpha=0.51,
        min_captured_mass=0.5,
    ).fit(p)
    np.testing.assert_allclose(cal.captured_mass(p), [0.5 + 0.1 + 0.2 * 0.96, 0.1])
    with pytest.warns(UserWarning, match="fit saw no y"):
        labels, accepted = cal.predict_selective(p, return_mask=True)
    assert accepted.tolist() == [True, False]
    assert labels.tolist() == [0, -1]


def test_fit_warns_of_lonely_labels():
    cal = SemanticSoftmaxCalibrator([0, 4], np.eye(8), input="logits", geometry="raw")
    message = (
        r"2 of 2 labels have no neighbour \(\[0, 1\]\).*equals constrained softmax"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.warns(UserWarning, match=message) as record:
            cal.fit(np.zeros((1, 8)))
    assert record[0].filename == __file__


def test_fit_warns_of_labels_whose_votes_mix():
    E = np.array([[1, 0.1], [1, 0], [0, 1]])
    cal = SemanticSoftmaxCalibrator(
        {"good": 0, "bad": 1, "table": 2}, E, input="logits", geometry="raw"
    )
    with pytest.warns(UserWarning, match=r"1 pair.*'bad' and 'good' \(1\.00\)"):
        cal.fit(np.zeros((1, 3)))


@pytest.mark.parametrize(
    ("E", "params", "advice"),
    [
        (
            np.eye(40)[:, :8] + 0.1,
            {},
            "Try a lower similarity_threshold, or label words",
        ),
        (np.eye(8, 9), {}, r"Try all rows .*8 of width 9 .*, or geometry='centered'"),
        (np.eye(8), {"geometry": "raw"}, "Try geometry='whitened', a lower"),
    ],
)
def test_advice_fits_the_geometry(E, params, advice):
    params = {"similarity_threshold": 0.99, **params}
    cal = SemanticSoftmaxCalibrator([0, 1], E, input="logits", **params)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.warns(UserWarning, match=advice):
            cal.fit(np.zeros((1, len(E))))


def test_fit_warns_if_similarity_is_chance():
    E = np.random.default_rng(0).standard_normal((2000, 64))
    cal = SemanticSoftmaxCalibrator([0, 1, 2], E, input="logits")
    message = r"of 2000 tokens \(1\d%\) vote: in 64 dim.*threshold=0.2 .*about 0.50"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*no neighbour")
        with pytest.warns(UserWarning, match=message) as record:
            cal.fit(np.zeros((1, 2000)))
        assert record[0].filename == __file__
        cal.set_params(similarity_threshold=0.5).fit(np.zeros((1, 2000)))


@pytest.mark.parametrize("angle", [0.0, 0.3, 1.1])
def test_equally_near_labels_share_a_vote_in_any_order(angle):
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    E = np.array([[0.6, 0.8], [0.6, -0.8], [1, 0], [2, 0], [-1, 0.2]]) @ turn
    kernels = []
    for order in ([0, 1, 2, 3, 4], [3, 1, 4, 0, 2]):
        ids = [order.index(0), order.index(1)]
        cal = SemanticSoftmaxCalibrator(ids, E[order], input="logits", geometry="raw")
        kernel = cal.fit(np.zeros((1, 5)))._kernel
        kernels.append(
            {order[t]: w for t, w in zip(kernel.token_ids, kernel.weight, strict=True)}
        )
    for token, weight in kernels[0].items():
        np.testing.assert_allclose(kernels[1][token], weight, atol=1e-12)
    np.testing.assert_allclose(kernels[0][2], [0.5, 0.5], atol=1e-9)


def test_a_failed_fit_leaves_nothing_fitted():
    cal = SemanticSoftmaxCalibrator([0, 1], input="logits").fit(np.zeros((2, 3)))
    fresh = set(vars(SemanticSoftmaxCalibrator([0, 1])))
    with pytest.raises(ValueError, match="outside|token id"):
        cal.set_params(label_token_ids=[0, 9]).fit(np.zeros((2, 3)))
    assert set(vars(cal)) == fresh
    with pytest.raises(NotFittedError):
        cal.predict(np.zeros((2, 3)))
    cal.set_params(label_token_ids=[0, 1]).fit(np.zeros((2, 3)))
    assert cal.n_features_in_ == 3
    cal.set_params(input="topk").fit([{0: -1.0}])
    assert not hasattr(cal, "n_features_in_")


def estimators():
    """One for the checks with labels 0 and 1, one for those with labels 1 and 2.

    The checks' labels must be named beforehand, as a zero-shot calibrator cannot learn
    what a token stands for. `check_classifiers_classes` changes labels midway.
    """
    with_12 = {"check_estimators_dtypes", "check_classifier_data_not_an_array"}
    for classes in ([0, 1], [1, 2]):
        cal = SemanticSoftmaxCalibrator([0, 1], classes=classes, input="logits")
        for estimator, check in estimator_checks_generator(cal):
            name = getattr(check, "func", check).__name__
            if name in with_12 or name == "check_classifiers_classes":
                skip = name not in with_12 or classes == [0, 1]
            else:
                skip = classes == [1, 2]
            if not skip:
                yield pytest.param(estimator, check, id=f"{name}-{classes}")


@pytest.mark.filterwarnings("ignore:.*SCIPY_ARRAY_API")
@pytest.mark.parametrize(("estimator", "check"), list(estimators()))
def test_estimator_checks(estimator, check):
    check(estimator)


def test_checks_left_out_are_only_the_impossible_ones():
    every = SemanticSoftmaxCalibrator([0, 1], input="logits")
    names = [
        getattr(c, "func", c).__name__ for _, c in estimator_checks_generator(every)
    ]
    run = [p.id.rsplit("-", 1)[0] for p in estimators()]
    assert set(names) - set(run) == {"check_classifiers_classes"}


def embedded(n=120, V=200, D=16, seed=0):
    rng = np.random.default_rng(seed)
    E = rng.standard_normal((V, D))
    E[10:20] = E[:1] + 0.4 * rng.standard_normal((10, D))
    E[20:30] = E[1:2] + 0.4 * rng.standard_normal((10, D))
    y = rng.integers(0, 2, n)
    H = 0.5 * E[y] + 0.7 * rng.standard_normal((n, D))
    return E, H, y


@pytest.mark.parametrize("form", ["hidden", "csr", "topk"])
def test_grid_search_in_two_processes(form):
    E, H, y = embedded()
    proba = softmax(H @ E.T, axis=1)
    X, kind = H, "hidden"
    if form == "csr":
        cut = np.sort(proba, axis=1)[:, [-60]]
        X, kind = sparse.csr_array(np.where(proba >= cut, proba, 0)), "proba"
    elif form == "topk":
        order = np.argsort(-proba, axis=1)[:, :60].tolist()
        X = [
            {i: float(np.log(p[i])) for i in best}
            for p, best in zip(proba, order, strict=True)
        ]
        kind = "topk"
    grid = {
        "geometry": ["raw", "centered", "whitened"],
        "similarity_threshold": [0.2, 0.6],
        "top_k": [None, 40],
    }
    search = GridSearchCV(
        SemanticSoftmaxCalibrator([0, 1], E, input=kind),
        grid,
        cv=2,
        n_jobs=2,
        error_score="raise",
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        search.fit(X, y)
        assert search.score(X, y) > 0.6
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert search.best_estimator_.output_embeddings is E


def test_selective_prediction_through_a_pipeline():
    E, H, y = embedded(n=400)
    pipe = make_pipeline(
        FunctionTransformer(), SemanticSoftmaxCalibrator([0, 1], E, alpha=0.7)
    ).fit(H, y)
    labels, accepted = predict_selective(pipe, H, return_mask=True)
    assert 0 < accepted.mean() <= 1
    assert (labels[~accepted] == -1).all()
    assert (labels[accepted] == y[accepted]).mean() >= 0.7


def test_clone_copy_and_print_leave_a_large_matrix_alone():
    E = np.zeros((49_152, 576), dtype=np.float32)
    words = [f"word {i}" for i in range(len(E))]
    for embeddings in (E, OutputEmbeddings(E)):
        cal = SemanticSoftmaxCalibrator([0, 1], embeddings, vocabulary=words)
        clone(cal)
        times = []
        for _ in range(20):
            start = time.perf_counter()
            twin = clone(cal)
            times.append(time.perf_counter() - start)
        assert min(times) < 1e-3
        with at_most(2**20):
            for other in (twin, copy.deepcopy(cal), copy.copy(cal)):
                assert other.output_embeddings is embeddings
                assert other.vocabulary is words
                assert other is not cal
        assert len(repr(cal)) < 300
        assert "vocabulary=<list of 49152 tokens>" in repr(cal)
        assert "49152 x 576" in repr(cal)
        assert len(repr(GridSearchCV(cal, {}))) < 1000


def test_repr_of_unusable_embeddings_does_not_fail():
    assert "<str>" in repr(SemanticSoftmaxCalibrator([0, 1], "no such file.npy"))


def test_deepcopy_of_a_fitted_calibrator_is_independent():
    E, H, _ = embedded()
    cal = SemanticSoftmaxCalibrator([0, 1], E).fit(H)
    twin = copy.deepcopy(cal)
    twin.prior_bias_ += 1
    assert not cal.prior_bias_.any()
    np.testing.assert_array_equal(twin.predict_proba(H), cal.predict_proba(H))


def test_pickle_of_a_path_backed_calibrator_is_small(tmp_path):
    E, H, y = embedded(V=20_000, D=64)
    path = tmp_path / "E.npy"
    np.save(path, E)
    for embeddings in (str(path), path, OutputEmbeddings(path)):
        cal = SemanticSoftmaxCalibrator([0, 1], embeddings).fit(H, y)
        dump = pickle.dumps(cal)
        assert len(dump) < 2**20
        again = pickle.loads(dump)
        np.testing.assert_array_equal(again.predict_proba(H), cal.predict_proba(H))
        np.testing.assert_array_equal(again.captured_mass(H), cal.captured_mass(H))
    whole = SemanticSoftmaxCalibrator([0, 1], E).fit(H, y)
    np.testing.assert_array_equal(whole.predict_proba(H), cal.predict_proba(H))


def test_extra_memory_is_small():
    rng = np.random.default_rng(0)
    E = rng.standard_normal((5_000, 576)).astype(np.float32)
    E[100:400] = E[np.arange(300) % 7] + 0.5 * E[100:400]
    X = rng.standard_normal((10_000, 576)).astype(np.float32)
    cal = SemanticSoftmaxCalibrator(list(range(7)), E).fit(X[:5])
    assert len(cal.required_token_ids_) > 200
    with at_most(20e6):
        cal.predict_proba(X)


def test_embedding_matrix_is_not_changed():
    E = toy_embeddings()
    before = E.copy()
    SemanticSoftmaxCalibrator([0, 1], E, input="logits").fit(np.zeros((1, 8)))
    np.testing.assert_array_equal(E, before)


def test_zero_shot_use_imports_no_torch():
    code = (
        "import sys, sdm_sklearn as s\n"
        "cal = s.SemanticSoftmaxCalibrator([0, 1], input='logits').fit([[0.0, 1.0]])\n"
        "cal.predict_proba([[0.0, 1.0]]), s.datasets.load_emotions()\n"
        "print([m for m in ('torch', 'matplotlib', 'pynndescent') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


def test_a_row_that_says_nothing_is_never_accepted():
    """A prior, or biases learnt from others, are no answer to it."""
    rng = np.random.default_rng(0)
    y = np.where(rng.random(400) < 0.97, "no", "yes")
    rows = [{0: -1.0 - rng.random(), 1: -2.0} for _ in y]
    cal = SemanticSoftmaxCalibrator({"yes": 0, "no": 1}, input="topk", alpha=0.8)
    cal.fit(rows, y)
    new = [{5: -0.001}, *rows]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        _, accepted = cal.predict_selective(new, return_mask=True)
        proba = cal.predict_proba(new)
    assert not accepted[0]
    assert accepted[1:].mean() > 0.5
    np.testing.assert_allclose(proba[0], 0.5)


def test_large_integers_and_masked_labels():
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    names = np.array([5, 2**60, 2**60 + 1])
    codes = rng.integers(0, 3, 300)
    X = rng.standard_normal((300, 3))
    X[np.arange(300), codes] += 2
    cal = SemanticSoftmaxCalibrator([0, 1, 2], classes=names.tolist(), input="logits")
    plain = cal.fit(X, names[codes]).bias_
    nullable = cal.fit(X, pandas.Series(names[codes], dtype="Int64")).bias_
    np.testing.assert_array_equal(nullable, plain)
    with pytest.raises(ValueError, match="y has 1 masked entries"):
        cal.fit(X, np.ma.masked_array(names[codes], mask=np.arange(300) == 3))
    cal.fit(X, names[codes])
    with pytest.raises(ValueError, match="X has 1 masked entries"):
        cal.predict(np.ma.masked_array(X[:1], mask=[[True, False, False]]))


@pytest.mark.parametrize(
    ("fitted", "later"), [("hidden", "proba"), ("logits", "hidden")]
)
def test_columns_that_changed_their_meaning_are_refused(fitted, later):
    E = np.array([[1.0, 0.0], [0.0, 1.0], [0.9, 0.1], [0.2, 0.8]])
    X = {"hidden": [[0.2, 0.8]], "logits": [[1.0, 2.0, 0.0, 3.0]]}[fitted]
    cal = SemanticSoftmaxCalibrator(
        {"yes": 0, "no": 1}, E, input=fitted, geometry="raw"
    ).fit(X)
    cal.set_params(input=later)
    with pytest.raises(ValueError, match=f"input='{later}' was set after a fit with"):
        cal.predict(np.abs(X))
