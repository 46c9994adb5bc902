"""How well a score tells in-distribution from out-of-distribution rows."""

from numbers import Real

import numpy as np
from sklearn.metrics import roc_auc_score
from sklearn.utils._param_validation import Interval, validate_params

from ._checks import check_real

_SCORES = {"scores_in": ["array-like"], "scores_ood": ["array-like"]}


@validate_params(_SCORES, prefer_skip_nested_validation=True)
def ood_roc_auc_score(scores_in, scores_ood):
    """Compute the AUROC for telling in-distribution from out-of-distribution rows.

    The chance that an in-distribution row scores higher than an out-of-distribution
    row, ties counting one half.

    Parameters
    ----------
    scores_in : array-like of shape (n_in,)
        Scores of in-distribution rows, higher for more in-distribution, as from
        `score_samples`.

    scores_ood : array-like of shape (n_ood,)
        Scores of out-of-distribution rows.

    Returns
    -------
    auroc : float
        Between 0 and 1, higher is better.

    Raises
    ------
    ValueError
        If one of them is empty or not finite.

    See Also
    --------
    ood_fpr_at_tpr : What slips through at one threshold.

    Examples
    --------
    >>> from sdm_sklearn.metrics import ood_roc_auc_score
    >>> ood_roc_auc_score([3, 4, 5], [1, 2, 3])
    0.944...
    """
    scores_in = check_real(scores_in, "scores_in")
    scores_ood = check_real(scores_ood, "scores_ood")
    is_in = np.repeat([True, False], [len(scores_in), len(scores_ood)])
    return float(roc_auc_score(is_in, np.concatenate([scores_in, scores_ood])))


@validate_params(
    {**_SCORES, "tpr": [Interval(Real, 0, 1, closed="right")]},
    prefer_skip_nested_validation=True,
)
def ood_fpr_at_tpr(scores_in, scores_ood, *, tpr=0.95):
    """Compute the share of OOD rows that pass where `tpr` of the others do.

    The threshold is the highest at which at least the share `tpr` of the
    in-distribution rows reaches it [1]_.

    Parameters
    ----------
    scores_in : array-like of shape (n_in,)
        Scores of in-distribution rows, higher for more in-distribution, as from
        `score_samples`.

    scores_ood : array-like of shape (n_ood,)
        Scores of out-of-distribution rows.

    tpr : float in (0, 1], default=0.95
        Share of the in-distribution rows to let through.

    Returns
    -------
    fpr : float
        Between 0 and 1, lower is better.

    Raises
    ------
    ValueError
        If one of them is empty or not finite.

    References
    ----------
    .. [1] S. Liang, Y. Li and R. Srikant, "Enhancing The Reliability of
       Out-of-distribution Image Detection in Neural Networks", ICLR 2018,
       arXiv:1706.02690.

    Examples
    --------
    >>> from sdm_sklearn.metrics import ood_fpr_at_tpr
    >>> ood_fpr_at_tpr([3, 4, 5, 6], [1, 2, 3, 4], tpr=0.75)
    0.25
    """
    scores_in = check_real(scores_in, "scores_in")
    scores_ood = check_real(scores_ood, "scores_ood")
    descending = np.sort(scores_in)[::-1]
    passing = np.arange(1, len(descending) + 1) / len(descending)
    threshold = descending[np.searchsorted(passing, tpr)]
    return float(np.mean(scores_ood >= threshold))
