"""OutputEmbeddings: what it reads, how it makes logits, what it refuses."""

import copy
import pickle
import re
from types import SimpleNamespace

import joblib
import numpy as np
import pytest
from scipy.special import log_softmax
from sklearn.base import clone

from sdm_sklearn import OutputEmbeddings, SemanticSoftmaxCalibrator

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*labels have no neighbour"),
    pytest.mark.filterwarnings("ignore:.*labels are more similar"),
]


def random_case(seed=0, V=30, D=5, n=8):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((V, D)), rng.standard_normal((n, D)), rng


def probabilities(embeddings, H, form="hidden", **params):
    cal = SemanticSoftmaxCalibrator([0, 4], embeddings, input=form, **params)
    return cal.fit(H).predict_proba(H)


@pytest.mark.parametrize("top_k", [None, 6])
def test_bias_scale_and_softcap_are_applied(top_k):
    E, H, rng = random_case()
    bias = rng.standard_normal(30)
    holder = OutputEmbeddings(E, bias=bias, logit_scale=0.5, softcap=2.0)
    logits = 2.0 * np.tanh(0.5 * (H @ E.T + bias) / 2.0)
    np.testing.assert_allclose(
        probabilities(holder, H, top_k=top_k),
        probabilities(E, logits, "logits", top_k=top_k),
        atol=1e-12,
    )


def test_a_module_brings_its_bias():
    E, H, rng = random_case()
    bias = rng.standard_normal(30)
    module = SimpleNamespace(weight=E, bias=bias)
    got = probabilities(module, H)
    np.testing.assert_array_equal(got, probabilities(OutputEmbeddings(E, bias=bias), H))
    tied = SimpleNamespace(weight=E, bias=None)
    np.testing.assert_array_equal(probabilities(tied, H), probabilities(E, H))


def test_torch_tensors_of_any_precision():
    torch = pytest.importorskip("torch")
    E, H, _ = random_case()
    layer = torch.nn.Linear(5, 30, bias=True)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(E))
    expected = probabilities(
        OutputEmbeddings(layer.weight.detach().numpy(), bias=layer.bias), H
    )
    np.testing.assert_array_equal(probabilities(layer, H), expected)
    rough = torch.nn.Parameter(torch.tensor(E, dtype=torch.bfloat16))
    exact = rough.detach().float().numpy()
    np.testing.assert_array_equal(probabilities(rough, H), probabilities(exact, H))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int8])
def test_any_real_dtype(dtype):
    E, H, _ = random_case()
    E = (4 * E).astype(dtype)
    np.testing.assert_array_equal(
        probabilities(E, H), probabilities(E.astype(np.float64), H)
    )


def test_holders_are_shared_not_copied(tmp_path):
    E, _, _ = random_case()
    np.save(tmp_path / "E.npy", E)
    for holder in (OutputEmbeddings(E), OutputEmbeddings(tmp_path / "E.npy")):
        assert copy.copy(holder) is holder
        assert copy.deepcopy(holder) is holder
        assert clone(holder, safe=False) is holder
        again = pickle.loads(pickle.dumps(holder))
        np.testing.assert_array_equal(again.rows([3, 1]), E[[3, 1]])


def test_geometry_is_computed_once_and_left_out_of_path_pickles(tmp_path, monkeypatch):
    E, H, _ = random_case(V=400, D=50)
    np.save(tmp_path / "E.npy", E)
    holder = OutputEmbeddings(tmp_path / "E.npy")
    small = len(pickle.dumps(holder))
    first = probabilities(holder, H)
    assert len(pickle.dumps(holder)) == small
    monkeypatch.setattr(
        "sdm_sklearn._semantic_embeddings._fit_geometry",
        lambda *args: pytest.fail("geometry was fitted again"),
    )
    np.testing.assert_array_equal(probabilities(holder, H), first)


def test_needed_rows_with_moments_stand_for_the_whole(tmp_path):
    E, H, _ = random_case(V=300, D=6)
    E[7] = 0.0
    whole = OutputEmbeddings(E, exclude=[8])
    cal = SemanticSoftmaxCalibrator([0, 4], whole, similarity_threshold=0.5).fit(H)
    mean, covariance = whole.moments()
    np.testing.assert_allclose(mean, np.delete(E, [7, 8], 0).mean(axis=0))
    np.testing.assert_allclose(covariance, np.cov(np.delete(E, [7, 8], 0).T, ddof=0))
    ids = cal.required_token_ids_
    np.save(tmp_path / "part.npy", whole.rows(ids))
    few = OutputEmbeddings(tmp_path / "part.npy", moments=(mean, covariance))
    few = pickle.loads(pickle.dumps(few))
    places = np.searchsorted(ids, [0, 4]).tolist()
    part = SemanticSoftmaxCalibrator(places, few, similarity_threshold=0.5).fit(H)
    np.testing.assert_allclose(part.predict_proba(H), cal.predict_proba(H), atol=1e-12)
    np.testing.assert_array_equal(ids[part.required_token_ids_], ids)


def test_repr_tells_shape_type_and_options(tmp_path):
    E, _, _ = random_case()
    np.save(tmp_path / "E.npy", E.astype(np.float16))
    holder = OutputEmbeddings(tmp_path / "E.npy", logit_scale=2.0, softcap=30.0)
    assert repr(holder).startswith("OutputEmbeddings(30 x 5, float16, path=")
    assert repr(holder).endswith("E.npy', logit_scale=2.0, softcap=30.0)")


def test_excluded_tokens_never_vote_and_do_not_count():
    E, H, _ = random_case()
    E[7] = E[0]
    E[29] = 100.0
    holder = OutputEmbeddings(E, exclude=[7, 29])
    cal = SemanticSoftmaxCalibrator([0, 4], holder, similarity_threshold=-1).fit(H)
    assert not {7, 29} & set(cal.required_token_ids_.tolist())
    kept = np.delete(np.arange(30), [7, 29])
    fewer = SemanticSoftmaxCalibrator([0, 4], E[kept], similarity_threshold=-1).fit(H)
    np.testing.assert_allclose(cal.predict_proba(H), fewer.predict_proba(H))


def test_an_excluded_row_may_hold_anything():
    E, H, _ = random_case()
    E[7] = np.nan
    got = probabilities(OutputEmbeddings(E, exclude=[7]), H)
    clean = probabilities(OutputEmbeddings(np.nan_to_num(E), exclude=[7]), H)
    np.testing.assert_array_equal(got, clean)


def test_zero_rows_never_vote():
    E, H, _ = random_case()
    padded = np.vstack([E, np.zeros((4, 5))])
    for geometry in ("raw", "centered", "whitened"):
        np.testing.assert_allclose(
            probabilities(padded, H, geometry=geometry),
            probabilities(E, H, geometry=geometry),
            atol=1e-12,
        )


def test_fewer_tokens_than_dimensions_can_be_whitened():
    E, H, _ = random_case(V=6, D=20)
    proba = probabilities(E, H)
    np.testing.assert_allclose(proba.sum(axis=1), 1)


@pytest.mark.parametrize(
    ("weight", "params", "error", "message"),
    [
        (np.zeros(3), {}, TypeError, r"matrix .* Got ndarray of shape \(3,\)"),
        ([["a", "b"]], {}, TypeError, "Got list of shape"),
        ({"weight": 1}, {}, TypeError, "Got dict instead"),
        (np.eye(3) * 1j, {}, TypeError, "must be a real matrix"),
        (np.eye(3), {"bias": [1.0, 2.0]}, ValueError, r"bias .* 3 tokens.*\(2,\)"),
        (np.eye(3), {"softcap": 0}, ValueError, "softcap must be .* Got 0"),
        (np.eye(3), {"logit_scale": np.inf}, ValueError, "logit_scale .* Got inf"),
        (np.eye(3), {"exclude": [3]}, ValueError, r"exclude .*\[3\]"),
        (np.eye(3), {"softcap": np.inf}, ValueError, "softcap must be .* Got inf"),
        (np.eye(3), {"bias": [0, 0, -np.inf]}, ValueError, r"bias .* \[2\].*exclude"),
        (np.eye(3), {"bias": [np.nan, 0, 0]}, ValueError, r"bias .* \[0\]"),
        (np.eye(3), {"exclude": [2.5]}, ValueError, "exclude must hold token ids"),
        (np.eye(3), {"exclude": [True, False, True]}, ValueError, "flatnonzero"),
        (np.eye(3), {"moments": ([0], [[1]])}, ValueError, r"moments .*\(1,\)"),
        (
            np.eye(1),
            {"moments": ([np.nan], [[1]])},
            ValueError,
            "moments hold NaN or infinite",
        ),
    ],
)
def test_bad_embeddings_are_named(weight, params, error, message):
    with pytest.raises(error, match=message):
        OutputEmbeddings(weight, **params)


def test_a_missing_file_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    place = re.escape(str(tmp_path / "missing.npy"))
    with pytest.raises(FileNotFoundError, match=f"no file '{place}'.*set_params"):
        SemanticSoftmaxCalibrator([0, 1], "missing.npy").fit([[0.0]])


@pytest.mark.parametrize("content", ["text", "npz", "pickle", "empty"])
def test_a_file_that_holds_no_matrix_is_named(tmp_path, content):
    path = tmp_path / "E.npy"
    with path.open("wb") as file:
        if content == "text":
            file.write(b"some words, no array")
        elif content == "npz":
            np.savez(file, E=np.eye(2))
        elif content == "pickle":
            np.save(file, np.array([None, "a"], dtype=object))
    with pytest.raises(ValueError, match=r"E\.npy', which is no .* numpy\.save"):
        SemanticSoftmaxCalibrator([0, 1], path).fit([[0.0, 1.0]])


def test_a_relative_path_is_found_from_another_folder(tmp_path, monkeypatch):
    E, H, _ = random_case()
    (tmp_path / "models").mkdir()
    np.save(tmp_path / "models" / "E.npy", E)
    monkeypatch.chdir(tmp_path / "models")
    for embeddings in ("E.npy", OutputEmbeddings("E.npy")):
        cal = SemanticSoftmaxCalibrator([0, 4], embeddings).fit(H)
        expected = cal.predict_proba(H)
        dump = pickle.dumps(cal)
        monkeypatch.chdir(tmp_path)
        again = pickle.loads(dump)
        np.testing.assert_array_equal(again.predict_proba(H), expected)
        monkeypatch.chdir(tmp_path / "models")
    np.save(tmp_path / "E2.npy", E)
    (tmp_path / "models" / "E.npy").unlink()
    place = re.escape(str(tmp_path / "models" / "E.npy"))
    with pytest.raises(FileNotFoundError, match=f"no file '{place}'"):
        again.predict_proba(H)
    again.set_params(output_embeddings=str(tmp_path / "E2.npy"))
    np.testing.assert_array_equal(again.predict_proba(H), expected)
    again.set_params(output_embeddings=OutputEmbeddings(E[:9]))
    with pytest.raises(ValueError, match=r"shape \(9, 5\), but fit saw \(30, 5\)"):
        again.predict_proba(H)


def test_a_bundle_holds_a_matrix_once_and_keeps_what_was_made_of_it(tmp_path):
    torch = pytest.importorskip("torch")
    E, H, _ = random_case(V=3000, D=64)
    for embeddings in (E, torch.tensor(E, dtype=torch.bfloat16)):
        cal = SemanticSoftmaxCalibrator(
            [0, 4], embeddings, similarity_threshold=0.5
        ).fit(H)
        X = np.ones((2, 64))
        joblib.dump(cal, tmp_path / "model.joblib")
        assert (tmp_path / "model.joblib").stat().st_size < 1.3 * E.nbytes
        again = joblib.load(tmp_path / "model.joblib")
        np.testing.assert_array_equal(again.predict_proba(X), cal.predict_proba(X))
        assert again._output() is again._output()


def test_bfloat16_hidden_states_are_read():
    torch = pytest.importorskip("torch")
    E, H, _ = random_case()
    X = torch.tensor(H, dtype=torch.bfloat16, requires_grad=True)
    cal = SemanticSoftmaxCalibrator([0, 4], E).fit(X)
    expected = cal.predict_proba(X.detach().float().numpy())
    np.testing.assert_array_equal(cal.predict_proba(X), expected)


def some_rows(V=300, D=6, threshold=0.5):
    """All embeddings, the rows that the default kernel needs, and hidden states."""
    E, H, _ = random_case(V=V, D=D)
    whole = OutputEmbeddings(E)
    cal = SemanticSoftmaxCalibrator([0, 4], whole, similarity_threshold=threshold)
    ids = cal.fit(H).required_token_ids_
    part = OutputEmbeddings(whole.rows(ids), moments=whole.moments())
    return whole, part, np.searchsorted(ids, [0, 4]).tolist(), H


@pytest.mark.parametrize("form", ["hidden", "logits", "logprobs", "proba"])
def test_what_needs_all_tokens_is_refused_with_some(form):
    whole, part, ids, H = some_rows()
    assert part.partial
    assert not whole.partial
    logp = log_softmax(H @ part.rows(np.arange(part.shape[0])).T, axis=1)
    X = {"hidden": H, "proba": np.exp(logp)}.get(form, logp)
    params = {"input": form, "similarity_threshold": 0.5}
    message = r"needs the whole vocabulary, but .* holds only \d+ of its tokens"
    with pytest.raises(ValueError, match=f"top_k {message}"):
        SemanticSoftmaxCalibrator(ids, part, top_k=5, **params).fit(X)
    gated = SemanticSoftmaxCalibrator(ids, part, min_captured_mass=0.1, **params)
    cal = SemanticSoftmaxCalibrator(ids, part, **params).fit(X)
    if form in ("hidden", "logits"):
        with pytest.raises(ValueError, match=f"min_captured_mass {message}"):
            gated.fit(X)
        with pytest.raises(ValueError, match=f"captured_mass {message}"):
            cal.captured_mass(X)
    else:
        assert (gated.fit(X).captured_mass(X) <= 1).all()
    if form == "logprobs":
        lists = [dict(enumerate(row)) for row in logp]
        cal.set_params(input="topk", top_k=3).fit(lists).captured_mass(lists)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda E: E.__setitem__(4, 0.0), r"label token\(s\) \[4\] .* all-zero"),
        (lambda E: E.__setitem__((2, 1), np.nan), "NaN or infinite"),
        (lambda E: E.fill(0.0), "no row that is neither 0 nor excluded"),
    ],
)
def test_embeddings_that_cannot_serve_are_named(edit, message):
    E, H, _ = random_case()
    edit(E)
    with pytest.raises(ValueError, match=message):
        probabilities(E, H)
