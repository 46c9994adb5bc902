"""The models of a fit, and the rule by which they answer together."""

from typing import NamedTuple

import numpy as np

from sdm_sklearn._certify import certify_thresholds, find_first_failure
from sdm_sklearn._evidence import (
    ThinEvidenceWarning,
    as_region,
    describe_missing_certificate,
    describe_thin_evidence,
    report_region,
    score_calibration,
    score_rows,
    tabulate_certificate,
)
from sdm_sklearn._model import SDMModel
from sdm_sklearn._region import NoRegionWarning, Rule, describe_missing_region


class Ensemble(NamedTuple):
    """What answers: the best model first, then the others that have to agree with it.

    A region of an ensemble is a list of one :class:`~sdm_sklearn._region.Region` for
    each model.
    """

    models: list[SDMModel]
    rule: Rule

    @property
    def best(self):
        return self.models[0]

    def measure(self, X):
        """Return what each model measures, the costly part."""
        return [model.measure(X) for model in self.models]

    def find_regions(self, alpha):
        """Find the region of every model.

        Returns
        -------
        regions : list of Region
        level : float or None
            Of each test of a certificate; None without ``guarantee="certified"``.
        """
        rule = self.rule
        if rule.guarantee == "paper":
            regions = [model.find_region(alpha, rule.region) for model in self.models]
            return regions, None
        thresholds, level = certify_thresholds(*self._tests(alpha))
        return [as_region(thresholds)] * len(self.models), level

    def _tests(self, alpha):
        """Return what a certificate at `alpha` rests on."""
        rule = self.rule
        certify_rows = score_rows(
            self.models,
            [model.certify_measured for model in self.models],
            self.best.certify[2],
            alpha,
            rule.conservative,
        )
        return (
            score_calibration(self.best),
            certify_rows,
            self.best.n_classes,
            alpha,
            rule.confidence,
            rule.region == "per_class",
        )

    def find_largest_alpha(self):
        """Return the largest alpha at which every model has a region, or NaN."""
        largest = [model.find_largest_alpha(self.rule.region) for model in self.models]
        return float(np.min(largest))

    def accept(self, measured, alpha, regions):
        """Tell which rows all models accept, and agree on."""
        accepted = [
            model.accept(values, region, alpha, self.rule.conservative)
            for model, values, region in zip(
                self.models, measured, regions, strict=True
            )
        ]
        return _agree(measured, accepted)

    def signals(self, measured, alpha, regions):
        """Turn what each model measured into the signals of the best one."""
        signals = [
            model.signals(values, region, alpha)
            for model, values, region in zip(
                self.models, measured, regions, strict=True
            )
        ]
        best = signals[0]
        for name in ("accepted", "lower_accepted"):
            best[name] = _agree(signals, [values[name] for values in signals])
        if self.rule.conservative:
            best.accepted = best.lower_accepted.copy()
        return best

    def describe(self, alpha, regions, level, classes):
        """Return the fitted attributes that tell of the regions.

        `level` is what `find_regions` returns beside them.
        """
        report = report_region(self.best, regions[0], classes)
        attributes = {
            "q_min_": float(regions[0].q_min.min()),
            "thresholds_": regions[0].thresholds.copy(),
            "region_report_": report | {"answered": all_answer(regions)},
        }
        if self.best.certify is not None:
            attributes["certificate_"] = self._certify(alpha, regions, level, classes)
        return attributes

    def _certify(self, alpha, regions, level, classes):
        """Tabulate what the certify rows say of the regions."""
        measured = [model.certify_measured for model in self.models]
        if level is None:
            # Of the paper's region, all bounds at once.
            level = (1 - self.rule.confidence) / (2 * len(classes))
        return tabulate_certificate(
            measured[0].prediction,
            self.best.certify[2],
            self.accept(measured, alpha, regions),
            classes,
            all_answer(regions),
            alpha,
            level,
        )

    def _answers_by_class(self, alpha):
        """Tell whether regions by class would answer any."""
        regions = [model.find_region(alpha, "per_class") for model in self.models]
        return bool(all_answer(regions).any())

    def find_fault(self, alpha, regions, largest_alpha, classes):
        """Say that a model has no region at `alpha`, or one on thin evidence.

        Returns
        -------
        message : str or None
        category : type of UserWarning
        """
        rule, certify = self.rule, self.best.certify
        joint = rule.region == "joint"
        if rule.guarantee == "certified":
            if regions[0].answered.any():
                return None, NoRegionWarning
            message = describe_missing_certificate(
                alpha,
                rule.confidence,
                np.bincount(certify[2], minlength=len(classes)),
                classes,
                joint,
                find_first_failure(*self._tests(alpha)),
            )
            return message, NoRegionWarning
        if all_answer(regions).any():
            message = describe_thin_evidence(
                self.best, regions[0], alpha, rule.confidence
            )
            return message, ThinEvidenceWarning
        if all(region.answered.any() for region in regions):
            return (
                f"The models of the ensemble answer no class in common at "
                f"alpha={alpha:g}: every row will be rejected. Pass ensemble=False for "
                "the best one alone, lower alpha, or give every split more rows of "
                "every class."
            ), NoRegionWarning
        message = describe_missing_region(
            alpha,
            largest_alpha,
            self.best.calibration[2],
            classes,
            joint and self._answers_by_class(alpha),
            0 if certify is None else len(certify[2]),
        )
        return message, NoRegionWarning


def all_answer(regions):
    """Tell which classes every model answers."""
    return np.logical_and.reduce([region.answered for region in regions])


def _agree(predicted, accepted):
    """Return what all models accept and predict alike."""
    codes = predicted[0].prediction
    alike = [values.prediction == codes for values in predicted]
    return np.logical_and.reduce([*accepted, *alike])
