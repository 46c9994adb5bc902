"""Metrics for classifiers that may reject: coverage, accuracy, calibration, OOD."""

from ._calibration import classwise_calibration_error, expected_calibration_error
from ._ood import ood_fpr_at_tpr, ood_roc_auc_score
from ._report import selective_classification_report
from ._risk_coverage import augrc, aurc, excess_aurc, risk_coverage_curve
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
    "coverage_score",
    "excess_aurc",
    "expected_calibration_error",
    "ood_fpr_at_tpr",
    "ood_roc_auc_score",
    "prediction_conditional_accuracy_score",
    "risk_coverage_curve",
    "selective_accuracy_score",
    "selective_classification_report",
    "selective_risk",
    "worst_conditional_accuracy_score",
]
