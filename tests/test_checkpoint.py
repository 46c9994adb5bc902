import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from sklearn.model_selection import GridSearchCV

from sdm_sklearn import _adaptor
from sdm_sklearn._checkpoint import Checkpoint, open_checkpoints
from tests import conftest
from tests.conftest import make_blobs

pytestmark = pytest.mark.filterwarnings("ignore::sdm_sklearn.NoRegionWarning")

ROOT = Path(__file__).parent.parent


fast = partial(
    conftest.fast, n_filters=8, n_restarts=2, max_epochs=3, patience=None, ensemble=True
)


def assert_same_fit(first, second, X):
    assert first.history_ == second.history_
    for name, values in first.signals(X).items():
        assert_array_equal(values, second.signals(X)[name])
    assert_array_equal(first.kneighbors(X), second.kneighbors(X))


class Killed(BaseException):
    """Stands for the end of the process."""


@pytest.fixture
def killed_at(monkeypatch):
    """Return a function that lets the n-th checkpoint be the last thing to happen."""

    def arm(n):
        save, count = Checkpoint.save, 0

        def killing(self, record):
            nonlocal count
            count += 1
            save(self, record)
            if count == n:
                raise Killed

        monkeypatch.setattr(Checkpoint, "save", killing)

    yield arm
    monkeypatch.undo()


# Each of two restarts saves three epochs and its result.
@pytest.mark.parametrize(
    ("n", "weight_averaging"), [*((n, True) for n in range(1, 9)), (2, False)]
)
def test_a_fit_goes_on_where_it_stopped(
    n, weight_averaging, blobs, tmp_path, killed_at, monkeypatch
):
    X, y = blobs
    plain = fast(weight_averaging=weight_averaging)
    kept = fast(weight_averaging=weight_averaging, checkpoint_dir=tmp_path)
    expected = plain.fit(X, y)
    killed_at(n)
    with pytest.raises(Killed):
        kept.fit(X, y)
    monkeypatch.undo()
    n_measured, measure = 0, _adaptor.measure_signals

    def counting(*args):
        nonlocal n_measured
        n_measured += 1
        return measure(*args)

    monkeypatch.setattr(_adaptor, "measure_signals", counting)
    assert len(os.listdir(tmp_path)) == (1 if n <= 4 else 2)
    resumed = kept.fit(X, y)
    # Saves 4 and 8 are those of results, which take no epoch.
    assert n_measured == 6 - (n - n // 4)
    assert_same_fit(resumed, expected, X)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "parameters", [{}, {"patience": 2, "max_epochs": 30, "weight_averaging": False}]
)
def test_checkpoints_change_nothing(parameters, blobs, tmp_path):
    X, y = blobs
    plain = fast(**parameters).fit(X, y)
    kept = fast(checkpoint_dir=str(tmp_path / "new" / "folder"), **parameters)
    assert_same_fit(kept.fit(X, y), plain, X)
    assert os.listdir(tmp_path / "new" / "folder") == []


def test_patience_is_kept_over_an_interruption(blobs, tmp_path, killed_at, monkeypatch):
    X, y = blobs
    parameters = {"patience": 2, "max_epochs": 60, "n_restarts": 1}
    expected = fast(**parameters).fit(X, y)
    assert 4 < len(expected.history_) < 60
    killed_at(len(expected.history_) - 1)
    with pytest.raises(Killed):
        fast(checkpoint_dir=tmp_path, **parameters).fit(X, y)
    monkeypatch.undo()
    assert_same_fit(fast(checkpoint_dir=tmp_path, **parameters).fit(X, y), expected, X)


def test_another_alpha_goes_on_from_the_same_training(
    blobs, tmp_path, killed_at, monkeypatch
):
    X, y = blobs
    killed_at(8)
    with pytest.raises(Killed):
        fast(checkpoint_dir=tmp_path).fit(X, y)
    monkeypatch.undo()
    monkeypatch.setattr(_adaptor, "measure_signals", None)
    resumed = fast(checkpoint_dir=tmp_path, alpha=0.7, n_jobs=1).fit(X, y)
    monkeypatch.undo()
    assert_same_fit(resumed, fast(alpha=0.7).fit(X, y), X)


def keys(X, codes, *, classes=(0, 1), seed=1, split=None, **parameters):
    splits = [split or (np.arange(10), np.arange(10, 20))]
    estimator = fast(checkpoint_dir="nowhere", **parameters)
    checkpoints = open_checkpoints(
        estimator, X, codes, np.array(classes), splits, np.array([seed])
    )
    return checkpoints[0].path


@pytest.mark.parametrize(
    "change",
    [
        {"X": np.ones((20, 3), dtype=np.float32)},
        {"X": np.ones((20, 4))},
        {"X": np.vstack([np.ones((19, 3)), [[1, 1, 1 + 1e-16 * 3]]])},
        {"codes": np.array([1] + [0] * 19)},
        {"classes": (0, 2)},
        {"seed": 2},
        {"split": (np.arange(9), np.arange(9, 20))},
        {"n_filters": 9},
        {"max_epochs": 4},
        {"patience": 3},
        {"learning_rate": 0.02},
        {"batch_size": 99},
        {"standardize": "global"},
        {"weight_averaging": False},
        {"max_similarity": 10},
        {"class_weight": "balanced"},
        {"class_weight": {0: 1.0, 1: 2.0}},
        {"device": "cuda"},
    ],
)
def test_other_data_or_parameters_have_another_file(change, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    base = {"X": np.ones((20, 3)), "codes": np.zeros(20, dtype=np.int64)}
    assert keys(**base) == keys(**base, alpha=0.6, n_jobs=2, reject_label=9)
    assert keys(**base) != keys(**(base | change))


def test_every_parameter_of_training_has_a_part_in_the_digest():
    """A parameter added later is taken for one of training, unless listed."""
    from sdm_sklearn._checkpoint import _WITHOUT_EFFECT

    assert fast().get_params().keys() >= _WITHOUT_EFFECT


@pytest.mark.parametrize("part", ["sdm_sklearn.__version__", "version"])
def test_other_versions_have_another_file(part, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    base = {"X": np.ones((20, 3)), "codes": np.zeros(20, dtype=np.int64)}
    before = keys(**base)
    value = "9.9" if "." in part else lambda package: "9.9"
    monkeypatch.setattr(f"sdm_sklearn._checkpoint.{part}", value)
    assert keys(**base) != before


def test_a_seed_is_needed(blobs, tmp_path):
    with pytest.raises(ValueError, match="checkpoint_dir=.* needs a seed: .* an int"):
        fast(checkpoint_dir=tmp_path, random_state=None).fit(*blobs)


def test_a_damaged_checkpoint_is_told_and_left(blobs, tmp_path, killed_at, monkeypatch):
    X, y = blobs
    killed_at(2)
    with pytest.raises(Killed):
        fast(checkpoint_dir=tmp_path).fit(X, y)
    monkeypatch.undo()
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.warns(UserWarning, match="restart begins anew: .* truncated"):
        resumed = fast(checkpoint_dir=tmp_path).fit(X, y)
    assert_same_fit(resumed, fast().fit(X, y), X)


def test_a_model_file_is_no_checkpoint(blobs, tmp_path):
    path = str(tmp_path / "model.npz")
    fast().fit(*blobs).save(path)
    with pytest.warns(UserWarning, match="is not a checkpoint, so that its restart"):
        assert Checkpoint(path).load() is None


@pytest.mark.slow
def test_searches_share_a_folder(blobs, tmp_path):
    X, y = blobs
    grid = {"alpha": [0.6, 0.8], "n_filters": [4, 8]}
    plain = GridSearchCV(fast(), grid, cv=2, error_score="raise").fit(X, y)
    kept = GridSearchCV(
        fast(checkpoint_dir=tmp_path), grid, cv=2, n_jobs=2, error_score="raise"
    ).fit(X, y)
    assert_array_equal(
        kept.cv_results_["mean_test_score"], plain.cv_results_["mean_test_score"]
    )
    assert os.listdir(tmp_path) == []


SCRIPT = """
import os, signal, sys
import numpy as np
from sdm_sklearn._checkpoint import Checkpoint
from tests.conftest import make_blobs
from tests.test_checkpoint import fast

save = Checkpoint.save

def killing(self, record):
    save(self, record)
    if len(record["history"]) == 2:
        os.kill(os.getpid(), signal.SIGKILL)

Checkpoint.save = killing
fast(checkpoint_dir=sys.argv[1]).fit(*make_blobs())
"""


@pytest.mark.slow
def test_kill_minus_nine_in_another_process(blobs, tmp_path):
    X, y = blobs
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)], cwd=ROOT, check=False
    )
    assert done.returncode == -signal.SIGKILL
    (path,) = tmp_path.iterdir()
    assert len(Checkpoint(path).load()["history"]) == 2
    resumed = fast(checkpoint_dir=tmp_path, n_jobs=2).fit(X, y)
    assert_same_fit(resumed, fast().fit(*make_blobs()), X)
