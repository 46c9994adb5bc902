"""SDMClassifier: selective classification with Similarity-Distance-Magnitude."""

import logging
import os
import warnings
from numbers import Integral, Real

import numpy as np
from sklearn.base import (
    BaseEstimator,
    ClassifierMixin,
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
    _fit_context,
)
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import (
    HasMethods,
    Interval,
    Options,
    RealNotInt,
    StrOptions,
)
from sklearn.utils._set_output import _get_output_config
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.parallel import delayed
from sklearn.utils.validation import check_is_fitted, validate_data

import sdm_sklearn
from sdm_sklearn._callback import CallbackSupportMixin
from sdm_sklearn._checkpoint import open_checkpoints
from sdm_sklearn._drift import DriftMixin
from sdm_sklearn._ensemble import Ensemble, all_answer
from sdm_sklearn._model import SDMModel, to_frame
from sdm_sklearn._persistence import PersistenceMixin
from sdm_sklearn._region import Rule
from sdm_sklearn._restart import run_restarts, train_restart
from sdm_sklearn._selective import (
    SelectiveClassifierMixin,
    check_alpha,
    resolve_reject_label,
    stack_level,
)
from sdm_sklearn._splits import (
    Split,
    check_split,
    describe_dependence,
    list_splits,
    random_halves,
    set_aside,
)
from sdm_sklearn._state import all_or_nothing
from sdm_sklearn._support import choose_exemplars, count_exemplars
from sdm_sklearn._validation import (
    check_finite,
    check_same_kind,
    checked_labels,
    refuse_masked,
    refuse_other_kinds,
)
from sdm_sklearn.activation import log_sdm_activation

_logger = logging.getLogger("sdm_sklearn")

_DTYPES = [np.float64, np.float32, np.float16]
_SEEDS = np.iinfo(np.int32).max
# Fitted attributes beside those that end with an underscore.
_STATE = ("_models", "_regions", "_alpha", "_n_rows", "_rule")


class SDMClassifier(
    SelectiveClassifierMixin,
    PersistenceMixin,
    DriftMixin,
    CallbackSupportMixin,
    ClassNamePrefixFeaturesOutMixin,
    ClassifierMixin,
    TransformerMixin,
    BaseEstimator,
):
    """Selective classifier on embeddings with SDM activations.

    A small 1-D CNN, the exemplar adaptor, is trained on cached embeddings. Three
    signals of each row then scale its softmax: Similarity q, the number of nearest
    training exemplars in a row that are correctly predicted and share the prediction;
    Distance d, how far the nearest exemplar is compared with calibration data of every
    class; and Magnitude z', the logits. On the calibration half a region is found in
    which class- and prediction-conditional accuracy reach `alpha`;
    :meth:`predict_selective` answers inside the region and rejects elsewhere. See [1]_
    and the :ref:`user guide <sdm>`.

    Parameters
    ----------
    alpha : float, default=0.95
        Accuracy to reach in each class among the accepted rows, strictly between 1/2
        and 1. It is not an error rate: for 5 % errors pass 0.95.

    n_filters : int, default=64
        Number M of filters, the length of the exemplar vectors. More filters take
        longer, and accept more rows on some data.

    n_restarts : int, default=3
        Number J of random halves, each with its own initial weights; the one with the
        lowest class-balanced calibration loss is kept. With `cv` given it is the
        number of initialisations for each of its splits.

    calibration_size : float, default=0.5
        Share of each class that goes into the calibration half. Not used if `cv` is
        given.

    cv : int, splitter or iterable, default=None
        How to split the rows into training and calibration half. None stands for
        random halves, stratified by class. Otherwise any scikit-learn splitter, or an
        iterable of pairs of index arrays (training, calibration): a calibration set of
        your own is given by :class:`~sklearn.model_selection.PredefinedSplit`, with
        -1 for training and 0 for calibration. Row numbers refer to the `X` given to
        this `fit`: those made for all rows do not fit inside a search or
        cross-validation, which fits on part of them.

    max_epochs : int, default=200
        Largest number of training epochs of each restart.

    patience : int or None, default=10
        Number of epochs without a lower calibration loss after which training stops.
        None trains for `max_epochs`.

    learning_rate : float, default=0.01
        Step size of Adam.

    weight_averaging : bool, default=True
        Whether the weights of an epoch are a running average of those after each step,
        over about the last tenth of all steps [2]_. It makes large steps safe.

    batch_size : int, default=100
        Number of rows in a mini-batch.

    standardize : {"global", "feature"} or False, default="feature"
        Subtract the mean and divide by the standard deviation of the training half:
        one pair for all features, one for each feature, or not at all.

    neighbors : {"auto", "exact", "pruned", "nndescent"} or object, default="auto"
        How nearest exemplars are searched. The answers are the same to the bit
        whatever is chosen; only time differs. "exact" measures all exemplars; "pruned"
        first rules most of them out, which pays from some ten thousand on; "auto" is
        "exact" below 20,000 exemplars and "pruned" above. "nndescent" starts the pruned
        search of each epoch from NN-descent's graph of the last one. An object with
        ``fit(X)`` and ``kneighbors(X, n_neighbors, return_distance)``, such as
        :class:`~sklearn.neighbors.NearestNeighbors`, is cloned, and the search starts
        from the neighbours it proposes. See the :ref:`user guide <scale_search>`.

    support_size : int, float or None, default=None
        How many rows of the training half become exemplars, which are searched for q
        and d: a number, or a share. All rows train the adaptor. Fewer exemplars make
        fit and prediction faster and the model smaller, and accept fewer rows. They are
        drawn at random, as many of each class as of any other while there are enough.
        None, or a number beyond the training half, takes all its rows. See the
        :ref:`user guide <scale_support>`.

    max_similarity : int or None, default=None
        Cap of q. None leaves it as counted.

    class_weight : dict, "balanced" or None, default=None
        Weights of the classes in the training loss, and in the calibration loss that
        picks epoch and restart. With None the latter is class-balanced.

    ensemble : bool, default=False
        Whether a row is accepted only if the models of all restarts agree on its class
        and accept it. Predictions and probabilities are those of the best model.

    conservative : bool, default=False
        Whether the lower end of the Dvoretzky-Kiefer-Wolfowitz band of d decides which
        rows are accepted.

    region : {"joint", "per_class"}, default="joint"
        Whether one class that cannot reach `alpha` rejects everything, as in the paper,
        or is left unanswered by itself. With "per_class" all that is said of a class
        holds for those that are answered; `region_report_` tells which. A row of
        another class can only be rejected or be wrong.

    guarantee : {"paper", "certified"}, default="paper"
        What the region rests on. "paper" is Algorithm 1, on the calibration half.
        "certified" takes the thresholds whose accuracies pass exact tests on rows set
        aside before the fit: the probability that any conditional accuracy of an
        answered class is below `alpha` is at most 1 - `confidence`. What cannot be
        certified is rejected. Another `alpha` given at prediction is certified anew, by
        itself. The rows must be independent draws: one of each patient or document.
        See the :ref:`user guide <certificates>`.

    confidence : float, default=0.9
        Probability with which a certificate holds.

    certify_size : float or None, default=None
        Share of the calibration half that is set aside for the certificate. None is
        0.5 with ``guarantee="certified"``, and no row otherwise.

    reject_label : "auto", str or number, default="auto"
        Label of rejected rows, of the kind of the classes: the result is one array
        of both, so that bools become integers. "auto" is "rejected" for string classes
        (prefixed with underscores while that is a class), and the smaller of -1 and the
        smallest class minus 1 for numbers and bools.

    device : str, default="cpu"
        torch device for training. Fitted state is NumPy, whatever the device.

    n_jobs : int, default=None
        Number of restarts trained at the same time, through joblib.

    random_state : int, RandomState instance or None, default=None
        Seed of splits, initial weights and batches. The same seed gives the same
        model, whatever `n_jobs` is.

    checkpoint_dir : str, path-like or None, default=None
        Folder in which `fit` keeps the state of every restart after each epoch. If it
        is interrupted, the same call of `fit` goes on from there, to the same model to
        the last bit. The files are found by a digest of data and parameters, and
        removed once the model is fitted; `random_state` must not be None. Callbacks
        see only the epochs that are trained after that.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Class labels.

    n_features_in_ : int
        Number of features seen during `fit`.

    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of features seen during `fit`, if `X` has string feature names.

    support_indices_ : ndarray of shape (n_support,)
        Rows of the `X` given to `fit` that are exemplars: the training half, or what
        `support_size` leaves of it. Rows added by :meth:`add_to_support` are numbered
        on from the end of that `X`.

    calibration_indices_ : ndarray of shape (n_calibration,)
        Rows of the `X` given to `fit` that form the calibration half.

    certify_indices_ : ndarray of shape (n_certify,)
        Rows of the `X` given to `fit` that were set aside for the certificate.

    q_min_ : float
        Smallest rescaled similarity q' of the region, inf if there is none.

    thresholds_ : ndarray of shape (n_classes,)
        Smallest SDM output of an accepted prediction of each class, inf if the class is
        not answered.

    region_report_ : dict of ndarray
        One entry per class: "class", "answered", "q_min", "threshold", "n_calibration"
        and, of the accepted rows of the calibration half, "n_predicted" with
        "prediction_accuracy" and "n_of_class" with "class_accuracy". The region was
        chosen on these rows, so that the accuracies flatter it.

    certificate_ : Certificate, a dict of ndarray
        One entry per statement: "class", whether it is "answered", "kind" ("prediction"
        or "class"), "n" accepted certify rows, their "accuracy", its lower "bound", and
        "alpha". Nothing is stated of a class that is not answered; its accepted rows
        are wrong by construction, as all are right where one class alone is. With
        ``guarantee="paper"`` all bounds hold at once with the probability `confidence`.
        With "certified" it is the statement that each answered class reaches `alpha`
        that holds with this probability, not a bound above it. Only if rows were set
        aside.

    alpha_found_ : float
        Largest alpha, to four decimals, for which the calibration half has a region,
        in every model of an ensemble; NaN if there is none above 1/2. With
        ``region="per_class"`` it is the largest that any class reaches. It says nothing
        of what can be certified.

    history_ : list of dict
        One record per epoch of every restart: "restart", "epoch", "training_loss",
        "calibration_loss", "mean_similarity" and "mean_distance" of the calibration
        half, and "softmax_fallback", True where a class had no point with q > 0.

    reject_label_ : str or number
        Label of rejected rows.

    See Also
    --------
    sdm_sklearn.predict_selective : Selective prediction through Pipelines and searches.
    sdm_sklearn.activation.sdm_activation : The activation itself.

    Notes
    -----
    `sample_weight` is not offered: random halves and neighbour counts cannot honour
    it. Use `class_weight`.

    The published training schedule is ``n_filters=1000, learning_rate=1e-5,
    weight_averaging=False, batch_size=50, max_epochs=200, patience=None,
    n_restarts=10, standardize="global"``. It takes far longer and accepts fewer rows
    on the benchmarks of this package.

    References
    ----------
    .. [1] A. Schmaltz, "Similarity-Distance-Magnitude Activations", Findings of ACL
       2026, arXiv:2509.12760.
    .. [2] O. Shamir and T. Zhang, "Stochastic Gradient Descent for Non-smooth
       Optimization", ICML 2013, polynomial-decay averaging.

    Examples
    --------
    >>> from sdm_sklearn import SDMClassifier
    >>> from sklearn.datasets import make_blobs
    >>> X, y = make_blobs(600, centers=3, n_features=16, random_state=0)
    >>> clf = SDMClassifier(alpha=0.9, max_epochs=50, random_state=0).fit(X, y)
    >>> clf.predict_selective([X[0], [1e3] * 16])
    array([ 2, -1])
    >>> signals = clf.signals([X[0], [1e3] * 16])
    >>> signals.similarity, signals.distance.round(2)
    (array([100., 100.]), array([0.82, 0.  ]))
    """

    _parameter_constraints: dict = {
        "alpha": [Real],
        "n_filters": [Interval(Integral, 1, None, closed="left")],
        "n_restarts": [Interval(Integral, 1, None, closed="left")],
        "calibration_size": [Interval(Real, 0, 1, closed="neither")],
        "cv": ["cv_object"],
        "max_epochs": [Interval(Integral, 1, None, closed="left")],
        "patience": [Interval(Integral, 1, None, closed="left"), None],
        "learning_rate": [Interval(Real, 0, None, closed="neither")],
        "weight_averaging": ["boolean"],
        "batch_size": [Interval(Integral, 1, None, closed="left")],
        "standardize": [StrOptions({"global", "feature"}), Options(bool, {False})],
        "neighbors": [
            StrOptions({"auto", "exact", "pruned", "nndescent"}),
            HasMethods(["fit", "kneighbors"]),
        ],
        "support_size": [
            Interval(Integral, 1, None, closed="left"),
            Interval(RealNotInt, 0, 1, closed="right"),
            None,
        ],
        "max_similarity": [Interval(Integral, 1, None, closed="left"), None],
        "class_weight": [dict, StrOptions({"balanced"}), None],
        "ensemble": ["boolean"],
        "conservative": ["boolean"],
        "region": [StrOptions({"joint", "per_class"})],
        "guarantee": [StrOptions({"paper", "certified"})],
        "confidence": [Interval(Real, 0, 1, closed="neither")],
        "certify_size": [Interval(Real, 0, 1, closed="neither"), None],
        "reject_label": [str, Real, np.bool_, None],
        "device": [str],
        "n_jobs": [Integral, None],
        "random_state": ["random_state"],
        "checkpoint_dir": [str, os.PathLike, None],
    }

    _doc_link_module = "sdm_sklearn"
    _doc_link_template = (
        "https://sdm-sklearn.readthedocs.io/en/stable/generated/"
        "sdm_sklearn.{estimator_name}.html"
    )

    def __init__(
        self,
        alpha=0.95,
        *,
        n_filters=64,
        n_restarts=3,
        calibration_size=0.5,
        cv=None,
        max_epochs=200,
        patience=10,
        learning_rate=0.01,
        weight_averaging=True,
        batch_size=100,
        standardize="feature",
        neighbors="auto",
        support_size=None,
        max_similarity=None,
        class_weight=None,
        ensemble=False,
        conservative=False,
        region="joint",
        guarantee="paper",
        confidence=0.9,
        certify_size=None,
        reject_label="auto",
        device="cpu",
        n_jobs=None,
        random_state=None,
        checkpoint_dir=None,
    ):
        self.alpha = alpha
        self.n_filters = n_filters
        self.n_restarts = n_restarts
        self.calibration_size = calibration_size
        self.cv = cv
        self.max_epochs = max_epochs
        self.patience = patience
        self.learning_rate = learning_rate
        self.weight_averaging = weight_averaging
        self.batch_size = batch_size
        self.standardize = standardize
        self.neighbors = neighbors
        self.support_size = support_size
        self.max_similarity = max_similarity
        self.class_weight = class_weight
        self.ensemble = ensemble
        self.conservative = conservative
        self.region = region
        self.guarantee = guarantee
        self.confidence = confidence
        self.certify_size = certify_size
        self.reject_label = reject_label
        self.device = device
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.checkpoint_dir = checkpoint_dir

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X, y):
        """Train the adaptor, calibrate its signals and find the region.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Embeddings. Any real dtype; float16, float32 and read-only memory maps are
            read batch by batch, without a converted copy.

        y : array-like of shape (n_samples,)
            Class labels of any kind.

        Returns
        -------
        self : SDMClassifier
            The fitted estimator.

        Raises
        ------
        ValueError
            If `alpha` is not strictly between 1/2 and 1, `X` or `y` is not finite,
            there is one class only, a class has fewer than 2 training or no
            calibration rows, the halves of `cv` overlap, `support_size` leaves a class
            without an exemplar, or `reject_label` is a class.

        Warns
        -----
        NoRegionWarning
            If no region reaches `alpha`; then every row is rejected. The text names
            the largest attainable alpha and any class short of calibration rows.
        ThinEvidenceWarning
            If ``guarantee="paper"`` and the accepted rows of the calibration half, even
            all taken together, do not show `alpha` at `confidence`, considering that
            the region was picked among many.
        """
        with all_or_nothing(self, _STATE):
            return self._fit(X, y)

    def _fit(self, X, y):
        alpha = check_alpha(self.alpha)
        X, y = self._validate(X, y)
        classes, codes = np.unique(y, return_inverse=True)
        if len(classes) < 2:
            raise ValueError(
                f"y holds one class only, {classes.tolist()[0]!r}: a classifier needs "
                "at least 2 classes."
            )
        reject_label = resolve_reject_label(self.reject_label, classes)
        self._rule = Rule(
            self.region, self.guarantee, self.confidence, self.conservative
        )
        random_state = check_random_state(self.random_state)
        splits, certify = self._split(X, y, codes, classes, random_state)
        seeds = random_state.randint(_SEEDS, size=len(splits))
        splits = [
            self._choose_support(codes, train, calibration, len(classes), random_state)
            for train, calibration in splits
        ]
        attributes = {"classes_": classes, "reject_label_": reject_label}

        context = self._init_callback_context(
            max_subtasks=len(splits), sequential_subtasks=False
        ).call_on_fit_task_begin(estimator=self, X=X, y=y)
        checkpoints = open_checkpoints(self, X, codes, classes, splits, seeds)
        tasks = [
            delayed(train_restart)(
                self,
                X,
                codes,
                split,
                seed,
                attributes,
                restart,
                context,
                checkpoint,
                os.getpid(),
            )
            for restart, (split, seed, checkpoint) in enumerate(
                zip(splits, seeds, checkpoints, strict=True)
            )
        ]
        results = run_restarts(tasks, self.n_jobs)

        best = min(range(len(results)), key=lambda i: results[i].rank)
        kept = [best]
        if self.ensemble:
            kept += [i for i in range(len(results)) if i != best]
        models = [
            self._build_model(
                results[i].adaptor, X, codes, splits[i], len(classes), certify
            )
            for i in kept
        ]
        attributes |= self._model_attributes(
            models, splits[best].kept, len(X), alpha, classes
        )
        if certify is not None:
            attributes["certify_indices_"] = certify
        attributes["history_"] = [
            {"restart": restart, **record}
            for restart, result in enumerate(results)
            for record in result.history
        ]
        for name, value in attributes.items():
            setattr(self, name, value)
        context.call_on_fit_task_end(
            estimator=self, X=X, y=y, reconstruction_attributes=dict
        )
        for checkpoint in filter(None, checkpoints):
            checkpoint.remove()
        self._tell_of_region()
        return self

    def predict(self, X):
        """Predict the class with the largest logit; no row is rejected.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Embeddings.

        Returns
        -------
        y : ndarray of shape (n_samples,)
            Predicted classes.
        """
        _, logits = self._model.project(self._check_X(X))
        return self.classes_[logits.argmax(axis=1)]

    def predict_log_proba(self, X):
        """Compute the logarithm of the SDM activation of each row.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Embeddings.

        Returns
        -------
        log_probabilities : ndarray of shape (n_samples, n_classes)
            Columns in the order of `classes_`. At d = 0 a row is uniform, but for the
            prediction's entry, which is raised by 1e-13 so that it stays the largest.
        """
        measured = self._model.measure(self._check_X(X))
        log_probabilities = log_sdm_activation(
            measured.logits, measured.similarity, measured.distance
        )
        rows = np.arange(len(log_probabilities))
        top = log_probabilities[rows, measured.prediction]
        log_probabilities[rows, measured.prediction] = -np.inf
        rival = log_probabilities.max(axis=1)
        log_probabilities[rows, measured.prediction] = np.maximum(top, rival + 1e-13)
        return log_probabilities

    def predict_proba(self, X):
        """Compute the SDM activation (2 + q)^(d z') of each row (SDM, Eq. 6).

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Embeddings.

        Returns
        -------
        probabilities : ndarray of shape (n_samples, n_classes)
            Columns in the order of `classes_`; the largest entry is the prediction.
        """
        return np.exp(self.predict_log_proba(X))

    def decision_function(self, X):
        """Compute the logarithm of the probabilities; for two classes their log odds.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Embeddings.

        Returns
        -------
        scores : ndarray of shape (n_samples,) or (n_samples, n_classes)
            For two classes ``d ln(2 + q) (z'_1 - z'_0)``, positive for `classes_[1]`.
        """
        log_probabilities = self.predict_log_proba(X)
        if len(self.classes_) == 2:
            return log_probabilities[:, 1] - log_probabilities[:, 0]
        return log_probabilities

    def signals(self, X, *, alpha=None):
        """Compute all that is known of each row: what a decision rests on.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Embeddings.

        alpha : float, default=None
            Accuracy that the region has to reach. None stands for the one of `fit`.

        Returns
        -------
        signals : Bunch of ndarray, or DataFrame
            A DataFrame after ``set_output(transform="pandas")`` or ``"polars"``, with
            one column for each class where an array has several. The entries, of shape
            (n_samples,) if not stated otherwise:

            - `prediction`: the predicted class;
            - `logits`: z', of shape (n_samples, n_classes);
            - `similarity`: q;
            - `nearest_distance`: L2 distance to the nearest exemplar;
            - `nearest_index`: that exemplar, as in `support_indices_`;
            - `distance`: d;
            - `probability`: SDM output of the prediction;
            - `rescaled_similarity`: q';
            - `accepted`: whether :meth:`predict_selective` answers;
            - `is_ood`: whether q = 0;
            - `effective_sample_size`: number of calibration rows of each class with a
              smaller q', of shape (n_samples, n_classes);
            - `lower_distance`, `upper_distance`: the band of d;
            - `lower_probability`, `lower_rescaled_similarity`, `lower_accepted`: the
              same signals at `lower_distance`.

        Raises
        ------
        ValueError
            If `alpha` is not strictly between 1/2 and 1.

        Warns
        -----
        NoRegionWarning
            If `alpha` is given and no region reaches it.
        """
        # A frame's index; a list has a method of that name.
        index = getattr(X, "index", None) if hasattr(X, "columns") else None
        X = self._check_X(X)
        ensemble = self._ensemble
        out = ensemble.signals(ensemble.measure(X), *self._regions_to_predict(alpha))
        out.prediction = self.classes_[out.prediction]
        out.nearest_index = self.support_indices_[out.nearest_index]
        library = _get_output_config("transform", self)["dense"]
        if library == "default":
            return out
        return to_frame(out, self.classes_, library, index)

    def score_samples(self, X):
        """Score how much each row looks like the training data.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Embeddings.

        Returns
        -------
        scores : ndarray of shape (n_samples,)
            The negative distance to the nearest exemplar: higher is more in
            distribution. It orders rows as d does, and goes on where d has reached 0.
        """
        return -self._model.measure(self._check_X(X)).nearest_distance

    def transform(self, X):
        """Compute the exemplar vectors h' of each row.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Embeddings.

        Returns
        -------
        exemplar_vectors : ndarray of shape (n_samples, n_filters)
        """
        return self._model.adaptor.transform(self._check_X(X))

    def kneighbors(self, X=None, n_neighbors=5, return_distance=True):
        """Find the nearest training exemplars of each row.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features), default=None
            Embeddings. None asks for the exemplars themselves, in the order of
            `support_indices_`, none of which counts as its own neighbour.

        n_neighbors : int, default=5
            Number of neighbours.

        return_distance : bool, default=True
            Whether to return the distances, too.

        Returns
        -------
        distances : ndarray of shape (n_samples, n_neighbors)
            Ascending L2 distances between exemplar vectors. Only if
            `return_distance=True`.

        indices : ndarray of shape (n_samples, n_neighbors)
            Neighbours as rows of the `X` given to `fit`, as in `support_indices_`; rows
            of :meth:`add_to_support` are numbered on from its end.

        Raises
        ------
        ValueError
            If `n_neighbors` is not between 1 and the number of exemplars.
        """
        model = self._model
        coordinates, own = model.support[0], None
        available = len(coordinates)
        if X is None:
            own = np.arange(available)
            available -= 1
        is_count = isinstance(n_neighbors, Integral) and n_neighbors is not True
        if not (is_count and 0 < int(n_neighbors) <= available):
            raise ValueError(
                f"n_neighbors must be an int between 1 and {available}, the number of "
                f"exemplars to choose from. Got {n_neighbors!r} instead."
            )
        if X is not None:
            coordinates = model.project(self._check_X(X))[0]
        distances, indices = model.neighbors.kneighbors(coordinates, n_neighbors, own)
        indices = self.support_indices_[indices]
        return (distances, indices) if return_distance else indices

    def add_to_support(self, X, y):
        """Add labelled rows to the exemplars, without retraining (SDM, A.6).

        The weights stay as they are. q, d, the empirical CDFs, q' and the region of
        the calibration half are computed anew. Rows with a label outside `classes_`
        are welcome: they break runs of support, and so lower q around them. Do not add
        rows of the calibration half, which would find themselves and make all others
        look far, nor rows that are exemplars already, which would count twice.

        Parameters
        ----------
        X : array-like of shape (n_added, n_features)
            Embeddings.

        y : array-like of shape (n_added,)
            Labels, also of unknown classes, of the kind of `classes_`.

        Returns
        -------
        self : SDMClassifier

        Raises
        ------
        ValueError
            If `X` does not fit, `y` holds labels of another kind than the classes, or
            rows equal rows that were set aside for the certificate: it would be void.

        Warns
        -----
        UserWarning
            If rows equal calibration rows of a model.
        NoRegionWarning
            If the new support leaves no region at `alpha`.
        """
        check_is_fitted(self)
        X, y = self._validate(X, y, reset=False)
        check_same_kind(y, self.classes_)
        # Looked up one by one: NumPy compares int64 with uint64 as floats.
        code_of = {label: code for code, label in enumerate(self.classes_.tolist())}
        codes = np.array([code_of.get(label, -1) for label in y.tolist()])
        models = [model.extend(X, codes) for model in self._models]
        if models[0].certify is not None:
            void = np.flatnonzero(models[0].find_copies(len(X), models[0].certify[0]))
            if len(void):
                raise ValueError(
                    f"{len(void)} of the {len(X)} rows to add equal rows that fit set "
                    f"aside for the certificate (the first is row {void[0]}): these "
                    "would find themselves, and certificate_ would be void. Leave them "
                    "out; certify_indices_ has their numbers in fit's X."
                )
        n_equal = max(
            np.count_nonzero(model.find_copies(len(X), model.calibration[0]))
            for model in models
        )
        if n_equal:
            warnings.warn(
                f"{n_equal} of the {len(X)} rows added equal calibration rows. These "
                "now find themselves at distance 0, and every other row looks far: add "
                "rows that fit has not seen.",
                UserWarning,
                stacklevel=2,
            )
        n_rows = self._n_rows + len(X)
        support = np.append(self.support_indices_, np.arange(self._n_rows, n_rows))
        kept = (support, self.calibration_indices_)
        attributes = self._model_attributes(
            models, kept, n_rows, self._alpha, self.classes_
        )
        before = {name: getattr(self, name) for name in attributes}
        self.__dict__.update(attributes)
        try:
            self._tell_of_region()
        except Warning:
            # Turned into an error by the user's filter: as if nothing had happened.
            self.__dict__.update(before)
            raise
        return self

    def _decide(self, X, alpha):
        ensemble = self._ensemble
        measured = ensemble.measure(self._check_X(X))
        accepted = ensemble.accept(measured, *self._regions_to_predict(alpha))
        return measured[0].prediction, accepted

    def _decide_at(self, X, alphas):
        ensemble = self._ensemble
        measured = ensemble.measure(self._check_X(X))
        accepted = [
            ensemble.accept(measured, *self._find_regions(alpha)) for alpha in alphas
        ]
        return measured[0].prediction, np.array(accepted)

    def _find_regions(self, alpha):
        """Return alpha and the region of every model; None stands for the fitted."""
        if alpha is None:
            return self._alpha, self._regions
        alpha = check_alpha(alpha)
        return alpha, self._ensemble.find_regions(alpha)[0]

    def _regions_to_predict(self, alpha):
        """Find the regions, and warn of a missing one that `fit` did not warn of."""
        found = self._find_regions(alpha)
        if alpha is not None:
            self._warn_of_region(*found)
        return found

    @property
    def _ensemble(self):
        check_is_fitted(self)
        return Ensemble(self._models, self._rule)

    @property
    def _model(self):
        return self._ensemble.best

    @property
    def _n_features_out(self):
        return len(self._model.adaptor.filters)

    def _check_X(self, X):
        check_is_fitted(self)
        return self._validate(X, reset=False)

    def _validate(self, X, y="no_validation", reset=True):
        """Check X, and y if given, keeping the dtype of X if it is a float."""
        refuse_masked(X, "X")
        refuse_other_kinds(X)
        if not isinstance(y, str):
            y = checked_labels(y)
        checked = validate_data(
            self,
            X,
            y,
            dtype=_DTYPES,
            reset=reset,
            ensure_min_samples=1 + reset,
            ensure_all_finite=False,
        )
        check_finite(checked if isinstance(y, str) else checked[0], type(self).__name__)
        if not isinstance(y, str):
            check_classification_targets(checked[1])
        return checked

    def _split(self, X, y, codes, classes, random_state):
        """Return the (training, calibration) rows of every restart, and certify's."""
        certify_size = self.certify_size
        if certify_size is None and self.guarantee == "certified":
            certify_size = 0.5
        if self.cv is None:
            certify, splits = random_halves(
                codes,
                self.calibration_size,
                certify_size,
                self.n_restarts,
                random_state,
            )
        else:
            splits = [
                check_split(train, calibration, codes, classes)
                for train, calibration in list_splits(self.cv, X, y)
            ]
            message = describe_dependence(self.cv)
            if message and certify_size is not None:
                warnings.warn(message, UserWarning, stacklevel=stack_level())
            certify, splits = set_aside(splits, certify_size, random_state)
            splits = [split for split in splits for _ in range(self.n_restarts)]
        # Rows set aside may have left a class short.
        splits = [
            check_split(train, calibration, codes, classes)
            for train, calibration in splits
        ]
        return splits, certify

    def _choose_support(self, codes, train, calibration, n_classes, random_state):
        n_exemplars = count_exemplars(self.support_size, len(train), n_classes)
        exemplars = choose_exemplars(codes[train], n_exemplars, random_state)
        return Split(train, calibration, exemplars)

    def _build_model(self, adaptor, X, codes, split, n_classes, certify=None):
        return SDMModel.from_training(
            adaptor,
            X,
            codes,
            split.kept,
            n_classes,
            self.max_similarity,
            self.neighbors,
            certify,
        )

    def _model_attributes(self, models, kept, n_rows, alpha, classes):
        """Fitted attributes that follow from the models; the first is the best.

        `kept` are the rows of its support and of its calibration half.
        """
        ensemble = Ensemble(models, self._rule)
        regions, level = ensemble.find_regions(alpha)
        return {
            "support_indices_": kept[0],
            "calibration_indices_": kept[1],
            "_models": models,
            "_n_rows": n_rows,
            "_alpha": alpha,
            "_regions": regions,
            "alpha_found_": ensemble.find_largest_alpha(),
            **ensemble.describe(alpha, regions, level, classes),
        }

    def _tell_of_region(self):
        """Warn as below, and log which classes are left out of a region by class."""
        self._warn_of_region(self._alpha, self._regions)
        answered = all_answer(self._regions)
        if answered.any() and not answered.all():
            left_out = self.classes_[~answered].tolist()
            shown = ", ".join(map(repr, left_out[:5])) + ", ..." * (len(left_out) > 5)
            _logger.warning(
                "%d of %d classes are never answered at alpha=%g: %s (region_report_).",
                len(left_out),
                len(answered),
                self._alpha,
                shown,
            )

    def _warn_of_region(self, alpha, regions):
        """Warn if a model has no region at `alpha`, or one on thin evidence."""
        message, category = self._ensemble.find_fault(
            alpha, regions, self.alpha_found_, self.classes_
        )
        if message:
            warnings.warn(message, category, stacklevel=stack_level())

    def __sklearn_is_fitted__(self):
        return hasattr(self, "_models")

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = []
        return tags

    def __getstate__(self):
        return {
            **super().__getstate__(),
            "_sdm_sklearn_version": sdm_sklearn.__version__,
        }

    def __setstate__(self, state):
        version = state.pop("_sdm_sklearn_version", "an unknown version")
        if version != sdm_sklearn.__version__:
            warnings.warn(
                f"This {type(self).__name__} was saved by sdm_sklearn {version} and is "
                f"loaded by {sdm_sklearn.__version__}: fit it again if results differ.",
                UserWarning,
                stacklevel=2,
            )
        super().__setstate__(state)
