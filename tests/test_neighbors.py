import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from sdm_sklearn import _neighbors
from sdm_sklearn._neighbors import ExactNeighbors, cap_similarity
from sdm_sklearn._pruned import PrunedNeighbors


def brute_force(support, labels, predictions, queries, query_predictions, own=None):
    """q, nearest distance and nearest index by sorting all direct distances."""
    squared = np.square(queries[:, None] - support[None]).sum(axis=-1)
    if own is not None:
        squared[np.arange(len(own)), own] = np.inf
    similarity = []
    for row, code in zip(squared, query_predictions, strict=True):
        breaker = ~((labels == code) & (predictions == code))
        radius = np.min(row[breaker], initial=np.inf)
        similarity.append((row < radius).sum())
    index = np.where(np.isinf(squared.min(axis=1)), -1, squared.argmin(axis=1))
    return np.array(similarity), np.sqrt(squared.min(axis=1)), index


@st.composite
def problems(draw):
    """Supports with ties, duplicates, offsets, odd scales and unknown labels."""
    random = np.random.RandomState(draw(st.integers(0, 2**31 - 1)))
    n, m = draw(st.integers(2, 60)), draw(st.integers(1, 6))
    n_classes = draw(st.integers(2, 4))
    scale = 10.0 ** draw(st.integers(-30, 30))
    if draw(st.booleans()):
        support = random.randint(-2, 3, size=(n, m)) * scale  # a lattice: exact ties
    else:
        support = random.randn(n, m) * scale
    support = support + draw(st.sampled_from([0, 1, 1e4])) * scale
    labels = random.randint(-1, n_classes, size=n)
    wrong = random.rand(n) < draw(st.sampled_from([0, 0.2, 1]))
    predictions = np.where(
        wrong, random.randint(n_classes, size=n), np.maximum(labels, 0)
    )
    queries = support[random.randint(n, size=20)]
    queries = queries + random.randint(-1, 2, size=(20, m)) * scale / 2
    queries[0] *= 10.0 ** draw(st.integers(0, 12))
    return support, labels, predictions, n_classes, queries, random


@given(problems())
def test_equals_brute_force(problem):
    support, labels, predictions, n_classes, queries, random = problem
    index = ExactNeighbors(support, labels, predictions, n_classes)
    codes = random.randint(n_classes, size=len(queries))
    found = index.query(queries, codes)
    expected = brute_force(support, labels, predictions, queries, codes)
    for a, b in zip(found, expected, strict=True):
        assert_array_equal(a, b)
    own = np.arange(len(support))
    found = index.query(support, predictions, own)
    expected = brute_force(support, labels, predictions, support, predictions, own)
    for a, b in zip(found, expected, strict=True):
        assert_array_equal(a, b)


@given(problems())
def test_does_not_depend_on_batch_or_order(problem):
    support, labels, predictions, n_classes, queries, random = problem
    index = ExactNeighbors(support, labels, predictions, n_classes)
    codes = random.randint(n_classes, size=len(queries))
    together = index.query(queries, codes)
    order = random.permutation(len(queries))
    shuffled = index.query(queries[order], codes[order])
    for row in range(len(queries)):
        alone = index.query(queries[[row]], codes[[row]])
        for a, b in zip(alone, together, strict=True):
            assert_array_equal(a, b[[row]])
    for a, b in zip(shuffled, together, strict=True):
        assert_array_equal(a, b[order])


@given(problems())
def test_kneighbors_equals_brute_force(problem):
    support, labels, predictions, n_classes, queries, random = problem
    index = ExactNeighbors(support, labels, predictions, n_classes)
    k = random.randint(1, len(support))
    for points, own in ((queries, None), (support, np.arange(len(support)))):
        distances, indices = index.kneighbors(points, k, own)
        squared = np.square(points[:, None] - support[None]).sum(axis=-1)
        if own is not None:
            squared[own, own] = np.inf
        expected = np.argsort(squared, axis=1, kind="stable")[:, :k]
        assert_array_equal(indices, expected)
        assert_array_equal(distances, np.sqrt(np.take_along_axis(squared, expected, 1)))


def test_blocks_do_not_change_the_result(monkeypatch):
    random = np.random.RandomState(0)
    support, queries = random.randn(200, 5), random.randn(50, 5)
    labels = random.randint(3, size=200)
    args = (support, labels, labels, 3)
    codes = random.randint(3, size=50)
    expected = ExactNeighbors(*args).query(queries, codes)
    monkeypatch.setattr(_neighbors, "_BLOCK_ENTRIES", 450)
    monkeypatch.setattr(_neighbors, "_CACHED_ENTRIES", 7)
    monkeypatch.setattr(_neighbors, "_MAX_UNDECIDED", 1)
    index = ExactNeighbors(*args)
    for a, b in zip(index.query(queries, codes), expected, strict=True):
        assert_array_equal(a, b)
    distances, indices = index.kneighbors(queries, 3)
    assert_array_equal(indices[:, 0], expected[2])
    assert_array_equal(distances[:, 0], expected[1])


def test_own_row_is_left_out_by_index_with_duplicates():
    random = np.random.RandomState(0)
    support = np.repeat(random.randn(40, 8), 5, axis=0)[random.permutation(200)]
    labels = np.zeros(200, dtype=int)
    index = ExactNeighbors(support, labels, labels, 2)
    distances, indices = index.kneighbors(support, 7, np.arange(200))
    assert not (indices == np.arange(200)[:, None]).any()
    assert (distances[:, :4] == 0).all()  # the four duplicates stay
    assert (distances[:, 4:] > 0).all()
    similarity, nearest, _ = index.query(support, labels, np.arange(200))
    assert_array_equal(similarity, np.full(200, 199))  # nothing breaks
    assert_array_equal(nearest, np.zeros(200))


def test_a_breaker_at_the_same_distance_breaks():
    support = np.array([[0.0], [1.0], [1.0], [3.0]])
    labels = np.array([0, 0, 1, 0])
    index = ExactNeighbors(support, labels, labels, 2)
    similarity, _, nearest = index.query(np.array([[0.0], [1.0]]), np.array([0, 0]))
    assert_array_equal(similarity, [1, 0])
    assert_array_equal(nearest, [0, 1])


def test_a_single_support_point_without_itself():
    index = ExactNeighbors(np.zeros((1, 2)), np.zeros(1, int), np.zeros(1, int), 2)
    similarity, nearest, position = index.query(
        np.zeros((1, 2)), np.zeros(1, int), np.zeros(1, int)
    )
    assert (similarity, nearest, position) == ([0], [np.inf], [-1])


def test_points_all_the_same():
    support = np.ones((100, 3))
    labels = np.repeat([0, 1], 50)
    index = ExactNeighbors(support, labels, labels, 2)
    similarity, nearest, position = index.query(support, labels, np.arange(100))
    assert_array_equal(similarity, np.zeros(100))
    assert_array_equal(nearest, np.zeros(100))
    assert_array_equal(position, [1, *[0] * 99])


@pytest.mark.parametrize("scale", [1e20, 1e160, 1e300])
def test_far_queries_find_no_support_they_do_not_have(scale):
    random = np.random.RandomState(0)
    support = random.randn(100, 3)
    labels = np.repeat([0, 1], 50)
    index = ExactNeighbors(support, labels, labels, 2)
    queries = random.randn(10, 3) * scale
    similarity, nearest, _ = index.query(queries, np.zeros(10, int))
    with np.errstate(over="ignore"):
        expected = brute_force(support, labels, labels, queries, np.zeros(10, int))
    assert_array_equal(similarity, expected[0])
    assert_array_equal(nearest, expected[1])


def test_an_exact_copy_is_at_distance_0_whatever_rounding_does():
    random = np.random.RandomState(0)
    support = random.randn(200, 16) + 5
    labels = np.repeat([0, 1], 100)
    index = ExactNeighbors(support, labels, labels, 2)
    # What another processor would compute for the same rows.
    elsewhere = support * (1 + random.choice([-2e-16, 0, 2e-16], size=support.shape))
    _, nearest, position = index.query(elsewhere, labels)
    assert_array_equal(nearest, np.zeros(200))
    assert_array_equal(position, np.arange(200))


@pytest.mark.parametrize("offset", [1e9, 1e10, 1e12])
@pytest.mark.parametrize("kind", [ExactNeighbors, PrunedNeighbors])
def test_all_that_is_only_rounding_ties(kind, offset):
    # Spread against the offset: many points are at distance 0, farther apart than the
    # search itself can tell or not. The first of them in row order is the nearest.
    support = np.random.RandomState(0).randn(300, 1) + offset
    labels = np.arange(300) % 3
    index = kind(support, labels, labels, 3)
    squared = np.square(support - support.T)
    lengths = np.abs(support) + np.median(np.abs(support))
    squared[squared <= (1e-12 * lengths) ** 2] = 0
    similarity, distance, nearest = index.query(support, labels)
    assert_array_equal(nearest, squared.argmin(axis=1))
    assert_array_equal(distance, np.sqrt(squared.min(axis=1)))
    same = labels[:, None] == labels
    radius = np.where(same, np.inf, squared).min(axis=1)
    assert_array_equal(similarity, (squared < radius[:, None]).sum(axis=1))
    first = index.kneighbors(support, 1)[1][:, 0]
    assert_array_equal(first, squared.argmin(axis=1))


def test_a_point_far_out_does_not_make_others_copies():
    random = np.random.RandomState(0)
    support = random.randn(100, 4)
    labels = np.repeat([0, 1], 50)
    queries, codes = random.randn(20, 4), np.zeros(20, int)
    expected = ExactNeighbors(support, labels, labels, 2).query(queries, codes)
    far_out = np.vstack([support, np.full((1, 4), 1e13)])
    labels = np.append(labels, 0)
    found = ExactNeighbors(far_out, labels, labels, 2).query(queries, codes)
    for a, b in zip(found, expected, strict=True):
        assert_array_equal(a, b)


def test_copies_are_searched_once():
    random = np.random.RandomState(0)
    support = np.vstack([np.zeros((20_000, 8)), random.randn(100, 8)])
    labels = np.zeros(len(support), dtype=int)
    labels[-50:] = 1
    index = ExactNeighbors(support, labels, labels, 2)
    assert len(index.points) == 101
    similarity, nearest, position = index.query(
        support, labels, np.arange(len(support))
    )
    assert (similarity[:20_000] >= 19_999).all()
    assert_array_equal(nearest[:20_000], np.zeros(20_000))
    assert_array_equal(position[:20_000], [1, *[0] * 19_999])
    distances, indices = index.kneighbors(support[:3], 5, np.arange(3))
    assert_array_equal(distances, np.zeros((3, 5)))
    assert_array_equal(indices[0], [1, 2, 3, 4, 5])
    assert_array_equal(indices[2], [0, 1, 3, 4, 5])


@given(st.integers(0, 10**6))
def test_copies_of_points_equal_brute_force(seed):
    random = np.random.RandomState(seed)
    support = random.randint(0, 2, size=(random.randint(2, 40), 2)) * 1.0
    support[random.rand(len(support)) < 0.2] *= -1  # negative zeros, too
    labels = random.randint(-1, 2, size=len(support))
    predictions = random.randint(2, size=len(support))
    index = ExactNeighbors(support, labels, predictions, 2)
    own = np.arange(len(support))
    found = index.query(support, predictions, own)
    expected = brute_force(support, labels, predictions, support, predictions, own)
    for a, b in zip(found, expected, strict=True):
        assert_array_equal(a, b)


def test_pickle_holds_the_points_once_and_answers_the_same():
    random = np.random.RandomState(0)
    support, labels = random.randn(1000, 16), random.randint(2, size=1000)
    index = ExactNeighbors(support, labels, labels, 2)
    data = pickle.dumps(index)
    assert len(data) < support.nbytes * 1.2
    queries, codes = random.randn(9, 16), np.zeros(9, int)
    again = pickle.loads(data)
    for a, b in zip(
        again.query(queries, codes), index.query(queries, codes), strict=True
    ):
        assert_array_equal(a, b)


def test_cap():
    q = np.array([0.0, 5, 50])
    assert cap_similarity(q, None) is q
    assert_array_equal(cap_similarity(q, 5), [0, 5, 5])
