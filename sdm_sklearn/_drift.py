"""Do incoming rows still look like rows that the model was calibrated on?"""

import numpy as np
from scipy.stats import fisher_exact, ks_2samp
from sklearn.utils import Bunch

from sdm_sklearn._ensemble import Ensemble

_N_TESTS = 3


class DriftMixin:
    """`drift` for :class:`~sdm_sklearn.SDMClassifier`."""

    def drift(self, X, *, reference=None):
        """Test whether rows look like calibration rows, without labels.

        The similarity q and the distance d of the rows are compared with those of the
        reference by a Kolmogorov-Smirnov test each, and the share of accepted rows by
        Fisher's exact test. The tests tell that something has changed, the classes'
        shares included, and not what. They cost little beyond :meth:`signals`.

        Calibration rows have chosen the epoch and the region, so that they look a
        little better than new rows of the same kind. With few rows in a class this is
        seen as drift, above all in the accepted share: then give a reference. The user
        guide has :ref:`measured error rates and power <drift>`.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Embeddings that came in, such as those of the last day; some hundreds tell
            more than some dozens.

        reference : array-like of shape (n_reference, n_features), default=None
            Embeddings to compare with, that `fit` has not seen, such as those of the
            first week of operation. None takes the calibration half of `fit`.

        Returns
        -------
        result : Bunch
            - `pvalue`: the smallest of the three p-values times 3, at most 1
              (Bonferroni): the chance of a difference this large in any signal if
              nothing has changed.
            - `similarity`, `distance`: each a Bunch of `statistic`, the largest
              difference between the two distribution functions, `pvalue`, `mean` and
              `reference_mean`.
            - `accepted`: a Bunch of `statistic`, the difference of the shares,
              `pvalue`, `mean` and `reference_mean`.

            With ``ensemble=True`` all are those of the best model alone, as each member
            has its own calibration half.

        Raises
        ------
        ValueError
            If there are fewer than 2 rows to compare, none at all (X is None), or they
            do not fit the model.

        See Also
        --------
        signals : The signals of each row.

        Examples
        --------
        >>> from sdm_sklearn import SDMClassifier
        >>> from sklearn.datasets import make_blobs
        >>> X, y = make_blobs(1000, centers=3, n_features=16, random_state=0)
        >>> clf = SDMClassifier(alpha=0.9, max_epochs=50, random_state=0)
        >>> clf = clf.fit(X[:600], y[:600])
        >>> clf.drift(X[600:]).pvalue > 0.05
        True
        >>> bool(clf.drift(X[600:] + 3).pvalue < 1e-6)
        True
        """
        if X is None:
            raise ValueError("drift needs the rows that came in. Got X=None.")
        new, old = _measure(self, X), _measure(self, reference)
        result = Bunch(
            similarity=_compare_values(new.similarity, old.similarity),
            distance=_compare_values(new.distance, old.distance),
            accepted=_compare_shares(new.accepted, old.accepted),
        )
        smallest = min(part.pvalue for part in result.values())
        result.pvalue = min(1.0, _N_TESTS * smallest)
        return result


def _measure(estimator, X):
    """Return what the best model finds of some rows, None for its calibration half."""
    model = estimator._model
    if X is None:
        measured = model.recall_calibration()
    else:
        X = estimator._check_X(X)
        if len(X) < 2:
            raise ValueError(
                "drift compares distributions and needs at least 2 rows, better some "
                f"hundreds. Got {len(X)}."
            )
        measured = model.measure(X)
    alone = Ensemble([model], estimator._rule)
    measured.accepted = alone.accept(
        [measured], estimator._alpha, estimator._regions[:1]
    )
    return measured


def _compare_values(new, old):
    # The exact distribution knows no ties either, and takes long for many rows.
    test = ks_2samp(new, old, method="asymp")
    return _result(test.statistic, test.pvalue, new, old)


def _compare_shares(new, old):
    table = [[np.sum(rows), np.sum(~rows)] for rows in (new, old)]
    return _result(new.mean() - old.mean(), fisher_exact(table).pvalue, new, old)


def _result(statistic, pvalue, new, old):
    return Bunch(
        statistic=float(statistic),
        pvalue=float(pvalue),
        mean=float(new.mean()),
        reference_mean=float(old.mean()),
    )
