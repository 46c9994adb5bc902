"""A fitted SDM: adaptor, support, calibration and region, from inputs to signals."""

import numpy as np
from sklearn.utils import Bunch

from sdm_sklearn._ecdf import dkw_epsilon, evaluate_distance, fit_class_ecdf
from sdm_sklearn._neighbors import ExactNeighbors, cap_similarity
from sdm_sklearn._region import (
    CalibrationRows,
    effective_sample_size,
    find_largest_alpha,
    find_region,
    in_region,
    rescale_similarity,
    sort_by_class,
)
from sdm_sklearn._search import make_search
from sdm_sklearn.activation import sdm_activation

# Squares and differences of smaller values are finite.
_TOO_LARGE = 1e150


class SDMModel:
    """Signals of new rows from one trained adaptor and its two halves.

    Parameters
    ----------
    adaptor : Adaptor
        Trained weights.
    projection : Projection
        Of the adaptor. It is kept: computed anew on another machine, it might turn the
        coordinates.
    support : tuple of ndarray
        Search coordinates (n_support, n_dimensions), true class codes and predicted
        class codes of the exemplars. A code of -1 belongs to no class and only
        breaks runs.
    calibration : tuple of ndarray
        Search coordinates, logits and true class codes of the calibration half.
    n_classes : int
        Number of classes.
    max_similarity : int or None
        Cap of q.
    search : str or object, default="auto"
        See `neighbors` in :func:`~sdm_sklearn._search.make_search`.
    measured : tuple of ndarray, default=None
        q, capped, and nearest distance of the calibration half, if they are known. None
        measures them, which is the costly part.
    certify : tuple of ndarray, default=None
        The same three arrays of rows that had no part in anything before, if some were
        set aside.
    """

    def __init__(
        self,
        adaptor,
        projection,
        support,
        calibration,
        n_classes,
        max_similarity,
        search="auto",
        measured=None,
        certify=None,
    ):
        self.adaptor = adaptor
        self.projection = projection
        self.support = support
        self.calibration = calibration
        self.n_classes = n_classes
        self.max_similarity = max_similarity
        self.search = search
        self.certify = certify
        coordinates, labels, predictions = support
        self.neighbors = make_search(
            search, coordinates, labels, predictions, n_classes
        )
        self.measured = self._measure_calibration() if measured is None else measured
        self._calibrate()

    def _measure_calibration(self):
        coordinates, logits, _ = self.calibration
        similarity, nearest, _ = self.neighbors.query(
            coordinates, logits.argmax(axis=1)
        )
        return cap_similarity(similarity, self.max_similarity), nearest

    def _calibrate(self):
        """Derive the eCDFs, q' and true-class outputs of the calibration half."""
        _, logits, y = self.calibration
        prediction = logits.argmax(axis=1)
        similarity, nearest = self.measured
        self.ecdf = fit_class_ecdf(nearest, y, similarity, self.n_classes)
        distance = evaluate_distance(nearest, self.ecdf)
        probability = sdm_activation(logits, similarity, distance)
        rows = np.arange(len(y))
        of_prediction = probability[rows, prediction]
        self.calibration_rows = CalibrationRows(
            rescale_similarity(similarity, of_prediction),
            probability[rows, y],
            y,
            prediction,
            of_prediction,
        )
        self.sorted_rescaled = sort_by_class(
            self.calibration_rows.rescaled_similarity, y, self.n_classes
        )
        if self.certify is not None:
            self.certify_measured = self._measure(*self.certify[:2])

    @classmethod
    def from_training(
        cls,
        adaptor,
        X,
        y,
        kept,
        n_classes,
        max_similarity,
        search="auto",
        certify=None,
    ):
        """Build the model of a trained adaptor from its parts of X and y.

        `kept` are the row numbers of the support and of the calibration half,
        `certify` those set aside.
        """
        exemplars, calibration = kept
        projection = adaptor.projection()
        coordinates, logits = projection.project(X, exemplars)
        support = (coordinates, y[exemplars], logits.argmax(axis=1))
        held_out = (*projection.project(X, calibration), y[calibration])
        if certify is not None:
            certify = (*projection.project(X, certify), y[certify])
        return cls(
            adaptor,
            projection,
            support,
            held_out,
            n_classes,
            max_similarity,
            search,
            certify=certify,
        )

    def extend(self, X, y):
        """Return a model with labelled rows added to the support (SDM, A.6).

        The weights stay; q, d, the eCDFs, q' and hence the region are computed anew.
        """
        coordinates, logits = self.project(X)
        added = (coordinates, y, logits.argmax(axis=1))
        support = tuple(
            np.concatenate(pair) for pair in zip(self.support, added, strict=True)
        )
        return SDMModel(
            self.adaptor,
            self.projection,
            support,
            self.calibration,
            self.n_classes,
            self.max_similarity,
            self.search,
            certify=self.certify,
        )

    def find_copies(self, n_added, coordinates):
        """Tell which of the last `n_added` exemplars equal a row of `coordinates`."""
        one_class = np.zeros(len(coordinates), dtype=np.int64)
        rows = ExactNeighbors(coordinates, one_class, one_class, 1)
        added = self.support[0][-n_added:]
        _, nearest, _ = rows.query(added, np.zeros(n_added, dtype=np.int64))
        return nearest == 0

    def find_region(self, alpha, kind="joint"):
        """Run Algorithm 1 on the calibration half."""
        return find_region(self.calibration_rows, self.n_classes, alpha, kind)

    def find_largest_alpha(self, kind="joint"):
        """Return the largest alpha with a region, NaN if there is none above 1/2."""
        return find_largest_alpha(self.calibration_rows, self.n_classes, kind)

    def project(self, X):
        """Return search coordinates and logits of new rows.

        Raises
        ------
        ValueError
            If a row is so large that its logits or coordinates overflow.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            coordinates, logits = self.projection.project(X)
        largest = np.maximum(
            np.abs(coordinates).max(axis=1), np.abs(logits).max(axis=1)
        )
        if not largest.max() < _TOO_LARGE:
            row = int(np.argmin(largest < _TOO_LARGE))
            raise ValueError(
                f"X contains values too large for float64 arithmetic: row {row} leads "
                f"to exemplar vectors or logits of {largest[row]:.3g}, whose squares "
                "overflow. Scale the embeddings as in fit, or drop such rows."
            )
        return coordinates, logits

    def measure(self, X):
        """Compute logits, prediction, q, d and the nearest exemplar of each row."""
        return self._measure(*self.project(X))

    def _measure(self, coordinates, logits):
        prediction = logits.argmax(axis=1)
        similarity, nearest, index = self.neighbors.query(coordinates, prediction)
        return Bunch(
            prediction=prediction,
            logits=logits,
            similarity=cap_similarity(similarity, self.max_similarity),
            nearest_distance=nearest,
            nearest_index=index,
            distance=evaluate_distance(nearest, self.ecdf),
        )

    def recall_calibration(self):
        """Return what `measure` would for the calibration half, without a search."""
        _, logits, _ = self.calibration
        similarity, nearest = self.measured
        return Bunch(
            prediction=logits.argmax(axis=1),
            logits=logits,
            similarity=similarity,
            nearest_distance=nearest,
            distance=evaluate_distance(nearest, self.ecdf),
        )

    def signals(self, measured, region, alpha):
        """Add to what `measure` returns every signal, and its lower twin, at a region.

        Measuring is the costly part: many regions can be tried on one measurement.
        """
        out = Bunch(**measured)
        out.update(self._judge(out, out.distance, region))
        out.is_ood = out.similarity == 0
        out.update(self._band(out.distance, out.rescaled_similarity, alpha))
        lower = self._judge(out, out.lower_distance, region)
        out.update({f"lower_{name}": value for name, value in lower.items()})
        return out

    def accept(self, measured, region, alpha, conservative):
        """Tell which rows are accepted, as `signals` does, without the rest."""
        judged = self._judge(measured, measured.distance, region)
        if conservative:
            band = self._band(measured.distance, judged["rescaled_similarity"], alpha)
            judged = self._judge(measured, band["lower_distance"], region)
        return judged["accepted"]

    def _band(self, distance, rescaled_similarity, alpha):
        """Return the effective sample size and the band of d that follows from it."""
        size = effective_sample_size(rescaled_similarity, self.sorted_rescaled)
        epsilon = dkw_epsilon(size.min(axis=1), alpha)
        return {
            "effective_sample_size": size,
            "lower_distance": np.clip(distance - epsilon, 0, 1),
            "upper_distance": np.clip(distance + epsilon, 0, 1),
        }

    @staticmethod
    def _judge(measured, distance, region):
        """Turn q and d into the prediction's probability, q' and acceptance."""
        probability = sdm_activation(measured.logits, measured.similarity, distance)
        probability = probability[np.arange(len(distance)), measured.prediction]
        rescaled = rescale_similarity(measured.similarity, probability)
        return {
            "probability": probability,
            "rescaled_similarity": rescaled,
            "accepted": in_region(
                measured.similarity,
                rescaled,
                probability,
                measured.prediction,
                region,
            ),
        }


def to_frame(signals, classes, library, index):
    """Return signals as a frame, with a column per class where an array has several.

    Parameters
    ----------
    signals : Bunch of ndarray
        Arrays of shape (n_samples,) or (n_samples, n_classes).
    classes : ndarray of shape (n_classes,)
        Class labels, which end the names of such columns.
    library : {"pandas", "polars"}
        Whose frame to return.
    index : Index or None
        Index of a pandas frame.

    Returns
    -------
    frame : DataFrame
    """
    columns = {}
    for name, value in signals.items():
        if value.ndim == 1:
            columns[name] = value
        else:
            for code, label in enumerate(classes):
                columns[f"{name}_{label}"] = value[:, code]
    if library == "polars":
        import polars

        return polars.DataFrame(columns)
    import pandas

    return pandas.DataFrame(columns, index=index)
