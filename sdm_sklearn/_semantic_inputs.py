"""Reading next-token distributions: hidden states, logits, probabilities, lists."""

import reprlib
from collections.abc import Iterator, Mapping, Sequence
from numbers import Integral, Real
from typing import NamedTuple

import numpy as np
from scipy import sparse
from scipy.special import logsumexp

from sdm_sklearn._semantic_embeddings import (
    read_from_hidden,
    refuse_outside_ids,
    thin_head,
)

# Servers' marks for "not among the listed". Other values are what they say.
UNLISTED = (-np.inf, -100.0, -9999.0)
# Doubles in one working block of rows: 4 MB.
_BLOCK = 2**19
# Half-precision probabilities of a large vocabulary are off by 1e-3 in all, their
# logarithms by more.
_SLACK, _MOST = 0.01, 1.1
_TOP_LOGPROBS = (
    "one record is the list of a single position, such as "
    "response.choices[0].logprobs.content[0].top_logprobs, and a row of X"
)


class Reading(NamedTuple):
    """What a block of rows says about the required tokens.

    Attributes
    ----------
    logits : ndarray of shape (n, n_required)
        Logits or log-probabilities; -inf where the probability is 0 or unknown.

    listed : ndarray of shape (n, n_required), dtype=bool, or None
        Which tokens a truncated list holds; None if nothing is cut off.

    smallest : ndarray of shape (n,) or None
        Smallest listed value of each row; None if nothing is cut off.

    listed_total : ndarray of shape (n,) or None
        Log of the sum over all listed tokens; None if nothing is cut off.

    total : ndarray of shape (n,) or None
        Log of the sum over the whole vocabulary, where asked for.
    """

    logits: np.ndarray
    listed: np.ndarray | None
    smallest: np.ndarray | None
    listed_total: np.ndarray | None
    total: np.ndarray | None

    def kept(self):
        """Return the logits with -inf for what is cut off."""
        if self.listed is None:
            return self.logits
        return np.where(self.listed, self.logits, -np.inf)


def read_top_logprobs(records):
    """Turn OpenAI-style `top_logprobs` records into lists for `input="topk"`.

    Parameters
    ----------
    records : list of list of dict or object
        One record a row: the `top_logprobs` of one position, a list of entries with
        `token` and `logprob` as keys or attributes.

    Returns
    -------
    rows : list of dict of str to float
        Log-probability by token text. Entries with the same text, which stand for
        different ids, are added.

    Raises
    ------
    ValueError
        If an entry has no `token` or no `logprob`, or a record is no list.

    Examples
    --------
    >>> from sdm_sklearn import read_top_logprobs
    >>> entries = [{"token": "No", "logprob": -0.1}, {"token": "Yes", "logprob": -2.5}]
    >>> read_top_logprobs([entries])
    [{'No': -0.1, 'Yes': -2.5}]
    """
    rows = []
    if not isinstance(records, list | tuple):
        raise ValueError(
            f"records must be a list of records. Got {reprlib.repr(records)} instead; "
            f"{_TOP_LOGPROBS}."
        )
    for number, record in enumerate(records):
        if not isinstance(record, list | tuple):
            raise ValueError(
                f"Record {number} must be a list of entries with token and logprob. "
                f"Got {reprlib.repr(record)} instead; {_TOP_LOGPROBS}."
            )
        row: dict[str, float] = {}
        for entry in record:
            try:
                if isinstance(entry, Mapping):
                    token, logprob = entry["token"], float(entry["logprob"])
                else:
                    token, logprob = entry.token, float(entry.logprob)
            except (KeyError, AttributeError, TypeError, ValueError) as error:
                raise ValueError(
                    f"Record {number} holds {reprlib.repr(entry)}, which has no token "
                    f"and logprob; {_TOP_LOGPROBS}."
                ) from error
            # A mark for "not listed" is no probability that could be added.
            if token not in row or row[token] in UNLISTED:
                row[token] = logprob
            elif logprob not in UNLISTED:
                row[token] = float(np.logaddexp(row[token], logprob))
        rows.append(row)
    return rows


def count_tokens(X, form, output, texts):
    """Return the vocabulary size, None if unknown; refuse what does not match."""
    if form == "topk" and output is None:
        return None if texts is None else len(texts)
    n_tokens = X.shape[1] if output is None else output.shape[0]
    if form == "hidden" and X.shape[1] != output.shape[1]:
        raise ValueError(
            f"X has {X.shape[1]} features, but the output embeddings have width "
            f"{output.shape[1]}: hidden states of another model, or logits "
            "(input='logits')?"
        )
    if form not in ("hidden", "topk") and X.shape[1] != n_tokens:
        raise ValueError(
            f"X has {X.shape[1]} tokens, but the output embeddings have {n_tokens}: "
            "both must be of the same vocabulary."
        )
    if texts is not None and len(texts) > n_tokens:
        raise ValueError(
            f"vocabulary has {len(texts)} tokens, but there are {n_tokens} "
            f"{'columns in X' if output is None else 'output embeddings'}: both must "
            "be of the same model."
        )
    return n_tokens


def check_values(X, form):
    """Raise if validated dense or CSR rows are no `form` of a distribution.

    Parameters
    ----------
    X : ndarray or CSR of shape (n_samples, n_tokens)
    form : {"logits", "logprobs", "proba"}
    """
    if sparse.issparse(X):
        _check_csr(X)
        return
    size = max(1, _BLOCK // X.shape[1])
    for start in range(0, X.shape[0], size):
        block = X[start : start + size]
        top = block.max(axis=1)
        _refuse_rows(np.isnan(top), start, "holds NaN", form)
        _refuse_rows(np.isposinf(top), start, "holds infinity", form)
        if form == "logits":
            empty = "has no finite logit: every token is -inf"
            _refuse_rows(np.isneginf(top), start, empty, form)
        elif form == "logprobs":
            empty = "has no finite log-probability: every token is -inf"
            _refuse_rows(np.isneginf(top), start, empty, form)
            above = "holds a log-probability above 0; for logits pass input='logits'"
            if top.max() <= 1 + _SLACK and block.min() >= 0:  # no logits look so
                above = "holds values from 0 to 1; for probabilities pass input='proba'"
            _refuse_rows(top > _SLACK, start, above, form)
            sums = np.exp(np.minimum(block, 0)).sum(axis=1, dtype=np.float64)
            above = "holds log-probabilities whose exponentials sum to more than 1; "
            above += "for logits pass input='logits'"
            _refuse_rows(sums > _MOST, start, above, form)
        else:
            below = "holds a probability below 0; for log-probabilities pass "
            below += "input='logprobs'"
            _refuse_rows(block.min(axis=1) < 0, start, below, form)
            sums = block.sum(axis=1, dtype=np.float64)
            _check_sums(sums, start, form)


def _check_csr(X):
    if not np.isfinite(X.data).all():
        word = "NaN" if np.isnan(X.data).any() else "infinity"
        raise ValueError(f"X holds {word}, but input='proba' needs probabilities.")
    if (X.data < 0).any():
        raise ValueError(
            "The sparse X holds negative values. Log-probabilities must not be sparse: "
            "an implicit 0 would mean probability 1. Pass their exponentials, or one "
            "dict of token to log-probability for each row with input='topk'."
        )
    _check_sums(np.asarray(X.sum(axis=1), dtype=np.float64).ravel(), 0, "proba")


def _check_sums(sums, start, form):
    _refuse_rows(sums <= 0, start, "has no probability above 0", form)
    above = "holds probabilities that sum to more than 1; for logits pass "
    above += "input='logits'"
    _refuse_rows(sums > 1 + _SLACK, start, above, form)


def _refuse_rows(bad, start, what, form):
    if bad.any():
        row = start + int(np.argmax(bad))
        raise ValueError(f"Row {row} of X {what}. (input={form!r})")


def read_rows(X, form, token_ids, *, output, column_of, top_k, total) -> Iterator:
    """Yield a `Reading` for each block of rows of checked input.

    Parameters
    ----------
    X : ndarray, CSR or list of dict
    form : {"hidden", "logits", "logprobs", "proba", "topk"}
    token_ids : ndarray of shape (n_required,)
    output : OutputEmbeddings or None
        Needed by hidden states.
    column_of : dict of int or str to int
        Place of a token in `token_ids`, by id or text. Needed by lists.
    top_k : int or None
    total : bool
        Whether to read the normaliser, too.
    """
    if form == "topk":

        def read(block):
            return _read_lists(block, column_of, len(token_ids), top_k)

        width = 2 * len(token_ids)
    elif form == "hidden":
        read = _hidden_reader(token_ids, output, top_k, total)
        width = max(X.shape[1], 2 * len(token_ids), top_k or 0)
    elif sparse.issparse(X):

        def read(block):
            return _read_csr(block, token_ids, top_k)

        width = 2 * len(token_ids)
    else:

        def read(block):
            return _read_dense(block, form, token_ids, top_k, total)

        whole = top_k is not None or total
        width = X.shape[1] if whole else 2 * len(token_ids)
    size = max(1, _BLOCK // width)
    n_rows = len(X) if form == "topk" else X.shape[0]
    for start in range(0, n_rows, size):
        yield read(X[start : start + size])


def _hidden_reader(token_ids, output, top_k, total):
    if top_k is not None or total:

        def read(block):
            logits, best, log_total = read_from_hidden(
                block.astype(np.float64), output, token_ids, top_k, total
            )
            if best is None:
                return Reading(logits, None, None, None, log_total)
            smallest = best.min(axis=1)
            listed = logits >= smallest[:, None]
            listed_total = logsumexp(best, axis=1)
            return Reading(logits, listed, smallest, listed_total, log_total)

    else:
        head = thin_head(output, token_ids)

        def read(block):
            return Reading(head(block.astype(np.float64)), *[None] * 4)

    return read


def _read_dense(block, form, token_ids, top_k, total):
    values = block[:, token_ids]
    listed = smallest = listed_total = log_total = None
    if top_k is not None:
        # Compared as given: every token tied with the K-th is in, whatever its id.
        best = np.partition(block, -top_k, axis=1)[:, -top_k:]
        listed = values >= best[:, :1]
        n_more = (block >= best[:, :1]).sum(axis=1) - top_k
        best = _as_log(best, form)
        smallest, listed_total = best[:, 0], logsumexp(best, axis=1)
        with np.errstate(divide="ignore"):
            listed_total = np.logaddexp(listed_total, smallest + np.log(n_more))
    if total:
        log_total = np.zeros(len(block))
        if form == "logits":
            log_total = logsumexp(block.astype(np.float64, order="C"), axis=1)
    return Reading(_as_log(values, form), listed, smallest, listed_total, log_total)


def _as_log(values, form):
    values = values.astype(np.float64)
    if form != "proba":
        return values
    with np.errstate(divide="ignore"):
        return np.log(values, out=values)


def _read_csr(block, token_ids, top_k):
    # What is not stored is unknown, not 0: such a matrix holds truncated lists.
    block = sparse.csr_array(block, dtype=np.float64, copy=True)
    block.sum_duplicates()
    block.eliminate_zeros()
    logits = _as_log(block[:, token_ids].toarray(), "proba")
    rows = np.repeat(np.arange(block.shape[0]), np.diff(block.indptr))
    return _cut(logits, rows, np.log(block.data), top_k)


def _read_lists(rows, column_of, n_required, top_k):
    # Their values are log-probabilities by nature, as those of a dense "logprobs".
    lengths = [len(row) for row in rows]
    index = np.repeat(np.arange(len(rows)), lengths)
    values = np.array([_logprob(v) for row in rows for v in row.values()], dtype=float)
    column = np.array(
        [column_of.get(key, -1) for row in rows for key in row], dtype=int
    )
    known = ~np.isin(values, UNLISTED)
    _refuse_twice(rows, index[known & (column >= 0)], column[known & (column >= 0)])
    logits = np.full((len(rows), n_required), -np.inf)
    use = known & (column >= 0)
    np.logaddexp.at(logits, (index[use], column[use]), values[use])
    return _cut(logits, index[known], values[known], top_k)


def _refuse_twice(rows, index, column):
    # Texts of one token are one key, so that a pair comes twice by id and by text only.
    width = column.max(initial=0) + 1
    place, count = np.unique(index * width + column, return_counts=True)
    if (count > 1).any():
        row = rows[place[np.argmax(count > 1)] // width]
        raise ValueError(
            f"The row {reprlib.repr(row)} of X names a token by its id and by its "
            "text: list each token once."
        )


def _cut(logits, rows, values, top_k):
    """Make a reading of lists that end with their `top_k`-th largest value.

    `values` are all that the lists hold, as log-probabilities, and `rows` their rows.
    """
    order = np.lexsort((-values, rows))
    rows, values = rows[order], values[order]
    counts = np.bincount(rows, minlength=len(logits))
    first = np.cumsum(counts) - counts
    last = counts if top_k is None else np.minimum(counts, top_k)
    smallest = values[first + last - 1]
    inside = values >= smallest[rows]
    with np.errstate(divide="ignore"):
        listed_total = np.log(
            np.bincount(rows[inside], np.exp(values[inside]), minlength=len(logits))
        )
    listed = (logits >= smallest[:, None]) & ~np.isneginf(logits)
    return Reading(logits, listed, smallest, listed_total, np.zeros(len(logits)))


def check_lists(rows):
    """Return truncated lists as a list of dict, or say which row is none.

    Parameters
    ----------
    rows : sequence of dict of int or str to log-probability

    Returns
    -------
    rows : list of dict
    """
    if isinstance(rows, str | bytes | Mapping) or not (
        isinstance(rows, Sequence | np.ndarray) or hasattr(rows, "tolist")
    ):
        raise ValueError(
            "input='topk' needs a list of dicts of token to log-probability, one for "
            f"each row. Got {type(rows).__name__} instead."
        )
    rows = rows.tolist() if hasattr(rows, "tolist") else list(rows)
    if not rows:
        raise ValueError("Found 0 sample(s) while a minimum of 1 is required.")
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise ValueError(
                f"Row {number} of X must be a dict of token to log-probability. Got "
                f"{type(row).__name__} instead; read_top_logprobs reads API records."
            )
        for key in row:
            if not isinstance(key, str | Integral) or isinstance(key, bool):
                raise ValueError(
                    f"Row {number} of X has the key {key!r}: a token is an id or text."
                )
        values = np.array([_logprob(v) for v in row.values()], dtype=float)
        if np.isnan(values).any():
            raise ValueError(f"Row {number} of X holds NaN.")
        if (values > _SLACK).any():
            raise ValueError(
                f"Row {number} of X holds the log-probability {values.max():g}, which "
                "is above 0: pass log-probabilities, not logits or probabilities (of "
                "which the logarithm is needed)."
            )
        values = values[~np.isin(values, UNLISTED)]
        if not len(values):
            raise ValueError(
                f"Row {number} of X lists no token: ask the server for log-"
                "probabilities (-100, -9999 and -inf mean 'not listed')."
            )
        total = np.exp(np.minimum(values, 0.0)).sum()
        if total > _MOST:
            raise ValueError(
                f"Row {number} of X lists probabilities that sum to {total:.3g}, more "
                "than 1: pass log-probabilities of one position, not logits."
            )
    return rows


def check_listed_ids(rows, n_tokens):
    """Raise if a list holds an id that is not in a vocabulary of `n_tokens`."""
    if n_tokens is None:  # only the labels are known
        return
    ids = {int(key) for row in rows for key in row if not isinstance(key, str)}
    refuse_outside_ids(np.array(sorted(ids), dtype=object), n_tokens, "X")


def _logprob(value):
    value = getattr(value, "logprob", value)
    if not isinstance(value, Real):
        raise ValueError(
            "A log-probability must be a number or an object with a logprob. Got "
            f"{value!r} instead."
        )
    return value
