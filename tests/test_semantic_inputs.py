"""Input forms of SemanticSoftmaxCalibrator: they agree, and bad input has a name."""

import json
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from scipy.special import log_softmax, softmax

from sdm_sklearn import (
    OutputEmbeddings,
    SemanticSoftmaxCalibrator,
    read_top_logprobs,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*labels have no neighbour"),
    pytest.mark.filterwarnings("ignore:.*labels are more similar"),
]
WORDS = ["yes", "no", "yeah", "nope", "of", "to"]


def embeddings(seed=0, V=60, D=6):
    rng = np.random.default_rng(seed)
    E = rng.standard_normal((V, D))
    E[10:16] = E[:6] + 0.3 * rng.standard_normal((6, D))
    return rng, E


def forms_of(E, H):
    """The same rows in each input form."""
    logits = H @ E.T
    logp = log_softmax(logits, axis=1)
    proba = np.exp(logp)
    return {
        "hidden": H,
        "logits": logits,
        "logprobs": logp,
        "proba": proba,
        "csr": sparse.csr_array(proba),
        "topk": [dict(enumerate(row)) for row in logp],
    }


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    top_k=st.sampled_from([None, 1, 7, 60]),
    missing=st.sampled_from(["half_min", "zero"]),
    vote=st.sampled_from(["exclusive", "shared"]),
)
def test_all_forms_agree(seed, top_k, missing, vote):
    rng, E = embeddings(seed)
    H = 2 * rng.standard_normal((9, 6))
    results = {}
    for form, X in forms_of(E, H).items():
        cal = SemanticSoftmaxCalibrator(
            [0, [1, 2], 3],
            E,
            input="proba" if form == "csr" else form,
            top_k=top_k,
            missing=missing,
            vote=vote,
            # A list does not know the labels' probabilities beyond its end.
            fallback="uniform",
        ).fit(X)
        results[form] = cal.predict_proba(X), cal.captured_mass(X)
    for form in ("logits", "logprobs", "proba", "csr", "topk"):
        for got, expected in zip(results[form], results["hidden"], strict=True):
            np.testing.assert_allclose(got, expected, rtol=0, atol=1e-8, err_msg=form)


def test_blocks_of_tokens_and_rows_agree_with_one_block(monkeypatch):
    rng, E = embeddings()
    H = rng.standard_normal((30, 6))
    calibrators = [
        SemanticSoftmaxCalibrator([0, 1], E, input=form, top_k=k).fit(
            forms_of(E, H)[form]
        )
        for form in ("hidden", "logits", "proba", "topk")
        for k in (None, 5)
    ]
    inputs = [forms_of(E, H)[cal.input] for cal in calibrators]
    whole = [
        (cal.predict_proba(X), cal.captured_mass(X))
        for cal, X in zip(calibrators, inputs, strict=True)
    ]
    monkeypatch.setattr("sdm_sklearn._semantic_embeddings._BLOCK", 6 * 7)
    monkeypatch.setattr("sdm_sklearn._semantic_inputs._BLOCK", 60)
    for cal, X, expected in zip(calibrators, inputs, whole, strict=True):
        np.testing.assert_allclose(cal.predict_proba(X), expected[0], atol=1e-12)
        np.testing.assert_allclose(cal.captured_mass(X), expected[1], atol=1e-12)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int16])
@pytest.mark.parametrize("layout", ["C", "F", "negative strides", "read-only"])
def test_dtypes_and_layouts(dtype, layout):
    rng, E = embeddings()
    logits = np.round(4 * rng.standard_normal((7, 60))).astype(dtype)
    expected = SemanticSoftmaxCalibrator([0, 1], E, input="logits").fit(logits)
    expected = expected.predict_proba(logits.astype(np.float64))
    X = np.asarray(logits, order="F" if layout == "F" else "C")
    if layout == "negative strides":
        X = logits[::-1].copy()[::-1]
    elif layout == "read-only":
        X.flags.writeable = False
    cal = SemanticSoftmaxCalibrator([0, 1], E.astype(dtype), input="logits")
    if dtype != np.int16:
        got = SemanticSoftmaxCalibrator([0, 1], E, input="logits", top_k=20).fit(X)
        assert got.predict_proba(X).dtype == np.float64
    cal = SemanticSoftmaxCalibrator([0, 1], E, input="logits").fit(X)
    np.testing.assert_allclose(cal.predict_proba(X), expected, atol=1e-12)
    hidden = X[:, :6]
    cal = SemanticSoftmaxCalibrator([0, 1], E).fit(hidden)
    again = cal.predict_proba(hidden.astype(np.float64))
    np.testing.assert_allclose(cal.predict_proba(hidden), again, atol=1e-12)


def test_memory_maps(tmp_path):
    rng, E = embeddings()
    H = rng.standard_normal((7, 6)).astype(np.float16)
    np.save(tmp_path / "H.npy", H)
    mapped = np.load(tmp_path / "H.npy", mmap_mode="r")
    cal = SemanticSoftmaxCalibrator([0, 1], E).fit(mapped)
    np.testing.assert_array_equal(cal.predict_proba(mapped), cal.predict_proba(H))


def test_large_half_precision_logits_do_not_overflow():
    logits = np.array([[60000, 59968, 60000, 59968, 0, 0]], np.float16)
    E = np.eye(6)
    half = SemanticSoftmaxCalibrator([0, 1], E, input="logits").fit(logits)
    np.testing.assert_allclose(
        half.predict_proba(logits), half.predict_proba(logits.astype(float)), atol=1e-12
    )


@pytest.mark.parametrize("value", [-np.inf, -9999.0, -1000.0])
def test_hidden_probabilities_of_zero_are_alike(value):
    _, E = embeddings(V=60)
    with np.errstate(divide="ignore"):
        logp = np.log([[0.3, 0.2, 0, 0.1, 0.4, *[0] * 55]])
    expected = SemanticSoftmaxCalibrator([0, 1], E, input="logprobs").fit(logp)
    X = np.where(np.isneginf(logp), value, logp)
    cal = SemanticSoftmaxCalibrator([0, 1], E, input="logprobs").fit(X)
    np.testing.assert_allclose(
        cal.predict_proba(X), expected.predict_proba(logp), atol=1e-12
    )


def test_missing_labels_count_half_of_the_smallest_listed():
    rows = [{0: np.log(0.6), 4: np.log(0.2)}]
    cal = SemanticSoftmaxCalibrator([0, 1], input="topk").fit(rows)
    np.testing.assert_allclose(cal.predict_proba(rows), [[0.6 / 0.7, 0.1 / 0.7]])
    zero = SemanticSoftmaxCalibrator([0, 1], input="topk", missing="zero").fit(rows)
    np.testing.assert_allclose(zero.predict_proba(rows), [[1, 0]], atol=1e-300)
    assert zero.predict_proba(rows)[0, 1] > 0
    # A label with one listed form is not missing.
    forms = SemanticSoftmaxCalibrator([[0, 2], [1]], input="topk").fit(rows)
    np.testing.assert_allclose(forms.predict_proba(rows), [[0.6 / 0.7, 0.1 / 0.7]])


@pytest.mark.parametrize(
    ("row", "labels", "expected"),
    [
        # .001 is left, for one label or for two.
        ({0: np.log(0.999)}, [0, 1], [0.999, 0.001]),
        ({0: np.log(0.999)}, [0, 1, 2], [0.999, 0.0005, 0.0005]),
        ({0: np.log(0.7), 4: np.log(0.25)}, [0, 1], [0.7, 0.05]),
        # Nothing is left, also by rounding: as much as single precision cannot see.
        ({0: 0.0}, [0, 1], [1, 1e-7]),
        ({0: 1e-9, 4: -9.0}, [0, 1], [1, 1e-7]),
    ],
)
def test_missing_labels_count_no_more_than_the_list_leaves(row, labels, expected):
    n_tokens = 6
    cal = SemanticSoftmaxCalibrator(labels, input="topk").fit([row])
    got = cal.predict_proba([row])
    np.testing.assert_allclose(got[0], np.divide(expected, sum(expected)), rtol=1e-6)
    if max(row.values()) <= 0:
        p = np.zeros((1, n_tokens))
        p[0, list(row)] = np.exp(list(row.values()))
        sparse_cal = SemanticSoftmaxCalibrator(labels, input="proba")
        stored = sparse.csr_array(p)
        np.testing.assert_allclose(
            sparse_cal.fit(stored).predict_proba(stored), got, atol=1e-12
        )


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**31), top_k=st.integers(1, 12))
def test_a_cut_off_label_never_gets_more_than_what_is_cut_off(seed, top_k):
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.full(12, 0.2), 20)
    cal = SemanticSoftmaxCalibrator([0, 1, 2], input="proba", top_k=top_k).fit(p)
    ordered = np.sort(p, axis=1)
    rest = 1 - ordered[:, -top_k:].sum(axis=1)
    cut = p[:, :3] < ordered[:, [-top_k]]
    own = np.where(cut, 0.0, p[:, :3]).sum(axis=1)
    some = cut.any(axis=1) & (own > 0)
    # The listed labels keep their own probabilities, which gives the scale.
    got = np.where(cut, cal.predict_proba(p), 0.0).sum(axis=1)[some]
    assert (got / (1 - got) * own[some] <= rest[some] * (1 + 1e-6) + 1e-7).all()


def test_a_truncated_dense_row_equals_the_list():
    p = np.array([[0.5, 0.02, 0.28, 0.2]])
    cal = SemanticSoftmaxCalibrator([0, 1], input="proba", top_k=3).fit(p)
    np.testing.assert_allclose(cal.predict_proba(p), [[0.5 / 0.52, 0.02 / 0.52]])
    stored = sparse.csr_matrix([[0.5, 0, 0.28, 0.2]])
    cal = SemanticSoftmaxCalibrator([0, 1], input="proba").fit(stored)
    np.testing.assert_allclose(cal.predict_proba(stored), [[0.5 / 0.52, 0.02 / 0.52]])


def test_a_list_without_any_vote_falls_back_and_can_be_rejected():
    rows = [{4: -0.1}, {0: -0.1, 4: -3.0}]
    cal = SemanticSoftmaxCalibrator(
        [0, 1], input="topk", fallback="reject", alpha=0.6
    ).fit(rows)
    np.testing.assert_allclose(cal.predict_proba(rows)[0], [0.5, 0.5])
    with pytest.warns(UserWarning, match="fit saw no y"):
        assert cal.predict_selective(rows).tolist() == [-1, 0]


@pytest.mark.parametrize("mark", [-np.inf, -100.0, -9999.0])
def test_sentinels_mean_not_listed(mark):
    rows = [{0: np.log(0.6), 4: np.log(0.3), 1: mark}]
    bare = [{0: np.log(0.6), 4: np.log(0.3)}]
    cal = SemanticSoftmaxCalibrator([0, 1], input="topk").fit(bare)
    np.testing.assert_array_equal(cal.predict_proba(rows), cal.predict_proba(bare))


def test_csr_input_is_not_changed_and_may_repeat_entries():
    data, columns, starts = [0.2, 0.3, 0.1, 0.0], [0, 0, 1, 2], [0, 4]
    X = sparse.csr_array((data, columns, starts), shape=(1, 4))
    cal = SemanticSoftmaxCalibrator([0, 1], input="proba").fit(X)
    np.testing.assert_allclose(cal.predict_proba(X), [[0.5 / 0.6, 0.1 / 0.6]])
    assert X.data.tolist() == data


def openai_response(*entries):
    """A synthetic chat completion with the log-probabilities of one position."""
    top = [{"token": t, "logprob": p, "bytes": list(t.encode())} for t, p in entries]
    body = {"choices": [{"logprobs": {"content": [{"top_logprobs": top}]}}]}
    return json.loads(json.dumps(body))


def test_openai_records_with_repeated_texts():
    responses = [
        openai_response(
            ("yes", np.log(0.3)), ("yes", np.log(0.1)), ("no", np.log(0.2))
        ),
        openai_response(("no", np.log(0.5)), ("of", np.log(0.25)), ("yes", -9999.0)),
    ]
    records = [
        r["choices"][0]["logprobs"]["content"][0]["top_logprobs"] for r in responses
    ]
    rows = read_top_logprobs(records)
    cal = SemanticSoftmaxCalibrator(
        {"yes": 0, "no": 1}, vocabulary=WORDS, input="topk"
    ).fit(rows)
    expected = [[1 / 3, 2 / 3], [0.5 / 0.625, 0.125 / 0.625]]
    np.testing.assert_allclose(cal.predict_proba(rows), expected)
    objects = [[SimpleNamespace(**entry) for entry in record] for record in records]
    assert read_top_logprobs(objects) == rows


@pytest.mark.parametrize(
    "record",
    [
        [{"token": "a"}],
        [("a", -1.0)],
        ["a"],
        [{"token": "a", "logprob": None}],
        [{"token": "a", "logprob": "x"}],
    ],
)
def test_records_without_token_and_logprob_are_named(record):
    with pytest.raises(ValueError, match=r"Record 0 holds .* no token and logprob"):
        read_top_logprobs([record])
    with pytest.raises(ValueError, match=r"Record 1 must be a list .* Got 'abc'"):
        read_top_logprobs([[], "abc"])


def test_other_parts_of_a_response_are_told_from_records():
    entries = [SimpleNamespace(token="a", logprob=-1.0)]
    position = SimpleNamespace(top_logprobs=entries)
    logprobs = SimpleNamespace(content=[position])
    way_out = r"response\.choices\[0\]\.logprobs\.content\[0\]\.top_logprobs"
    for wrong in (None, logprobs, position, [None], [logprobs], [position], entries):
        with pytest.raises(ValueError, match=way_out):
            read_top_logprobs(wrong)


def test_vllm_style_rows_of_objects():
    rows = [{0: SimpleNamespace(logprob=np.log(0.6)), 1: SimpleNamespace(logprob=-1.0)}]
    plain = [{0: np.log(0.6), 1: -1.0}]
    cal = SemanticSoftmaxCalibrator([0, 1], input="topk").fit(rows)
    np.testing.assert_array_equal(cal.predict_proba(rows), cal.predict_proba(plain))


def test_texts_and_ids_mean_the_same_token():
    E = np.eye(6)
    E[2], E[3] = [0.9, 0, 0.4, 0, 0, 0], [0, 0.9, 0, 0.4, 0, 0]
    cal = SemanticSoftmaxCalibrator(
        [0, 1], E, vocabulary=WORDS, input="topk", geometry="raw"
    ).fit([{0: -1.0}])
    by_id = cal.predict_proba([{0: -3.0, 2: -0.1, 1: -2.0, np.int64(4): -5.0}])
    by_text = cal.predict_proba([{"yes": -3.0, "yeah": -0.1, "no": -2.0, "else": -5.0}])
    np.testing.assert_array_equal(by_id, by_text)


def test_a_text_with_several_ids_is_the_label_token():
    words = ["yes", "no", "yes", "of"]
    cal = SemanticSoftmaxCalibrator([2, 1], vocabulary=words, input="topk")
    proba = cal.fit([{"yes": -1.0}]).predict_proba(
        [{"yes": np.log(0.6), "no": np.log(0.2)}]
    )
    np.testing.assert_allclose(proba, [[0.75, 0.25]])
    two = SemanticSoftmaxCalibrator([0, 2], vocabulary=words, input="topk")
    with pytest.raises(ValueError, match="Two labels have tokens with the same text"):
        two.fit([{"yes": -1.0}])


def fit(X, ids=(0, 1), E=None, **params):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return SemanticSoftmaxCalibrator(list(ids), E, **params).fit(X)


BAD_ROWS = {
    "all -inf logits": (
        "logits",
        [[0, 1], [-np.inf, -np.inf]],
        "Row 1 of X has no finite",
    ),
    "NaN logit": ("logits", [[0, np.nan]], "Row 0 of X holds NaN"),
    "infinite logit": ("logits", [[0, np.inf]], "Row 0 of X holds infinity"),
    "all -inf logprobs": ("logprobs", [[-np.inf] * 2], "has no finite log-probability"),
    "logits as logprobs": ("logprobs", [[-1.0, 2.0]], "above 0.*input='logits'"),
    "proba as logprobs": ("logprobs", [[0.3, 0.7]], "from 0 to 1.*input='proba'"),
    "low logits as logprobs": ("logprobs", [[-0.1, -0.2]], "more than 1.*'logits'"),
    "list above 1": ("topk", [{0: -0.1, 1: -0.2}], "Row 0 of X lists .* sum to 1.72"),
    "logprobs as proba": ("proba", [[-1.0, -2.0]], "below 0.*input='logprobs'"),
    "logits as proba": ("proba", [[1.0, 2.0]], "more than 1.*input='logits'"),
    "no probability": ("proba", [[0.5, 0.5], [0, 0]], "Row 1 .*no probability above 0"),
    "CSR of logprobs": (
        "proba",
        sparse.csr_array([[-1.0, 0]]),
        "must not be sparse.*topk",
    ),
    "CSR with NaN": ("proba", sparse.csr_array([[np.nan, 0.1]]), "holds NaN"),
    "CSR with inf": ("proba", sparse.csr_array([[np.inf, 0.1]]), "holds infinity"),
    "empty CSR row": ("proba", sparse.csr_array([[0.1, 0.2], [0, 0]]), "Row 1"),
    "sparse logits": ("logits", sparse.csr_array([[1.0, 0]]), "Sparse.*implicit 0"),
    "sparse hidden": ("hidden", sparse.csr_array([[1.0, 0]]), "Sparse.*implicit 0"),
    "no list": ("topk", {0: -1.0}, "needs a list of dicts"),
    "empty list": ("topk", [], "0 sample"),
    "row is no dict": ("topk", [[0.1, 0.2]], "Row 0 of X must be a dict.*read_top_log"),
    "bool key": ("topk", [{True: -1.0}], "Row 0 of X has the key True"),
    "odd key": ("topk", [{0.5: -1.0}], "Row 0 of X has the key 0.5"),
    "odd value": ("topk", [{0: "-1"}], "must be a number.*'-1'"),
    "NaN in a list": ("topk", [{0: -1.0}, {0: np.nan}], "Row 1 of X holds NaN"),
    "probability in a list": (
        "topk",
        [{0: 0.5}],
        "log-probability 0.5, which is above 0",
    ),
    "empty row": ("topk", [{0: -1.0}, {}], "Row 1 of X lists no token"),
    "only sentinels": ("topk", [{0: -100.0, 1: -9999.0}], "Row 0 of X lists no token"),
    "texts without vocabulary": ("topk", [{"yes": -1.0}], "pass vocabulary="),
    "one token": ("logits", [[0.0]], r"1 feature\(s\)"),
}


@pytest.mark.parametrize(("form", "X", "message"), BAD_ROWS.values(), ids=BAD_ROWS)
def test_bad_rows_are_named(form, X, message):
    E = np.eye(2) if form == "hidden" else None
    with pytest.raises(ValueError, match=message):
        fit(X, E=E, input=form)


def test_hidden_states_with_nan_and_without_embeddings():
    with pytest.raises(ValueError, match="contains NaN"):
        fit([[np.nan, 1.0]], E=np.eye(2))
    with pytest.raises(ValueError, match="input='hidden' needs output_embeddings"):
        fit([[0.0, 1.0]])


@pytest.mark.parametrize(
    ("X", "params", "message"),
    [
        (np.zeros((2, 10)), {"input": "logits"}, "10 tokens, .* have 8"),
        (np.zeros((2, 3)), {"input": "hidden"}, "3 features, .* width 4"),
        (np.zeros((2, 4)), {"top_k": 9}, "top_k=9 is above the vocabulary size 8"),
        (
            np.zeros((2, 4)),
            {"vocabulary": ["a"] * 9},
            "9 tokens, .* 8 output embeddings",
        ),
    ],
)
def test_shapes_that_do_not_match_are_named(X, params, message):
    with pytest.raises(ValueError, match=message):
        fit(X, E=np.eye(8)[:, :4] + 0.1, **params)


def test_a_token_named_by_id_and_text_is_named():
    cal = SemanticSoftmaxCalibrator([0, 1], vocabulary=WORDS, input="topk")
    cal.fit([{"yes": -1.0}, {0: -1.0}])
    with pytest.raises(ValueError, match="by its id and by its text"):
        cal.predict([{1: -3.0}, {0: -1.0, "yes": -1.0}])


def test_only_named_marks_mean_not_listed():
    rows = [{0: -0.01, 1: -120.0}]
    cal = SemanticSoftmaxCalibrator([0, 1], input="topk").fit(rows)
    np.testing.assert_allclose(cal.predict_log_proba(rows)[0, 1], -119.99, rtol=1e-9)
    far = [{0: -800.0, 1: -801.0}]
    np.testing.assert_allclose(cal.predict_proba(far), softmax([[1.0, 0.0]], axis=1))


def test_the_fallback_of_a_cut_list_does_not_take_silence_for_zero():
    rows = [{4: np.log(0.9), 0: np.log(0.06)}]
    cal = SemanticSoftmaxCalibrator([0, 1], input="topk", top_k=1).fit(rows)
    # "no" is not even listed: half of what "yes" has.
    np.testing.assert_allclose(cal.predict_proba(rows), [[2 / 3, 1 / 3]])


@pytest.mark.parametrize(
    ("X", "shown"),
    [
        ([{"Yes ": -0.1}, {"nay": -0.2}], "Row 0 lists ['Yes ']"),
        ([{"0": -0.1}, {"1": -0.2}, {"yes": -1.0}], "Row 0 lists ['0']"),
        ([{"yes": -0.1}, {5: -0.2}, {4: -0.2}], "Row 1 lists [5]"),
    ],
)
def test_fit_warns_if_most_rows_list_no_voting_token(X, shown):
    cal = SemanticSoftmaxCalibrator([0, 1], vocabulary=WORDS, input="topk")
    with pytest.warns(UserWarning, match="no token that votes occurs") as record:
        cal.fit(X)
    assert record[0].filename == __file__
    assert "Voting tokens are ['yes', 'no']" in str(record[0].message)
    assert shown in str(record[0].message)


@pytest.mark.filterwarnings("ignore:fit saw no y")
@pytest.mark.parametrize(
    "method", ["predict", "predict_proba", "predict_log_proba", "predict_selective"]
)
def test_prediction_warns_if_no_row_lists_a_voting_token(method):
    cal = SemanticSoftmaxCalibrator([0, 1], vocabulary=WORDS, input="topk")
    cal.fit([{"yes": -1.0}])
    call = getattr(cal, method)
    with pytest.warns(UserWarning, match="no token that votes occurs") as record:
        call([{"nay": -1.0}, {"Yes": -1.0}])
    assert "In 2 of 2 rows" in str(record[-1].message)
    assert record[-1].filename == __file__
    call([{"nay": -1.0}, {"yes": -1.0}])


def test_listed_ids_outside_the_vocabulary_are_named():
    with pytest.raises(ValueError, match=r"X holds the token id\(s\) \[-1, 9\], .* 8"):
        fit([{0: -1.0, 9: -2.0, -1: -3.0}], E=np.eye(8), input="topk")
    cal = fit([{0: -1.0}], E=np.eye(8), input="topk")
    with pytest.raises(ValueError, match=r"X holds the token id\(s\) \[8\]"):
        cal.predict([{8: -1.0}])


def test_huge_values_do_not_break():
    logits = np.array([[1e308, -1e308, 0.0], [1e308, 1e308, 0.0]])
    cal = fit(logits, E=np.eye(3), input="logits", prior="uniform")
    np.testing.assert_allclose(cal.predict_proba(logits)[1].sum(), 1)
    cal = fit(logits, E=np.eye(3), input="logits")
    np.testing.assert_allclose(
        cal.predict_proba(logits), [[1, 0], [0.5, 0.5]], atol=1e-300
    )
    for top_k in (None, 2):
        with pytest.raises(ValueError, match="logits overflow"):
            fit(logits * 1.7, E=10 * np.eye(3), top_k=top_k).predict(logits * 1.7)


def test_vocabulary_longer_than_the_columns_is_named():
    with pytest.raises(ValueError, match=r"vocabulary has 3 tokens, .* 2 columns in X"):
        fit([[0.0, 1.0]], input="logits", vocabulary=["a", "b", "c"])


@pytest.mark.parametrize("width", [5, 7])
def test_another_width_at_predict_is_named(width):
    cal = fit(np.zeros((2, 6)), input="logits")
    with pytest.raises(ValueError, match=f"X has {width} features, .* expecting 6"):
        cal.predict_proba(np.zeros((2, width)))


def test_padding_beyond_the_vocabulary_never_votes():
    rng, E = embeddings()
    logits = rng.standard_normal((3, 60))
    padded = np.vstack([E, E[:1], np.zeros((2, 6))])
    wide = np.hstack([logits, np.full((3, 3), 5.0)])
    words = [str(i) for i in range(60)]
    raw = {"input": "logits", "geometry": "raw"}
    expected = fit(logits, E=E, **raw).predict_proba(logits)
    cal = fit(wide, E=padded, vocabulary=words, **raw)
    np.testing.assert_allclose(cal.predict_proba(wide), expected, atol=1e-12)
    holder = OutputEmbeddings(padded, exclude=[60])
    for geometry in ("raw", "whitened"):
        cal = fit(wide, E=holder, input="logits", geometry=geometry)
        expected = fit(logits, E=E, input="logits", geometry=geometry)
        expected = expected.predict_proba(logits)
        np.testing.assert_allclose(cal.predict_proba(wide), expected, atol=1e-12)


def test_softmax_of_a_dataframe():
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(np.zeros((2, 3)), columns=["a", "b", "c"])
    cal = fit(frame, input="logits")
    assert cal.feature_names_in_.tolist() == ["a", "b", "c"]
    np.testing.assert_allclose(cal.predict_proba(frame), softmax(np.zeros((2, 2)), 1))
    with pytest.raises(ValueError, match="feature names"):
        cal.predict_proba(frame[["c", "b", "a"]])


@pytest.mark.parametrize("mark", [-9999.0, -100.0, -np.inf])
def test_a_repeated_mark_for_not_listed_stays_one(mark):
    entries = [("yes", -0.5), ("no", mark), ("no", mark)]
    rows = read_top_logprobs([[{"token": t, "logprob": v} for t, v in entries]])
    assert rows == [{"yes": -0.5, "no": mark}]
    entries = [("no", mark), ("no", -1.0), ("no", mark)]
    rows = read_top_logprobs([[{"token": t, "logprob": v} for t, v in entries]])
    assert rows == [{"no": -1.0}]


def test_tokens_tied_with_the_last_of_the_list_count_in_what_it_leaves():
    X = np.array([[0.5, 0.5, 0.0, 0.0]])
    lists = [{0: np.log(0.5), 1: np.log(0.5)}]
    for rows, form in ((X, "proba"), (lists, "topk")):
        proba = [
            SemanticSoftmaxCalibrator({"A": 0, "B": 1, "C": 2}, input=form, top_k=k)
            .fit(rows)
            .predict_proba(rows)
            for k in (1, 2)
        ]
        np.testing.assert_allclose(proba[0], proba[1], atol=1e-9)
