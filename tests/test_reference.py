"""The functional core against independently computed values, easy and adversarial."""

from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from sdm_sklearn._ecdf import evaluate_distance, fit_class_ecdf
from sdm_sklearn._model import SDMModel
from sdm_sklearn.activation import sdm_activation

GOLDEN = sorted((Path(__file__).parent / "data" / "golden").glob("*.npz"))


class GivenRepresentations:
    """Stands for a projection: the rows of X are coordinates and logits."""

    def __init__(self, n_dimensions):
        self.n_dimensions = n_dimensions

    def project(self, X):
        return X[:, : self.n_dimensions], X[:, self.n_dimensions :]


@pytest.fixture(params=GOLDEN, ids=lambda path: path.stem)
def golden(request):
    with np.load(request.param) as archive:
        values = {name: archive[name] for name in archive.files}
    for name in ("support", "calibration", "test"):
        values[name] = values[name].astype(np.float64)
        values[f"{name}_logits"] = values[f"{name}_logits"].astype(np.float64)
    return values


@pytest.fixture
def model(golden):
    logits = golden["support_logits"]
    return SDMModel(
        None,
        GivenRepresentations(golden["support"].shape[1]),
        (golden["support"], golden["support_labels"], logits.argmax(axis=1)),
        (
            golden["calibration"],
            golden["calibration_logits"],
            golden["calibration_labels"],
        ),
        int(golden["n_classes"]),
        max_similarity=None,
    )


def test_there_are_golden_cases():
    assert len(GOLDEN) == 26


def test_training_points(golden, model):
    support, labels, predictions = model.support
    similarity, nearest, index = model.neighbors.query(
        support, predictions, np.arange(len(support))
    )
    assert_array_equal(similarity, golden["train_similarity"])
    assert_allclose(nearest, golden["train_nearest_distance"], rtol=1e-9)
    assert (index != np.arange(len(support))).all()
    ecdf = fit_class_ecdf(nearest, labels, similarity, model.n_classes)
    assert_allclose(
        evaluate_distance(nearest, ecdf), golden["train_distance"], atol=1e-10
    )


def test_calibration_points_and_region(golden, model):
    coordinates, logits, y = model.calibration
    similarity, nearest, _ = model.neighbors.query(coordinates, logits.argmax(axis=1))
    distance = evaluate_distance(nearest, model.ecdf)
    assert_array_equal(similarity, golden["calibration_similarity"])
    assert_allclose(nearest, golden["calibration_nearest_distance"], rtol=1e-9)
    assert_allclose(distance, golden["calibration_distance"], atol=1e-10)
    probability = sdm_activation(logits, similarity, distance)
    assert_allclose(probability, golden["calibration_proba"], atol=1e-10)
    assert_allclose(
        model.calibration_rows.rescaled_similarity,
        golden["calibration_rescaled"],
        rtol=1e-9,
    )
    region = model.find_region(float(golden["alpha"]))
    assert_allclose(region.q_min, golden["q_min"], rtol=1e-9)
    assert_allclose(region.thresholds, golden["thresholds"], atol=1e-10)


def test_new_points(golden, model):
    alpha = float(golden["alpha"])
    X = np.hstack([golden["test"], golden["test_logits"]])
    signals = model.signals(model.measure(X), model.find_region(alpha), alpha)
    rows, prediction = np.arange(len(X)), signals.prediction
    assert_array_equal(prediction, golden["test_logits"].argmax(axis=1))
    assert_array_equal(signals.similarity, golden["similarity"])
    assert_array_equal(signals.is_ood, golden["is_ood"])
    assert_array_equal(signals.accepted, golden["accepted"])
    assert_array_equal(signals.lower_accepted, golden["accepted_lower"])
    assert_array_equal(signals.effective_sample_size, golden["effective_sample_size"])
    for name, expected in (
        ("nearest_distance", golden["nearest_distance"]),
        ("distance", golden["distance"]),
        ("lower_distance", golden["distance_lower"]),
        ("upper_distance", golden["distance_upper"]),
        ("probability", golden["proba"][rows, prediction]),
        ("lower_probability", golden["proba_lower"][rows, prediction]),
        ("rescaled_similarity", golden["rescaled_similarity"]),
        ("lower_rescaled_similarity", golden["rescaled_lower"]),
    ):
        assert_allclose(signals[name], expected, rtol=1e-9, atol=1e-10, err_msg=name)
    proba = sdm_activation(signals.logits, signals.similarity, signals.distance)
    assert_allclose(proba, golden["proba"], atol=1e-10)
    upper = sdm_activation(signals.logits, signals.similarity, signals.upper_distance)
    assert_allclose(upper, golden["proba_upper"], atol=1e-10)


def test_one_row_at_a_time_gives_the_same_bits(golden, model):
    X = np.hstack([golden["test"], golden["test_logits"]])
    batch = model.measure(X)
    for row in range(len(X)):
        single = model.measure(X[[row]])
        for name in ("similarity", "nearest_distance", "nearest_index", "distance"):
            assert_array_equal(single[name], batch[name][[row]], err_msg=name)
