"""Metrics for classifiers that may reject: coverage, accuracy, calibration, OOD."""

from ._calibration import classwise_calibration_error, expected_calibration_error
from ._ood import ood_fpr_at_tpr, ood_roc_auc_score
from ._report import selective_classification_report
from ._risk_coverage import augrc, aurc, excess_aurc, risk_coverage_curve
from ._scorers import (
    coverage_at_accuracy_scorer,
    coverage_scorer,
    neg_aurc_scorer,
    selective_accuracy_scorer,
    worst_conditional_accuracy_scorer,
)
from ._selective import (
    class_conditional_accuracy_score,
    coverage_score,
    prediction_conditional_accuracy_score,
    selective_accuracy_score,
    selective_risk,
    worst_conditional_accuracy_score,
)

__all__ = [
    "augrc",
    "aurc",
    "class_conditional_accuracy_score",
    "classwise_calibration_error",
    "coverage_at_accuracy_scorer",
    "coverage_score",
    "coverage_scorer",
    "excess_aurc",
    "expected_calibration_error",
    "neg_aurc_scorer",
    "ood_fpr_at_tpr",
    "ood_roc_auc_score",
    "prediction_conditional_accuracy_score",
    "risk_coverage_curve",
    "selective_accuracy_score",
    "selective_accuracy_scorer",
    "selective_classification_report",
    "selective_risk",
    "worst_conditional_accuracy_score",
    "worst_conditional_accuracy_scorer",
]
