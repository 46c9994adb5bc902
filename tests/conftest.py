"""Shared data: small, fast, separable."""

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

# The machine's speed must not decide over a property.
settings.register_profile(
    "default", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("default")


def make_blobs(n=300, n_features=12, n_classes=2, separation=6.0, seed=0):
    """Gaussian classes around random centres of length `separation`."""
    random = np.random.RandomState(seed)
    centers = random.randn(n_classes, n_features)
    centers *= separation / np.linalg.norm(centers, axis=1, keepdims=True)
    y = random.permutation(np.arange(n) % n_classes)
    return centers[y] + random.randn(n, n_features), y


def fast(**parameters):
    """An unfitted classifier that trains in a moment."""
    from sdm_sklearn import SDMClassifier

    defaults = {
        "alpha": 0.9,
        "n_filters": 16,
        "n_restarts": 1,
        "max_epochs": 15,
        "random_state": 0,
    }
    return SDMClassifier(**(defaults | parameters))


@pytest.fixture
def blobs():
    return make_blobs()


@pytest.fixture(scope="session")
def fitted():
    """A classifier on three string classes, its data, and rows far away."""
    from sdm_sklearn import SDMClassifier

    X, codes = make_blobs(450, n_classes=3, separation=5.0)
    y = np.array(["zebra", "ant", "mole"])[codes]
    clf = SDMClassifier(
        alpha=0.9, n_filters=16, n_restarts=1, max_epochs=30, random_state=0
    )
    clf.fit(X[:300], y[:300])
    far = np.random.RandomState(1).randn(20, X.shape[1]) * 1e4
    return clf, X, y, far
