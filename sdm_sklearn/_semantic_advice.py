"""What a semantic softmax calibrator warns of, and the way out of it."""

import reprlib
import warnings

import numpy as np

from sdm_sklearn._semantic_calibration import highest_bound

# Two labels more alike than this take each other's votes, as antonyms do.
_TOO_SIMILAR = 0.5
# In a vocabulary this large, words alike in meaning are a smaller share than this.
_LARGE, _CROWD = 1000, 0.05
# The mean of fewer predictions than this for each class says little of class shares.
_ROWS_PER_CLASS = 5
# Lists are looked up in vain this often by chance, not by a mistake.
_SILENT = 0.5
# Sorted similarities of many neighbours come down to the threshold in small steps: a
# last one of so many mean spacings says that rows were cut off above it.
_MANY, _STEPS = 30, 10


def _warn(message, stacklevel):
    # Two frames are this function and its caller.
    warnings.warn(message, UserWarning, stacklevel=stacklevel + 2)


def warn_weak_kernel(neighbors, similarity, geometry, output, stacklevel):
    """Warn of labels without neighbours and of labels whose votes mix."""
    whiten = ["geometry='whitened'"] if geometry != "whitened" else []
    lonely = [name for name, table in neighbors.items() if not len(table.token_ids)]
    if lonely:
        ways = [*whiten, "a lower similarity_threshold", "label words with synonyms"]
        n_tokens, width = output.shape
        if geometry == "whitened" and n_tokens <= width and not output.partial:
            # Each token then has a direction of its own and all are orthogonal.
            ways = [
                f"all rows of the output embeddings (these {n_tokens} of width {width} "
                "cannot be whitened by themselves)",
                "OutputEmbeddings with the moments of all rows",
                "geometry='centered'",
            ]
        _warn(
            f"{len(lonely)} of {len(neighbors)} labels have no neighbour "
            f"({lonely[:10]!r}): for them this equals constrained softmax. Try "
            f"{_either(ways)}.",
            stacklevel,
        )
    names = list(neighbors)
    pairs = np.argwhere(np.triu(similarity > _TOO_SIMILAR, k=1))
    if len(pairs):
        named = [(names[a], names[b], float(similarity[a, b])) for a, b in pairs[:5]]
        shown = ", ".join(f"{a!r} and {b!r} ({s:.2f})" for a, b, s in named)
        ways = [*whiten, "a higher similarity_threshold", "other label words"]
        _warn(
            f"{len(pairs)} pair(s) of labels are more similar than {_TOO_SIMILAR}: "
            f"{shown}. Neighbours may vote for the wrong one, as with antonyms. Try "
            f"{_either(ways)}.",
            stacklevel,
        )


def _either(ways):
    return ", ".join(ways[:-1]) + f", or {ways[-1]}"


def warn_chance_votes(n_voters, n_words, output, threshold, stacklevel):
    """Warn if so many tokens vote that their similarity must be chance."""
    if output.partial or n_words < _LARGE or n_voters <= _CROWD * n_words:
        return
    width = output.shape[1]
    # Cosines of random directions have the deviation 1 / sqrt(width).
    beyond_chance = min(4 / np.sqrt(width), 0.9)
    if threshold >= beyond_chance:
        return
    _warn(
        f"{n_voters} of {n_words} tokens ({n_voters / n_words:.0%}) vote: in {width} "
        f"dimensions, similarity_threshold={threshold:g} is reached by chance. Try "
        f"about {beyond_chance:.2f}, and look at neighbors_.",
        stacklevel,
    )


def warn_cut_kernel(kernel, output, geometry, threshold, stacklevel):
    """Warn if a kernel asks for tokens that partial embeddings may lack."""
    if not output.partial:
        return
    found = kernel.similarity[~kernel.is_label].max(axis=1)
    gap = 0.0
    if len(kernel.token_ids) == output.shape[0] and len(found) >= _MANY:
        lowest = found.min()
        spacing = (np.median(found) - lowest) / len(found)
        gap = lowest - threshold - _STEPS * spacing
    if geometry != "whitened" or gap > 0:
        _warn(
            f"output_embeddings holds only {output.shape[0]} tokens, those of one "
            f"geometry and threshold. With geometry={geometry!r} and "
            f"similarity_threshold={threshold:g} others may have a vote, too, and are "
            "missing. Pass the whole matrix, or a threshold no lower than "
            "the one the rows were chosen with.",
            stacklevel,
        )


def warn_silent_rows(silent, X, kernel, names, at_fit, stacklevel):
    """Warn if no token that votes occurs in all rows, or in most of those of fit."""
    share = silent.mean()
    if share < 1 and not (at_fit and share > _SILENT):
        return
    row = int(np.argmax(silent))
    listed = ""
    if isinstance(X, list):
        listed = f" Row {row} lists {reprlib.repr(list(X[row]))}."
    own_first = names[np.argsort(~kernel.is_label, kind="stable")].tolist()
    _warn(
        f"In {np.count_nonzero(silent)} of {len(silent)} rows of X no token that votes "
        f"occurs, so that they say nothing of the labels. Voting tokens are "
        f"{reprlib.repr(own_first)}.{listed} Ids must be int, texts must be spelt as "
        "in the vocabulary, and the labels need all surface forms that occur "
        "(find_label_tokens).",
        stacklevel,
    )


def warn_few_rows(n_rows, n_labels, stacklevel):
    """Warn if a prior is matched on a handful of rows."""
    if n_rows < _ROWS_PER_CLASS * n_labels:
        _warn(
            f"prior is matched to the mean prediction on {n_rows} row(s) of X, fewer "
            f"than {_ROWS_PER_CLASS} for each of the {n_labels} classes: the "
            "correction is mostly chance. Pass more rows to fit; they need no labels.",
            stacklevel,
        )


def warn_absent_classes(codes, classes, stacklevel):
    """Warn of classes without a label in y."""
    absent = np.setdiff1d(np.arange(len(classes)), codes)
    if len(absent):
        _warn(
            f"y holds no row of the class(es) {classes[absent[:10]].tolist()!r}: the "
            "calibration takes them for rare. Pass labelled rows of all classes, or "
            "calibration=None.",
            stacklevel,
        )


def warn_no_labels(stacklevel):
    """Warn that a threshold learnt without y promises nothing."""
    _warn(
        "fit saw no y: the probability is compared with alpha, which promises no "
        "accuracy. Call fit(X, y) with labelled rows to certify a threshold.",
        stacklevel,
    )


def warn_uncertified(alpha, confidence, correct, stacklevel):
    """Warn that every row is rejected, and say which alpha could be certified."""
    accuracy = f"{correct.mean():.2f}" if len(correct) else "undefined"
    best = highest_bound(confidence, correct)
    within = f"alpha={best:g} or lower" if best > 0.5 else "no alpha above 1/2"
    _warn(
        f"No threshold certifies an accuracy of alpha={alpha:g} on the {len(correct)} "
        f"labelled rows of fit (accuracy without rejection {accuracy}): every row is "
        f"rejected. These rows can certify {within}; pass more labelled rows for a "
        "higher one.",
        stacklevel,
    )
