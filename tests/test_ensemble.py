import numpy as np
import pytest
from numpy.testing import assert_array_equal
from sklearn.datasets import make_blobs
from sklearn.utils import Bunch

from sdm_sklearn import NoRegionWarning, SDMClassifier, ThinEvidenceWarning
from sdm_sklearn._ensemble import Ensemble, _agree

X, y = make_blobs(900, centers=3, n_features=8, cluster_std=3.5, random_state=0)
ROWS = X[::3] + np.random.RandomState(0).randn(300, 8)


def fit(**parameters):
    parameters = {"n_restarts": 3, "max_epochs": 12, "random_state": 0} | parameters
    return SDMClassifier(0.9, ensemble=True, **parameters).fit(X[:600], y[:600])


def test_members_that_answer_no_class_in_common():
    n = 400
    codes = np.arange(n) % 2
    rows = np.random.RandomState(0).randn(n, 5)
    rows[:, 0] += 6 * codes
    zeros, ones = np.flatnonzero(codes == 0), np.flatnonzero(codes == 1)
    halves = [np.r_[zeros[:100], ones[:3]], np.r_[zeros[100:103], ones[100:200]]]
    splits = [(np.setdiff1d(np.arange(n), half), half) for half in halves]
    clf = SDMClassifier(
        0.9,
        cv=splits,
        ensemble=True,
        region="per_class",
        max_epochs=20,
        n_restarts=1,
        n_filters=8,
        random_state=0,
    )
    with pytest.warns(NoRegionWarning, match="answer no class in common at alpha=0.9"):
        clf.fit(rows, codes)
    assert not clf.region_report_["answered"].any()
    assert not clf.signals(rows).accepted.any()
    with pytest.warns(NoRegionWarning, match="no class in common at alpha=0.92"):
        clf.predict_selective(rows, alpha=0.92)


def test_agree():
    predicted = [Bunch(prediction=np.array(p)) for p in ([0, 1, 1, 2], [0, 1, 0, 2])]
    accepted = [np.array(a, bool) for a in ([1, 1, 1, 0], [1, 0, 1, 1])]
    assert_array_equal(_agree(predicted, accepted), [True, False, False, False])
    assert_array_equal(_agree(predicted[:1], accepted[:1]), accepted[0])


@pytest.mark.parametrize("conservative", [False, True])
@pytest.mark.parametrize(
    "options",
    [{}, {"region": "per_class"}, {"region": "per_class", "guarantee": "certified"}],
)
@pytest.mark.filterwarnings("ignore::sdm_sklearn.NoRegionWarning")
@pytest.mark.filterwarnings("ignore::sdm_sklearn.ThinEvidenceWarning")
def test_accepts_what_its_signals_say(options, conservative):
    ensemble = fit(conservative=conservative, **options)._ensemble
    assert len(ensemble.models) == 3
    measured = ensemble.measure(ROWS)
    regions, _ = ensemble.find_regions(0.8)
    accepted = ensemble.accept(measured, 0.8, regions)
    signals = ensemble.signals(measured, 0.8, regions)
    assert_array_equal(signals.accepted, accepted)
    assert 0 < accepted.mean() < 1
    assert signals.lower_accepted.sum() <= accepted.sum()
    # What the ensemble accepts each of its models accepts by itself.
    for model, values, region in zip(ensemble.models, measured, regions, strict=True):
        alone = Ensemble([model], ensemble.rule).accept([values], 0.8, [region])
        assert alone[accepted].all()
        assert_array_equal(values.prediction[accepted], signals.prediction[accepted])


def test_finds_the_fault_of_a_region():
    clf = fit(region="per_class")
    ensemble = clf._ensemble

    def find_fault(alpha, ensemble=ensemble):
        regions, _ = ensemble.find_regions(alpha)
        return ensemble.find_fault(alpha, regions, clf.alpha_found_, clf.classes_)

    assert find_fault(0.8)[0] is None
    message, category = find_fault(0.9999)
    assert category is NoRegionWarning
    assert "alpha=0.9999" in message
    with pytest.warns(ThinEvidenceWarning):
        few = fit(n_restarts=1, calibration_size=0.1)
    message, category = find_fault(0.9, few._ensemble)
    assert category is ThinEvidenceWarning
    assert "thin evidence" in message


def test_finds_that_nothing_is_certified():
    clf = fit(guarantee="certified", n_restarts=1)
    ensemble = clf._ensemble
    for alpha, certified in ((0.6, True), (0.99, False)):
        regions, level = ensemble.find_regions(alpha)
        assert 0 < level < 1
        message, category = ensemble.find_fault(alpha, regions, 0.9, clf.classes_)
        assert (message is None) == certified
        assert category is NoRegionWarning


def test_every_model_needs_a_region():
    ensemble = fit()._ensemble
    alone = [Ensemble([model], ensemble.rule) for model in ensemble.models]
    expected = [model.find_largest_alpha() for model in alone]
    assert ensemble.find_largest_alpha() == min(expected)
