"""The trained adaptor as plain NumPy: standardisation and two linear layers."""

from typing import NamedTuple

import numpy as np

from sdm_sklearn._blocks import in_blocks
from sdm_sklearn._threads import map_in_threads

# Rows are read and converted this many at a time.
_CHUNK_ROWS = 4096
# Every product has this many rows, the last ones zeros if need be. The BLAS chooses its
# way to add by the shape and may treat a ragged edge apart; with one shape, without an
# edge, a row has the same bits in any batch.
_PRODUCT_ROWS = 48
# A thread takes this many rows at a time.
_THREAD_ROWS = 5 * _PRODUCT_ROWS


class Adaptor(NamedTuple):
    """Weights of an exemplar adaptor, float64.

    The input x becomes ``x' = (x - center) / scale``, the exemplar vector ``h' = G x' +
    g`` and the logits ``z' = W h' + w`` (SDM, 3.1.1).
    """

    center: np.ndarray  # (n_features,)
    scale: np.ndarray  # (n_features,)
    filters: np.ndarray  # G (n_filters, n_features)
    filter_bias: np.ndarray  # g (n_filters,)
    weights: np.ndarray  # W (n_classes, n_filters)
    bias: np.ndarray  # w (n_classes,)

    def transform(self, X):
        """Return the exemplar vectors h' of shape (n_samples, n_filters)."""
        transposed = np.ascontiguousarray(self.filters.T)
        return _affine(X, None, self.center, self.scale, transposed, self.filter_bias)

    def projection(self):
        """Return the map to search coordinates and logits.

        Distances between coordinates equal distances between exemplar vectors, in
        min(n_features, n_filters) dimensions: with G = Q R, ||G a|| = ||R a||.

        Returns
        -------
        projection : Projection
        """
        n_filters, n_features = self.filters.shape
        axes = self.filters
        if n_filters > n_features:
            axes = np.linalg.qr(self.filters).R
        matrix = np.vstack([axes, self.weights @ self.filters])
        logit_bias = self.weights @ self.filter_bias + self.bias
        offset = np.concatenate([np.zeros(len(axes)), logit_bias])
        transposed = np.ascontiguousarray(matrix.T)
        return Projection(self.center, self.scale, transposed, offset, len(axes))


class Projection(NamedTuple):
    """One product that gives search coordinates and logits side by side."""

    center: np.ndarray  # (n_features,)
    scale: np.ndarray  # (n_features,)
    matrix: np.ndarray  # (n_features, n_coordinates + n_classes)
    offset: np.ndarray  # (n_coordinates + n_classes,)
    n_coordinates: int

    def project(self, X, rows=None):
        """Return search coordinates and logits.

        Parameters
        ----------
        X : ndarray of shape (n_samples, n_features)
            Any real dtype; converted chunk by chunk.
        rows : ndarray of int, default=None
            Rows of X to read. None reads all.

        Returns
        -------
        coordinates : ndarray of shape (n_rows, n_coordinates)
        logits : ndarray of shape (n_rows, n_classes)
        """
        values = _affine(X, rows, self.center, self.scale, self.matrix, self.offset)
        return (
            np.ascontiguousarray(values[:, : self.n_coordinates]),
            np.ascontiguousarray(values[:, self.n_coordinates :]),
        )


def _affine(X, rows, center, scale, matrix, offset):
    n_rows = X.shape[0] if rows is None else len(rows)
    out = np.empty((n_rows, matrix.shape[1]))
    advice = (
        f"Embeddings of {X.shape[1]} features and n_filters={matrix.shape[1]} do "
        "not fit: lower n_filters."
    )

    def multiply(part):
        part = slice(part.start, part.stop)
        chunk = X[part] if rows is None else X[rows[part]]
        padded = _padding(chunk)
        standardize(chunk, center, scale, out=padded[: len(chunk)])
        out[part] = _multiply(padded, matrix)[: len(chunk)]

    map_in_threads(
        lambda part: in_blocks(part, _THREAD_ROWS, multiply, advice),
        [
            range(start, min(start + _THREAD_ROWS, n_rows))
            for start in range(0, n_rows, _THREAD_ROWS)
        ],
    )
    out += offset
    return out


def rowwise_product(rows, matrix):
    """Return ``rows @ matrix`` with the same bits of a row in any batch.

    Parameters
    ----------
    rows : ndarray of shape (n_rows, n_features), dtype=float64
    matrix : ndarray of shape (n_features, n_columns), dtype=float64

    Returns
    -------
    products : ndarray of shape (n_rows, n_columns)
    """
    padded = _padding(rows)
    padded[: len(rows)] = rows
    return _multiply(padded, matrix)[: len(rows)]


def _padding(rows):
    n_products = -(-len(rows) // _PRODUCT_ROWS)
    return np.zeros((n_products * _PRODUCT_ROWS, rows.shape[1]))


def _multiply(padded, matrix):
    products = padded.reshape(-1, _PRODUCT_ROWS, padded.shape[1]) @ matrix
    return products.reshape(len(padded), -1)


def standardize(chunk, center, scale, out=None):
    """Return ``(chunk - center) / scale`` in float64."""
    out = np.subtract(np.asarray(chunk, dtype=np.float64), center, out=out)
    out /= scale
    return out


def fit_standardization(X, rows, mode):
    """Compute center and scale over rows of X, read chunk by chunk in float64.

    Parameters
    ----------
    X : ndarray of shape (n_samples, n_features)
        Any real dtype.
    rows : ndarray of int
        Rows to use.
    mode : {"global", "feature", False}
        One mean and standard deviation for all features, one for each, or none. A
        standard deviation of 0 counts as 1.

    Returns
    -------
    center : ndarray of shape (n_features,)
    scale : ndarray of shape (n_features,)

    Raises
    ------
    ValueError
        If values are so large that their squares overflow.
    """
    n_features = X.shape[1]
    if mode is False:
        return np.zeros(n_features), np.ones(n_features)
    chunks = [rows[i : i + _CHUNK_ROWS] for i in range(0, len(rows), _CHUNK_ROWS)]
    with np.errstate(over="ignore", invalid="ignore"):
        center, variance = _moments(X, chunks, len(rows), mode)
    if not (np.isfinite(center).all() and np.isfinite(variance).all()):
        raise ValueError(
            "X contains values too large for float64 arithmetic: their squares "
            "overflow. Scale the embeddings before fit."
        )
    scale = np.sqrt(variance)
    # A constant feature keeps a rounding residue that must not be blown up.
    scale[scale <= 1e-14 * np.abs(center)] = 1.0
    scale[scale == 0] = 1.0
    return center, scale


def _moments(X, chunks, n_rows, mode):
    total = sum(X[part].astype(np.float64).sum(axis=0) for part in chunks)
    center = total / n_rows
    if mode == "global":
        center = np.full_like(center, center.mean())
    # A second pass over the centred values: sums of squares would cancel.
    spread = sum(
        np.square(X[part].astype(np.float64) - center).sum(axis=0) for part in chunks
    )
    variance = spread / n_rows
    if mode == "global":
        variance = np.full_like(variance, variance.mean())
    return center, variance
