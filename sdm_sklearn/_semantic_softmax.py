"""Zero-shot label probabilities that count the votes of the labels' neighbours."""

import copy
import os
from numbers import Integral, Real
from os import PathLike

import numpy as np
from scipy import sparse
from scipy.special import log_softmax, softmax
from sklearn.base import BaseEstimator, ClassifierMixin, _fit_context
from sklearn.utils import Bunch
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted, validate_data

from sdm_sklearn._selective import (
    SelectiveClassifierMixin,
    check_alpha,
    resolve_reject_label,
)
from sdm_sklearn._semantic_advice import (
    warn_absent_classes,
    warn_chance_votes,
    warn_cut_kernel,
    warn_few_rows,
    warn_no_labels,
    warn_silent_rows,
    warn_uncertified,
    warn_weak_kernel,
)
from sdm_sklearn._semantic_calibration import (
    SLACK,
    bounded_log_softmax,
    certified_threshold,
    check_prior,
    choose_scaling,
    fit_scaling,
    held_out_proba,
    match_prior,
)
from sdm_sklearn._semantic_embeddings import (
    OutputEmbeddings,
    Summary,
    as_numpy,
    as_output_embeddings,
    describe_embeddings,
    refuse_outside_ids,
    refuse_part,
    similarities,
)
from sdm_sklearn._semantic_inputs import (
    check_listed_ids,
    check_lists,
    check_values,
    count_tokens,
    read_rows,
)
from sdm_sklearn._semantic_kernel import (
    aggregate,
    build_kernel,
    columns_by_key,
    label_similarity,
    largest_votes,
    neighbor_table,
    token_names,
)
from sdm_sklearn._semantic_labels import (
    describe_vocabulary,
    encode_labels,
    read_vocabulary,
    refuse_bools,
    resolve_labels,
)
from sdm_sklearn._state import all_or_nothing
from sdm_sklearn._validation import refuse_masked

_STATE = (
    "_kernel",
    "_n_tokens",
    "_token_names",
    "_column_of",
    "_identity",
    "_evidence",
    "_fitted_alpha",
    "_fitted_input",
    "_holder",
    "_path",
)
_SMALLEST = np.finfo(np.float64).tiny


class SemanticSoftmaxCalibrator(
    SelectiveClassifierMixin, ClassifierMixin, BaseEstimator
):
    """Label probabilities from a language model's next-token distribution.

    A zero-shot classifier reads the next-token probabilities of the label tokens and
    renormalises them. Semantic Softmax [1]_ also counts the tokens that mean nearly
    the same: P(l | x) is proportional to the sum over tokens v of P(v | x) w(v, l),
    where w grows with the cosine of v and l in the model's own output embeddings.
    `fit(X)` trains nothing; it corrects the class prior if asked. `fit(X, y)` also
    calibrates the probabilities and certifies a threshold for `predict_selective`.

    Read more in the :ref:`User Guide <semantic_softmax>`.

    Parameters
    ----------
    label_token_ids : list of int, list of list of int, or dict of class to these
        The token ids of each label. Ids of one label are surface forms whose
        probabilities add up; :func:`~sdm_sklearn.find_label_tokens` finds them.

    output_embeddings : array-like, path or object, default=None
        The model's output embeddings E of shape (n_tokens, n_hidden): an array, the
        path of a `.npy` file, an object with a `weight` such as `model.lm_head`, or
        :class:`~sdm_sklearn.OutputEmbeddings`, which also takes a bias, a logit scale,
        a softcap and ids to exclude. It is shared, never copied. None means that only
        the labels' own tokens vote (constrained softmax).

    classes : array-like of shape (n_classes,), default=None
        Names of the labels in a list `label_token_ids`; None for 0, 1, ...

    vocabulary : list of str, dict of str to int, or tokenizer, default=None
        Token texts, for inspection and for lists with texts as keys. Rows of E beyond
        a shorter vocabulary are padding and never vote.

    input : {"hidden", "logits", "logprobs", "proba", "topk"}, default="hidden"
        What a row of X is: the last hidden state (after the final norm); a logit,
        log-probability or probability of each token; or a dict of token id or text to
        log-probability that lists some tokens. Probabilities may be CSR; what such a
        row does not store counts as not listed.

    geometry : {"whitened", "centered", "raw"}, default="whitened"
        Space in which cosines are taken: E with its mean removed and its covariance
        made the identity (eigenvalues floored at 1e-3 of their mean), with its mean
        removed, or as it is.

    similarity_threshold : float, default=0.2
        Cosine up to which a token has no vote (the paper's tau), between -1 and 1. The
        default suits widths of some hundreds; cosines of unrelated tokens reach about
        3 / sqrt(width).

    top_k : int, default=None
        Count only the `top_k` most probable tokens of a row (the paper's K), with all
        tokens that tie with the last. From hidden states it needs all logits.

    vote : {"exclusive", "shared"}, default="exclusive"
        Whether a token votes for its nearest label only, and label tokens for their
        own label only, or each token for all labels within the threshold.

    missing : {"half_min", "zero"}, default="half_min"
        What a label none of whose tokens is in a truncated list counts: half of the
        smallest listed probability, or 0 as published. All such labels together count
        no more than the probability that the list leaves.

    fallback : {"constrained", "uniform", "reject"}, default="constrained"
        Rows without any vote get the constrained softmax, uniform probabilities, or
        the constrained softmax and a rejection by `predict_selective`.

    prior : "uniform", array-like of shape (n_classes,) or dict, default=None
        Class shares that the mean prediction on the rows given to `fit` is made to
        match. An array goes with sorted classes, a dict or a pandas Series with any.
        Wrong shares hurt:
        "uniform" is right only where the classes really are as frequent.

    calibration : {"auto", "temperature", "bcts"} or None, default="auto"
        Scaling learnt from y after the prior step: a temperature, or a temperature and
        class biases. "auto" is "bcts" with y and None without.

    alpha : float, default=0.95
        Accuracy that `predict_selective` is to hold among accepted rows, strictly
        between 1/2 and 1. It is read by `fit`; `predict_selective` takes another one.

    min_captured_mass : float, default=None
        `predict_selective` also rejects rows with less `captured_mass` than this.

    reject_label : "auto" or scalar, default="auto"
        Label of a rejected row. "auto" is "rejected" for strings and the smaller of -1
        and the smallest class minus 1 for numbers.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Sorted class labels.

    neighbors_ : dict of class to Bunch
        Each label's neighbours as arrays `token_ids`, `tokens`, `similarity` and
        `weight`, the heaviest first. The label's own tokens are left out. Some are
        beginnings of words (" horr" for "horror"). Without a vocabulary `tokens` are
        ids, too.

    label_similarity_ : ndarray of shape (n_classes, n_classes) or None
        Similarity of the labels' nearest tokens; None without output embeddings.

    required_token_ids_ : ndarray of shape (n_required,)
        Sorted ids of all tokens that vote. A server asked for these gives exact
        results.

    prior_bias_ : ndarray of shape (n_classes,)
        What the prior step adds to the log-probabilities; 0 without it.

    temperature_ : float
        Temperature learnt from y; 1 without.

    bias_ : ndarray of shape (n_classes,)
        Biases learnt from y; 0 without.

    threshold_ : float
        Probability from which `alpha` is certified, inf if the data cannot certify it,
        of which `predict_selective` warns; without y `alpha` itself, which promises
        nothing. The rows count as independent draws: give one of each document.

    reject_label_ : scalar
        The reject label in use.

    n_features_in_ : int
        Number of features seen during `fit`. Not set for `input="topk"`.

    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of features seen during `fit`, where all are strings.

    See Also
    --------
    SDMClassifier : Learns from labelled embeddings.
    find_label_tokens : Find the token ids of words.
    OutputEmbeddings : Hold output embeddings with bias, scale and softcap.

    Notes
    -----
    The softmax normaliser cancels, so only the columns of `required_token_ids_` are
    read: from hidden states a product with a thin matrix, never all logits.
    `captured_mass`, `min_captured_mass` and `top_k` need them all.

    Labels are what `label_token_ids` says, never what y holds. `cross_val_predict`
    with `method="predict_proba"` replaces y by codes 0, 1, ... first: for it, name the
    classes so and let y hold all of them.

    The defaults are not the published setting; `published` gives that. From 50 to 100
    labelled rows on, a logistic regression on the hidden states does better.

    References
    ----------
    .. [1] S. Badhe, P. Tiwari and D. Shah, "The Silent Vote: Improving Zero-Shot LLM
       Reliability by Aggregating Semantic Neighborhoods", Section 3, 2026.
       arXiv:2605.09739

    Examples
    --------
    >>> import numpy as np
    >>> from sdm_sklearn import SemanticSoftmaxCalibrator
    >>> E = np.array([[1.0, 0.0], [0.0, 1.0], [0.9, 0.1], [0.2, 0.8]])
    >>> proba = [[0.2, 0.3, 0.4, 0.1]]  # of yes, no, yeah, nope
    >>> cal = SemanticSoftmaxCalibrator(
    ...     {"yes": 0, "no": 1}, E, input="proba", geometry="raw"
    ... ).fit(proba)
    >>> cal.classes_
    array(['no', 'yes'], dtype='<U3')
    >>> cal.predict_proba(proba).round(2)
    array([[0.4, 0.6]])
    """

    _parameter_constraints: dict = {
        "label_token_ids": ["array-like", dict],
        "output_embeddings": "no_validation",
        "classes": ["array-like", None],
        "vocabulary": "no_validation",
        "input": [StrOptions({"hidden", "logits", "logprobs", "proba", "topk"})],
        "geometry": [StrOptions({"whitened", "centered", "raw"})],
        "similarity_threshold": [Interval(Real, -1, 1, closed="both")],
        "top_k": [Interval(Integral, 1, None, closed="left"), None],
        "vote": [StrOptions({"exclusive", "shared"})],
        "missing": [StrOptions({"half_min", "zero"})],
        "fallback": [StrOptions({"constrained", "uniform", "reject"})],
        "prior": [StrOptions({"uniform"}), "array-like", dict, None],
        "calibration": [StrOptions({"auto", "temperature", "bcts"}), None],
        "alpha": "no_validation",  # by check_alpha, which says what alpha means
        "min_captured_mass": [Interval(Real, 0, 1, closed="both"), None],
        "reject_label": "no_validation",
    }

    def __init__(
        self,
        label_token_ids,
        output_embeddings=None,
        *,
        classes=None,
        vocabulary=None,
        input="hidden",
        geometry="whitened",
        similarity_threshold=0.2,
        top_k=None,
        vote="exclusive",
        missing="half_min",
        fallback="constrained",
        prior=None,
        calibration="auto",
        alpha=0.95,
        min_captured_mass=None,
        reject_label="auto",
    ):
        self.label_token_ids = label_token_ids
        self.output_embeddings = output_embeddings
        self.classes = classes
        self.vocabulary = vocabulary
        self.input = input
        self.geometry = geometry
        self.similarity_threshold = similarity_threshold
        self.top_k = top_k
        self.vote = vote
        self.missing = missing
        self.fallback = fallback
        self.prior = prior
        self.calibration = calibration
        self.alpha = alpha
        self.min_captured_mass = min_captured_mass
        self.reject_label = reject_label

    @classmethod
    def published(cls, label_token_ids, output_embeddings, **params):
        """Make a calibrator with the published rule.

        Raw cosines above 0.8, the 50 most probable tokens, shared votes, nothing for
        labels without votes (2.2e-308 in `predict_proba`, so that logarithms exist), no
        calibration [1]_.

        Parameters
        ----------
        label_token_ids : list or dict
            The token ids of each label.

        output_embeddings : array-like, path or object
            The model's output embeddings.

        **params
            Other parameters, which take precedence.

        Returns
        -------
        calibrator : SemanticSoftmaxCalibrator
            Unfitted.

        References
        ----------
        .. [1] S. Badhe, P. Tiwari and D. Shah, "The Silent Vote", Sections 3 and 4,
           2026. arXiv:2605.09739

        Examples
        --------
        >>> import numpy as np
        >>> from sdm_sklearn import SemanticSoftmaxCalibrator
        >>> SemanticSoftmaxCalibrator.published([0, 1], np.eye(99)).top_k
        50
        """
        preset = {
            "geometry": "raw",
            "similarity_threshold": 0.8,
            "top_k": 50,
            "vote": "shared",
            "missing": "zero",
            "calibration": None,
        }
        return cls(label_token_ids, output_embeddings, **preset | params)

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X, y=None):
        """Build the kernel; with y, or a prior, calibrate on the rows of X.

        Parameters
        ----------
        X : {array-like, CSR} of shape (n_samples, n_features) or list of dict
            Rows as `input` says.

        y : array-like of shape (n_samples,), default=None
            Class labels, each one of the labels' names.

        Returns
        -------
        self : SemanticSoftmaxCalibrator
            The fitted calibrator.

        Raises
        ------
        ValueError
            If labels, embeddings, rows or parameters do not fit together.
        """
        with all_or_nothing(self, _STATE):
            return self._fit(X, y)

    def _fit(self, X, y):
        alpha = check_alpha(self.alpha)
        refuse_bools(self, ("top_k", "similarity_threshold", "min_captured_mass"))
        self.classes_, label_ids, in_order = resolve_labels(
            self.label_token_ids, self.classes
        )
        self.reject_label_ = resolve_reject_label(self.reject_label, self.classes_)
        prior = check_prior(self.prior, self.classes_, in_order)
        scaling = choose_scaling(self.calibration, y)
        X = self._check_rows(X, reset=True)
        codes = None if y is None else encode_labels(X, y, self.classes_)

        self._build_kernel(X, label_ids)
        self._identity = prior is None and scaling is None
        self.prior_bias_ = np.zeros(len(self.classes_))
        self.bias_ = np.zeros(len(self.classes_))
        self.temperature_ = 1.0
        # Hidden states know all tokens: without prior and y nothing is read from them.
        if prior is not None or codes is not None or self.input != "hidden":
            scores, voteless, silent = self._scores(X)
            self._warn_silent(silent, X, at_fit=True, stacklevel=5)
        if prior is not None:
            warn_few_rows(len(scores), len(self.classes_), stacklevel=4)
            self.prior_bias_ = match_prior(bounded_log_softmax(scores), prior)
        if scaling is not None:
            warn_absent_classes(codes, self.classes_, stacklevel=4)
            moved = self._adjust(scores, silent)
            self.temperature_, self.bias_ = fit_scaling(moved, codes, scaling == "bcts")
        self._evidence = None
        self._fitted_alpha = self.threshold_ = alpha
        self._fitted_input = self.input
        if codes is not None:
            if scaling is None:
                proba = _softmax(self._adjust(scores, silent))
            else:
                proba = held_out_proba(moved, codes, scaling == "bcts")
            kept = self._gate(X, voteless) & ~silent
            correct = proba.argmax(axis=1) == codes
            self._evidence = proba.max(axis=1)[kept], correct[kept]
            self.threshold_ = certified_threshold(*self._evidence, alpha)
        return self

    def predict_proba(self, X):
        """Predict class probabilities.

        Parameters
        ----------
        X : {array-like, CSR} of shape (n_samples, n_features) or list of dict
            Rows as `input` says.

        Returns
        -------
        proba : ndarray of shape (n_samples, n_classes), dtype=float64
            Rows sum to 1. None is exactly 0: the least is 2.2e-308.
        """
        return _positive(_softmax(self._adjusted_scores(X)))

    def predict_log_proba(self, X):
        """Predict logarithms of class probabilities.

        Parameters
        ----------
        X : {array-like, CSR} of shape (n_samples, n_features) or list of dict
            Rows as `input` says.

        Returns
        -------
        log_proba : ndarray of shape (n_samples, n_classes), dtype=float64
            Finite.
        """
        log_proba = _log_softmax(self._adjusted_scores(X))
        return np.maximum(log_proba, np.log(_SMALLEST), out=log_proba)

    def predict(self, X):
        """Predict the most probable class; never rejects.

        Parameters
        ----------
        X : {array-like, CSR} of shape (n_samples, n_features) or list of dict
            Rows as `input` says.

        Returns
        -------
        labels : ndarray of shape (n_samples,)
            Predicted classes.
        """
        codes = _positive(_softmax(self._adjusted_scores(X))).argmax(axis=1)
        return self.classes_[codes]

    def captured_mass(self, X):
        """Return the share of the next-token probability that votes.

        A token counts with its largest weight. Low mass marks prompts or texts for
        which the labels are no answer; it does not mark errors.

        Parameters
        ----------
        X : {array-like, CSR} of shape (n_samples, n_features) or list of dict
            Rows as `input` says. Hidden states need the logits of all tokens here.

        Returns
        -------
        mass : ndarray of shape (n_samples,)
            Between 0 and 1.

        Raises
        ------
        ValueError
            If only some tokens of the vocabulary are known.
        """
        check_is_fitted(self)
        refuse_part(self.output_embeddings, self.input, "captured_mass")
        return self._mass(self._check_rows(X, reset=False))

    def top_voters(self, X, *, n_voters=10):
        """Name the tokens behind each row's probabilities before any calibration.

        Parameters
        ----------
        X : {array-like, CSR} of shape (n_samples, n_features) or list of dict
            Rows as `input` says.

        n_voters : int, default=10
            Number of votes to name.

        Returns
        -------
        voters : list of list of tuple
            For each row (token, class, share), the largest share of the row's votes
            first. A token is a text where the vocabulary is known, else an id.

        Raises
        ------
        ValueError
            If `n_voters` is below 1.
        """
        check_is_fitted(self)
        if not isinstance(n_voters, Integral) or n_voters < 1:
            raise ValueError(
                f"n_voters must be an integer of at least 1. Got {n_voters!r} instead."
            )
        kernel, tokens = self._kernel, self._token_names.tolist()
        classes = self.classes_.tolist()
        return [
            [(tokens[t], classes[c], share) for t, c, share in votes]
            for part in self._read(self._check_rows(X, reset=False))
            for votes in largest_votes(kernel, part.kept(), n_voters)
        ]

    def _decide(self, X, alpha):
        check_is_fitted(self)
        if self._evidence is None:
            warn_no_labels(stacklevel=3)
        elif np.isinf(self._threshold_at(alpha)):
            asked = self._fitted_alpha if alpha is None else alpha
            warn_uncertified(asked, *self._evidence, stacklevel=3)
        codes, accepted = self._decide_at(X, [alpha])
        return codes, accepted[0]

    def _decide_at(self, X, alphas):
        check_is_fitted(self)
        X = self._check_rows(X, reset=False)
        scores, voteless, silent = self._scores(X)
        self._warn_silent(silent, X, stacklevel=5)
        proba = _softmax(self._adjust(scores, silent))
        thresholds = np.array([self._threshold_at(alpha) for alpha in alphas])
        accepted = proba.max(axis=1) >= thresholds[:, None] - SLACK
        return proba.argmax(axis=1), accepted & self._gate(X, voteless) & ~silent

    def _threshold_at(self, alpha):
        if alpha is None:
            return self.threshold_
        if self._evidence is None:
            return alpha
        return certified_threshold(*self._evidence, alpha)

    def _warn_silent(self, silent, X, *, at_fit=False, stacklevel=4):
        names = self._kernel, self._token_names
        warn_silent_rows(silent, X, *names, at_fit, stacklevel)

    def _gate(self, X, voteless):
        """Return which rows may be accepted, whatever their probability."""
        open_ = np.ones(len(voteless), dtype=bool)
        if self.fallback == "reject":
            open_ &= ~voteless
        if self.min_captured_mass is not None:
            open_ &= self._mass(X) >= self.min_captured_mass
        return open_

    def _build_kernel(self, X, label_ids):
        output = self._holder = as_output_embeddings(self.output_embeddings)
        self._path = None
        if isinstance(self.output_embeddings, str | PathLike):
            self._path = os.fspath(self.output_embeddings)
        for name in ("top_k", "min_captured_mass"):
            if getattr(self, name) is not None:
                refuse_part(self.output_embeddings, self.input, name)
        texts = None if self.vocabulary is None else read_vocabulary(self.vocabulary)
        n_tokens = count_tokens(X, self.input, output, texts)
        if self.input == "topk":
            check_listed_ids(X, n_tokens)
        if n_tokens is not None:
            n_words = n_tokens if texts is None else len(texts)
            refuse_outside_ids(np.concatenate(label_ids), n_words, "label_token_ids")
            if self.top_k is not None and self.top_k > n_tokens:
                raise ValueError(
                    f"top_k={self.top_k} is above the vocabulary size {n_tokens}: pass "
                    "a smaller value, or None for no limit."
                )
        alike = None
        if output is not None:
            n_texts = None if texts is None else len(texts)
            alike = similarities(output, self.geometry, label_ids, n_texts)
        kernel = build_kernel(label_ids, alike, self.similarity_threshold, self.vote)
        self._kernel, self._n_tokens = kernel, n_tokens
        self._token_names = token_names(kernel.token_ids, texts)
        self._column_of = columns_by_key(kernel, texts)
        self.required_token_ids_ = np.sort(kernel.token_ids)
        self.neighbors_ = {
            name: Bunch(**neighbor_table(kernel, label, texts))
            for label, name in enumerate(self.classes_.tolist())
        }
        self.label_similarity_ = None
        if output is not None:
            self.label_similarity_ = label_similarity(kernel)
            warn_weak_kernel(
                self.neighbors_,
                self.label_similarity_,
                self.geometry,
                output,
                stacklevel=5,
            )
            n_words = output.shape[0] if texts is None else len(texts)
            kept = self.geometry, self.similarity_threshold
            warn_chance_votes(len(kernel.token_ids), n_words, output, kept[1], 5)
            warn_cut_kernel(kernel, output, *kept, 5)

    def _output(self):
        """Return the embeddings of `fit`, or where set_params says they are now."""
        given = self.output_embeddings
        output = self._holder
        if isinstance(given, str | PathLike):
            if os.fspath(given) != self._path:
                output = OutputEmbeddings(given)
        elif self._path is not None or isinstance(given, OutputEmbeddings):
            output = as_output_embeddings(given)
        if output.shape != self._holder.shape:
            raise ValueError(
                f"output_embeddings has the shape {output.shape}, but fit saw "
                f"{self._holder.shape}: pass the matrix of the same model, or fit "
                "again."
            )
        return output

    def _check_rows(self, X, reset):
        if hasattr(X, "detach"):  # a torch tensor, of any precision
            X = as_numpy(X)
        refuse_masked(X, "X")
        if self.input == "topk":
            rows = check_lists(X)
            if not reset:
                check_listed_ids(rows, self._n_tokens)
            if self.vocabulary is None and any(
                isinstance(key, str) for row in rows for key in row
            ):
                raise ValueError(
                    "The rows of X list token texts: pass vocabulary= to tell which "
                    "ids they have, or list token ids."
                )
            return rows
        if sparse.issparse(X) and self.input != "proba":
            raise ValueError(
                f"Sparse data was passed with input={self.input!r}: an implicit 0 "
                "would be read as a value. Only probabilities may be sparse; pass a "
                "dense array, or input='proba'."
            )
        hidden = self.input == "hidden"
        if hidden and self.output_embeddings is None:
            raise ValueError(
                "input='hidden' needs output_embeddings to turn hidden states into "
                "logits: pass them, or say what X is with input='logits', 'logprobs', "
                "'proba' or 'topk'."
            )
        if not reset and hidden != (self._fitted_input == "hidden"):
            raise ValueError(
                f"input={self.input!r} was set after a fit with "
                f"input={self._fitted_input!r}, whose rows have other columns: fit "
                "again."
            )
        X = validate_data(
            self,
            X,
            accept_sparse="csr",
            dtype="numeric",
            ensure_all_finite=hidden,
            # Two labels need two tokens.
            ensure_min_features=2 if reset and not hidden else 1,
            reset=reset,
        )
        if not hidden:
            check_values(X, self.input)
        return X

    def _read(self, X, total=False):
        # What the listed tokens leave is known against the whole only.
        total = total or (self.top_k is not None and self.missing == "half_min")
        return read_rows(
            X,
            self.input,
            self._kernel.token_ids,
            output=self._output() if self.input == "hidden" else None,
            column_of=self._column_of,
            top_k=self.top_k,
            total=total,
        )

    def _scores(self, X):
        """Return label log scores before calibration, and what `aggregate` adds."""
        parts = [
            aggregate(self._kernel, part, self.missing, self.fallback)
            for part in self._read(X)
        ]
        return [np.concatenate(part) for part in zip(*parts, strict=True)]

    def _mass(self, X):
        log_mass = []
        for part in self._read(X, total=True):
            log_mass.append(self._kernel.log_mass(part.kept()) - part.total)
        return np.minimum(np.exp(np.concatenate(log_mass)), 1.0)

    def _adjusted_scores(self, X):
        check_is_fitted(self)
        X = self._check_rows(X, reset=False)
        scores, _, silent = self._scores(X)
        self._warn_silent(silent, X)
        return self._adjust(scores, silent)

    def _adjust(self, scores, silent):
        if self._identity:
            return scores
        log_proba = bounded_log_softmax(scores)
        moved = _log_softmax(log_proba + self.prior_bias_)
        # What a prior says of a row that says nothing is no answer to it.
        return np.where(silent[:, None], scores, moved / self.temperature_ + self.bias_)

    def __getstate__(self):
        state = super().__getstate__().copy()
        # What is made from a given matrix would be a second copy of it.
        if not isinstance(self.output_embeddings, str | PathLike | OutputEmbeddings):
            state.pop("_holder", None)
        return state

    def __setstate__(self, state):
        super().__setstate__(state)
        if hasattr(self, "_kernel") and not hasattr(self, "_holder"):
            self._holder = as_output_embeddings(self.output_embeddings)

    # Matrix and vocabulary are large and shared: clones and copies leave them alone.
    def __sklearn_clone__(self):
        bare = copy.copy(self)
        bare.output_embeddings = bare.vocabulary = None
        clone = super(SemanticSoftmaxCalibrator, bare).__sklearn_clone__()
        clone.output_embeddings = self.output_embeddings
        clone.vocabulary = self.vocabulary
        return clone

    def __deepcopy__(self, memo):
        for shared in (self.output_embeddings, self.vocabulary):
            memo[id(shared)] = shared
        twin = type(self).__new__(type(self))
        memo[id(self)] = twin
        twin.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return twin

    def __repr__(self, N_CHAR_MAX=700):
        bare = copy.copy(self)
        if self.output_embeddings is not None:
            bare.output_embeddings = Summary(
                describe_embeddings(self.output_embeddings)
            )
        if self.vocabulary is not None:
            bare.vocabulary = Summary(describe_vocabulary(self.vocabulary))
        return super(SemanticSoftmaxCalibrator, bare).__repr__(N_CHAR_MAX)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = self.input == "proba"
        tags.input_tags.two_d_array = self.input != "topk"
        tags.input_tags.dict = self.input == "topk"
        tags.target_tags.required = False
        # Parameters are checked by fit: here they may be anything.
        labels = self.label_token_ids
        binary = hasattr(labels, "__len__") and len(labels) == 2
        tags.classifier_tags.multi_class = not binary
        tags.classifier_tags.poor_score = True
        return tags


def _positive(proba):
    return np.maximum(proba, _SMALLEST, out=proba)


# Differences of huge logits overflow to -inf, which is the right answer.
def _softmax(scores):
    with np.errstate(over="ignore"):
        return softmax(scores, axis=1)


def _log_softmax(scores):
    with np.errstate(over="ignore"):
        return log_softmax(scores, axis=1)
