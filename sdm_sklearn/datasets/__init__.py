"""Small bundled sets of real language-model embeddings."""

from sdm_sklearn.datasets._base import load_intents, load_true_false
from sdm_sklearn.datasets._emotions import load_emotions

__all__ = ["load_emotions", "load_intents", "load_true_false"]
