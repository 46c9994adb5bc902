import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import log_softmax, softmax

from sdm_sklearn.activation import log_sdm_activation, sdm_activation, sdm_loss

logits_strategy = hnp.arrays(
    np.float64,
    st.tuples(st.integers(1, 6), st.integers(2, 5)),
    elements=st.floats(-50, 50),
)


@st.composite
def rows(draw, max_similarity=1e9, bound=1e4):
    shape = draw(st.tuples(st.integers(1, 6), st.integers(2, 5)))
    logits = draw(hnp.arrays(np.float64, shape, elements=st.floats(-bound, bound)))
    n = shape[0]
    similarity = draw(hnp.arrays(np.float64, n, elements=st.floats(0, max_similarity)))
    distance = draw(hnp.arrays(np.float64, n, elements=st.floats(0, 1)))
    return logits, similarity, distance


@given(logits_strategy)
def test_softmax_at_q_e_minus_2_and_d_1(logits):
    q, d = np.e - 2, 1.0
    assert_allclose(sdm_activation(logits, q, d), softmax(logits, axis=1), rtol=1e-12)
    expected = log_softmax(logits, axis=1)
    assert_allclose(log_sdm_activation(logits, q, d), expected, rtol=1e-12, atol=1e-12)


@given(rows())
def test_uniform_at_d_0(args):
    logits, similarity, _ = args
    expected = np.full(logits.shape, 1 / logits.shape[1])
    assert_allclose(sdm_activation(logits, similarity, 0.0), expected, rtol=1e-15)


@given(rows())
def test_is_a_finite_distribution_that_keeps_the_order(args):
    logits, similarity, distance = args
    log_p = log_sdm_activation(logits, similarity, distance)
    assert np.isfinite(log_p).all()
    p = sdm_activation(logits, similarity, distance)
    assert_allclose(p.sum(axis=1), 1, rtol=1e-12)
    top = logits.argmax(axis=1)
    assert_array_equal(p.max(axis=1), p[np.arange(len(p)), top])
    for z, row in zip(logits, log_p, strict=True):
        assert (np.diff(row[np.argsort(z)]) >= 0).all()


@given(rows(max_similarity=1e3, bound=20), st.floats(0, 1e3), st.floats(0, 1))
def test_largest_probability_grows_with_q_and_d(args, more_q, more_d):
    logits, q, d = args
    largest = sdm_activation(logits, q, d).max(axis=1)
    assert (sdm_activation(logits, q + more_q, d).max(axis=1) >= largest - 1e-12).all()
    larger_d = np.minimum(d + more_d, 1)
    assert (sdm_activation(logits, q, larger_d).max(axis=1) >= largest - 1e-12).all()


@given(rows(bound=100), st.floats(-1e3, 1e3))
def test_shift_of_logits_changes_nothing(args, shift):
    logits, q, d = args
    a, b = sdm_activation(logits, q, d), sdm_activation(logits + shift, q, d)
    # The shift itself rounds; an exponent of at most ln(2 + 1e9) = 21 magnifies that.
    assert_allclose(a, b, atol=1e-11)


def test_hand_worked_values():
    # q = 8, d = 1/2: the base is 10 and the exponents are z / 2.
    p = sdm_activation([[2.0, 0.0]], [8], [0.5])
    assert_allclose(p, [[10 / 11, 1 / 11]], rtol=1e-15)
    # q = 2, d = 1, z = (1, 2, 0): 4, 16, 1 of 21.
    p = sdm_activation([1.0, 2.0, 0.0], 2, 1)
    assert_allclose(p, np.array([4, 16, 1]) / 21, rtol=1e-15)


def test_no_overflow_and_no_lost_tail():
    log_p = log_sdm_activation([[1e4, -1e4]], [1e9], [1.0])
    assert_allclose(log_p, [[0, -2e4 * np.log(2 + 1e9)]], rtol=1e-12)


def test_loss_by_hand():
    # The base of row 1 is 10, its probability of class 0 is 1/11; row 2 is uniform.
    logits, y = [[0.0, 1.0], [3.0, 1.0]], [0, 1]
    first, second = np.log10(11), np.log(2) / np.log(4)
    assert_allclose(sdm_loss(logits, y, [8, 2], [1, 0]), (first + second) / 2)
    weighted = sdm_loss(logits, y, [8, 2], [1, 0], class_weight=[3, 1])
    assert_allclose(weighted, (3 * first + second) / 4)


def test_loss_of_confident_error_is_not_capped():
    assert_allclose(sdm_loss([[0.0, 5.0]], [0], [1000], [1.0]), 5.0, rtol=1e-6)


@given(rows(max_similarity=1e6, bound=30))
def test_torch_agrees_with_numpy(args):
    logits, q, d = args
    tensors = [torch.tensor(value) for value in args]
    for function in (sdm_activation, log_sdm_activation):
        result = function(*tensors)
        assert isinstance(result, torch.Tensor)
        assert_allclose(result.numpy(), function(logits, q, d), rtol=1e-10, atol=1e-12)
    y = np.arange(len(logits)) % logits.shape[1]
    weight = np.arange(1.0, logits.shape[1] + 1)
    for class_weight in (None, weight):
        loss = sdm_loss(tensors[0], torch.tensor(y), q, d, class_weight=class_weight)
        expected = sdm_loss(logits, y, q, d, class_weight=class_weight)
        assert_allclose(loss.item(), expected, rtol=1e-9, atol=1e-12)


def test_gradient_is_that_of_finite_differences():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(6, 3, generator=generator, dtype=torch.float64)
    logits.requires_grad_()
    y = torch.arange(6) % 3
    q, d = np.arange(6.0), np.linspace(0, 1, 6)
    assert torch.autograd.gradcheck(
        lambda z: sdm_loss(z, y, q, d, class_weight=[1, 2, 3]), logits
    )


def test_torch_keeps_dtype_and_device():
    logits = torch.zeros(2, 3, dtype=torch.float32)
    result = sdm_activation(logits, np.array([1.0, 2.0]), 0.5)
    assert result.dtype == torch.float32
    assert result.device == logits.device


def test_leading_dimensions():
    logits = np.arange(24.0).reshape(2, 4, 3)
    q, d = np.arange(8.0).reshape(2, 4), np.linspace(0, 1, 8).reshape(2, 4)
    flat = sdm_activation(logits.reshape(8, 3), q.ravel(), d.ravel())
    assert_array_equal(sdm_activation(logits, q, d), flat.reshape(2, 4, 3))


def test_inputs_stay_as_they_are():
    args = [np.array([[1.0, 2.0]]), np.array([3.0]), np.array([0.5])]
    copies = [value.copy() for value in args]
    sdm_loss(args[0], [1], *args[1:])
    for value, copy in zip(args, copies, strict=True):
        assert_array_equal(value, copy)


@pytest.mark.parametrize(
    ("logits", "q", "d", "message"),
    [
        (3.0, 1, 1, r"logits must have the shape \(\.\.\., n_classes\)"),
        (np.empty((2, 0)), 1, 1, "at least one class"),
        ([[1, 2]], [1, 2], 1, r"similarity must be a scalar or have the shape \(1,\)"),
        ([[1, 2]], 1, [[1]], r"distance must be a scalar or have the shape \(1,\)"),
        ([[1, 2]], -1, 1, "similarity must be non-negative"),
        ([[1, 2]], np.nan, 1, "similarity must be non-negative"),
        ([[1, 2]], 1, 1.5, r"distance must lie in \[0, 1\]"),
        ([[1, 2]], 1, np.nan, r"distance must lie in \[0, 1\]"),
    ],
)
def test_bad_arguments(logits, q, d, message):
    for function in (sdm_activation, log_sdm_activation):
        with pytest.raises(ValueError, match=message):
            function(logits, q, d)


@pytest.mark.parametrize(
    ("logits", "y", "weight", "message"),
    [
        ([1, 2], [0], None, r"logits must have the shape \(n_samples, n_classes\)"),
        (np.empty((0, 2)), [], None, "at least one row"),
        ([[1, 2]], [0, 1], None, r"y must have the shape \(1,\)"),
        ([[1, 2]], [2], None, "y must hold class codes from 0 to 1. Got values from 2"),
        ([[1, 2]], [0], [1, 2, 3], r"class_weight must have the shape \(2,\)"),
        ([[1, 2]], [0], [1, -2], "class_weight must hold finite non-negative weights"),
        ([[1, 2]], [0], [0, 2], "at least one of them positive for a class in y"),
        ([[1, 2]], [0], [np.nan, 2], r"Got \[nan, 2.0\] instead"),
    ],
)
def test_bad_arguments_of_loss(logits, y, weight, message):
    with pytest.raises(ValueError, match=message):
        sdm_loss(logits, y, 1, 1, class_weight=weight)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_holds_large_similarities(dtype):
    logits = np.array([[2.0, 0.0], [0.0, 1.0]])
    q, d = np.array([1e6, 10.0]), np.array([1.0, 0.5])
    halves = torch.tensor(logits, dtype=dtype, requires_grad=True)
    loss = sdm_loss(halves, torch.tensor([1, 1]), q, d, class_weight=[1, 2])
    loss.backward()
    assert loss.dtype == halves.grad.dtype == dtype
    assert torch.isfinite(halves.grad).all()
    expected = sdm_loss(logits, [1, 1], q, d, class_weight=[1, 2])
    assert_allclose(loss.item(), expected, rtol=1e-2)
    for function in (sdm_activation, log_sdm_activation):
        got = function(halves, q, d)
        assert got.dtype == dtype
        got = got.detach().float()
        assert_allclose(got, function(logits, q, d), rtol=1e-2, atol=1e-6)


def test_integer_tensors_do_not_round_similarity_and_distance():
    logits = torch.tensor([[2, 0]])
    expected = sdm_activation([[2, 0]], 8, 0.5)
    assert_allclose(sdm_activation(logits, 8, 0.5), expected, rtol=1e-6)


def test_codes_of_any_integer_dtype_are_codes():
    logits, expected = np.array([[0.0, 1.0], [3.0, 4.0]]), None
    for y in ([1, 0], [True, False], np.array([1, 0], np.uint8)):
        loss = float(sdm_loss(logits, y, 1.0, 0.5))
        for dtype in (torch.uint8, torch.bool, torch.int8):
            codes = torch.tensor(np.asarray(y, dtype=int)).to(dtype)
            other = float(sdm_loss(torch.tensor(logits), codes, 1.0, 0.5))
            assert other == pytest.approx(loss)
        assert expected is None or loss == expected
        expected = loss
