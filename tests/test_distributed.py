"""Restarts, searches and prediction on clusters, bit for bit as in one process."""

import joblib
import numpy as np
import pandas
import pytest
from numpy.testing import assert_array_equal
from sklearn.model_selection import GridSearchCV

from sdm_sklearn import SDMClassifier
from tests.conftest import make_blobs

pytestmark = pytest.mark.filterwarnings("ignore::sdm_sklearn.NoRegionWarning")


def fast(**parameters):
    defaults = {"alpha": 0.9, "n_filters": 8, "max_epochs": 6, "random_state": 0}
    return SDMClassifier(**(defaults | parameters))


def assert_same_fit(first, second, X):
    assert first.history_ == second.history_
    for name, values in first.signals(X).items():
        assert_array_equal(values, second.signals(X)[name])
    for model, other in zip(first._models, second._models, strict=True):
        for weights, expected in zip(model.adaptor, other.adaptor, strict=True):
            assert_array_equal(weights, expected)


@pytest.fixture(scope="module")
def client():
    """Two worker processes, and a client of theirs."""
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


def test_restarts_under_dask(client, monkeypatch):
    X, y = make_blobs(600, n_classes=3, separation=4.0)
    serial = fast(n_restarts=4, ensemble=True).fit(X, y)
    scattered = []
    scatter = type(client).scatter

    def counting(self, data, *args, **kwargs):
        scattered.append(data)
        return scatter(self, data, *args, **kwargs)

    monkeypatch.setattr(type(client), "scatter", counting)
    with joblib.parallel_config("dask"):
        spread = fast(n_restarts=4, ensemble=True).fit(X, y)
    assert_same_fit(spread, serial, X)
    # The rows went to the cluster once, not once for each restart.
    assert sum(getattr(data, "shape", None) == X.shape for data in scattered) == 1
    assert len(client.scheduler_info()["workers"]) == 2


def test_search_under_dask(client):
    X, y = make_blobs(300, n_classes=2, separation=4.0)
    grid = {"alpha": [0.7, 0.9], "n_filters": [4, 8]}
    serial = GridSearchCV(fast(n_restarts=2), grid, cv=2, error_score="raise")
    spread = GridSearchCV(fast(n_restarts=2), grid, cv=2, error_score="raise")
    serial.fit(X, y)
    with joblib.parallel_config("dask"):
        spread.fit(X, y)
    for name in ("mean_test_score", "split0_test_score", "split1_test_score"):
        assert_array_equal(spread.cv_results_[name], serial.cv_results_[name])
    assert_same_fit(spread.best_estimator_, serial.best_estimator_, X)


def test_checkpoints_under_dask(client, tmp_path):
    X, y = make_blobs(300, n_classes=2, separation=4.0)
    with joblib.parallel_config("dask"):
        spread = fast(alpha=0.8, checkpoint_dir=tmp_path).fit(X, y)
    assert_same_fit(spread, fast(alpha=0.8).fit(X, y), X)
    assert list(tmp_path.iterdir()) == []


def test_prediction_over_dask_arrays(fitted):
    array = pytest.importorskip("dask.array")
    clf, X, _, far = fitted
    rows = np.vstack([X, far])
    blocks = array.from_array(rows, chunks=(100, -1))
    labels = blocks.map_blocks(
        clf.predict_selective, drop_axis=1, dtype=clf.predict_selective(rows[:1]).dtype
    )
    assert_array_equal(labels.compute(), clf.predict_selective(rows))
    probabilities = blocks.map_blocks(
        clf.predict_proba, chunks=(blocks.chunks[0], (3,)), dtype=float
    )
    assert_array_equal(probabilities.compute(), clf.predict_proba(rows))


def test_prediction_over_dask_frames(fitted):
    dataframe = pytest.importorskip("dask.dataframe")
    clf, X, _, _ = fitted
    frame = pandas.DataFrame(X, columns=[f"e{i}" for i in range(12)])
    named = fast(n_restarts=1).fit(frame, np.arange(len(X)) % 2)
    named.set_output(transform="pandas")
    parts = dataframe.from_pandas(frame, npartitions=3)
    signals = parts.map_partitions(named.signals, meta=named.signals(frame[:1]))
    pandas.testing.assert_frame_equal(signals.compute(), named.signals(frame))


@pytest.mark.slow
def test_restarts_under_ray():
    ray = pytest.importorskip("ray")
    joblib_of_ray = pytest.importorskip("ray.util.joblib")
    X, y = make_blobs(300, n_classes=2, separation=4.0)
    serial = fast(alpha=0.8, ensemble=True).fit(X, y)
    ray.init(num_cpus=2, include_dashboard=False)
    try:
        joblib_of_ray.register_ray()
        with joblib.parallel_config("ray", n_jobs=2):
            spread = fast(alpha=0.8, ensemble=True).fit(X, y)
    finally:
        ray.shutdown()
    assert_same_fit(spread, serial, X)
