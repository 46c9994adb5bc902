"""A language model's output layer: rows of E, similarities of tokens, logits."""

import os
from collections.abc import Mapping
from os import PathLike

import numpy as np
from scipy.special import logsumexp

from sdm_sklearn._linear import rowwise_product

# Doubles in one working block of rows: 8 MB.
_BLOCK = 2**20


class OutputEmbeddings:
    """Hold a model's output embeddings and what turns them into logits.

    A hidden state h gives token v the logit `softcap * tanh(z / softcap)` with
    `z = logit_scale * (E_v h + bias_v)`. The holder is cheap to clone, copy and print:
    the matrix is shared, never copied. It is meant to stay as it is once made.

    Parameters
    ----------
    weight : array-like of shape (n_tokens, n_features), str, path, or object
        The matrix E: an array or tensor of any real dtype, the path of a `.npy` file
        (opened as a memory map, so a pickled holder stays small; kept as an absolute
        path and needed to predict), or an object with a `weight` and perhaps a `bias`,
        such as `model.lm_head`.

    bias : array-like of shape (n_tokens,), default=None
        Added to E h. None stands for `weight.bias` where there is one, else for 0.

    logit_scale : float, default=1.0
        Factor on the logits, as some models have.

    softcap : float, default=None
        Bound of the logits, as some models have; None for no bound.

    exclude : array-like of int, default=()
        Ids that are no words, such as special and padded tokens. They never vote and
        do not count in the geometry. All-zero rows are excluded without being named.

    moments : tuple of (mean, covariance), default=None
        Mean (n_features,) and covariance (n_features, n_features) of the rows of the
        whole E, for a `weight` that holds only the rows in use, as `rows` and
        `moments` of another holder give them. None computes both from `weight`. What
        needs the logits of all tokens is refused then.

    Attributes
    ----------
    partial : bool
        Whether `weight` holds only some rows of E, as `moments` say.

    shape : tuple of int
        Number of tokens and width of E.

    dtype : numpy.dtype
        Type of the entries of E.

    See Also
    --------
    SemanticSoftmaxCalibrator : Uses the embeddings.

    Notes
    -----
    Mean, whitening and row norms of E are computed once and kept: wrap a large matrix
    yourself and pass the same holder to several estimators to share them.

    Examples
    --------
    >>> import numpy as np
    >>> from sdm_sklearn import OutputEmbeddings
    >>> OutputEmbeddings(np.eye(3), softcap=30.0)
    OutputEmbeddings(3 x 3, float64, softcap=30.0)
    """

    def __init__(
        self,
        weight,
        *,
        bias=None,
        logit_scale=1.0,
        softcap=None,
        exclude=(),
        moments=None,
    ):
        if not np.isfinite(logit_scale) or logit_scale <= 0:
            raise ValueError(
                f"logit_scale must be a positive number. Got {logit_scale!r} instead."
            )
        if softcap is not None and not 0 < softcap < np.inf:
            raise ValueError(
                f"softcap must be a positive number or None. Got {softcap!r} instead."
            )
        self._is_path = isinstance(weight, str | PathLike)
        if hasattr(weight, "weight"):
            bias = getattr(weight, "bias", None) if bias is None else bias
            weight = weight.weight
        self._source = os.path.abspath(weight) if self._is_path else _as_matrix(weight)
        matrix = self._matrix()
        self.shape, self.dtype = matrix.shape, matrix.dtype
        self.bias = None if bias is None else as_numpy(bias).astype(np.float64)
        if self.bias is not None and self.bias.shape != self.shape[:1]:
            raise ValueError(
                f"bias must have one value for each of the {self.shape[0]} tokens. "
                f"Got shape {self.bias.shape} instead."
            )
        self.logit_scale = logit_scale
        self.softcap = softcap
        self._refuse_infinite_bias()
        exclude = np.asarray(exclude)
        if exclude.size and exclude.dtype.kind not in "iu":
            raise ValueError(
                "exclude must hold token ids, which are integers; of a mask pass "
                f"numpy.flatnonzero(mask). Got dtype {exclude.dtype} instead."
            )
        self.exclude = np.unique(exclude.astype(np.int64))
        refuse_outside_ids(self.exclude, self.shape[0], "exclude")
        self._moments = None if moments is None else self._check_moments(*moments)
        self.partial = moments is not None
        self._computed: dict[str, tuple] = {}

    def _check_moments(self, mean, covariance):
        mean = np.asarray(mean, dtype=np.float64)
        covariance = np.asarray(covariance, dtype=np.float64)
        width = self.shape[1]
        if mean.shape != (width,) or covariance.shape != (width, width):
            raise ValueError(
                f"moments must be a mean ({width},) and a covariance ({width}, "
                f"{width}). Got shapes {mean.shape} and {covariance.shape} instead."
            )
        if not np.isfinite(mean).all() or not np.isfinite(covariance).all():
            raise ValueError("moments hold NaN or infinite values.")
        return mean, covariance

    def _refuse_infinite_bias(self):
        if self.bias is not None and not np.isfinite(self.bias).all():
            ids = np.flatnonzero(~np.isfinite(self.bias))[:10]
            raise ValueError(
                f"bias must be finite, but is not for the token id(s) {ids.tolist()}: "
                "name tokens that never vote with exclude."
            )

    def _matrix(self):
        return _open_matrix(self._source) if self._is_path else self._source

    def __repr__(self):
        parts = [f"{self.shape[0]} x {self.shape[1]}", str(self.dtype)]
        if self._is_path:
            parts.append(f"path={str(self._source)!r}")
        if self.logit_scale != 1.0:
            parts.append(f"logit_scale={self.logit_scale}")
        if self.softcap is not None:
            parts.append(f"softcap={self.softcap}")
        return f"{type(self).__name__}({', '.join(parts)})"

    def __copy__(self):
        return self

    def __deepcopy__(self, memo):
        return self

    def __getstate__(self):
        state = self.__dict__.copy()
        if self._is_path:  # must stay small: the whitening is D x D
            state["_computed"] = {}
        return state

    def rows(self, ids):
        """Return some rows of E.

        Parameters
        ----------
        ids : array-like of int
            Token ids.

        Returns
        -------
        rows : ndarray of shape (n_ids, n_features), dtype=float64
        """
        return np.asarray(self._matrix()[ids], dtype=np.float64)

    def moments(self):
        """Return mean and covariance of the rows that are neither 0 nor excluded.

        Returns
        -------
        mean : ndarray of shape (n_features,)
        covariance : ndarray of shape (n_features, n_features)
        """
        if self._moments is not None:
            return self._moments
        if "moments" not in self._computed:
            self._computed["moments"] = _fit_moments(self, _used_tokens(self))
        return self._computed["moments"]


def _blocks(output):
    """Yield the first id and a float64 block of rows of E, in order."""
    matrix = output._matrix()
    size = max(1, _BLOCK // output.shape[1])
    for start in range(0, output.shape[0], size):
        yield start, np.asarray(matrix[start : start + size], dtype=np.float64)


def _finish(output, products, ids):
    """Turn products E_ids h into logits, in place where that is possible."""
    logits = products
    if output.bias is not None:
        logits += output.bias[ids]
    if output.logit_scale != 1.0:
        logits *= output.logit_scale
    if output.softcap is not None:
        logits = output.softcap * np.tanh(logits / output.softcap)
    if not np.isfinite(logits).all():
        raise ValueError(
            "Some hidden states are so large that their logits overflow: pass the "
            "states after the model's final norm."
        )
    return logits


def thin_head(output, token_ids):
    """Return a function from hidden states (n, n_features) to some tokens' logits."""
    weight = np.ascontiguousarray(output.rows(token_ids).T)

    def logits(hidden):
        with np.errstate(over="ignore", invalid="ignore"):
            return _finish(output, rowwise_product(hidden, weight), token_ids)

    return logits


def similarities(output, geometry, label_ids, n_texts=None):
    """Yield the first id and the similarities (block, n_labels) of its tokens.

    The similarity of a token and a label is the largest cosine with one of the label's
    own tokens. Excluded tokens, and those from `n_texts` on, have -1.
    """
    if geometry not in output._computed:
        output._computed[geometry] = _fit_geometry(output, geometry)
    mean, root, norm = output._computed[geometry]
    flat = np.concatenate(label_ids)
    dead = flat[norm[flat] == 0]
    if len(dead):
        raise ValueError(
            f"The label token(s) {dead.tolist()} are excluded or have an all-zero "
            "output embedding, as padding has: pass ids of real words."
        )
    directions = output.rows(flat) - mean
    if root is not None:
        directions = directions @ root @ root.T
    directions /= norm[flat, None]
    lengths = [len(ids) for ids in label_ids]
    starts = np.cumsum([0, *lengths[:-1]])
    for start, rows in _blocks(output):
        length = norm[start : start + len(rows)]
        safe = np.where(length == 0, 1.0, length)
        cosine = (rows - mean) @ directions.T / safe[:, None]
        cosine[length == 0] = -1.0
        if n_texts is not None:
            cosine[max(0, n_texts - start) :] = -1.0
        yield start, np.maximum.reduceat(np.clip(cosine, -1, 1), starts, axis=1)


def _used_tokens(output):
    used = np.ones(output.shape[0], dtype=bool)
    used[output.exclude] = False
    for start, rows in _blocks(output):
        here = used[start : start + len(rows)]
        bad = here & ~np.isfinite(rows).all(axis=1)
        if bad.any():
            raise ValueError(
                "output_embeddings holds NaN or infinite values, first for the token "
                f"id {start + int(np.argmax(bad))}."
            )
        here &= rows.any(axis=1)
    if not used.any():
        raise ValueError("output_embeddings has no row that is neither 0 nor excluded.")
    return used


def _fit_moments(output, used):
    width = output.shape[1]
    mean, scatter = np.zeros(width), np.zeros((width, width))
    for start, rows in _blocks(output):
        mean += rows[used[start : start + len(rows)]].sum(axis=0)
    mean /= used.sum()
    for start, rows in _blocks(output):
        kept = rows[used[start : start + len(rows)]] - mean
        scatter += kept.T @ kept
    return mean, scatter / used.sum()


def _fit_geometry(output, geometry):
    """Return mean, root of the inverse covariance or None, and row norms (0: out).

    Raw, centred or whitened: x -> (x - mean) root, with cosines taken after it.
    """
    used = _used_tokens(output)
    mean, root = np.zeros(output.shape[1]), None
    if geometry != "raw":
        mean, covariance = output.moments()
    if geometry == "whitened":
        values, vectors = np.linalg.eigh(covariance)
        floor = 1e-3 * max(values.mean(), np.finfo(float).tiny)
        root = vectors / np.sqrt(np.maximum(values, floor))
    norm = np.empty(output.shape[0])
    for start, rows in _blocks(output):
        moved = rows - mean if root is None else (rows - mean) @ root
        norm[start : start + len(rows)] = np.linalg.norm(moved, axis=1)
    norm[~used] = 0.0
    return mean, root, norm


class Summary:
    """Stand-in for a large parameter whose repr says what it is, not what it holds."""

    def __init__(self, text):
        self._text = text

    def __repr__(self):
        return self._text


def describe_embeddings(embeddings):
    """Return a short text for the repr of output embeddings of any kind."""
    try:
        return repr(as_output_embeddings(embeddings))
    except (TypeError, ValueError, OSError):
        return f"<{type(embeddings).__name__}>"


def as_output_embeddings(embeddings):
    """Return a holder of `embeddings`, or None for None."""
    if embeddings is None or isinstance(embeddings, OutputEmbeddings):
        return embeddings
    return OutputEmbeddings(embeddings)


def refuse_outside_ids(ids, n_tokens, name):
    """Raise if a token id is not one of the vocabulary's."""
    outside = ids[(ids < 0) | (ids >= n_tokens)]
    if len(outside):
        raise ValueError(
            f"{name} holds the token id(s) {outside.tolist()[:10]}, but the vocabulary "
            f"has {n_tokens} tokens: ids run from 0 to {n_tokens - 1}."
        )


def refuse_part(embeddings, form, what):
    """Raise if `what` needs all tokens and the embeddings hold only some.

    Probabilities are shares of the whole even then, but the K best among some tokens
    are not the K best of all. Lists hold what the model says, whatever E holds.
    """
    partial = isinstance(embeddings, OutputEmbeddings) and embeddings.partial
    shares = form in ("logprobs", "proba") and what != "top_k"
    if partial and form != "topk" and not shares:
        raise ValueError(
            f"{what} needs the whole vocabulary, but output_embeddings was made with "
            f"moments and holds only {embeddings.shape[0]} of its tokens: pass the "
            "output embeddings of all tokens, without moments."
        )


def read_from_hidden(hidden, output, token_ids, top_k, total):
    """Read tokens' logits and what needs the whole vocabulary, block by block.

    Parameters
    ----------
    hidden : ndarray of shape (n, n_features), float64
    output : OutputEmbeddings
    token_ids : ndarray of shape (n_required,)
    top_k : int or None
    total : bool

    Returns
    -------
    logits : ndarray of shape (n, n_required)
    best : ndarray of shape (n, top_k) or None
        The `top_k` largest logits of each row, in any order.
    total : ndarray of shape (n,) or None
        Log of the softmax normaliser.
    """
    logits = np.empty((len(hidden), len(token_ids)))
    best = np.empty((len(hidden), 0))
    log_total = np.full(len(hidden), -np.inf)
    order = np.argsort(token_ids)
    ids = token_ids[order]
    for start, rows in _blocks(output):
        stop = start + len(rows)
        with np.errstate(over="ignore", invalid="ignore"):
            products = rowwise_product(hidden, rows.T)
            block = _finish(output, products, slice(start, stop))
        # From the same product as the cut, so that rounding cannot part them.
        inside = slice(*np.searchsorted(ids, [start, stop]))
        logits[:, order[inside]] = block[:, ids[inside] - start]
        if top_k is not None:
            best = np.concatenate([best, block], axis=1)
            if best.shape[1] > top_k:
                best = np.partition(best, -top_k, axis=1)[:, -top_k:]
        if total:
            log_total = np.logaddexp(log_total, logsumexp(block, axis=1))
    return logits, None if top_k is None else best, log_total if total else None


def as_numpy(values):
    """Return an array, also of a torch tensor of any precision on any device."""
    if hasattr(values, "detach"):  # a torch tensor, without importing torch
        values = values.detach().cpu()
        try:
            return values.numpy()
        except TypeError:  # NumPy has no bfloat16
            return values.float().numpy()
    return np.asarray(values)


def _open_matrix(path):
    try:
        matrix = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"output_embeddings is a path, but there is no file {path!r}: put the "
            "file there, or call set_params(output_embeddings=...) with the place "
            "where it is now."
        ) from error
    except (ValueError, EOFError):
        matrix = None
    if not isinstance(matrix, np.ndarray):
        raise ValueError(
            f"output_embeddings is the path {path!r}, which is no .npy file of a "
            "matrix: write it with numpy.save."
        )
    return _as_matrix(matrix)


def _as_matrix(weight):
    matrix = None if isinstance(weight, Mapping) else as_numpy(weight)
    if matrix is None or matrix.dtype.kind not in "fiu" or matrix.ndim != 2:
        shape = "" if matrix is None else f" of shape {matrix.shape}"
        raise TypeError(
            "output_embeddings must be a real matrix (n_tokens, n_features), the path "
            "of a .npy file, or an object with such a weight. Got "
            f"{type(weight).__name__}{shape} instead."
        )
    return matrix
