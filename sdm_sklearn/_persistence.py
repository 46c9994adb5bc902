"""The model file of SDMClassifier: what stands in it, and the way there and back.

The user guide describes the format. A change that this version's reader would not
understand raises `FORMAT_VERSION`; a reader reads every version up to its own.
"""

import os
import warnings

import numpy as np
from sklearn.utils.validation import check_is_fitted

import sdm_sklearn
from sdm_sklearn._container import ModelFileError, read_container, write_container
from sdm_sklearn._ensemble import Ensemble
from sdm_sklearn._linear import Adaptor, Projection
from sdm_sklearn._model import SDMModel
from sdm_sklearn._plain_values import (
    Encoder,
    decode,
    decode_records,
    encode_records,
)
from sdm_sklearn._region import Region, Rule
from sdm_sklearn._selective import check_alpha, resolve_reject_label

FORMAT_VERSION = 1

# Name -> (kind of dtype, shape). A size that is named must be the same wherever it
# stands; "support" and "calibration" are sizes of one model.
_MODEL_SCHEMA = {
    "adaptor_center": ("f", ("n_features",)),
    "adaptor_scale": ("f", ("n_features",)),
    "adaptor_filters": ("f", ("n_filters", "n_features")),
    "adaptor_filter_bias": ("f", ("n_filters",)),
    "adaptor_weights": ("f", ("n_classes", "n_filters")),
    "adaptor_bias": ("f", ("n_classes",)),
    "projection_matrix": ("f", ("n_features", "n_columns")),
    "projection_offset": ("f", ("n_columns",)),
    "support_coordinates": ("f", ("n_support", "n_coordinates")),
    "support_labels": ("i", ("n_support",)),
    "support_predictions": ("i", ("n_support",)),
    "calibration_coordinates": ("f", ("n_calibration", "n_coordinates")),
    "calibration_logits": ("f", ("n_calibration", "n_classes")),
    "calibration_labels": ("i", ("n_calibration",)),
    "calibration_similarity": ("f", ("n_calibration",)),
    "calibration_nearest_distance": ("f", ("n_calibration",)),
    "q_min": ("f", ()),
    "thresholds": ("f", ("n_classes",)),
}
_INDEX_SCHEMA = {
    "support_indices": ("i", ("n_support",)),
    "calibration_indices": ("i", ("n_calibration",)),
}
# Only where rows were set aside for a certificate.
_CERTIFY_INDEX_SCHEMA = {"certify_indices": ("i", ("n_certify",))}
_CERTIFY_SCHEMA = {
    "certify_coordinates": ("f", ("n_certify", "n_coordinates")),
    "certify_logits": ("f", ("n_certify", "n_classes")),
    "certify_labels": ("i", ("n_certify",)),
}
_MAY_BE_INFINITE = ("q_min", "thresholds")
_FITTED_KEYS = {
    "alpha",
    "alpha_found",
    "classes",
    "feature_names",
    "history",
    "max_similarity",
    "n_features",
    "n_models",
    "n_rows",
    "output",
    "reject_label",
}


class PersistenceMixin:
    """`save` and `load` for :class:`~sdm_sklearn.SDMClassifier`."""

    def save(self, path):
        """Write the fitted model to one file, without pickle.

        The file holds NumPy arrays and JSON, a version and a checksum, as described in
        the :ref:`user guide <persistence>`. It takes the place of an older file only
        once it is complete on disk: a crash on the way leaves the older one.

        Parameters
        ----------
        path : str or path-like
            File to write, ``model.npz`` for example.

        Raises
        ------
        NotFittedError
            If there is no fitted model.
        ValueError
            If the class labels are neither numbers, bools nor strings.

        Warns
        -----
        UserWarning
            If a parameter is no plain value, as a splitter given as `cv`. It is left
            out: the loaded model predicts the same and has the default in its place.

        See Also
        --------
        load : Read the file.

        Examples
        --------
        >>> import os, tempfile
        >>> from sdm_sklearn import SDMClassifier
        >>> from sklearn.datasets import make_blobs
        >>> X, y = make_blobs(300, n_features=8, random_state=0)
        >>> clf = SDMClassifier(alpha=0.9, max_epochs=20, random_state=0).fit(X, y)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     clf.save(os.path.join(folder, "model.npz"))
        ...     again = SDMClassifier.load(os.path.join(folder, "model.npz"))
        >>> (again.predict_selective(X) == clf.predict_selective(X)).all()
        np.True_
        """
        check_is_fitted(self)
        header, arrays, left_out = _take_apart(self)
        if left_out:
            warnings.warn(
                f"{', '.join(left_out)} cannot be expressed in a model file and is "
                "left out. The loaded model predicts the same; set it again before you "
                "fit that model anew.",
                UserWarning,
                stacklevel=2,
            )
        write_container(path, header, arrays)

    @classmethod
    def load(cls, path):
        """Read a model that :meth:`save` wrote.

        Nothing in the file is executed. The checksum tells damage, not intent: whoever
        can write the file can make it say what they like.

        Parameters
        ----------
        path : str or path-like
            The file.

        Returns
        -------
        model : SDMClassifier
            The fitted model; its signals are those of the one saved, bit for bit on a
            like machine. torch is not needed.

        Raises
        ------
        ModelFileError
            If the file is truncated, was changed, is no model file, holds something
            else, or was written in a later version of the format.
        """
        header, arrays = read_container(path)
        name = os.fspath(path)
        _check_header(header, f"sdm_sklearn.{cls.__name__}", name)
        try:
            return _rebuild(cls, header, arrays)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise ModelFileError(
                f"{name!r} does not hold what a {cls.__name__} consists of: {error}"
            ) from error


def _check_header(header, expected, name):
    if header.get("format") != expected:
        raise ModelFileError(
            f"{name!r} holds {header.get('format')!r}, not {expected!r}: load it by "
            "the class that saved it."
        )
    version = header.get("format_version")
    if not isinstance(version, int) or not 1 <= version <= FORMAT_VERSION:
        raise ModelFileError(
            f"{name!r} is in version {version!r} of the format, written by sdm_sklearn "
            f"{header.get('sdm_sklearn_version')!r}. sdm_sklearn "
            f"{sdm_sklearn.__version__} reads versions up to {FORMAT_VERSION}: update "
            "the package."
        )


def _take_apart(estimator):
    """Return header, arrays, and the parameters that could not be expressed."""
    encoder = Encoder()
    parameters = encoder.parameters(estimator)
    names = getattr(estimator, "feature_names_in_", None)
    first = estimator._models[0]
    header = {
        "format": f"sdm_sklearn.{type(estimator).__name__}",
        "format_version": FORMAT_VERSION,
        "sdm_sklearn_version": sdm_sklearn.__version__,
        "parameters": parameters,
        "fitted": {
            "alpha": float(estimator._alpha),
            "alpha_found": encoder.encode(estimator.alpha_found_),
            "classes": _encode_labels(estimator.classes_),
            "feature_names": None if names is None else names.tolist(),
            "history": encode_records(estimator.history_),
            "max_similarity": encoder.encode(first.max_similarity),
            "n_features": estimator.n_features_in_,
            "n_models": len(estimator._models),
            "n_rows": estimator._n_rows,
            # The estimator's own setting, not that of this session.
            "output": getattr(estimator, "_sklearn_output_config", {}).get(
                "transform", "default"
            ),
            "reject_label": encoder.encode(estimator.reject_label_),
            "rule": estimator._rule._asdict(),
        },
    }
    arrays = {
        "support_indices": estimator.support_indices_,
        "calibration_indices": estimator.calibration_indices_,
    }
    if first.certify is not None:
        arrays["certify_indices"] = estimator.certify_indices_
    for i, (model, region) in enumerate(
        zip(estimator._models, estimator._regions, strict=True)
    ):
        for name, array in _model_arrays(model, region).items():
            arrays[f"model{i}_{name}"] = array
    return header, arrays | encoder.arrays, encoder.left_out


def _rebuild(cls, header, arrays):
    parameters = {
        name: decode(value, arrays) for name, value in header["parameters"].items()
    }
    estimator = cls(**parameters)
    fitted = header["fitted"]
    missing = _FITTED_KEYS - fitted.keys()
    if missing:
        raise ValueError(f"{sorted(missing)} is missing")
    # The first files kept no rule beside the parameters.
    rule = {name: getattr(estimator, name) for name in Rule._fields}
    estimator._rule = Rule(**rule | fitted.get("rule", {}))
    labels = fitted["classes"]
    classes = np.array(labels["values"], dtype=labels["dtype"])
    sizes = {"n_features": fitted["n_features"], "n_classes": len(classes)}
    first_sizes = _check_arrays(arrays, "", _INDEX_SCHEMA, sizes)
    max_similarity = decode(fitted["max_similarity"], arrays)
    reject_label = decode(fitted["reject_label"], arrays)
    certified = "certify_indices" in arrays
    _check_fitted(
        fitted, classes, max_similarity, reject_label, estimator._rule, certified
    )
    schema = _MODEL_SCHEMA | (_CERTIFY_SCHEMA if certified else {})
    models, regions = [], []
    for i in range(fitted["n_models"]):
        prefix = f"model{i}_"
        known = first_sizes if i == 0 else sizes
        found = _check_arrays(arrays, prefix, schema, known)
        if found["n_columns"] != found["n_coordinates"] + found["n_classes"]:
            raise ValueError(f"{prefix}projection_matrix has another width")
        own = {name: arrays[prefix + name] for name in schema}
        _check_values(own, prefix, len(classes))
        models.append(
            _build_model(own, len(classes), max_similarity, estimator.neighbors)
        )
        regions.append(_build_region(own, models[-1], estimator, fitted["alpha"]))
    indices = [*_INDEX_SCHEMA]
    if certified:
        sizes["n_certify"] = len(models[0].certify[2])
        _check_arrays(arrays, "", _CERTIFY_INDEX_SCHEMA, sizes)
        indices += _CERTIFY_INDEX_SCHEMA
    for name in indices:
        _check_codes(arrays[name], name, 0, fitted["n_rows"])
    attributes = {
        "classes_": classes,
        "reject_label_": reject_label,
        "n_features_in_": fitted["n_features"],
        "support_indices_": arrays["support_indices"],
        "calibration_indices_": arrays["calibration_indices"],
        "alpha_found_": decode(fitted["alpha_found"], arrays),
        "history_": decode_records(fitted["history"]),
        "_models": models,
        "_regions": regions,
        "_alpha": fitted["alpha"],
        "_n_rows": fitted["n_rows"],
    }
    if certified:
        attributes["certify_indices_"] = arrays["certify_indices"]
    ensemble = Ensemble(models, estimator._rule)
    level = None
    if estimator._rule.guarantee == "certified":
        # The regions are in the file, the level of their tests is not.
        level = ensemble.find_regions(fitted["alpha"])[1]
    attributes |= ensemble.describe(fitted["alpha"], regions, level, classes)
    if fitted["feature_names"] is not None:
        attributes["feature_names_in_"] = np.array(
            fitted["feature_names"], dtype=object
        )
    for name, value in attributes.items():
        setattr(estimator, name, value)
    if fitted["output"] != "default":
        estimator.set_output(transform=fitted["output"])
    return estimator


def _model_arrays(model, region):
    """Take a model apart; what follows from these arrays without a search is left."""
    adaptor = {
        f"adaptor_{name}": value for name, value in model.adaptor._asdict().items()
    }
    coordinates, labels, predictions = model.support
    held_out, logits, y = model.calibration
    certify = {}
    if model.certify is not None:
        certify = dict(zip(_CERTIFY_SCHEMA, model.certify, strict=True))
    similarity, nearest = model.measured
    return (
        adaptor
        | certify
        | {
            "projection_matrix": model.projection.matrix,
            "projection_offset": model.projection.offset,
            "support_coordinates": coordinates,
            "support_labels": labels,
            "support_predictions": predictions,
            "calibration_coordinates": held_out,
            "calibration_logits": logits,
            "calibration_labels": y,
            "calibration_similarity": similarity,
            "calibration_nearest_distance": nearest,
            "q_min": np.array(region.q_min.min()),
            "thresholds": region.thresholds,
        }
    )


def _build_region(arrays, model, estimator, alpha):
    """Return the region that was saved; one q' per class follows from the model."""
    rule = estimator._rule
    if rule.region == "per_class" and rule.guarantee == "paper":
        return model.find_region(alpha, "per_class")
    thresholds = arrays["thresholds"]
    q_min = np.where(np.isfinite(thresholds), arrays["q_min"], np.inf)
    return Region(q_min, thresholds)


def _build_model(arrays, n_classes, max_similarity, neighbors):
    adaptor = Adaptor(*(arrays[f"adaptor_{name}"] for name in Adaptor._fields))
    coordinates = arrays["support_coordinates"]
    projection = Projection(
        adaptor.center,
        adaptor.scale,
        arrays["projection_matrix"],
        arrays["projection_offset"],
        coordinates.shape[1],
    )
    certify = None
    if "certify_labels" in arrays:
        certify = tuple(arrays[name] for name in _CERTIFY_SCHEMA)
    return SDMModel(
        adaptor,
        projection,
        (coordinates, arrays["support_labels"], arrays["support_predictions"]),
        (
            arrays["calibration_coordinates"],
            arrays["calibration_logits"],
            arrays["calibration_labels"],
        ),
        n_classes,
        max_similarity,
        neighbors,
        measured=(
            arrays["calibration_similarity"],
            arrays["calibration_nearest_distance"],
        ),
        certify=certify,
    )


def _check_arrays(arrays, prefix, schema, sizes):
    """Raise if an array is missing or of another dtype or shape; return all sizes."""
    sizes = dict(sizes)
    for name, (kind, shape) in schema.items():
        array = arrays.get(prefix + name)
        if array is None:
            raise ValueError(f"{prefix}{name} is missing")
        if array.dtype.kind != kind or array.dtype.itemsize != 8:
            raise ValueError(f"{prefix}{name} has dtype {array.dtype}")
        if array.ndim == len(shape):
            for size, number in zip(shape, array.shape, strict=True):
                sizes.setdefault(size, number)
        expected = tuple(sizes.get(size) for size in shape)
        if array.shape != expected:
            raise ValueError(
                f"{prefix}{name} has shape {array.shape}, not {expected} {shape}"
            )
    return sizes


def _check_values(arrays, prefix, n_classes):
    for name, array in arrays.items():
        odd = np.isnan(array) if name in _MAY_BE_INFINITE else ~np.isfinite(array)
        if odd.any():
            raise ValueError(f"{prefix}{name} has values that are not finite")
    # A code of -1 is a row of no class, which may be in the support.
    for name, low in (
        ("support_labels", -1),
        ("support_predictions", 0),
        ("calibration_labels", 0),
        ("certify_labels", 0),
    ):
        if name not in arrays:
            continue  # no rows were set aside
        _check_codes(arrays[name], prefix + name, low, n_classes)

    for name, low in (
        ("adaptor_scale", np.nextafter(0, 1)),
        ("calibration_similarity", 0),
        ("calibration_nearest_distance", 0),
    ):
        if (arrays[name] < low).any():
            raise ValueError(f"{prefix}{name} has values that are too small")


def _check_fitted(fitted, classes, max_similarity, reject_label, rule, certified):
    """Raise if what a file says of a fit could not have come from one."""
    check_alpha(fitted["alpha"])
    if len(classes) < 2 or not np.array_equal(np.unique(classes), classes):
        raise ValueError("classes are not in order, or not distinct")
    resolve_reject_label(reject_label, classes)
    is_count = isinstance(max_similarity, int) and max_similarity >= 1
    names, output = fitted["feature_names"], fitted["output"]
    for name, value, allowed in (
        ("max_similarity", max_similarity, max_similarity is None or is_count),
        ("feature_names", names, names is None or len(names) == fitted["n_features"]),
        ("output", output, output in ("default", "pandas", "polars")),
        ("region", rule.region, rule.region in ("joint", "per_class")),
        ("confidence", rule.confidence, 0 < rule.confidence < 1),
        (
            "guarantee",
            rule.guarantee,
            rule.guarantee == "paper" or (rule.guarantee == "certified" and certified),
        ),
    ):
        if not allowed:
            raise ValueError(f"{name} is {value!r}")


def _check_codes(codes, name, low, high):
    if len(codes) and not (codes.min() >= low and codes.max() < high):
        raise ValueError(f"{name} has values outside {low} to {high - 1}")


def _encode_labels(classes):
    """Express class labels: JSON keeps every int, finite float, bool and string."""
    # An object array may hold NumPy's scalars.
    values = [
        value.item() if isinstance(value, np.generic) else value
        for value in classes.tolist()
    ]
    for value in values:
        if not isinstance(value, str | int | float):
            raise ValueError(
                "Class labels must be numbers, bools or strings to be saved. Got "
                f"{value!r} of type {type(value).__name__}: convert the labels before "
                "fit."
            )
    return {"dtype": classes.dtype.str, "values": values}
