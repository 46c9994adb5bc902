import logging
import pickle
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.neighbors import NearestNeighbors
from sklearn.utils._param_validation import InvalidParameterError

from sdm_sklearn import SDMClassifier, _search
from sdm_sklearn._neighbors import ExactNeighbors
from sdm_sklearn._pruned import PrunedNeighbors
from sdm_sklearn._search import CandidateIndex, NNDescentGraph, make_search

from .conftest import make_blobs
from .test_pruned import assert_same_answers, make_points

SMALL = {"alpha": 0.8, "n_filters": 16, "n_restarts": 2, "max_epochs": 8}


class Stubborn:
    """An index whose neighbours are what it is told; not a scikit-learn estimator."""

    def __init__(self, answer):
        self.answer = answer

    def fit(self, X):
        assert X.dtype == np.float32
        self.n = len(X)

    def kneighbors(self, X, n_neighbors, return_distance):
        return self.answer(len(X), n_neighbors, self.n)


def nothing(n_queries, k, n):
    return np.full((n_queries, k), -1)


def nonsense(n_queries, k, n):
    return np.random.RandomState(0).randint(-5, n + 5, size=(n_queries, k))


def fit(**parameters):
    X, y = make_blobs(400, n_classes=3, separation=4.0)
    clf = SDMClassifier(**SMALL, random_state=0, **parameters).fit(X[:300], y[:300])
    return clf, clf.signals(X[300:])


@pytest.fixture(scope="module")
def reference():
    return fit(neighbors="exact")


@pytest.mark.parametrize(
    "neighbors",
    ["auto", "pruned", NearestNeighbors(), Stubborn(nothing), Stubborn(nonsense)],
    ids=["auto", "pruned", "sklearn", "nothing", "nonsense"],
)
def test_every_search_gives_the_same_model(neighbors, reference):
    clf, signals = fit(neighbors=neighbors)
    assert clf.history_ == reference[0].history_
    assert clf.q_min_ == reference[0].q_min_
    for name, expected in reference[1].items():
        assert_array_equal(signals[name], expected)


def test_index_is_cloned_fitted_and_pickled():
    index = NearestNeighbors(algorithm="brute")
    clf, signals = fit(neighbors=index)
    with pytest.raises(NotFittedError):
        index.kneighbors()
    assert clf.get_params()["neighbors"] is index
    X = make_blobs(400, n_classes=3, separation=4.0)[0][300:]
    again = pickle.loads(pickle.dumps(clf))
    assert_array_equal(again.signals(X).similarity, signals.similarity)
    again.add_to_support(X[:5] + 100, np.array([0, 1, 2, 0, 1]))
    assert again._model.neighbors.index.n_support == 155
    clone(clf)


@pytest.mark.parametrize("neighbors", ["ball_tree", 5, None, object()])
def test_what_cannot_search_is_refused(neighbors):
    with pytest.raises(InvalidParameterError, match="'neighbors' parameter of SDM"):
        fit(neighbors=neighbors)


@pytest.mark.parametrize(
    "answer",
    [
        lambda n, k, size: np.zeros((n, k)),
        lambda n, k, size: np.zeros(n, dtype=int),
        lambda n, k, size: np.zeros((n + 1, k), dtype=int),
    ],
)
def test_an_index_that_answers_something_else_is_named(answer):
    index = CandidateIndex(Stubborn(answer), np.zeros((20, 2)))
    with pytest.raises(ValueError, match=r"neighbors=<.*Stubborn.*array of integers"):
        index.find(np.zeros((3, 2)))


def test_auto_is_pruned_from_the_crossover_on(monkeypatch):
    support, labels, predictions, n_classes = make_points(100)
    arguments = (support, labels, predictions, n_classes)
    monkeypatch.setattr(_search, "_CROSSOVER", 101)
    assert isinstance(make_search("auto", *arguments), ExactNeighbors)
    monkeypatch.setattr(_search, "_CROSSOVER", 100)
    assert isinstance(make_search("auto", *arguments), PrunedNeighbors)
    assert isinstance(make_search("exact", *arguments), ExactNeighbors)
    assert isinstance(make_search("nndescent", *arguments), PrunedNeighbors)


def test_few_points_need_no_graph():
    assert NNDescentGraph().find(np.zeros((59, 3))).shape == (59, 0)


def test_few_rows_load_no_compiler():
    code = (
        "import sys, numpy as np\n"
        "from sdm_sklearn import SDMClassifier\n"
        "y = np.arange(300) % 2\n"
        "X = 5 * y[:, None] + np.random.RandomState(0).randn(300, 8)\n"
        "SDMClassifier(0.6, n_restarts=1, max_epochs=3).fit(X, y).signals(X)\n"
        "print([m for m in ('numba', 'pynndescent') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_the_compiled_search_is_announced(monkeypatch, caplog):
    support, labels, predictions, n_classes = make_points(100)
    monkeypatch.delitem(sys.modules, "sdm_sklearn._pruned_kernel", raising=False)
    with caplog.at_level(logging.INFO, logger="sdm_sklearn"):
        search = make_search("pruned", support, labels, predictions, n_classes)
        search.query(support[:2], predictions[:2])
    assert "compiled neighbour search" in caplog.text


def test_the_faiss_wrapper_of_the_guide(reference):
    pytest.importorskip("faiss")
    text = (Path(__file__).parent.parent / "docs/user_guide/scale.rst").read_text()
    code = text[
        text.index("    import faiss") : text.index(
            "    clf = SDMClassifier(neighbors=Faiss"
        )
    ]
    names = {}
    exec(textwrap.dedent(code), names)
    _, signals = fit(neighbors=names["FaissIndex"]())
    assert_array_equal(signals.similarity, reference[1].similarity)


@pytest.mark.slow
def test_nndescent(reference, caplog):
    """One test, for NN-descent is compiled for about a minute."""
    import torch

    torch_threads = torch.get_num_threads()
    with caplog.at_level(logging.INFO, logger="sdm_sklearn"):
        clf, signals = fit(neighbors="nndescent")
    import numba

    assert "about a minute" in caplog.text
    assert numba.get_num_threads() == numba.config.NUMBA_NUM_THREADS
    assert torch.get_num_threads() == torch_threads
    assert clf.history_ == reference[0].history_
    for name, expected in reference[1].items():
        assert_array_equal(signals[name], expected)
    few, signals = fit(neighbors="nndescent", support_size=0.7)
    exact, expected = fit(neighbors="exact", support_size=0.7)
    assert few.history_ == exact.history_
    assert_array_equal(signals.similarity, expected.similarity)

    support, labels, predictions, n_classes = make_points()
    arguments = (support, labels, predictions, n_classes)
    own = np.arange(len(support))
    exact = ExactNeighbors(*arguments).query(support, predictions, own)
    graph = NNDescentGraph()
    cold = graph.find(support)
    assert (cold == exact[2][:, None]).any(axis=1).mean() > 0.95
    assert not (cold == own[:, None]).any()
    moved = support + 0.05 * np.random.RandomState(1).randn(*support.shape)
    warm = graph.find(moved)
    exact = ExactNeighbors(moved, *arguments[1:]).query(moved, predictions, own)
    assert (warm == exact[2][:, None]).any(axis=1).mean() > 0.95
    search = PrunedNeighbors(moved, *arguments[1:])
    assert_same_answers(search.query(moved, predictions, own, warm), exact)

    for odd in (np.ones((300, 4)), np.repeat(support[:30], 10, axis=0)):
        found = NNDescentGraph().find(odd)
        assert found.shape[0] == len(odd)
        codes = np.arange(len(odd)) % 2
        assert_same_answers(
            PrunedNeighbors(odd, codes, codes, 2).query(odd, codes, None, found),
            ExactNeighbors(odd, codes, codes, 2).query(odd, codes),
        )
