"""What importing and using the package loads, seen in fresh interpreters."""

import pickle
import subprocess
import sys

import pytest

import sdm_sklearn

HEAVY = ("torch", "pynndescent", "numba", "matplotlib")


def run(code):
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def loaded(code):
    report = f"import sys\n{code}\nprint(*[m for m in {HEAVY} if m in sys.modules])"
    return run(report)


def test_import_loads_nothing_heavy():
    assert loaded("import sdm_sklearn") == []
    assert run("import sys, sdm_sklearn; print('sklearn' in sys.modules)") == ["False"]


def test_estimator_datasets_and_core_load_nothing_heavy():
    code = (
        "import sdm_sklearn, sdm_sklearn.activation\n"
        "sdm_sklearn.SDMClassifier().get_params()\n"
        "sdm_sklearn.activation.sdm_activation([[1, 2]], 1, 1)\n"
        "sdm_sklearn.datasets.load_intents()"
    )
    assert loaded(code) == []


def test_a_loaded_model_predicts_without_torch(fitted, tmp_path):
    clf, X, _, _ = fitted
    path = tmp_path / "model.pkl"
    path.write_bytes(pickle.dumps((clf, X)))
    code = (
        f"import pickle; clf, X = pickle.load(open({str(path)!r}, 'rb'))\n"
        "clf.predict(X), clf.predict_proba(X), clf.predict_selective(X)\n"
        "clf.signals(X), clf.kneighbors(X), clf.score_samples(X), clf.transform(X)"
    )
    assert loaded(code) == []


def test_import_changes_no_global_state():
    code = (
        "import os, random, warnings, logging, numpy as np, torch\n"
        "import sklearn.frozen, sklearn.model_selection\n"
        "def state():\n"
        "    return (dict(os.environ), list(warnings.filters), random.getstate(),\n"
        "            np.random.get_state()[1].tolist(),\n"
        "            torch.get_rng_state().tolist(), torch.get_default_dtype(),\n"
        "            torch.get_num_threads(), np.geterr(),\n"
        "            torch.is_grad_enabled(), len(logging.root.handlers))\n"
        "before = state()\n"
        "import sdm_sklearn; sdm_sklearn.SDMClassifier\n"
        "print([i for i, (a, b) in enumerate(zip(before, state())) if a != b])"
    )
    assert run(code) == ["[]"]


def test_public_names():
    for name in sdm_sklearn.__all__:
        assert getattr(sdm_sklearn, name) is not None
        assert name in dir(sdm_sklearn)
    with pytest.raises(
        AttributeError, match="'sdm_sklearn' has no attribute 'nothing'"
    ):
        sdm_sklearn.nothing  # noqa: B018 (the access itself is the test)
