import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from sklearn.model_selection import PredefinedSplit

from sdm_sklearn._splits import (
    check_split,
    draw_certify,
    list_splits,
    random_halves,
    set_aside,
    stratified_halves,
)

CLASSES = np.array(["common", "rare"])


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=60),
    st.floats(0.05, 0.95),
    st.integers(0, 1000),
)
def test_halves_part_every_class(labels, size, seed):
    y = np.array(labels)
    train, calibration = stratified_halves(y, size, np.random.RandomState(seed))
    assert_array_equal(np.sort(np.concatenate([train, calibration])), np.arange(len(y)))
    for code in np.unique(y):
        n = (y == code).sum()
        assert (y[calibration] == code).sum() == max(1, int(size * n + 1e-9))


def test_halves_are_random():
    y = np.zeros(100, dtype=int)
    random = np.random.RandomState(0)
    first, second = (stratified_halves(y, 0.5, random)[0] for _ in range(2))
    assert not np.array_equal(first, second)


@pytest.mark.parametrize(
    ("cv", "message"),
    [
        (iter([]), "gives no split.* An iterator is exhausted after one fit"),
        (PredefinedSplit(np.full(6, -1)), "gives no split"),
        (
            [(np.arange(3), np.arange(3, 6), np.arange(2))],
            "cv must give pairs of training and calibration rows. Got",
        ),
    ],
)
def test_iterables_without_pairs(cv, message):
    y = np.array([0, 0, 0, 1, 1, 1])
    with pytest.raises(ValueError, match=message):
        list_splits(cv, np.zeros((6, 1)), y)


def test_masks_and_lists_become_rows():
    y = np.array([0, 0, 1, 1, 0, 1])
    mask = np.array([1, 1, 1, 1, 0, 0], dtype=bool)
    train, calibration = check_split(mask, [4, 5], y, CLASSES)
    assert_array_equal(train, [0, 1, 2, 3])
    assert_array_equal(calibration, [4, 5])


@pytest.mark.parametrize(
    ("train", "calibration", "message"),
    [
        ([0, 1, 2, 3, -1], [4], "cv must give row numbers from 0 to 5.* Got array"),
        ([0, 1, 2, 3, 6], [4, 5], "cv must give row numbers from 0 to 5"),
        ([0.5, 1, 2, 3], [4, 5], "cv must give row numbers from 0 to 5"),
        ([True, False], [4, 5], "cv must give row numbers .* or masks of 6 rows"),
        ([0, 1, 2, 3, 4, 5], [], r"has 0 of its 3 rows in the calibration half"),
        ([0, 1, 2, 3], [3, 4, 5], "cv puts 1 rows twice"),
        ([0, 1, 2, 3, 3], [4, 5], "cv puts 1 rows twice"),
        (
            [0, 1, 2],
            [3, 4, 5],
            r"Class 'rare' has 1 of its 3 rows in the training half",
        ),
        ([0, 1, 2, 3, 5], [4], r"'rare' has 0 of its 3 rows in the calibration half"),
    ],
)
def test_bad_splits(train, calibration, message):
    y = np.array([0, 0, 1, 1, 0, 1])
    with pytest.raises(ValueError, match=message):
        check_split(train, calibration, y, CLASSES)


@given(
    st.integers(40, 200),
    st.floats(0.25, 0.9),
    st.floats(0.2, 0.8),
    st.integers(0, 1000),
)
def test_random_parts_are_disjoint_and_of_the_sizes_asked(n, size, certify_size, seed):
    y = np.arange(n) % 2
    certify, splits = random_halves(
        y, size, certify_size, 3, np.random.RandomState(seed)
    )
    assert len(splits) == 3
    assert len(certify) == int(n * size * certify_size + 1e-9)
    for train, calibration in splits:
        parts = np.concatenate([train, calibration, certify])
        assert_array_equal(np.sort(parts), np.arange(n))
        # Each class is rounded down by itself, or up to one row.
        assert abs(len(calibration) - n * size * (1 - certify_size)) <= 3


def test_without_a_certificate_all_rows_are_split():
    y = np.arange(40) % 2
    certify, [(train, calibration)] = random_halves(
        y, 0.5, None, 1, np.random.RandomState(0)
    )
    assert certify is None
    expected = stratified_halves(y, 0.5, np.random.RandomState(0))
    assert_array_equal(train, expected[0])
    assert_array_equal(calibration, expected[1])


def test_certify_rows_leave_every_split_that_is_given():
    splits = [(np.arange(10, 40), np.arange(10)), (np.arange(30), np.arange(30, 40))]
    assert set_aside(splits, None, np.random.RandomState(0)) == (None, splits)
    certify, left = set_aside(splits, 0.4, np.random.RandomState(0))
    assert len(certify) == 4
    assert np.isin(certify, np.r_[np.arange(10), np.arange(30, 40)]).all()
    for before, after in zip(splits, left, strict=True):
        for half, rest in zip(before, after, strict=True):
            assert_array_equal(rest, np.setdiff1d(half, certify))


def test_certify_rows_are_a_simple_random_sample():
    random = np.random.RandomState(0)
    counts = np.zeros(8)
    for _ in range(2000):
        counts[draw_certify(np.arange(8), 2.9, random)] += 1
    assert counts.sum() == 4000
    assert abs(counts - 500).max() < 4 * np.sqrt(2000 * 0.25 * 0.75)


def test_at_least_one_row_is_set_aside():
    assert len(draw_certify(np.arange(8), 0.1, np.random.RandomState(0))) == 1
