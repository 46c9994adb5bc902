import numpy as np
import pandas
import pytest

from sdm_sklearn import datasets


@pytest.mark.parametrize(
    ("load", "shape", "n_classes", "licence"),
    [
        (datasets.load_intents, (2250, 384), 15, "CC BY 3.0"),
        (datasets.load_true_false, (745, 1152), 2, "MIT"),
    ],
)
def test_loaders(load, shape, n_classes, licence):
    bunch = load()
    assert bunch.data.shape == shape
    assert bunch.data.dtype == np.float16
    assert np.isfinite(bunch.data).all()
    assert bunch.target.shape == bunch.texts.shape == shape[:1]
    assert list(np.unique(bunch.target)) == list(bunch.target_names)
    assert len(bunch.target_names) == n_classes
    assert all(bunch.texts)
    assert licence in bunch.DESCR
    assert bunch.frame is None
    X, y = load(return_X_y=True)
    assert np.array_equal(X, bunch.data)
    assert np.array_equal(y, bunch.target)
    frame = load(as_frame=True)
    assert isinstance(frame.data, pandas.DataFrame)
    assert list(frame.data.columns) == bunch.feature_names
    assert (frame.data.dtypes == np.float32).all()
    assert np.array_equal(frame.data, bunch.data)
    assert list(frame.frame.columns) == [*bunch.feature_names, "target"]
    assert (frame.target == bunch.target).all()
    X, y = load(return_X_y=True, as_frame=True)
    assert isinstance(X, pandas.DataFrame)
    assert isinstance(y, pandas.Series)


def test_out_of_scope_queries():
    bunch = datasets.load_intents(as_frame=True)
    assert bunch.ood_data.shape == (1000, 384)
    assert bunch.ood_texts.shape == (1000,)
    assert list(bunch.ood_data.columns) == bunch.feature_names


def test_test_statements_of_the_paper():
    bunch = datasets.load_true_false()
    assert (bunch.split == "test").sum() == 245
    assert bunch.target[bunch.split == "fit"].mean() == 0.5


def test_bad_options():
    with pytest.raises(ValueError, match="'as_frame' parameter of load_intents"):
        datasets.load_intents(as_frame="yes")
