"""scikit-learn's own estimator checks."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from sdm_sklearn import SDMClassifier


# The checks fit on a few dozen rows, where no region can exist, or one on thin
# evidence; the warnings that say so have tests of their own.
@pytest.mark.filterwarnings("ignore::sdm_sklearn._region.NoRegionWarning")
@pytest.mark.filterwarnings("ignore::sdm_sklearn._evidence.ThinEvidenceWarning")
@parametrize_with_checks(
    [
        SDMClassifier(n_restarts=1, max_epochs=20, random_state=0),
        SDMClassifier(
            max_epochs=20,
            n_restarts=2,
            ensemble=True,
            conservative=True,
            random_state=0,
        ),
        SDMClassifier(
            alpha=0.6,
            region="per_class",
            guarantee="certified",
            certify_size=0.1,
            n_restarts=1,
            max_epochs=20,
            random_state=0,
        ),
    ]
)
def test_estimator_checks(estimator, check):
    check(estimator)
