"""SSA as functions: the formula, its laws, the backends against each other."""

import math
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from sdm_sklearn.attention import _functional as functional
from sdm_sklearn.attention import ssa_attention, ssa_transform, ssa_weights
from sdm_sklearn.attention._blocked import blocked_backward, blocked_forward

DOUBLE = torch.float64
BACKENDS = ("eager", "blocked")


def tensor(*values, dtype=DOUBLE):
    return torch.tensor(values, dtype=dtype)


def random(*shape, seed=0, dtype=DOUBLE, requires_grad=False):
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(*shape, generator=generator, dtype=DOUBLE).to(dtype)
    return values.requires_grad_(requires_grad)


def power_form(scores, n, b):
    """The formula of the paper, as it is printed."""
    return (1 + b * scores.abs()) ** (torch.sign(scores) * n)


def reference(query, key, value, n, b, mask=None, bias=None, is_causal=False):
    """Attention by the power form, key heads repeated."""
    group = query.shape[1] // key.shape[1]
    key, value = (part.repeat_interleave(group, 1) for part in (key, value))
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    if bias is not None:
        scores = scores + bias
    weights = power_form(scores, n.view(-1, 1, 1), b.view(-1, 1, 1))
    if is_causal:
        weights = weights.tril()
    if mask is not None:
        weights = weights * (mask if mask.dtype == torch.bool else mask.exp())
    return weights / weights.sum(-1, keepdim=True) @ value


finite = st.floats(-1e6, 1e6)
exponents = st.floats(1, 4)
scales = st.floats(1e-3, 1e3)


# ---------------------------------------------------------------- the weights


@given(st.lists(finite, min_size=1, max_size=8), exponents, scales)
def test_weights_equal_the_power_form(values, n, b):
    scores = tensor(*values)
    powers = power_form(scores, n, b)
    weights = ssa_weights(scores, n, b)
    torch.testing.assert_close(weights, powers / powers.sum(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(weights.sum(), tensor(1.0)[0], rtol=1e-12, atol=0)


@given(st.lists(finite, min_size=2, max_size=8), exponents, scales)
def test_larger_scores_never_get_less(values, n, b):
    scores = tensor(*values).sort().values
    weights = ssa_weights(scores, n, b)
    assert (weights >= 0).all()
    assert (weights.diff() >= 0).all()


@given(st.floats(0, 1e6), exponents, scales)
def test_the_transform_is_odd(score, n, b):
    plus, minus = ssa_transform(tensor(score, -score), n, b)
    assert plus == -minus


def test_hand_worked_weights():
    weights = ssa_weights(tensor(2.0, 0.0, -1.0), n=1.0, b=1.0)
    torch.testing.assert_close(weights, tensor(6, 2, 1) / 9, rtol=1e-14, atol=0)


@pytest.mark.parametrize("n", [1.0, 1.5, 3.0])
def test_one_growing_score_silences_the_rest_only_polynomially(n):
    others, b = 31, 0.8
    rest = []
    for top in (1e2, 1e4):
        scores = torch.zeros(others + 1, dtype=DOUBLE)
        scores[0] = top
        weights = ssa_weights(scores, n, b)
        expected = others / ((1 + b * top) ** n + others)
        rest.append(weights[1:].sum().item())
        assert rest[-1] == pytest.approx(expected, rel=1e-12)
    slope = math.log(rest[0] / rest[1]) / math.log(1e4 / 1e2)
    assert slope == pytest.approx(n, abs=0.15 * n)
    assert scores.softmax(-1)[1:].sum() == 0


def test_scaling_all_scores_leads_to_constant_weights():
    scores = tensor(3.0, 1.0, 2.0)
    limit = scores**1.5 / (scores**1.5).sum()
    weights = ssa_weights(scores * 1e12, 1.5, 0.8)
    torch.testing.assert_close(weights, limit, rtol=1e-9, atol=0)


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=8), st.sampled_from([64, 512]))
def test_softmax_limit(values, n):
    scores = tensor(*values)
    gap = (ssa_weights(scores, n, 1 / n).log() - scores.log_softmax(-1)).abs().max()
    assert gap <= scores.abs().max() ** 2 / n + 1e-12


def test_a_constant_added_to_the_scores_matters():
    scores = tensor(0.0, 1.0)
    moved = ssa_weights(scores + 5, 1.5, 0.8)
    assert (moved - ssa_weights(scores, 1.5, 0.8)).abs().max() > 0.1


def test_parameters_per_head_and_other_dims():
    scores, n, b = random(2, 3, 4, 5), tensor(1, 2, 3), tensor(0.5, 1, 2)
    whole = ssa_weights(scores, n, b)
    for head in range(3):
        single = ssa_weights(scores[:, head], n[head].item(), b[head].item())
        torch.testing.assert_close(whole[:, head], single)
    across = ssa_weights(scores, n, b, dim=-2)
    torch.testing.assert_close(across.sum(-2), torch.ones(2, 3, 5, dtype=DOUBLE))
    swapped = ssa_weights(scores.mT, n, b).mT
    torch.testing.assert_close(across, swapped)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_extreme_scores_stay_finite(dtype):
    top = torch.finfo(dtype).max
    scores = torch.tensor([top, top / 2, 0.0, -top], dtype=dtype, requires_grad=True)
    weights = ssa_weights(scores, n=3.0, b=5.0)
    assert weights.dtype == dtype
    assert weights.isfinite().all()
    assert weights.float().sum().item() == pytest.approx(1, abs=1e-2)
    weights[0].backward()
    assert scores.grad.isfinite().all()


@pytest.mark.parametrize("score", [0.5, 1e8, -1e8])
def test_derivatives_of_the_transform(score):
    leaves = [tensor(v)[0].requires_grad_() for v in (score, 1.5, 0.8)]
    ssa_transform(*leaves).backward()
    sign, size = math.copysign(1, score), abs(score)
    expected = [
        1.5 * 0.8 / (1 + 0.8 * size),
        sign * math.log1p(0.8 * size),
        sign * 1.5 * size / (1 + 0.8 * size),
    ]
    for leaf, want in zip(leaves, expected, strict=True):
        assert leaf.grad.item() == pytest.approx(want, rel=1e-13)


def test_slope_at_zero_is_n_times_b():
    scores = torch.zeros(3, dtype=DOUBLE, requires_grad=True)
    ssa_transform(scores, 1.5, 0.8).sum().backward()
    torch.testing.assert_close(scores.grad, torch.full((3,), 1.2, dtype=DOUBLE))


@pytest.mark.parametrize("score", [0.0, 1e8, -1e8, 0.3])
def test_gradients_of_weights(score):
    scores = tensor(score, 0.0, 1.0, -2.0).requires_grad_()
    n, b = tensor(1.5)[0].requires_grad_(), tensor(0.8)[0].requires_grad_()
    mask = torch.tensor([True, True, False, True])
    for kept in (None, mask):
        assert torch.autograd.gradcheck(
            lambda s, n, b, kept=kept: ssa_weights(s, n, b, mask=kept),
            (scores, n, b),
            atol=1e-5,
        )


def test_second_derivatives():
    scores = tensor(0.5, 1.0, -2.0).requires_grad_()
    n, b = tensor(1.5)[0].requires_grad_(), tensor(0.8)[0].requires_grad_()
    assert torch.autograd.gradgradcheck(ssa_weights, (scores, n, b))


# ---------------------------------------------------------------- masks


def masks_of(keep, dtype):
    low = torch.finfo(dtype).min
    yield keep
    for fill in (-math.inf, low, -1e4):
        yield torch.zeros(keep.shape, dtype=dtype).masked_fill(~keep, fill)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("backend", BACKENDS)
def test_masked_keys_are_as_if_removed(backend, dtype):
    query, key, value = (random(1, 2, 6, 4, seed=s, dtype=dtype) for s in range(3))
    value[:, :, 4:] = 1e3
    expected = ssa_attention(query, key[:, :, :4], value[:, :, :4], 1.5, 0.8)
    keep = torch.arange(6) < 4
    for mask in masks_of(keep, dtype):
        output = ssa_attention(query, key, value, 1.5, 0.8, mask, backend=backend)
        torch.testing.assert_close(output, expected, rtol=1e-6, atol=1e-6)
        weights = ssa_weights(query @ key.mT, 1.5, 0.8, mask=mask)
        assert (weights[..., 4:] == 0).all()


def test_score_bias_is_no_mask():
    # A negative score keeps polynomially little weight.
    scores = tensor(0.0, -1e4)
    assert ssa_weights(scores, 1.5, 0.8)[1] > 1e-7


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("is_causal", [False, True])
def test_rows_without_keys_are_zero(backend, is_causal):
    keep = torch.ones(1, 1, 5, 5, dtype=torch.bool)
    keep[..., 2, :] = False
    keep[..., 0] = False
    keep[..., 3, 0] = True
    for mask in masks_of(keep, torch.float64):
        parts = [random(1, 2, 5, 4, seed=s) for s in range(3)]
        parts[0][..., 2, :] = math.nan
        parts = [part.requires_grad_() for part in parts]
        n, b = tensor(1.5, 2).requires_grad_(), tensor(0.8, 1).requires_grad_()
        output = ssa_attention(*parts, n, b, mask, is_causal=is_causal, backend=backend)
        dead = [0, 2] if is_causal else [2]
        assert (output[..., dead, :] == 0).all()
        output.sum().backward()
        assert (parts[0].grad[..., dead, :] == 0).all()
        for part in (*parts, n, b):
            assert part.grad.isfinite().all()


def test_weights_of_slices_without_entries_are_zero():
    scores = random(3, 4, requires_grad=True)
    mask = torch.tensor([True, False, True]).view(3, 1)
    weights = ssa_weights(scores, 1.5, 0.8, mask=mask)
    assert (weights[1] == 0).all()
    weights.square().sum().backward()
    assert (scores.grad[1] == 0).all()
    assert scores.grad.isfinite().all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_nan_stays_visible(backend):
    query, key, value = (random(1, 1, 4, 4, seed=s) for s in range(3))
    query[..., 1, 0] = math.nan
    output = ssa_attention(query, key, value, 1.5, 0.8, backend=backend)
    assert output[..., 1, :].isnan().all()
    assert output[..., [0, 2, 3], :].isfinite().all()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("part", [0, 1])
def test_nan_gradients_stay_visible(backend, part):
    parts = [random(1, 1, 4, 4, seed=s) for s in range(3)]
    parts[part][..., 1, 0] = math.nan
    parts = [p.requires_grad_() for p in parts]
    ssa_attention(*parts, 1.5, 0.8, backend=backend).sum().backward()
    assert parts[part].grad.isnan().any()


@pytest.mark.parametrize("value", [math.inf, math.nan, 3e30])
@pytest.mark.parametrize("tile", [None, 64])
def test_what_a_mask_holds_where_causality_hides_does_not_count(
    value, tile, monkeypatch
):
    if tile is not None:
        monkeypatch.setattr(functional, "default_tile", lambda device: tile)
    mask = random(20, 20, seed=5)
    hidden = mask.masked_fill(torch.ones(20, 20).triu(1).bool(), value)
    results = []
    for backend, part in (("eager", mask), ("blocked", mask), ("blocked", hidden)):
        parts = [random(1, 2, 20, 4, seed=s).requires_grad_() for s in range(3)]
        n = tensor(1.5, 2.0).requires_grad_()
        output = ssa_attention(*parts, n, 0.8, part, is_causal=True, backend=backend)
        output.square().sum().backward()
        results.append([output, *(p.grad for p in parts), n.grad])
    for result in results[1:]:
        torch.testing.assert_close(result, results[0])


@pytest.mark.parametrize("backend", BACKENDS)
def test_scores_whose_product_with_b_overflows_saturate(backend):
    query = torch.full((1, 1, 3, 1), 1e18)
    key = torch.tensor([1e18, -1e18, 0.0]).view(1, 1, 3, 1)
    value = torch.eye(3).view(1, 1, 3, 3)
    output = ssa_attention(query, key, value, 1.5, 1e4, scale=1.0, backend=backend)
    assert output.tolist() == [[[[1.0, 0.0, 0.0]] * 3]]


# ---------------------------------------------------------------- the backends


@pytest.mark.parametrize("backend", BACKENDS)
def test_masks_of_any_precision_and_without_dimensions(backend):
    query = random(1, 2, 6, 4, dtype=torch.float32)
    mask, bias = random(6, 6, seed=1), random(6, 6, seed=2)
    single = [part.float() for part in (mask, bias)]
    for part, other in ((mask, single[0]), (torch.tensor(-0.5), None)):
        for is_causal in (False, True):
            results = [
                ssa_attention(
                    *(query, query, query, 1.5, 0.8, m),
                    is_causal=is_causal,
                    score_bias=b,
                    backend=backend,
                )
                for m, b in ((part, bias), (other, single[1]))
            ]
            assert results[0].dtype == torch.float32
            # A constant that is added to all transformed scores changes nothing.
            torch.testing.assert_close(*results)
    none = ssa_attention(
        query, query, query, 1.5, 0.8, torch.tensor(False), 0.0, True, backend=backend
    )
    assert (none == 0).all()


@settings(deadline=None)
@given(
    st.tuples(*(st.booleans() for _ in range(4))),
    st.sampled_from(["bool", "float", "far"]),
    st.booleans(),
    st.sampled_from([16, 256, 2**17]),
    st.integers(0, 1000),
)
def test_masks_that_broadcast_in_any_dimension(whole, kind, is_causal, tile, seed):
    """Masks of all heads are prepared once, of some heads tile by tile."""
    full = (2, 4, 33, 29)
    shape = [
        size if is_whole else 1 for size, is_whole in zip(full, whole, strict=True)
    ]
    parts = [random(2, 4, 33, 6, seed=seed, requires_grad=True)] + [
        random(2, 2, 29, 6, seed=seed + i, requires_grad=True) for i in (1, 2)
    ]
    keep = random(*shape, seed=seed + 3) < 0.4
    mask = keep
    if kind != "bool":
        mask = random(*shape, seed=seed + 4) * (300 if kind == "far" else 1)
        mask = mask.masked_fill(~keep, -1e4 - seed).requires_grad_()
    n = tensor(1.5, 1.0, 3.0, 9.0).requires_grad_()
    wanted = [*parts, n] + [mask] * (kind != "bool")
    results = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(functional, "default_tile", lambda device: tile)
        for backend in BACKENDS:
            output = ssa_attention(
                *(*parts, n, 0.8, mask),
                is_causal=is_causal,
                enable_gqa=True,
                backend=backend,
            )
            upstream = random(*output.shape, seed=seed + 5)
            results.append([output, *torch.autograd.grad(output, wanted, upstream)])
    torch.testing.assert_close(results[1], results[0], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("shape", [(128, 128), (128,)])
def test_a_mask_far_from_zero_does_not_spoil_the_gradient_of_n(is_causal, shape):
    """In float32, against float64: what a row has in common must cancel early."""
    parts = [random(1, 2, 128, 16, seed=s) for s in range(3)]
    upstream, mask = random(1, 2, 128, 16, seed=3), random(*shape, seed=4)
    for offset in (-100.0, -1000.0, -5000.0):
        grads = []
        for dtype, backend in ((DOUBLE, "eager"), (torch.float32, "blocked")):
            n = torch.tensor([1.5, 2.0], dtype=DOUBLE, requires_grad=True)
            output = ssa_attention(
                *(part.to(dtype) for part in parts),
                *(n, 0.8, (mask + offset).to(dtype)),
                is_causal=is_causal,
                backend=backend,
            )
            grads += torch.autograd.grad(output, n, upstream.to(dtype))
        torch.testing.assert_close(grads[1], grads[0], rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("tile", [None, 64, 500, 10**6])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kind", [None, "padding", "bool", "float"])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (3, 1)])
def test_output_and_gradients_equal_the_power_form(
    heads, is_causal, kind, bias, tile, monkeypatch
):
    batch, rows, keys = 2, 19, 23
    mask = None
    if kind is not None:
        shape = (batch, 1, 1, keys) if kind == "padding" else (rows, keys)
        mask = torch.rand(shape, generator=torch.Generator().manual_seed(5)) > 0.3
        mask[..., 0] = True
    leaves = [
        random(batch, heads[0], rows, 4, seed=1),
        random(batch, heads[1], keys, 4, seed=2),
        random(batch, heads[1], keys, 6, seed=3),
        random(heads[0], seed=4).abs() + 1,
        random(heads[0], seed=5).abs() + 0.3,
    ]
    if kind == "float":
        leaves.append(random(1, heads[0], rows, keys, seed=6))
    if bias:
        leaves.append(random(1, 1, rows, keys, seed=7))

    def gradients(run):
        inputs = [leaf.clone().requires_grad_() for leaf in leaves]
        float_mask = inputs[5] if kind == "float" else mask
        output = run(*inputs[:5], float_mask, inputs[-1] if bias else None)
        upstream = random(*output.shape, seed=8)
        return [output, *torch.autograd.grad((output * upstream).sum(), inputs)]

    def run(query, key, value, n, b, mask, bias):
        return ssa_attention(
            query,
            key,
            value,
            n,
            b,
            mask,
            is_causal=is_causal,
            enable_gqa=True,
            score_bias=bias,
            backend="eager" if tile is None else "blocked",
        )

    monkeypatch.setattr(functional, "default_tile", lambda device: tile)
    expected = gradients(lambda *args: reference(*args, is_causal=is_causal))
    for got, want in zip(gradients(run), expected, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-12)


@settings(max_examples=25)
@given(
    st.integers(1, 40),
    st.integers(1, 40),
    st.integers(1, 3),
    st.booleans(),
    st.integers(1, 2000),
    exponents,
    scales,
)
def test_any_tile_gives_the_power_form(rows, keys, heads, is_causal, tile, n, b):
    parts = [random(2, heads, s, 4, seed=i) for i, s in enumerate((rows, keys, keys))]
    n, b = (torch.full((heads,), v, dtype=DOUBLE) for v in (n, b))
    output, _ = blocked_forward(
        *parts, n, b, None, None, None, 0.5, 0.0, is_causal, tile
    )
    expected = reference(*parts, n, b, is_causal=is_causal)
    torch.testing.assert_close(output, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_gradcheck(backend, is_causal):
    query, key, value = (random(1, 2, 3, 2, seed=s) for s in range(3))
    query[..., 1, :] = 0  # all scores of a row are 0
    query[..., 2, :] *= 1e4
    n, b = tensor(1.5, 2), tensor(0.8, 0.1)
    keep = torch.tensor([True, False, True])
    inputs = [part.requires_grad_() for part in (query, key, value, n, b)]
    for mask in (None, keep):
        assert torch.autograd.gradcheck(
            lambda *args, mask=mask: ssa_attention(
                *args, mask, is_causal=is_causal, backend=backend
            ),
            inputs,
            atol=2e-5,
        )


@pytest.mark.parametrize("size", [1e8, 1e30])
def test_backends_agree_on_huge_scores(size):
    query, key, value = (random(1, 2, 5, 4, seed=s) for s in range(3))
    results = []
    for backend in BACKENDS:
        leaf = (query * size).requires_grad_()
        n = torch.tensor([1.5, 2.5], dtype=DOUBLE, requires_grad=True)
        output = ssa_attention(leaf, key, value, n, 0.8, backend=backend)
        output.square().sum().backward()
        results.append((output, leaf.grad * size, n.grad))
    for left, right in zip(*results, strict=True):
        assert left.isfinite().all()
        torch.testing.assert_close(left, right, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("n", [1.5, 128.0])
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float32, 3e-6), (torch.bfloat16, 5e-3), (torch.float16, 9e-4)],
)
def test_precision_against_float64(dtype, tolerance, n):
    parts = [random(2, 4, 64, 32, seed=s, dtype=dtype) for s in range(3)]
    b = 0.8 if n < 2 else 1 / n
    exact = ssa_attention(*(part.double() for part in parts), n, b)
    for backend in BACKENDS:
        output = ssa_attention(*parts, n, b, backend=backend)
        assert output.dtype == dtype
        assert (output.double() - exact).abs().max() < tolerance


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("spread", [1.0, 3.0, 9.0])
def test_half_precision_gradients_of_n_and_b(backend, dtype, spread):
    # A converted softmax model: the sums that make these gradients nearly cancel.
    parts = [random(2, 4, 96, 32, seed=s) for s in range(4)]
    parts[0] = parts[0] * spread
    query, key, value, upstream = (part.to(dtype) for part in parts)

    def gradients(backend, *parts):
        n = torch.full((4,), 128.0, dtype=DOUBLE, requires_grad=True)
        b = torch.full((4,), 1 / 128, dtype=DOUBLE, requires_grad=True)
        output = ssa_attention(*parts[:3], n, b, is_causal=True, backend=backend)
        return torch.autograd.grad(output, (n, b), parts[3])

    exact = gradients("eager", *(p.double() for p in (query, key, value, upstream)))
    got = gradients(backend, query, key, value, upstream)
    for left, right in zip(got, exact, strict=True):
        assert (left - right).abs().max() < 2e-4 * right.abs().max()


def test_b_is_redundant_when_q_is_free():
    query, key, value = (random(1, 2, 5, 4, seed=s) for s in range(3))
    b = tensor(0.3, 2.0)
    left = ssa_attention(query, key, value, 1.5, b)
    right = ssa_attention(query * b.view(-1, 1, 1), key, value, 1.5, 1.0)
    torch.testing.assert_close(left, right, rtol=1e-13, atol=1e-13)


def test_shapes_as_of_the_softmax_function():
    for lead in ((), (3,), (2, 3), (2, 1, 3), (2, 2, 2, 3)):
        query, key = random(*lead, 5, 4), random(*lead, 7, 4, seed=1)
        value = random(*lead, 7, 6, seed=2)
        want = F.scaled_dot_product_attention(query, key, value).shape
        mask = random(*lead, 5, 7, seed=3) > -1
        results = [
            ssa_attention(query, key, value, 1.5, 0.8, mask, backend=backend)
            for backend in BACKENDS
        ]
        assert results[0].shape == results[1].shape == want
        torch.testing.assert_close(*results)
    shared = ssa_attention(
        random(2, 3, 5, 4), random(1, 3, 7, 4), random(7, 6)[None, None], 2.0, 1.0
    )
    assert shared.shape == (2, 3, 5, 6)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("lead", [(1, 1), (2, 1), (1, 3), (2, 3), (3,), ()])
def test_masks_of_inputs_with_five_dimensions(backend, lead):
    query = random(2, 3, 2, 5, 4)
    mask, bias = random(*lead, 1, 5, 5, seed=1), random(*lead, 2, 5, 5, seed=2)
    whole = ssa_attention(
        query, query, query, 1.5, 0.8, mask > -1, score_bias=bias, backend=backend
    )
    masks, biases = (m.expand(2, 3, -1, 5, 5) for m in (mask > -1, bias))
    for first in range(2):
        part = query[first]
        expected = ssa_attention(
            part, part, part, 1.5, 0.8, masks[first], score_bias=biases[first]
        )
        torch.testing.assert_close(whole[first], expected)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "shape", [(0, 2, 5, 5, 4), (2, 2, 0, 5, 4), (2, 2, 5, 0, 4), (2, 2, 5, 5, 0)]
)
def test_empty_inputs(backend, shape):
    batch, heads, rows, keys, width = shape
    query = random(batch, heads, rows, width, requires_grad=True)
    key = random(batch, heads, keys, width, requires_grad=True)
    value = random(batch, heads, keys, 3, requires_grad=True)
    n = torch.tensor(1.5, dtype=DOUBLE, requires_grad=True)
    mask = torch.ones(rows, keys, dtype=torch.bool)
    for kept in (None, mask):
        output = ssa_attention(query, key, value, n, 0.8, kept, backend=backend)
        assert output.shape == (batch, heads, rows, 3)
        output.sum().backward()
        if keys == 0:
            assert (output == 0).all()


@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (3,), (4,), (3, 4)])
@pytest.mark.parametrize("scalar", [False, True])
def test_any_part_may_require_gradients(wanted, scalar):
    grads = []
    for backend in BACKENDS:
        parts = [random(1, 2, 6, 4, seed=s) for s in range(3)]
        parts += (
            [tensor(1.5)[0], tensor(0.8)[0]]
            if scalar
            else [tensor(1.5, 2), tensor(1, 2)]
        )
        leaves = [parts[i].requires_grad_() for i in wanted]
        output = ssa_attention(*parts, backend=backend)
        grads.append(torch.autograd.grad(output.square().sum(), leaves))
        assert [g.shape for g in grads[-1]] == [leaf.shape for leaf in leaves]
    for left, right in zip(*grads, strict=True):
        torch.testing.assert_close(left, right)


def test_memory_layout_does_not_matter():
    base = random(2, 6, 3, 3, 8, dtype=torch.float32)
    query, key, value = base.permute(2, 0, 3, 1, 4)
    assert not query.is_contiguous()
    for backend in BACKENDS:
        left, right = (
            ssa_attention(
                *(copy(p) for p in (query, key, value)), 1.5, 0.8, backend=backend
            )
            for copy in (lambda p: p, torch.Tensor.contiguous)
        )
        torch.testing.assert_close(left, right)


def test_expanded_upstream_gradient():
    query = random(1, 2, 200, 4, dtype=torch.float32, requires_grad=True)
    ssa_attention(query, query, query, 1.5, 0.8, backend="blocked").sum().backward()
    assert query.grad.isfinite().all()


# ---------------------------------------------------------------- dropout


def test_dropout_is_reproducible_and_differentiable():
    def run(seed):
        torch.manual_seed(seed)
        query = random(2, 2, 40, 4, requires_grad=True)
        output = ssa_attention(
            query, query, query, 1.5, 0.8, dropout_p=0.5, backend="blocked"
        )
        return output.detach(), torch.autograd.grad(output.sum(), query)[0]

    for left, right in zip(run(0), run(0), strict=True):
        assert torch.equal(left, right)
    assert not torch.equal(run(0)[0], run(1)[0])


def test_dropout_gradients_belong_to_the_mask_that_was_drawn():
    n, b = tensor(1.5, 2), tensor(0.8, 1)
    parts = [random(1, 2, 5, 3, seed=s).requires_grad_() for s in range(3)]
    seed = torch.tensor(3)

    def run(query, key, value, n, b):
        return blocked_forward(
            query, key, value, n, b, None, None, seed, 0.5, 0.4, True, 32
        )[0]

    assert torch.autograd.gradcheck(
        run, (*parts, n.requires_grad_(), b.requires_grad_())
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_dropout_keeps_the_mean(backend):
    torch.manual_seed(0)
    query = torch.zeros(1, 1, 64, 2)
    value = torch.ones(1, 1, 256, 1)
    key = torch.zeros(1, 1, 256, 2)
    output = ssa_attention(query, key, value, 1.5, 0.8, dropout_p=0.3, backend=backend)
    assert output.mean().item() == pytest.approx(1, abs=0.03)
    assert output.std() > 0
    nothing = ssa_attention(query, key, value, 1.5, 0.8, dropout_p=1.0, backend=backend)
    assert (nothing == 0).all()


# ---------------------------------------------------------------- compilers, autocast


def operator_inputs(dtype=DOUBLE, **options):
    parts = [
        random(1, 2, 6, 4, seed=s, dtype=dtype, requires_grad=True) for s in range(3)
    ]
    n, b = (
        torch.tensor(v, dtype=DOUBLE, requires_grad=True) for v in ([1.5, 2], [1, 0.5])
    )
    mask, bias = options.get("mask"), options.get("bias")
    seed = torch.tensor(1) if options.get("dropout_p") else None
    return (
        *parts,
        n,
        b,
        mask,
        bias,
        seed,
        0.5,
        options.get("dropout_p", 0.0),
        options.get("is_causal", False),
        1000,
    )


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"is_causal": True},
        {"dropout_p": 0.5},
        {"mask": torch.ones(1, 1, 6, 6, dtype=torch.bool).tril()},
        {"mask": random(1, 2, 6, 6, requires_grad=True)},
        {"bias": random(1, 1, 6, 6, requires_grad=True)},
    ],
)
def test_opcheck(options):
    inputs = operator_inputs(**options)
    torch.library.opcheck(blocked_forward, inputs)
    with torch.no_grad():
        output, lse = blocked_forward(*inputs)
    detached = [i.detach() if isinstance(i, torch.Tensor) else i for i in inputs]
    wanted = [i is not None and i.is_floating_point() for i in inputs[5:7]]
    torch.library.opcheck(
        blocked_backward,
        (torch.ones_like(output), output, lse, *detached, *wanted),
        test_utils=("test_schema", "test_faketensor", "test_autograd_registration"),
    )


def test_second_derivative_of_the_blocked_backend_is_refused():
    query = random(1, 1, 4, 4, requires_grad=True)
    output = ssa_attention(query, query, query, 1.5, 0.8, backend="blocked")
    (grad,) = torch.autograd.grad(output.sum(), query, create_graph=True)
    with pytest.raises(RuntimeError, match="backend='eager'"):
        grad.sum().backward()
    eager = ssa_attention(query, query, query, 1.5, 0.8, backend="eager")
    (grad,) = torch.autograd.grad(eager.sum(), query, create_graph=True)
    grad.square().sum().backward()


def transforms():
    """What torch differentiates and maps in other ways than by backward()."""

    def dual(function, x):
        with torch.autograd.forward_ad.dual_level():
            made = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
            return torch.autograd.forward_ad.unpack_dual(function(made)).tangent

    def jvp(function, x):
        return torch.func.jvp(function, (x,), (torch.ones_like(x),))[1]

    def grad(function, x):
        return torch.func.grad(lambda x: function(x).sum())(x)

    def vmap(function, x):
        return torch.func.vmap(function)(x.unsqueeze(0))

    return [dual, jvp, grad, vmap]


# forward mode scripts a decomposition on its first use
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
@pytest.mark.parametrize("transform", transforms())
def test_function_transforms(transform):
    x = random(1, 1, 182, 2)

    def attend(backend):
        return lambda x: ssa_attention(x, x, x, 1.5, 0.8, backend=backend)

    found, wanted = (transform(attend(name), x) for name in ("auto", "eager"))
    assert torch.equal(found, wanted)
    assert found.abs().max() > 0
    with pytest.raises(ValueError, match=r"backend='blocked' supports neither"):
        transform(attend("blocked"), x)


def test_compiled_transforms_of_torch_func_lose_nothing():
    x = random(1, 2, 6, 4)

    def attend(x):
        return ssa_attention(x, x, x, 1.5, 0.8)

    def tangent(x):
        return torch.func.jvp(attend, (x,), (x,))[1]

    gradient = torch.func.grad(lambda x: attend(x).square().sum())
    for function in (tangent, gradient):
        compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(compiled(x), function(x))
        assert (function(x) != 0).any()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compile_and_dynamic_lengths():
    # aot_eager traces forward and backward without needing a C++ compiler
    compiled = torch.compile(
        ssa_attention, fullgraph=True, dynamic=True, backend="aot_eager"
    )
    n = torch.tensor([1.5, 2.0], requires_grad=True)
    for length in (5, 9, 300):
        query = random(1, 2, length, 4, dtype=torch.float32, requires_grad=True)
        got, want = (
            torch.autograd.grad(
                f(query, query, query, n, 0.8, is_causal=True).sum(), (query, n)
            )
            for f in (compiled, ssa_attention)
        )
        for left, right in zip(got, want, strict=True):
            torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-5)


class Attention(torch.nn.Module):
    def forward(self, query):
        return ssa_attention(query, query, query, 1.5, 0.8, is_causal=True)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_export_with_dynamic_length():
    query = random(2, 2, 8, 4, dtype=torch.float32)
    length = torch.export.Dim("length", min=2, max=4096)
    program = torch.export.export(Attention(), (query,), dynamic_shapes=({2: length},))
    longer = random(2, 2, 30, 4, dtype=torch.float32)
    torch.testing.assert_close(program.module()(longer), Attention()(longer))


@pytest.mark.parametrize("backend", BACKENDS)
def test_cpu_autocast_is_that_of_the_softmax_function(backend):
    query, key, value = (
        random(1, 2, 8, 4, seed=s, dtype=torch.float32) for s in range(3)
    )
    n = torch.tensor([1.5, 2.0], requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = ssa_attention(query, key, value, n, 0.8, backend=backend)
        assert output.dtype == F.scaled_dot_product_attention(query, key, value).dtype
    plain = ssa_attention(query, key, value, n, 0.8)
    torch.testing.assert_close(output.float(), plain, rtol=2e-2, atol=2e-2)
    output.float().sum().backward()
    assert n.grad.dtype == torch.float32


@pytest.mark.parametrize("length", [8, 256])
def test_meta_tensors(length):
    query = torch.empty(1, 2, length, 4, device="meta", requires_grad=True)
    output = ssa_attention(query, query, query, 1.5, 0.8)
    assert (output.shape, output.is_meta) == (query.shape, True)
    output.sum().backward()
    assert query.grad.is_meta


def test_autocast_does_not_reach_into_the_operator():
    query = random(1, 2, 40, 4, dtype=torch.float32)
    n = torch.tensor([1.5, 2.0], requires_grad=True)
    results = []
    for enabled in (False, True):
        half = query.bfloat16().requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            output = ssa_attention(half, half, half, n, 0.8, backend="blocked")
            grads = torch.autograd.grad(output.float().square().sum(), (half, n))
        results.append((output, *grads))
    for left, right in zip(*results, strict=True):
        assert torch.equal(left, right)


@pytest.mark.parametrize("shape", [(0, 2, 4, 3), (1, 2, 0, 3), (1, 2, 4, 0)])
def test_the_operator_takes_empty_inputs(shape):
    # torch.compile does not branch on sizes, so it gets them as well.
    parts = [random(*shape, seed=s).requires_grad_() for s in range(3)]
    n = tensor(1.5, 2).requires_grad_()
    output, _ = blocked_forward(*parts, n, n, None, None, None, 0.5, 0.0, True, 2**18)
    output.sum().backward()
    assert (n.grad == 0).all()
    assert [p.grad.shape for p in parts] == [p.shape for p in parts]


def test_auto_chooses_by_size(monkeypatch):
    used = []
    monkeypatch.setattr(
        functional, "_eager", lambda *a: used.append("eager") or (None, None)
    )
    monkeypatch.setattr(functional, "_blocked", lambda *a: used.append("blocked"))
    for length in (64, 256):
        query = torch.zeros(1, 2, length, 4)
        ssa_attention(query, query, query, 1.5, 0.8)
    assert used == ["eager", "blocked"]


def test_flex_answers_without_queries_or_keys():
    with torch.no_grad():  # the compiled kernel would divide by 0
        for n_queries, n_keys in ((0, 7), (3, 0)):
            query, key = torch.ones(1, 2, n_queries, 16), torch.ones(1, 2, n_keys, 16)
            output = ssa_attention(query, key, key, 1.5, 0.8, backend="flex")
            assert output.shape == query.shape
            assert (output == 0).all()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_flex_backend_agrees():
    query = random(1, 4, 128, 16, dtype=torch.float32)
    key = random(1, 2, 128, 16, seed=1, dtype=torch.float32)
    n = torch.tensor([1.5, 2.0, 1.2, 3.0])
    for is_causal in (False, True):
        options = {"is_causal": is_causal, "enable_gqa": True}
        left, right = (
            ssa_attention(query, key, key, n, 0.8, **options, backend=backend)
            for backend in ("flex", "eager")
        )
        torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"dropout_p": 0.5}, "dropout"),
        ({"attn_mask": torch.ones(4, 4, dtype=torch.bool)}, "attn_mask"),
        ({}, "gradients on CPU"),
    ],
)
def test_flex_refuses_what_it_cannot_do(options, reason):
    query = random(1, 2, 4, 4, dtype=torch.float32, requires_grad=True)
    with pytest.raises(ValueError, match=reason):
        ssa_attention(query, query, query, 1.5, 0.8, **options, backend="flex")


# ---------------------------------------------------------------- errors

QUERY = torch.zeros(1, 2, 4, 4)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (
            {"n": 0.5},
            ValueError,
            r"'n' must be finite and >= 1 as torch\.float32\. Got 0",
        ),
        ({"n": math.nan}, ValueError, "'n' must be finite"),
        ({"b": 0}, ValueError, "'b' must be finite and > 0 as"),
        ({"b": -1.0}, ValueError, "'b' must be finite"),
        ({"n": 1e300}, ValueError, "'n' must be finite"),
        ({"b": 1e300}, ValueError, "'b' must be finite"),
        ({"b": 1e-300}, ValueError, "'b' must be finite and > 0"),
        ({"n": torch.tensor(2j)}, TypeError, "'n' must be real"),
        ({"b": torch.tensor(True)}, TypeError, "'b' must be real"),
        (
            {"scale": torch.ones((), requires_grad=True)},
            TypeError,
            "'scale' must be a number",
        ),
        ({"n": "2"}, TypeError, "'n' must be a number or a tensor"),
        ({"n": torch.ones(3)}, ValueError, r"one value a head, shape \(2,\)"),
        ({"dropout_p": 1.5}, ValueError, "'dropout_p' must be in"),
        ({"backend": "fast"}, ValueError, "'backend' must be one of"),
        ({"query": QUERY.long()}, TypeError, "'query' must be a floating tensor"),
        ({"query": [1.0]}, TypeError, "Got list"),
        ({"query": QUERY.double()}, TypeError, "one dtype"),
        ({"query": QUERY[0]}, ValueError, "same number of dimensions"),
        ({"query": QUERY[..., :2]}, ValueError, "agree in the last dimension"),
        ({"query": torch.zeros(1, 4, 4, 4)}, ValueError, "enable_gqa=True"),
        (
            {"query": torch.zeros(1, 3, 4, 4), "enable_gqa": True},
            ValueError,
            "must divide that of 'query'",
        ),
        (
            {"attn_mask": torch.ones(4, 4).long()},
            TypeError,
            "'attn_mask' must be a bool",
        ),
        ({"attn_mask": torch.ones(3, 4)}, ValueError, r"\(3, 4\) does not broadcast"),
        ({"score_bias": torch.ones(4, 4).bool()}, TypeError, "'score_bias' must be"),
    ],
)
def test_errors(change, error, message):
    arguments = {"query": QUERY, "key": QUERY, "value": QUERY, "n": 1.5, "b": 0.8}
    with pytest.raises(error, match=message):
        ssa_attention(**{**arguments, **change})


def test_the_range_of_numbers_is_that_of_the_dtype():
    scores = torch.zeros(3)
    with pytest.raises(ValueError, match="'b' must be finite and > 0 as torch.float32"):
        ssa_weights(scores, 1.5, 1e300)
    for b in (1e300, 1e-300):
        assert ssa_weights(scores.double(), 1.5, b).isfinite().all()


def test_errors_of_the_weights():
    with pytest.raises(TypeError, match="'scores' must be a floating tensor"):
        ssa_weights(torch.zeros(3).long(), 1.5, 0.8)
    with pytest.raises(ValueError, match="'mask' of shape"):
        ssa_weights(torch.zeros(3), 1.5, 0.8, mask=torch.ones(4).bool())


def test_importing_the_package_does_not_import_torch():
    code = (
        "import sys, sdm_sklearn; assert 'torch' not in sys.modules;"
        "import sdm_sklearn.attention.huggingface;"
        "assert 'transformers' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
