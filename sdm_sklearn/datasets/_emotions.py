"""Loader of the emotions: hidden states with the output embeddings they need."""

import numpy as np
from sklearn.utils._param_validation import validate_params

from sdm_sklearn._semantic_embeddings import OutputEmbeddings
from sdm_sklearn._semantic_labels import find_label_tokens
from sdm_sklearn.datasets._base import _load


@validate_params(
    {"return_X_y": ["boolean"], "as_frame": ["boolean"]},
    prefer_skip_nested_validation=True,
)
def load_emotions(*, return_X_y=False, as_frame=False):
    """Load comments, their emotions and a language model's zero-shot hidden states.

    An excerpt of GoEmotions [1]_. SmolLM2-135M-Instruct was asked which emotion the
    author of a comment is feeling, in one word of its own choice. A row of `data` is
    its hidden state before that word, which
    :class:`~sdm_sklearn.SemanticSoftmaxCalibrator` turns into label probabilities.
    Licence of the texts: Apache-2.0.

    =================   ==============
    Classes                          7
    Samples                       1000
    Dimensionality                 576
    Features             real, float16
    =================   ==============

    Parameters
    ----------
    return_X_y : bool, default=False
        Whether to return ``(data, target)`` instead of a Bunch.

    as_frame : bool, default=False
        Whether the data are pandas objects.

    Returns
    -------
    data : :class:`~sklearn.utils.Bunch`
        With the attributes

        data : {ndarray, DataFrame} of shape (1000, 576), dtype=float16
            Last hidden states, after the final norm.
        target : {ndarray, Series} of shape (1000,)
            Emotion of each comment, a string.
        texts : ndarray of shape (1000,)
            The comments.
        natural : ndarray of shape (1000,), dtype=bool
            The rows that keep the natural class shares; the others add to rare classes.
        content_free_data : ndarray of shape (3, 576), dtype=float16
            Hidden states for "N/A", "[MASK]" and "..." in place of a comment.
        output_embeddings : OutputEmbeddings
            The rows of the model's output embeddings that the default kernel needs
            (297 of 49,152), with the moments of all rows. A lower threshold or another
            geometry would need other rows, and `captured_mass` and `top_k` all of them:
            the first is warned of, the others are refused.
        vocabulary : list of str
            Text of each row of `output_embeddings`.
        label_token_ids : dict of str to list of int
            Rows of `output_embeddings` that are forms of each class's name.
        feature_names : list of str
            Names of the columns.
        target_names : ndarray of shape (7,)
            The classes.
        frame : DataFrame of shape (1000, 577)
            Data and target. Only if `as_frame=True`.
        DESCR : str
            Origin, licence and how the hidden states were made.

    (data, target) : tuple if `return_X_y=True`
        The first two of these.

    References
    ----------
    .. [1] D. Demszky et al., "GoEmotions: A Dataset of Fine-Grained Emotions", ACL
       2020.

    Examples
    --------
    >>> from sdm_sklearn import SemanticSoftmaxCalibrator
    >>> from sdm_sklearn.datasets import load_emotions
    >>> emotions = load_emotions()
    >>> cal = SemanticSoftmaxCalibrator(
    ...     emotions.label_token_ids,
    ...     emotions.output_embeddings,
    ...     vocabulary=emotions.vocabulary,
    ... ).fit(emotions.data)
    >>> cal.neighbors_["joy"].tokens[:4].tolist()
    [' joyful', ' joys', ' joyous', ' pleasure']
    """
    bunch = _load("emotions", return_X_y, as_frame)
    if return_X_y:
        return bunch
    blocks, scales = bunch.pop("token_blocks"), bunch.pop("token_scales")
    rows = blocks * scales[:, :, None].astype(np.float32)
    mean = bunch.pop("embedding_mean").astype(np.float64)
    deviation = bunch.pop("embedding_deviation").astype(np.float64)
    correlation = np.zeros((len(mean), len(mean)))
    upper = np.triu_indices(len(mean), 1)
    correlation[upper] = bunch.pop("embedding_correlation")
    correlation += correlation.T + np.eye(len(mean))
    covariance = correlation * np.outer(deviation, deviation)
    bunch.output_embeddings = OutputEmbeddings(
        rows.reshape(len(rows), -1), moments=(mean, covariance)
    )
    bunch.vocabulary = bunch.pop("token_texts").tolist()
    bunch.label_token_ids = find_label_tokens(
        bunch.target_names.tolist(), bunch.vocabulary
    )
    return bunch
