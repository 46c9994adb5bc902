import copy
import pickle
import subprocess
import sys
from functools import partial
from pathlib import Path

import joblib
import numpy as np
import pandas
import pytest
import sklearn
from numpy.testing import assert_allclose, assert_array_equal, assert_equal
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import KFold, PredefinedSplit

from sdm_sklearn import ModelFileError, NoRegionWarning, SDMClassifier
from sdm_sklearn._container import read_container, write_container
from sdm_sklearn._persistence import FORMAT_VERSION
from tests import conftest
from tests.conftest import make_blobs

pytestmark = [
    pytest.mark.filterwarnings("ignore::sdm_sklearn.NoRegionWarning"),
    pytest.mark.filterwarnings("ignore::sdm_sklearn.ThinEvidenceWarning"),
]

MODELS = Path(__file__).parent / "data" / "models"
METHODS = ["predict", "predict_proba", "decision_function", "predict_selective"]


fast = partial(conftest.fast, n_filters=8, max_epochs=8)


def assert_same_model(again, clf, X):
    """Every answer is the same to the last bit, and so is all that is fitted."""
    for method in [*METHODS, "score_samples", "transform"]:
        assert_array_equal(getattr(again, method)(X), getattr(clf, method)(X))
    for alpha in (None, 0.6):
        signals, expected = again.signals(X, alpha=alpha), clf.signals(X, alpha=alpha)
        for name in expected:
            assert_array_equal(signals[name], expected[name])
    assert_array_equal(again.kneighbors(n_neighbors=3), clf.kneighbors(n_neighbors=3))
    assert vars(again).keys() == vars(clf).keys()
    for name, value in vars(clf).items():
        if name.endswith("_"):
            assert_equal(getattr(again, name), value)
            if isinstance(value, np.ndarray):
                assert getattr(again, name).dtype == value.dtype
    assert again.history_ == clf.history_


def round_trip(clf, tmp_path):
    clf.save(tmp_path / "model.npz")
    return SDMClassifier.load(tmp_path / "model.npz")


# There and back -----------------------------------------------------------------------


def test_round_trip(fitted, tmp_path):
    clf, X, _, far = fitted
    again = round_trip(clf, tmp_path)
    assert_same_model(again, clf, np.vstack([X, far]))
    assert again.get_params() == clf.get_params()
    again.save(str(tmp_path / "again.npz"))
    assert (tmp_path / "again.npz").read_bytes() == (
        tmp_path / "model.npz"
    ).read_bytes()


def test_round_trip_of_an_ensemble_with_rows_added(fitted, tmp_path):
    _, X, y, _ = fitted
    clf = fast(n_restarts=3, ensemble=True, conservative=True, max_similarity=50)
    clf.fit(X[:300], y[:300]).add_to_support(X[300:320], [*y[300:310], *["new"] * 10])
    again = round_trip(clf, tmp_path)
    assert_same_model(again, clf, X)
    for model in (clf, again):
        model.add_to_support(X[320:340], y[320:340])
    assert_same_model(again, clf, X)


def test_round_trip_without_a_region(tmp_path):
    X, y = make_blobs(60, separation=0.1)
    with pytest.warns(NoRegionWarning):
        clf = fast(alpha=0.99).fit(X, y)
    again = round_trip(clf, tmp_path)
    assert again.q_min_ == np.inf
    assert_same_model(again, clf, X)


@pytest.mark.parametrize(
    "classes",
    [
        np.array([0, 1]),
        np.array([3, 200], dtype=np.uint8),
        np.array([2**63, 2**64 - 1], dtype=np.uint64),
        np.array([False, True]),
        np.array([-1.0, 2.0]),
        np.array([-1.0, 2.0], dtype=np.float32),
        np.array(["nö", "yes"]),
        np.array(["no", "yes"], dtype=object),
        np.array([np.str_("no"), np.str_("yes")], dtype=object),
    ],
)
def test_labels_of_any_kind(classes, blobs, tmp_path):
    X, codes = blobs
    clf = fast().fit(X, classes[codes])
    assert_same_model(round_trip(clf, tmp_path), clf, X)


def test_labels_that_json_does_not_know(fitted, tmp_path):
    clf = copy.copy(fitted[0])
    clf.classes_ = np.array([1 + 2j, 3, 4], dtype=object)
    with pytest.raises(ValueError, match="Got \\(1\\+2j\\) of type complex"):
        clf.save(tmp_path / "model.npz")


def test_the_output_of_this_session_is_not_saved(blobs, tmp_path):
    clf = fast().fit(*blobs)
    with sklearn.config_context(transform_output="pandas"):
        again = round_trip(clf, tmp_path)
    assert not hasattr(again.signals(blobs[0]), "columns")


def test_feature_names_and_output(blobs, tmp_path):
    X, y = blobs
    frame = pandas.DataFrame(X, columns=[f"e{i}" for i in range(12)])
    clf = fast().fit(frame, y).set_output(transform="pandas")
    again = round_trip(clf, tmp_path)
    assert_array_equal(again.feature_names_in_, frame.columns)
    assert again.feature_names_in_.dtype == object
    pandas.testing.assert_frame_equal(again.signals(frame), clf.signals(frame))
    with pytest.raises(ValueError, match="feature names"):
        again.predict(frame[frame.columns[::-1]])


@pytest.mark.parametrize(
    "parameters",
    [
        {"cv": PredefinedSplit([-1, 0] * 150)},
        {"cv": [(np.arange(150), np.arange(150, 300))]},
        {"cv": 2, "alpha": np.float32(0.75), "random_state": np.int64(3)},
        {"class_weight": {0: 1.5, 1: 2}, "standardize": False, "patience": None},
        {"reject_label": np.int8(-7), "max_similarity": np.int64(9)},
    ],
)
def test_parameters_survive(parameters, blobs, tmp_path):
    X, y = blobs
    clf = fast(**parameters).fit(X, y)
    again = round_trip(clf, tmp_path)
    assert_same_model(again, clf, X)
    refitted = again.fit(X, y)
    assert_array_equal(refitted.predict_proba(X), clf.predict_proba(X))


@pytest.mark.parametrize(
    ("name", "value"), [("cv", KFold(2)), ("random_state", np.random.RandomState(0))]
)
def test_parameters_that_are_no_plain_values_are_told(name, value, blobs, tmp_path):
    X, y = blobs
    clf = fast(**{name: value}).fit(X, y)
    with pytest.warns(UserWarning, match=f"{name}=.* is left out"):
        clf.save(tmp_path / "model.npz")
    again = SDMClassifier.load(tmp_path / "model.npz")
    assert getattr(again, name) is None
    assert_same_model(again, clf, X)


def test_parameters_changed_after_fit_do_not_change_the_model(fitted, tmp_path):
    clf, X, _, _ = fitted
    clf = copy.copy(clf).set_params(alpha=0.7, max_similarity=1, device="cuda")
    again = round_trip(clf, tmp_path)
    assert again.get_params() == clf.get_params()
    assert_same_model(again, clf, X)


def test_an_unfitted_model_is_not_saved(tmp_path):
    with pytest.raises(NotFittedError):
        fast().save(tmp_path / "model.npz")
    assert list(tmp_path.iterdir()) == []


# Files of others ----------------------------------------------------------------------


@pytest.mark.parametrize("version", range(1, FORMAT_VERSION + 1))
def test_every_earlier_version_is_read(version):
    clf = SDMClassifier.load(MODELS / f"format_{version}.npz")
    _, expected = read_container(MODELS / f"format_{version}_expected.npz")
    X = pandas.DataFrame(expected.pop("X"), columns=clf.feature_names_in_)
    assert_array_equal(clf.predict_selective(X), expected.pop("predict_selective"))
    signals = clf.signals(X)
    assert {True, False} == set(signals.accepted.tolist())
    for name, values in expected.items():
        if values.dtype.kind == "f":
            assert_allclose(signals[name], values, rtol=1e-12)
        else:
            assert_array_equal(signals[name], values)
    clf.set_params(max_epochs=2).fit(X, signals.prediction)


@pytest.fixture
def edited(fitted, tmp_path):
    """Return a function that saves a model, changed by another, with a checksum."""
    path = tmp_path / "model.npz"
    fitted[0].save(path)

    def edit(change):
        header, arrays = read_container(path)
        change(header, arrays)
        write_container(path, header, arrays)
        return path

    return edit


@pytest.mark.parametrize("version", [FORMAT_VERSION + 1, 0, "1", None, 1.5])
def test_other_versions_of_the_format(version, edited):
    def change(header, arrays):
        header["format_version"] = version
        header["sdm_sklearn_version"] = "9.9"

    with pytest.raises(
        ModelFileError, match=f"version {version!r} .*written by sdm_sklearn '9.9'"
    ):
        SDMClassifier.load(edited(change))


def test_another_class(edited):
    class Other(SDMClassifier):
        pass

    path = edited(lambda header, arrays: None)
    with pytest.raises(
        ModelFileError, match="holds 'sdm_sklearn.SDMClassifier', not 'sdm_sklearn.Oth"
    ):
        Other.load(path)


def resize(name, size):
    def change(header, arrays):
        arrays[name] = np.resize(arrays[name], size)

    return change


def overwrite(name, value):
    def change(header, arrays):
        arrays[name].flat[0] = value

    return change


def cast(name, dtype):
    def change(header, arrays):
        arrays[name] = arrays[name].astype(dtype)

    return change


def drop(name):
    return lambda header, arrays: arrays.pop(name)


def tell(part, name, value):
    return lambda header, arrays: header[part].update({name: value})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (drop("support_indices"), "support_indices is missing"),
        (drop("model0_adaptor_bias"), "model0_adaptor_bias is missing"),
        (cast("model0_thresholds", "f4"), "model0_thresholds has dtype float32"),
        (cast("model0_support_labels", "f8"), "model0_support_labels has dtype float"),
        (resize("model0_thresholds", (2,)), r"has shape \(2,\), not \(3,\)"),
        (resize("model0_thresholds", (3, 1)), "model0_thresholds has shape"),
        (resize("model0_adaptor_center", (9,)), "model0_adaptor_center has shape"),
        (resize("support_indices", (10,)), "model0_support_coordinates has shape"),
        (resize("model0_calibration_logits", (4, 3)), "calibration_logits has shape"),
        (resize("model0_projection_matrix", (12, 9)), "projection_offset has shape"),
        (overwrite("model0_support_labels", 3), "labels has values outside -1 to 2"),
        (overwrite("model0_support_predictions", -1), "has values outside 0 to 2"),
        (overwrite("model0_calibration_labels", 9), "has values outside 0 to 2"),
        (overwrite("calibration_indices", 300), "has values outside 0 to 299"),
        (overwrite("model0_q_min", np.nan), "model0_q_min has values that are not fin"),
        (overwrite("model0_adaptor_filters", np.inf), "filters has values that are no"),
        (lambda h, a: h["fitted"].pop("alpha"), r"\['alpha'\] is missing"),
        (lambda h, a: h.pop("parameters"), "'parameters'"),
        (tell("parameters", "n_trees", 3), "unexpected keyword argument 'n_trees'"),
        (tell("parameters", "cv", {"call": "os.system"}), "'call' is an unknown kind"),
        (tell("parameters", "cv", {"array": "nowhere"}), "nowhere"),
        (tell("parameters", "cv", {}), "not enough values"),
        (tell("fitted", "alpha", "0.9"), "alpha must be an accuracy"),
        (tell("fitted", "alpha", 7), "alpha must be an accuracy"),
        (tell("fitted", "max_similarity", -5), "max_similarity is -5"),
        (
            lambda h, a: h["fitted"].update(
                reject_label=h["fitted"]["classes"]["values"][0]
            ),
            "is one of the classes",
        ),
        (tell("fitted", "reject_label", -1), "cannot stand in one array"),
        (tell("fitted", "output", "bogus"), "output is 'bogus'"),
        (tell("fitted", "feature_names", ["x"]), r"feature_names is \['x'\]"),
        (
            tell("fitted", "rule", {"guarantee": "certified"}),
            "guarantee is 'certified'",
        ),
        (tell("fitted", "rule", {"region": "none"}), "region is 'none'"),
        (tell("fitted", "rule", {"confidence": 2.0}), "confidence is 2.0"),
        (
            lambda h, a: h["fitted"]["classes"]["values"].reverse(),
            "classes are not in order",
        ),
        (overwrite("model0_adaptor_scale", 0), "adaptor_scale has values that are too"),
        (
            overwrite("model0_calibration_nearest_distance", -1),
            "nearest_distance has values that are too small",
        ),
        (tell("fitted", "n_models", 0), "consists of"),
        (tell("fitted", "n_models", "many"), "consists of"),
        (tell("fitted", "n_models", 2), "model1_adaptor_center is missing"),
        (tell("fitted", "classes", ["a", "b", "c"]), "consists of"),
        (tell("fitted", "history", {"a": [1], "b": []}), "consists of"),
    ],
)
def test_content_that_is_no_model(change, message, edited):
    with pytest.raises(ModelFileError, match=message):
        SDMClassifier.load(edited(change))


def test_width_of_the_projection(edited):
    def change(header, arrays):
        resize("model0_projection_matrix", (12, 9))(header, arrays)
        resize("model0_projection_offset", (9,))(header, arrays)

    with pytest.raises(ModelFileError, match="projection_matrix has another width"):
        SDMClassifier.load(edited(change))


# Other ways to keep a model -----------------------------------------------------------


def test_skops_needs_no_trust_beyond_the_package(fitted):
    io = pytest.importorskip("skops.io")
    clf, X, _, _ = fitted
    data = io.dumps(clf)
    untrusted = io.get_untrusted_types(data=data)
    assert all(name.startswith("sdm_sklearn.") for name in untrusted)
    assert_same_model(io.loads(data, trusted=untrusted), clf, X)


def test_joblib_maps_the_arrays_into_memory(fitted, tmp_path):
    clf, X, _, _ = fitted
    joblib.dump(clf, tmp_path / "model.joblib")
    again = joblib.load(tmp_path / "model.joblib", mmap_mode="r")
    assert isinstance(again._models[0].support[0], np.memmap)
    assert_same_model(again, clf, X)
    assert_same_model(copy.deepcopy(again), clf, X)
    assert_same_model(round_trip(again, tmp_path), clf, X)


@pytest.mark.parametrize("form", ["pickle", "file"])
def test_a_model_fitted_on_a_gpu_needs_neither_gpu_nor_torch(form, fitted, tmp_path):
    clf, X, _, _ = fitted
    clf = copy.copy(clf).set_params(device="cuda")
    assert b"torch" not in pickle.dumps(clf)
    np.save(tmp_path / "X.npy", X)
    if form == "pickle":
        (tmp_path / "model.pkl").write_bytes(pickle.dumps(clf))
        load = "import pickle; clf = pickle.load(open('model.pkl', 'rb'))"
    else:
        clf.save(tmp_path / "model.npz")
        load = (
            "from sdm_sklearn import SDMClassifier as C; clf = C.load('model.npz')\n"
            "clf.save('again.npz')"
        )
    code = (
        f"import sys, numpy as np\n{load}\nX = np.load('X.npy')\n"
        "labels = clf.predict_selective(X)\nclf.signals(X), clf.kneighbors(X)\n"
        "clf.add_to_support(X[-1:], clf.predict(X[-1:]))\n"
        "np.save('labels.npy', labels)\n"
        "print(*[m for m in ('torch', 'pynndescent') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(Path(__file__).parent.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []
    assert_array_equal(np.load(tmp_path / "labels.npy"), clf.predict_selective(X))
