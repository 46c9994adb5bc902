"""Labels as tokens: surface forms, vocabularies, class names."""

import numpy as np
import pytest
from sklearn.model_selection import cross_val_predict

from sdm_sklearn import SemanticSoftmaxCalibrator, find_label_tokens
from sdm_sklearn._semantic_labels import read_vocabulary

# Spellings of the same six tokens by byte-level BPE, SentencePiece and plain text.
BYTE_LEVEL = ["Ġjoy", "joy", "ĠJoy", "JOY", "Ġfear", "ĠcafÃ©", "<|end|>Ā"]
SENTENCE_PIECE = ["▁joy", "joy", "▁Joy", "JOY", "▁fear", "▁café", "<0x00>"]
PLAIN = [" joy", "joy", " Joy", "JOY", " fear", " café", "<s>"]


class Tokenizer:
    def get_vocab(self):
        return {text: i for i, text in enumerate(BYTE_LEVEL)}


@pytest.mark.parametrize(
    "vocabulary",
    [
        BYTE_LEVEL,
        SENTENCE_PIECE,
        PLAIN,
        Tokenizer(),
        {text: i for i, text in reversed(list(enumerate(SENTENCE_PIECE)))},
    ],
)
def test_all_surface_forms_are_found(vocabulary):
    found = find_label_tokens(["joy", "fear", "café"], vocabulary)
    assert found == {"joy": [0, 1, 2, 3], "fear": [4], "café": [5]}
    named = find_label_tokens({1: "joy", 0: ["fear", "café"]}, vocabulary)
    assert named == {1: [0, 1, 2, 3], 0: [4, 5]}


def test_read_vocabulary_decodes_bytes_and_keeps_added_tokens():
    # 0x00 is written as Ā; a token with characters of no byte is plain text.
    texts = read_vocabulary([*BYTE_LEVEL, "ĠĊ", "ä¸Ń", "<|é€|>"])
    assert texts[:6] == PLAIN[:6]
    assert texts[6:] == ["<|end|>\x00", " \n", "中", "<|é€|>"]
    assert read_vocabulary({"a": 2, "b": 0}) == ["b", "", "a"]


@pytest.mark.parametrize(
    "vocabulary",
    [
        [],
        {},
        ["a", None],
        [1, 2],
        "abc",
        5,
        {"a": "b"},
        {"a": -1},
        {"a", "b"},
        iter(["a", "b"]),
    ],
)
def test_a_vocabulary_must_be_texts(vocabulary):
    with pytest.raises(ValueError, match="vocabulary must hold the text"):
        read_vocabulary(vocabulary)


def test_labels_without_a_token_are_all_named():
    with pytest.raises(ValueError, match=r"\['grief', 'awe'\].*another word"):
        find_label_tokens(["joy", "grief", "awe"], PLAIN)


def test_labels_that_share_a_token_are_named():
    message = "'joy' and 'Joy' share the token id 0.*prompt"
    with pytest.raises(ValueError, match=message):
        find_label_tokens(["joy", "Joy"], PLAIN)
    with pytest.raises(ValueError, match="0 and 1 share the token id 3"):
        SemanticSoftmaxCalibrator([3, [2, 3]], input="logits").fit(np.zeros((1, 5)))


@pytest.mark.parametrize("word", [" ", "", 1, None])
def test_a_label_without_a_word_is_refused(word):
    with pytest.raises(ValueError, match=rf"A label needs a word\. Got {word!r}"):
        find_label_tokens([word], PLAIN)


@pytest.mark.parametrize("labels", ["joy", [], {}])
def test_labels_are_several_words(labels):
    with pytest.raises(ValueError, match="labels must be a list or dict of words"):
        find_label_tokens(labels, PLAIN)


@pytest.mark.parametrize(
    ("labels", "classes", "expected", "columns"),
    [
        ([2, 0], None, [0, 1], [2, 0]),
        ([2, 0], ["b", "a"], ["a", "b"], [0, 2]),
        ({"b": 2, "a": [0]}, None, ["a", "b"], [0, 2]),
        ({True: 2, False: 0}, None, [False, True], [0, 2]),
        ({3: 2, -1: np.int32(0)}, None, [-1, 3], [0, 2]),
        (np.array([2, 0]), np.array([1.5, 0.5]), [0.5, 1.5], [0, 2]),
        ([2, 0], (np.str_("b"), "a"), ["a", "b"], [0, 2]),
        ([[2, 2], (0,)], None, [0, 1], [2, 0]),
    ],
)
def test_classes_are_sorted_with_their_ids(labels, classes, expected, columns):
    logits = np.log([[0.5, 0.3, 0.2]])
    cal = SemanticSoftmaxCalibrator(labels, classes=classes, input="logits").fit(logits)
    assert cal.classes_.tolist() == expected
    proba = np.exp(logits[0, columns])
    np.testing.assert_allclose(cal.predict_proba(logits)[0], proba / proba.sum())
    assert cal.predict(logits)[0] == expected[int(np.argmax(proba))]


@pytest.mark.parametrize(
    ("labels", "classes", "message"),
    [
        ([], None, "at least two classes. Got 0"),
        ([1], None, "at least two classes. Got 1"),
        ({"a": 0}, None, "at least two classes. Got 1"),
        ([0, []], None, r"one or more integer token ids.*Got \[\] for the label 1"),
        ([0, "joy"], None, "Got 'joy' for the label 1 instead; find_label_tokens"),
        ([0, 1.5], None, "Got 1.5 for the label 1"),
        ([0, True], None, "Got True for the label 1"),
        ([0, ["joy"]], None, r"Got \['joy'\] for the label 1"),
        ([0, None], None, "Got None for the label 1"),
        ([0, 2**70], None, "integer token ids.* for the label 1"),
        ({0, 1}, None, "label_token_ids must have an order"),
        ([0, 1], {"a", "b"}, "classes must have an order"),
        ([0, 1], ["a"], "classes names 1 labels, but label_token_ids has 2"),
        ({"a": 0, "b": 1}, ["a", "b"], "pass one of the two"),
        ([0, 1], ["a", "a"], r"must differ. Got \['a', 'a'\]"),
        ([0, 1], ["a", 1], "all strings or all numbers"),
        ([0, 1], [0.0, np.nan], "none of them NaN"),
        ([0, 9], None, r"token id\(s\) \[9\], but the vocabulary has 3 tokens"),
        ([0, -1], None, r"token id\(s\) \[-1\], .* 0 to 2"),
    ],
)
def test_bad_labels_are_named(labels, classes, message):
    cal = SemanticSoftmaxCalibrator(labels, classes=classes, input="logits")
    with pytest.raises(ValueError, match=message):
        cal.fit(np.zeros((2, 3)))


def test_unknown_labels_in_y_are_named():
    X = np.zeros((4, 3))
    cal = SemanticSoftmaxCalibrator({"a": 0, "b": 1, "c": 2}, input="logits")
    with pytest.raises(ValueError, match=r"\['d', 'e'\], which are not among"):
        cal.fit(X, ["a", "e", "d", "b"])
    with pytest.raises(ValueError, match=r"\[0, 1\], which are not among"):
        cal.fit(X, [0, 1, 0, 1])
    two = SemanticSoftmaxCalibrator([0, 1], input="logits")
    with pytest.raises(ValueError, match=r"\[1\], .* encode y yourself"):
        SemanticSoftmaxCalibrator([0, 1, 2], classes=[0, 2, 3], input="logits").fit(
            X, [0, 1, 2, 3]
        )
    with pytest.raises(ValueError, match=r"Only binary .* is multiclass, .*0, 1"):
        two.fit(X, [0, 1, 2, 0])


@pytest.mark.filterwarnings("ignore:.*No threshold certifies")
@pytest.mark.parametrize(
    ("names", "dtype"),
    [
        ([False, True], bool),
        ([0, 1], np.uint8),
        (["no", "yes"], object),
        (["no", "yes"], "U3"),
        ([-1, 1], np.int64),
        ([0, 1], np.float64),
    ],
)
def test_any_label_type_can_be_learnt_and_rejected(names, dtype):
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((60, 3))
    y = np.array(names, dtype=dtype)[logits[:, :2].argmax(axis=1)]
    cal = SemanticSoftmaxCalibrator([0, 1], classes=names, input="logits", alpha=0.8)
    cal.fit(logits, y)
    assert (cal.predict(logits) == y).mean() > 0.9
    labels, accepted = cal.predict_selective(logits, alpha=0.999, return_mask=True)
    assert not accepted.any()
    assert not set(labels.tolist()) & set(names)


def test_labels_may_come_as_a_pandas_series():
    pd = pytest.importorskip("pandas")
    y = pd.Series(["a", "b"] * 20, index=range(5, 45), dtype="category")
    cal = SemanticSoftmaxCalibrator({"a": 0, "b": 1}, input="logits", alpha=0.6)
    cal.fit(np.tile([[1.0, 0.0], [0.0, 1.0]], (20, 1)), y)
    assert cal.predict([[1.0, 0.0]]) == ["a"]


@pytest.mark.parametrize(
    ("labels", "multi_class"), [([0, 1], False), ([0, 1, 2], True)]
)
def test_tags_tell_the_number_of_labels(labels, multi_class):
    tags = SemanticSoftmaxCalibrator(labels).__sklearn_tags__()
    assert tags.classifier_tags.multi_class == multi_class
    assert SemanticSoftmaxCalibrator(5).__sklearn_tags__().classifier_tags.multi_class


def test_cross_validated_probabilities_need_coded_classes():
    X = np.tile([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]], (6, 1))
    codes = np.tile([0, 1, 2], 6)
    cal = SemanticSoftmaxCalibrator([0, 1, 2], input="logits")
    proba = cross_val_predict(cal, X, codes, method="predict_proba", cv=2)
    assert (proba.argmax(axis=1) == codes).all()
    named = SemanticSoftmaxCalibrator({"a": 0, "b": 1, "c": 2}, input="logits")
    y = np.array(["a", "b", "c"])[codes]
    assert (cross_val_predict(named, X, y, cv=2) == y).all()
    with pytest.raises(ValueError, match="cross_val_predict passes codes"):
        cross_val_predict(named, X, y, method="predict_proba", cv=2)


def test_plain_words_with_accents_stay_what_they_are():
    words = ["yes", "café", "sí", "ñ", "glücklich"]
    assert read_vocabulary(words) == words
    assert find_label_tokens(["glücklich", "sí"], words) == {
        "glücklich": [4],
        "sí": [2],
    }


@pytest.mark.parametrize("make", [list, tuple, np.array])
def test_labels_in_any_sequence(make):
    assert find_label_tokens(make(["fear", "joy"]), PLAIN)["fear"] == [4]


def test_series_go_by_their_index():
    pd = pytest.importorskip("pandas")
    assert find_label_tokens(pd.Series(["joy"], index=["j"]), PLAIN) == {
        "j": [0, 1, 2, 3]
    }
    ids = pd.Series([2, 0], index=["b", "a"])
    cal = SemanticSoftmaxCalibrator(ids, input="logits").fit(np.zeros((1, 3)))
    assert cal.classes_.tolist() == ["a", "b"]
    assert cal._kernel.own[cal._kernel.token_ids == 2].tolist() == [[False, True]]


def test_messages_stay_short_and_swapped_arguments_are_named():
    many = [f"word{i}" for i in range(5000)]
    with pytest.raises(ValueError, match="5000 labels .* arguments swapped") as info:
        find_label_tokens(many, ["good"])
    assert len(str(info.value)) < 500
    with pytest.raises(ValueError, match=r"\.\.\. 4998 in all\]") as info:
        find_label_tokens(many[2:], many[:2] + [f"w{i}" for i in range(5000)])
    assert len(str(info.value)) < 500
    for params in (
        {"label_token_ids": [0, "joy" * 1000]},
        {"label_token_ids": [0, many]},
        {"label_token_ids": list(range(5000)), "classes": ["a"] * 5000},
        {"label_token_ids": [0, 1], "prior": dict.fromkeys(many, 1 / 5000)},
        {"label_token_ids": [0, 1], "prior": [1.0] * 5000},
    ):
        with pytest.raises(ValueError, match=r"\.\.\.") as info:
            SemanticSoftmaxCalibrator(**params, input="logits").fit(np.zeros((1, 3)))
        assert len(str(info.value)) < 500


def test_labels_that_come_twice_are_named():
    with pytest.raises(ValueError, match=r"\['joy'\] come more than once"):
        find_label_tokens(["joy", "fear", "joy"], PLAIN)


def test_a_missing_label_in_y_is_named():
    cal = SemanticSoftmaxCalibrator({"a": 0, "b": 1}, input="logits")
    with pytest.raises(ValueError, match="none of them missing. Got None at 1"):
        cal.fit(np.zeros((3, 3)), ["a", None, "b"])


@pytest.mark.parametrize("name", ["top_k", "similarity_threshold", "min_captured_mass"])
def test_true_is_no_number(name):
    cal = SemanticSoftmaxCalibrator([0, 1], input="logits", **{name: True})
    with pytest.raises(ValueError, match=f"{name} must be a number. Got True"):
        cal.fit(np.zeros((1, 3)))
