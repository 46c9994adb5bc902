"""Who votes for whom: the weights of supporting tokens and the sums of their votes."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import softmax

# Below this a weight is rounding, not similarity.
_ROUNDING, _TIE = 1e-12, 1e-9
# What a list leaves unsaid is at least this: single precision knows 1 no better.
_REST_FLOOR = 1e-7


@dataclass(frozen=True)
class Kernel:
    """Supporting tokens and their votes.

    Attributes
    ----------
    token_ids : ndarray of shape (n_required,)
        Every token with a vote, the labels' own included, grouped by nearest label.

    similarity, weight : ndarray of shape (n_required, n_labels)
    own : ndarray of shape (n_required, n_labels), dtype=bool
        Whether the token is one of the label's own.

    voters : list of (slice or ndarray, ndarray)
        For each label where its voters stand in `token_ids`, and the logarithms of
        their weights.
    """

    token_ids: np.ndarray
    similarity: np.ndarray
    weight: np.ndarray
    own: np.ndarray
    voters: list

    @cached_property
    def is_label(self):
        """Whether a token is one of the labels' own, (n_required,)."""
        return self.own.any(axis=1)

    def log_votes(self, logits):
        """Return log sum_v exp(logit_v) w(v, l) for each row and label."""
        scores = np.empty((len(logits), len(self.voters)))
        for label, (columns, log_weight) in enumerate(self.voters):
            # By rows in memory, as the order of the sum depends on it: a batch of one
            # is by rows and by columns.
            votes = np.add(logits[:, columns], log_weight, order="C")
            top = votes.max(axis=1)
            top[np.isneginf(top)] = 0.0
            with np.errstate(divide="ignore", over="ignore"):
                votes -= top[:, None]
                np.exp(votes, out=votes)
                scores[:, label] = np.log(votes.sum(axis=1)) + top
        return scores

    def log_own(self, logits):
        """Return the log sum of each label's own tokens alone."""
        columns = [np.flatnonzero(own) for own in self.own.T]
        own = [np.logaddexp.reduce(logits[:, c], axis=1) for c in columns]
        return np.stack(own, axis=1)

    def log_mass(self, logits):
        """Return the log of each row's votes, a token counted with its largest."""
        with np.errstate(divide="ignore"):
            best = np.log(self.weight.max(axis=1))
        return np.logaddexp.reduce(logits + best, axis=1)


def build_kernel(label_ids, similarities, threshold, vote):
    """Weigh every token's similarity to every label and keep the tokens that vote.

    The weight is max(0, similarity - threshold) / (1 - threshold), so that a label's
    own token has 1 (the papers' weight up to a factor that cancels, Section 3).

    Parameters
    ----------
    label_ids : list of ndarray of int
    similarities : iterable of (first id, ndarray (block, n_labels)), or None
        None stands for no neighbours.
    threshold : float
    vote : {"exclusive", "shared"}

    Returns
    -------
    kernel : Kernel
    """
    n_labels = len(label_ids)
    owner = np.repeat(np.arange(n_labels), [len(ids) for ids in label_ids])
    flat = np.concatenate(label_ids)
    order = np.argsort(flat)
    flat, owner = flat[order], owner[order]
    if similarities is None:
        own = owner[:, None] == np.arange(n_labels)
        return _assemble(flat, own.astype(float), own.astype(float), own)

    kept = []
    for start, similarity in similarities:
        inside = slice(*np.searchsorted(flat, [start, start + len(similarity)]))
        rows = flat[inside] - start
        own = np.zeros(similarity.shape, dtype=bool)
        own[rows, owner[inside]] = True
        similarity = np.where(own, 1.0, similarity)
        weight = _weights(similarity, own, threshold, vote)
        voters = np.flatnonzero(weight.any(axis=1))
        kept.append((voters + start, similarity[voters], weight[voters], own[voters]))
    return _assemble(*(np.concatenate(part) for part in zip(*kept, strict=True)))


def _weights(similarity, own, threshold, vote):
    span = 1.0 - threshold
    weight = np.maximum(similarity - threshold, 0.0) / (span if span > 0 else 1.0)
    weight[weight < _ROUNDING] = 0.0
    if vote == "exclusive":
        # Labels as near as the nearest share the vote: rounding, and with it the order
        # of the vocabulary, must not choose between them.
        nearest = similarity >= similarity.max(axis=1, keepdims=True) - _TIE
        weight = np.where(nearest, weight, 0.0)
        weight[own.any(axis=1)] = 0.0
    weight[own] = 1.0
    return weight


def _assemble(token_ids, similarity, weight, own):
    # Grouped by nearest label, exclusive votes are slices: no copies in `log_votes`.
    order = np.argsort(weight.argmax(axis=1), kind="stable")
    weight = weight[order]
    voters = []
    for column in weight.T:
        rows = np.flatnonzero(column)
        together = rows[-1] - rows[0] == len(rows) - 1
        voter = slice(rows[0], rows[-1] + 1) if together else rows
        voters.append((voter, np.log(column[rows])))
    return Kernel(token_ids[order], similarity[order], weight, own[order], voters)


def label_similarity(kernel):
    """Return the similarity of every two labels' nearest tokens."""
    pairs = [kernel.similarity[own].max(axis=0) for own in kernel.own.T]
    similarity = np.stack(pairs)
    return np.maximum(similarity, similarity.T)


def neighbor_table(kernel, label, texts):
    """Return one label's neighbours, the heaviest first.

    Parameters
    ----------
    kernel : Kernel
    label : int
    texts : list of str or None

    Returns
    -------
    table : dict of str to ndarray
    """
    weight = np.where(kernel.is_label, 0.0, kernel.weight[:, label])
    order = np.argsort(-weight, kind="stable")[: np.count_nonzero(weight)]
    ids = kernel.token_ids[order]
    return {
        "token_ids": ids,
        "tokens": token_names(ids, texts),
        "similarity": kernel.similarity[order, label],
        "weight": weight[order],
    }


def largest_votes(kernel, logits, n_voters):
    """Return each row's largest votes.

    Parameters
    ----------
    kernel : Kernel
    logits : ndarray of shape (n, n_required)
    n_voters : int

    Returns
    -------
    votes : list of list of (place in `kernel.token_ids`, label, share of all votes)
    """
    columns = np.concatenate([np.r_[voter] for voter, _ in kernel.voters])
    log_weight = np.concatenate([weight for _, weight in kernel.voters])
    label = np.repeat(np.arange(len(kernel.voters)), [len(w) for _, w in kernel.voters])
    votes = logits[:, columns] + log_weight
    silent = np.isneginf(votes).all(axis=1, keepdims=True)
    share = softmax(np.where(silent, 0.0, votes), axis=1) * ~silent
    order = np.argsort(-share, axis=1, kind="stable")[:, :n_voters]
    return [
        [(columns[v], label[v], float(row[v])) for v in best if row[v]]
        for row, best in zip(share, order, strict=True)
    ]


def token_names(ids, texts):
    """Return token texts where they are known, ids elsewhere."""
    if texts is None:
        return ids
    return np.array([texts[i] if i < len(texts) else "" for i in ids], dtype=object)


def columns_by_key(kernel, texts):
    """Map token ids and texts to places in the kernel, label tokens before others."""
    column_of = {int(i): c for c, i in enumerate(kernel.token_ids)}
    if texts is None:
        return column_of
    own = kernel.is_label
    for column in np.lexsort((-kernel.weight.max(axis=1), ~own)):
        text = texts[kernel.token_ids[column]]
        first = column_of.setdefault(text, int(column))
        rivals = own[[first, column]].all() and (
            kernel.own[first] != kernel.own[column]
        )
        if np.any(rivals):
            raise ValueError(
                f"Two labels have tokens with the same text {text!r}: a list of token "
                "texts cannot tell them apart. Let the prompt use other words."
            )
    return column_of


def aggregate(kernel, reading, missing, fallback):
    """Turn a reading of tokens' logits into labels' log scores.

    Parameters
    ----------
    kernel : Kernel
    reading : Reading
    missing : {"half_min", "zero"}
    fallback : {"constrained", "uniform", "reject"}

    Returns
    -------
    scores : ndarray of shape (n, n_labels)
    voteless : ndarray of shape (n,), dtype=bool
        Rows without any vote, scored by the fallback.
    silent : ndarray of shape (n,), dtype=bool
        Rows without any token that could vote: nothing is known of any label.
    """
    scores = kernel.log_votes(reading.kept())
    voteless = np.isneginf(scores).all(axis=1)
    silent = voteless.copy()
    silent[voteless] = np.isneginf(reading.logits[voteless]).all(axis=1)
    unheard = None
    if reading.listed is not None and missing == "half_min":
        unheard = _missing_votes(kernel, reading)
        scores = np.logaddexp(scores, unheard)
    if voteless.any():
        spare = np.zeros((np.count_nonzero(voteless), scores.shape[1]))
        if fallback != "uniform":
            own = kernel.log_own(reading.logits[voteless])
            if unheard is not None:
                # Labels beyond the list have less than those in it.
                known = np.where(np.isneginf(own), np.inf, own).min(axis=1)
                bound = np.minimum(unheard[voteless], known[:, None] - np.log(2.0))
                own = np.where(np.isneginf(own) & (known < np.inf)[:, None], bound, own)
            spare = np.where(np.isneginf(own).all(axis=1, keepdims=True), spare, own)
        scores[voteless] = spare
    return scores, voteless, silent


def _missing_votes(kernel, reading):
    """Return what labels without a listed token count, as logs; -inf for the others.

    Half of the smallest listed value, but together never more than the list leaves:
    after "yes" with .999 there is .001 for "no", not .4995.
    """
    absent = ~(reading.listed @ kernel.own)
    rest = -np.expm1(np.minimum(reading.listed_total - reading.total, 0.0))
    share = np.log(np.maximum(rest, _REST_FLOOR) / np.maximum(absent.sum(axis=1), 1))
    vote = np.minimum(reading.smallest - np.log(2.0), share + reading.total)
    return np.where(absent, vote[:, None], -np.inf)
