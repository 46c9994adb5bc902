"""Labels as tokens: single-token forms of words, token texts, class names."""

import reprlib
from collections import Counter
from collections.abc import Mapping, Sequence
from numbers import Integral, Real

import numpy as np
from sklearn.utils import assert_all_finite
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_consistent_length, column_or_1d

from sdm_sklearn._validation import checked_labels

_WORD_MARKS = ("Ġ", "▁", " ")


def find_label_tokens(labels, vocabulary):
    """Find all single-token surface forms of each label's word.

    A word is looked up with and without a leading space, as given, in lower case,
    capitalised and in upper case (" joy", "joy", " Joy", "JOY", ...). The model's
    next-token probabilities of all forms of a label add up to the label's own vote.

    Parameters
    ----------
    labels : list of str, or dict of class to str or list of str
        The words the prompt asks for. With a dict, a class may be any label and its
        words are what the prompt calls it.

    vocabulary : list of str, dict of str to int, or tokenizer
        Token texts by id, a mapping of token to id, or any object with a `get_vocab`
        method, as Hugging Face tokenizers have. Byte-level ("Ġjoy") and SentencePiece
        ("▁joy") spellings are understood.

    Returns
    -------
    label_token_ids : dict of class to list of int
        Token ids per class, as
        :class:`~sdm_sklearn.SemanticSoftmaxCalibrator` takes them.

    Raises
    ------
    ValueError
        If a label has no single-token form, or two labels share a token, or a word is
        no string.

    Examples
    --------
    >>> from sdm_sklearn import find_label_tokens
    >>> find_label_tokens(["joy", "fear"], ["Ġjoy", "Joy", "Ġof", "Ġfear", "ear"])
    {'joy': [0, 1], 'fear': [3]}
    """
    if hasattr(labels, "to_dict"):  # a pandas Series: its index names classes
        labels = labels.to_dict()
    elif isinstance(labels, np.ndarray):
        labels = labels.ravel().tolist()
    if not isinstance(labels, Mapping | list | tuple) or not labels:
        raise ValueError(
            "labels must be a list or dict of words. Got "
            f"{reprlib.repr(labels)} instead."
        )
    words: Mapping = {}
    if isinstance(labels, Mapping):
        words = labels
    else:
        twice = [word for word, count in Counter(labels).items() if count > 1]
        if twice:
            raise ValueError(
                f"labels must differ, but {twice[:10]!r} come more than once."
            )
        words = {word: word for word in labels}
    ids_of: dict[str, list[int]] = {}
    for token_id, text in enumerate(read_vocabulary(vocabulary)):
        ids_of.setdefault(text, []).append(token_id)

    found = {}
    for name, forms in words.items():
        forms = list(forms) if isinstance(forms, list | tuple) else [forms]
        texts = {form for word in forms for form in _surface_forms(word)}
        found[name] = sorted(i for text in texts for i in ids_of.get(text, ()))
    missing = [name for name, ids in found.items() if not ids]
    if missing:
        if len(words) > len(ids_of):
            raise ValueError(
                f"Got {len(words)} labels and a vocabulary of {len(ids_of)} token(s): "
                "are the arguments swapped? Call find_label_tokens(labels, vocabulary)."
            )
        shown = repr(missing[:10])
        if len(missing) > 10:
            shown = f"{shown[:-1]}, ... {len(missing)} in all]"
        raise ValueError(
            f"No single-token form of the label(s) {shown} is in the vocabulary. "
            "Let the prompt ask for another word, for example a shorter synonym or a "
            "letter that stands for the label, and pass {class: that word}."
        )
    refuse_shared_tokens(found)
    return found


def _surface_forms(word):
    bare = word.strip() if isinstance(word, str) else ""
    if not bare:
        raise ValueError(f"A label needs a word. Got {reprlib.repr(word)} instead.")
    cases = (bare, bare.lower(), bare.capitalize(), bare.upper())
    return {space + case for case in cases for space in ("", " ")}


def refuse_shared_tokens(ids_of_class):
    """Raise if one token id stands for two classes."""
    owner: dict[int, object] = {}
    for name, ids in ids_of_class.items():
        for token_id in ids:
            if owner.setdefault(token_id, name) != name:
                raise ValueError(
                    f"The labels {owner[token_id]!r} and {name!r} share the token id "
                    f"{token_id}: a token can speak for one label only. Let the "
                    "prompt use words that differ in their first token."
                )


def read_vocabulary(vocabulary):
    """Return the token texts by id, with real spaces instead of tokenizer marks.

    Parameters
    ----------
    vocabulary : list of str, dict of str to int, or object with `get_vocab`

    Returns
    -------
    texts : list of str
        An id without a token has the empty string.
    """
    if hasattr(vocabulary, "get_vocab"):
        vocabulary = vocabulary.get_vocab()
    texts = []
    if isinstance(vocabulary, Mapping):
        if all(isinstance(i, int | np.integer) and i >= 0 for i in vocabulary.values()):
            texts = [""] * (max(vocabulary.values(), default=-1) + 1)
            for text, token_id in vocabulary.items():
                texts[token_id] = text
    elif not isinstance(vocabulary, str) and (
        isinstance(vocabulary, Sequence) or hasattr(vocabulary, "tolist")
    ):
        texts = list(vocabulary)
    if not texts or not all(isinstance(text, str) for text in texts):
        raise ValueError(
            "vocabulary must hold the text of every token, as a list of str, a dict "
            "of token to id or a tokenizer with get_vocab. Got "
            f"{reprlib.repr(vocabulary)} instead."
        )
    marks = Counter(t[:1] for t in texts)
    mark = max(_WORD_MARKS, key=lambda m: marks[m])
    if not marks[mark]:  # plain words
        return texts
    if mark == "Ġ":
        byte_of = _byte_of_symbol()
        return [_decode_bytes(t, byte_of) for t in texts]
    return [t.replace("▁", " ") for t in texts] if mark == "▁" else texts


def describe_vocabulary(vocabulary):
    """Return a short text for the repr of a vocabulary of any kind."""
    size = f" of {len(vocabulary)} tokens" if hasattr(vocabulary, "__len__") else ""
    return f"<{type(vocabulary).__name__}{size}>"


def _byte_of_symbol():
    # Byte-level BPE writes each byte as one printable character: itself where it is
    # printable in Latin-1, else the next free code point from 256 on.
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    hidden = [b for b in range(256) if b not in printable]
    table = {chr(b): b for b in printable}
    return table | {chr(256 + i): b for i, b in enumerate(hidden)}


def _decode_bytes(token, byte_of):
    try:
        return bytes(byte_of[c] for c in token).decode("utf-8", "replace")
    except KeyError:  # an added token is written as plain text
        return token


def resolve_labels(label_token_ids, classes):
    """Return the sorted classes and each one's token ids.

    Parameters
    ----------
    label_token_ids : list of int or of list of int, or dict of class to these
    classes : array-like of shape (n_classes,) or None

    Returns
    -------
    classes : ndarray of shape (n_classes,), sorted
    token_ids : list of ndarray of int, in the order of `classes`
    given_sorted : bool
        Whether the labels were given in the order of `classes`.
    """
    for name, value in (("label_token_ids", label_token_ids), ("classes", classes)):
        if isinstance(value, set | frozenset):
            raise ValueError(
                f"{name} must have an order, which a set has not: pass a list or, for "
                "label_token_ids, a dict of class to token ids."
            )
    if hasattr(label_token_ids, "to_dict"):  # a pandas Series: its index names classes
        label_token_ids = label_token_ids.to_dict()
    if isinstance(label_token_ids, Mapping):
        if classes is not None:
            raise ValueError(
                "classes names the entries of a list, but label_token_ids is a dict "
                "that names its classes itself: pass one of the two."
            )
        names, groups = list(label_token_ids), list(label_token_ids.values())
    else:
        groups = list(label_token_ids)
        names = list(range(len(groups))) if classes is None else list(classes)
        if len(names) != len(groups):
            raise ValueError(
                f"classes names {len(names)} labels, but label_token_ids has "
                f"{len(groups)}: pass one name for each label."
            )
    if len(groups) < 2:
        raise ValueError(
            "label_token_ids must name at least two classes. Got "
            f"{len(groups)} class instead."
        )
    array = _class_array(names)
    ids_of = {
        name: _token_ids(name, group) for name, group in zip(names, groups, strict=True)
    }
    refuse_shared_tokens(ids_of)
    order = np.argsort(array, kind="stable")
    token_ids = [ids_of[names[i]] for i in order]
    return array[order], token_ids, bool((np.diff(order) > 0).all())


def _class_array(names):
    plain = [n.item() if isinstance(n, np.generic) else n for n in names]
    strings = [isinstance(n, str) for n in plain]
    numbers = [isinstance(n, Real) and n == n for n in plain]
    if not (all(strings) or all(numbers)):
        raise ValueError(
            "The classes must be all strings or all numbers, none of them NaN. Got "
            f"{reprlib.repr(plain)} instead."
        )
    array = np.asarray(plain)
    if len(np.unique(array)) < len(array):
        raise ValueError(f"The classes must differ. Got {reprlib.repr(plain)} instead.")
    return array


def _token_ids(name, group):
    ids = [group] if isinstance(group, Integral) else group
    try:
        ids = list(ids)
    except TypeError:
        ids = [ids]
    whole = [
        isinstance(i, Integral)
        and not isinstance(i, bool | np.bool_)
        and abs(int(i)) < 2**63
        for i in ids
    ]
    if not ids or isinstance(group, str) or not all(whole):
        raise ValueError(
            f"label_token_ids must give one or more integer token ids for each label. "
            f"Got {reprlib.repr(group)} for the label {name!r} instead; "
            "find_label_tokens turns words into ids."
        )
    return np.unique(np.asarray(ids, dtype=np.int64))


def refuse_bools(estimator, names):
    """Raise if a parameter that is a number is True or False."""
    for name in names:
        value = getattr(estimator, name)
        if isinstance(value, bool | np.bool_):
            raise ValueError(f"{name} must be a number. Got {value!r} instead.")


def encode_labels(X, y, classes):
    """Return the index in `classes` of each label, or name what is wrong with y.

    Parameters
    ----------
    X : ndarray, CSR or list of shape (n,)
    y : array-like of shape (n,)
    classes : ndarray of shape (n_classes,)

    Returns
    -------
    codes : ndarray of shape (n,), int
    """
    y = column_or_1d(checked_labels(y), warn=True)
    check_consistent_length(X, y)
    assert_all_finite(y, input_name="y")
    check_classification_targets(y)
    kind = type_of_target(y)
    if len(classes) == 2 and kind != "binary":
        raise ValueError(
            f"Only binary classification is supported. The type of the target is "
            f"{kind}, but label_token_ids stands for {classes.tolist()!r}."
        )
    code_of = {name: code for code, name in enumerate(classes.tolist())}
    labels = y.tolist()
    unknown = sorted({label for label in labels if label not in code_of}, key=str)
    if unknown:
        message = (
            f"y holds the label(s) {unknown[:10]!r}, which are not among the classes "
            f"{classes.tolist()!r} that label_token_ids stands for: name them with "
            "classes= or with a dict of class to ids."
        )
        if set(unknown) <= set(range(len(classes))):
            message += (
                " cross_val_predict passes codes 0, 1, ... to fit for probabilities: "
                "for it, name the classes so and encode y yourself."
            )
        raise ValueError(message)
    if len(set(labels)) < 2:
        raise ValueError(
            f"y holds one class only, {labels[0]!r}: calibration needs rows of at "
            f"least two of the classes {classes.tolist()!r}. Leave y out for zero-shot "
            "use."
        )
    return np.array([code_of[label] for label in labels], dtype=np.intp)
