import warnings

import numpy as np
import pandas
import pytest
from sklearn.metrics import roc_auc_score

from sdm_sklearn import SemanticSoftmaxCalibrator
from sdm_sklearn.datasets import load_emotions


@pytest.fixture(scope="module")
def emotions():
    return load_emotions()


def calibrator(emotions, **params):
    return SemanticSoftmaxCalibrator(
        emotions.label_token_ids,
        emotions.output_embeddings,
        vocabulary=emotions.vocabulary,
        **params,
    )


def test_contents(emotions):
    assert emotions.data.shape == (1000, 576)
    assert emotions.data.dtype == np.float16
    assert emotions.content_free_data.shape == (3, 576)
    assert emotions.target.shape == emotions.texts.shape == (1000,)
    assert all(emotions.texts)
    assert emotions.natural.sum() == 700
    assert list(np.unique(emotions.target)) == list(emotions.target_names)
    assert list(emotions.label_token_ids) == list(emotions.target_names)
    assert emotions.output_embeddings.shape == (len(emotions.vocabulary), 576)
    assert "Apache-2.0" in emotions.DESCR
    assert "token_blocks" not in emotions


def test_other_forms(emotions):
    X, y = load_emotions(return_X_y=True)
    assert np.array_equal(X, emotions.data)
    assert np.array_equal(y, emotions.target)
    frame = load_emotions(as_frame=True)
    assert isinstance(frame.data, pandas.DataFrame)
    assert frame.frame.shape == (1000, 577)
    with pytest.raises(ValueError, match="'return_X_y' parameter of load_emotions"):
        load_emotions(return_X_y="no")


def test_the_default_kernel_needs_just_these_rows(emotions):
    cal = calibrator(emotions).fit(emotions.data)
    assert len(cal.required_token_ids_) == len(emotions.vocabulary)
    assert cal.neighbors_["sadness"].tokens[:3].tolist() == [
        " sorrow",
        " sad",
        " melancholy",
    ]


def test_neighbours_and_prior_help(emotions):
    X, y = emotions.data, emotions.target

    def auc(cal):
        return roc_auc_score(y, cal.fit(X).predict_proba(X), multi_class="ovr")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        deaf = auc(calibrator(emotions, similarity_threshold=1.0))
    assert auc(calibrator(emotions)) > deaf + 0.005
    with_prior = calibrator(emotions, prior="uniform").fit(X)
    assert with_prior.score(X, y) > calibrator(emotions).fit(X).score(X, y) + 0.05


@pytest.mark.parametrize(
    ("params", "warned"),
    [
        ({"similarity_threshold": 0.1}, True),
        ({"geometry": "raw"}, True),
        ({"geometry": "centered"}, True),
        ({"similarity_threshold": 0.19}, True),
        ({"similarity_threshold": 0.2}, False),
        ({"similarity_threshold": 0.3}, False),
    ],
)
def test_asking_for_tokens_that_are_not_there_is_warned_of(emotions, params, warned):
    with warnings.catch_warnings(record=True) as record:
        warnings.simplefilter("always")
        calibrator(emotions, **params).fit(emotions.data[:2])
    found = [w for w in record if "holds only 297 tokens" in str(w.message)]
    assert len(found) == warned
    assert all(w.filename == __file__ for w in found)


def test_the_whole_vocabulary_is_refused(emotions):
    cal = calibrator(emotions).fit(emotions.data)
    for call in (
        lambda: cal.captured_mass(emotions.data),
        lambda: calibrator(emotions, top_k=50).fit(emotions.data),
    ):
        with pytest.raises(ValueError, match="holds only 297 of its tokens"):
            call()
