"""Displays: what a selective classifier accepts, what it costs, and why."""

from ._alpha import AlphaDisplay
from ._exemplar_card import ExemplarCardDisplay
from ._reliability import ReliabilityDisplay
from ._risk_coverage import RiskCoverageDisplay
from ._similarity_distance import SimilarityDistanceDisplay

__all__ = [
    "AlphaDisplay",
    "ExemplarCardDisplay",
    "ReliabilityDisplay",
    "RiskCoverageDisplay",
    "SimilarityDistanceDisplay",
]
