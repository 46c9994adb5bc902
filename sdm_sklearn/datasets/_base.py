"""Loaders of the bundled embeddings."""

from importlib.resources import files

import numpy as np
from sklearn.utils import Bunch
from sklearn.utils._param_validation import validate_params


@validate_params(
    {"return_X_y": ["boolean"], "as_frame": ["boolean"]},
    prefer_skip_nested_validation=True,
)
def load_intents(*, return_X_y=False, as_frame=False):
    """Load banking queries, their intents, and queries out of scope.

    MiniLM embeddings of an excerpt of CLINC150 [1]_: the 15 intents of the banking
    domain, and the queries that belong to none of the 150 intents, as out-of-
    distribution data. Licence of the texts: CC BY 3.0, by Larson et al.

    =================   ==============
    Classes                         15
    Samples                   15 x 150
    Out-of-scope rows             1000
    Dimensionality                 384
    Features             real, float16
    =================   ==============

    Parameters
    ----------
    return_X_y : bool, default=False
        Whether to return ``(data, target)`` instead of a Bunch.

    as_frame : bool, default=False
        Whether the data are pandas objects, in float32.

    Returns
    -------
    data : :class:`~sklearn.utils.Bunch`
        With the attributes

        data : {ndarray, DataFrame} of shape (2250, 384), dtype=float16
            Embeddings of the in-scope queries.
        target : {ndarray, Series} of shape (2250,)
            Intent of each, a string.
        texts : ndarray of shape (2250,)
            The queries themselves.
        ood_data : {ndarray, DataFrame} of shape (1000, 384), dtype=float16
            Embeddings of the out-of-scope queries.
        ood_texts : ndarray of shape (1000,)
            The out-of-scope queries.
        feature_names : list of str
            Names of the columns.
        target_names : ndarray of shape (15,)
            The intents.
        frame : DataFrame of shape (2250, 385)
            Data and target. Only if `as_frame=True`.
        DESCR : str
            Origin, licence and how the embeddings were made.

    (data, target) : tuple if `return_X_y=True`
        The first two of these.

    References
    ----------
    .. [1] S. Larson et al., "An Evaluation Dataset for Intent Classification and
       Out-of-Scope Prediction", EMNLP-IJCNLP 2019.

    Examples
    --------
    >>> from sdm_sklearn.datasets import load_intents
    >>> intents = load_intents()
    >>> intents.data.shape, intents.ood_data.shape
    ((2250, 384), (1000, 384))
    >>> print(intents.target[0], "|", intents.texts[0])
    transfer | i need $20000 transferred from my savings to my checking
    """
    return _load("intents", return_X_y, as_frame)


@validate_params(
    {"return_X_y": ["boolean"], "as_frame": ["boolean"]},
    prefer_skip_nested_validation=True,
)
def load_true_false(*, return_X_y=False, as_frame=False):
    """Load short statements that are true or false.

    SmolLM2-135M-Instruct hidden states of an excerpt of the FACTCHECK statements
    [1]_, [2]_, with the 245 test statements of the SDM paper. A model of this size
    hardly knows the facts, so that an honest classifier abstains on most of them.
    Licence of the texts: MIT.

    =================   ==============
    Classes                          2
    Samples                        745
    Dimensionality                1152
    Features             real, float16
    =================   ==============

    Parameters
    ----------
    return_X_y : bool, default=False
        Whether to return ``(data, target)`` instead of a Bunch.

    as_frame : bool, default=False
        Whether the data are pandas objects, in float32.

    Returns
    -------
    data : :class:`~sklearn.utils.Bunch`
        With the attributes

        data : {ndarray, DataFrame} of shape (745, 1152), dtype=float16
            For each statement the mean of the final hidden states over the positions
            of the prompt, and the final hidden state of its last position.
        target : {ndarray, Series} of shape (745,), dtype=bool
            Whether the statement is true.
        texts : ndarray of shape (745,)
            The statements.
        split : ndarray of shape (745,)
            "fit", or "test" for the 245 test statements.
        feature_names : list of str
            Names of the columns.
        target_names : ndarray of shape (2,)
            The classes False and True.
        frame : DataFrame of shape (745, 1153)
            Data and target. Only if `as_frame=True`.
        DESCR : str
            Origin, licence and how the embeddings were made.

    (data, target) : tuple if `return_X_y=True`
        The first two of these.

    References
    ----------
    .. [1] A. Azaria and T. Mitchell, "The Internal State of an LLM Knows When It's
       Lying", Findings of EMNLP 2023.
    .. [2] B. A. Levinstein and D. A. Herrmann, "Still no lie detector for language
       models", Philosophical Studies, 2024.

    Examples
    --------
    >>> from sdm_sklearn.datasets import load_true_false
    >>> statements = load_true_false()
    >>> statements.data.shape
    (745, 1152)
    >>> print(statements.target[0], "|", statements.texts[0])
    False | Neptune has the calmest winds in the solar system.
    """
    return _load("true_false", return_X_y, as_frame)


def _load(name, return_X_y, as_frame):
    """Read `data/<name>.npz`; every array but data and target is passed on."""
    folder = files("sdm_sklearn.datasets")
    # NumPy wants a path, which a Traversable is where packages are folders.
    with np.load(folder / "data" / f"{name}.npz") as archive:  # type: ignore[arg-type]
        arrays = {key: archive[key] for key in archive.files}
    for key, value in arrays.items():
        if key.endswith("texts"):
            # Stored as one UTF-8 block: smaller than fixed-width strings.
            arrays[key] = np.array(value.tobytes().decode().split("\n"))
    arrays["target_names"], codes = arrays["target_names"], arrays.pop("target")
    arrays["target"] = arrays["target_names"][codes]
    feature_names = [f"embedding_{i}" for i in range(arrays["data"].shape[1])]
    frame = None
    if as_frame:
        import pandas

        for key in ("data", "ood_data"):
            if key in arrays:
                # pandas computes in the dtype it has, and float16 overflows soon.
                values = arrays[key].astype(np.float32)
                arrays[key] = pandas.DataFrame(values, columns=feature_names)
        arrays["target"] = pandas.Series(arrays["target"], name="target")
        frame = arrays["data"].assign(target=arrays["target"])
    if return_X_y:
        return arrays["data"], arrays["target"]
    return Bunch(
        **arrays,
        frame=frame,
        feature_names=feature_names,
        DESCR=(folder / "descr" / f"{name}.rst").read_text(encoding="utf-8"),
    )
