import pickle
from functools import partial
from itertools import pairwise

import joblib
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.testing import assert_array_equal

from sdm_sklearn import _pruned_kernel, _threads
from sdm_sklearn._neighbors import ExactNeighbors
from sdm_sklearn._pruned import PrunedNeighbors, _in_steps, sum_tree

from .test_neighbors import problems


def assert_same_answers(found, expected):
    for a, b in zip(found, expected, strict=True):
        assert_array_equal(a, b)


def make_points(n=3000, n_axes=20, n_classes=4, seed=0):
    """Classes along few axes, noise along the others, 5 % of predictions wrong."""
    random = np.random.RandomState(seed)
    centers = np.zeros((n_classes, n_axes))
    centers[:, :n_classes] = 6 * np.eye(n_classes)
    labels = random.randint(n_classes, size=n)
    support = centers[labels] + random.randn(n, n_axes)
    wrong = random.rand(n) < 0.05
    predictions = np.where(wrong, random.randint(n_classes, size=n), labels)
    return support, labels, predictions, n_classes


@given(problems(), st.integers(0, 3))
def test_equals_exact_search_from_any_start(problem, n_candidates):
    support, labels, predictions, n_classes, queries, random = problem
    exact = ExactNeighbors(support, labels, predictions, n_classes)
    pruned = PrunedNeighbors(support, labels, predictions, n_classes)
    codes = random.randint(n_classes, size=len(queries))
    n = len(support)
    start = random.randint(-1, n + 1, size=(len(queries), n_candidates))
    assert_same_answers(
        pruned.query(queries, codes, candidates=start), exact.query(queries, codes)
    )
    own = np.arange(n)
    start = random.randint(-1, n, size=(n, n_candidates))
    assert_same_answers(
        pruned.query(support, predictions, own, start),
        exact.query(support, predictions, own),
    )


@pytest.mark.parametrize("n_axes", [1, 7, 8, 20, 127, 129, 300])
def test_equals_exact_search_on_many_points(n_axes):
    support, labels, predictions, n_classes = make_points(2000, max(n_axes, 4))
    support = support[:, :n_axes]
    support[::7] = support[0]  # many copies, of all labels
    support[::11] = support[1]
    arguments = (support, labels, predictions, n_classes)
    own = np.arange(len(support))
    assert_same_answers(
        PrunedNeighbors(*arguments).query(support, predictions, own),
        ExactNeighbors(*arguments).query(support, predictions, own),
    )


@given(st.integers(0, 10**6))
@settings(max_examples=20)
def test_copies_and_ties_equal_exact_search(seed):
    random = np.random.RandomState(seed)
    support = random.randint(0, 3, size=(random.randint(2, 400), 3)) * 1.0
    labels = random.randint(-1, 2, size=len(support))
    predictions = random.randint(2, size=len(support))
    arguments = (support, labels, predictions, 2)
    own = np.arange(len(support))
    assert_same_answers(
        PrunedNeighbors(*arguments).query(support, predictions, own),
        ExactNeighbors(*arguments).query(support, predictions, own),
    )


def test_measures_few_points():
    support, labels, predictions, n_classes = make_points(n_axes=40)
    search = PrunedNeighbors(support, labels, predictions, n_classes)
    spoilt = search.exact.points.copy()
    queries = support[predictions == 0][:20] + 0.1
    codes = np.zeros(20, dtype=int)
    expected = search.query(queries, codes)
    # Points far from every query are never read in full.
    squared = np.square(queries[:, None] - spoilt[None]).sum(axis=-1)
    spoilt[(squared > 120).all(axis=0)] = np.nan
    assert np.isnan(spoilt[:, 0]).mean() > 0.1
    spoilt.flags.writeable = False  # as all that the kernel gets
    search._arrays["points"] = spoilt
    assert_same_answers(search.query(queries, codes), expected)


def test_far_queries_and_none_at_all():
    support, labels, predictions, n_classes = make_points(500)
    arguments = (support, labels, predictions, n_classes)
    exact, pruned = ExactNeighbors(*arguments), PrunedNeighbors(*arguments)
    scales = np.array([1, 1e3, 1e6, 1e20, 1e160, 1e300])
    queries = scales[:, None] * np.random.RandomState(1).randn(6, support.shape[1])
    codes, start = np.arange(6) % n_classes, np.arange(12).reshape(6, 2)
    with np.errstate(over="ignore"):
        expected = exact.query(queries, codes)
        assert_same_answers(pruned.query(queries, codes, candidates=start), expected)
        assert_same_answers(
            pruned.query(queries[3:], codes[3:]), [a[3:] for a in expected]
        )
        own = np.arange(6)
        assert_same_answers(
            pruned.query(queries, codes, own), exact.query(queries, codes, own)
        )
    assert [len(a) for a in pruned.query(queries[:0], codes[:0])] == [0, 0, 0]


def test_constant_points_and_a_single_one():
    for n in (1, 2, 300):
        support, labels = np.ones((n, 3)), np.arange(n) % 2
        arguments = (support, labels, np.zeros(n, int), 2)
        own = np.arange(n)
        for asked in ((support, labels), (support, labels, own)):
            assert_same_answers(
                PrunedNeighbors(*arguments).query(*asked),
                ExactNeighbors(*arguments).query(*asked),
            )


@pytest.mark.parametrize("share", [0.001, 0.02, 0.3])
@pytest.mark.parametrize("factor", [1e-12, 30, 1e6])
def test_points_far_out(share, factor):
    # Their coordinates are cut off to those of a byte.
    support, labels, predictions, n_classes = make_points(2000)
    support[np.random.RandomState(1).rand(len(support)) < share] *= factor
    arguments = (support, labels, predictions, n_classes)
    own = np.arange(len(support))
    exact, pruned = ExactNeighbors(*arguments), PrunedNeighbors(*arguments)
    assert_same_answers(
        pruned.query(support, predictions, own), exact.query(support, predictions, own)
    )
    queries, codes = 3 * support[::5] + 1, predictions[::5]
    assert_same_answers(pruned.query(queries, codes), exact.query(queries, codes))


def test_at_the_end_of_all_numbers():
    codes = np.zeros(3, dtype=int)
    for support, queries in (
        (np.full((3, 1), 1e32), np.full((3, 1), 1e32)),  # float32 has no such square
        (np.array([[0.0], [1e20], [3e20]]), np.array([[0], [1e20], [3e20]], "f4")),
    ):
        for search in (ExactNeighbors, PrunedNeighbors):
            similarity, distance, index = search(support, codes, codes, 1).query(
                queries, codes
            )
            assert_array_equal(similarity, 3)
            # In float32 a query is not quite its exemplar.
            assert_array_equal(distance, np.abs(queries - support)[:, 0])
            assert_array_equal(index, [0, 0, 0] if support[0] else [0, 1, 2])
    # A square beyond float64 is far away, not equal.
    support = 1e152 * np.random.RandomState(0).randn(40, 3)
    labels = np.arange(40) % 2
    search = PrunedNeighbors(support, labels, labels, 2)
    _, distance, _ = search.query(1e3 * support, labels)
    assert_array_equal(distance, np.inf)


def test_is_compiled_once_whatever_may_be_written(tmp_path):
    support, labels, predictions, n_classes = make_points(500)
    search = PrunedNeighbors(support, labels, predictions, n_classes)
    expected = search.query(support, predictions)
    joblib.dump((search, support, predictions), tmp_path / "search")
    search, queries, codes = joblib.load(tmp_path / "search", mmap_mode="r")
    assert not queries.flags.writeable
    assert_same_answers(search.query(queries, codes), expected)
    assert len(_pruned_kernel.search.signatures) == 1


def test_one_place_but_for_a_few_points():
    support = np.zeros((2000, 3))
    support[:15] = np.random.RandomState(0).randn(15, 3)
    support[15:30] *= 1e-30
    labels = np.arange(2000) % 2
    arguments = (support, labels, labels, 2)
    own = np.arange(2000)
    assert_same_answers(
        PrunedNeighbors(*arguments).query(support, labels, own),
        ExactNeighbors(*arguments).query(support, labels, own),
    )


coordinates = arrays(
    np.float32, (2, _pruned_kernel.N_LEADING), elements=st.floats(-2, 2, width=32)
)


# As far from whole steps as can be, and apart.
apart = np.outer([0.49, 5.51], np.full(_pruned_kernel.N_LEADING, 0.125))


@given(coordinates, st.floats(1e-4, 1))
@example(apart.astype(np.float32), 0.125)
def test_rounding_to_steps_rules_nothing_out(pair, step):
    squared = np.square(pair[0].astype(float) - pair[1]).sum()
    a, b = _in_steps(pair, step).astype(np.int64)
    for reach in (_pruned_kernel._reach, _pruned_kernel._reach.py_func):
        assert np.square(a - b).sum() % 2**16 <= reach(squared, step)


@given(coordinates, st.floats(0.004, 1))
def test_steps_are_distances(pair, step):
    a, b = _in_steps(pair, step).astype(np.int64)
    inside = np.abs(pair).max() <= 127 * step
    error = abs(step * np.linalg.norm(a - b) - np.linalg.norm(pair[0] - pair[1]))
    assert not inside or error <= 1.01 * step * np.sqrt(_pruned_kernel.N_LEADING)


def test_does_not_depend_on_batch_order_threads_or_lists(monkeypatch):
    support, labels, predictions, n_classes = make_points()
    queries, _, codes, _ = make_points(2500, seed=1)
    search = PrunedNeighbors(support, labels, predictions, n_classes)
    together = search.query(queries, codes)
    order = np.random.RandomState(0).permutation(len(queries))
    assert_same_answers(
        search.query(queries[order], codes[order]), [a[order] for a in together]
    )
    for row in range(20):
        assert_same_answers(
            search.query(queries[[row]], codes[[row]]), [a[[row]] for a in together]
        )
    for n_threads in (1, 2, 5):
        monkeypatch.setattr(
            _threads, "_openmp_effective_n_threads", partial(int, n_threads)
        )
        assert_same_answers(search.query(queries, codes), together)


def test_nearly_all_points_in_reach():
    support = np.random.RandomState(0).randn(10_000, 5)
    labels = np.zeros(len(support), dtype=int)
    labels[:2] = 1  # all but two extend the run of class 0
    arguments = (support, labels, labels, 2)
    queries = np.random.RandomState(1).randn(40, 5)
    for code in (0, 1):
        codes = np.full(40, code)
        assert_same_answers(
            PrunedNeighbors(*arguments).query(queries, codes),
            ExactNeighbors(*arguments).query(queries, codes),
        )
    similarity, _, _ = PrunedNeighbors(*arguments[:3], 1).query(
        queries, np.zeros(40, int)
    )
    assert similarity.max() > len(support) / 2


def test_pickle_holds_the_points_once_and_answers_the_same():
    support, labels, predictions, n_classes = make_points()
    search = PrunedNeighbors(support, labels, predictions, n_classes)
    data = pickle.dumps(search)
    assert len(data) < support.nbytes * 1.3
    queries, codes = support[:9] + 0.1, predictions[:9]
    assert_same_answers(
        pickle.loads(data).query(queries, codes), search.query(queries, codes)
    )


def test_kneighbors_are_exact():
    support, labels, predictions, n_classes = make_points(300)
    arguments = (support, labels, predictions, n_classes)
    own = np.arange(len(support))
    assert_same_answers(
        PrunedNeighbors(*arguments).kneighbors(support, 5, own),
        ExactNeighbors(*arguments).kneighbors(support, 5, own),
    )


@pytest.mark.parametrize("n", [1, 7, 8, 9, 100, 128, 129, 200, 384, 1000, 2049])
def test_distances_have_the_bits_of_numpy(n):
    random = np.random.RandomState(n)
    a, b = random.randn(50, n), random.randn(n)
    expected = np.square(a - b).sum(axis=1)
    tree = sum_tree(n)
    for compiled in (_pruned_kernel._measure, _pruned_kernel._measure.py_func):
        found = [compiled(row, b, 0.0, tree["ends"], tree["merges"]) for row in a[:5]]
        assert_array_equal(found, expected[:5])


def test_split_points():
    values = np.random.RandomState(0).randn(1000, 3).astype(np.float32)
    asked, starts = np.arange(999, -1, -1), np.array([0, 300, 300, 1000])
    compiled = _pruned_kernel.split_points
    for split in (compiled, compiled.py_func):
        rows, begin = split(values, asked, starts, 64)
        # Every group keeps its rows, and every part is full but the last of a group.
        for first, last in pairwise(starts):
            assert_array_equal(np.sort(rows[first:last]), np.sort(asked[first:last]))
        assert set(starts) <= set(begin)
        assert sorted(np.diff(begin)) == [300 % 64, 700 % 64] + 14 * [64]
    assert_array_equal(asked, np.arange(999, -1, -1))
    rows, begin = compiled(values, asked[:0], starts[:1], 64)
    assert (len(rows), list(begin)) == (0, [0])


def test_split_points_halves_the_widest_axis():
    values = np.zeros((128, 2), dtype=np.float32)
    values[:, 0] = np.arange(128) % 2
    values[:, 1] = 1e6 + np.random.RandomState(0).permutation(128)  # far from 0
    rows, begin = _pruned_kernel.split_points(
        values, np.arange(128), np.array([0, 128]), 64
    )
    assert_array_equal(begin, [0, 64, 128])
    assert values[rows[:64], 1].max() < values[rows[64:], 1].min()


@pytest.mark.parametrize("n", [1, 3, 50])
def test_nearest_cells_outside_a_group(n):
    bound = np.random.RandomState(n).randint(9, size=n).astype(np.float32)
    first, last = n // 3, n // 2
    cells = np.empty(n, dtype=np.int64)
    found = _pruned_kernel._list_nearest_others(bound, first, last, cells)
    others = np.r_[:first, last:n]
    expected = others[np.argsort(bound[others], kind="stable")]
    assert_array_equal(cells[:found], expected[: _pruned_kernel._N_FIRST])


def test_compiles_where_nothing_can_be_cached(monkeypatch):
    compiled = _pruned_kernel.numba.njit

    def njit(**options):
        if options.get("cache"):
            raise RuntimeError("cannot cache: no locator available")
        return compiled(**options)

    monkeypatch.setattr(_pruned_kernel.numba, "njit", njit)
    assert _pruned_kernel._compile()(lambda x: x + 1)(1) == 2
