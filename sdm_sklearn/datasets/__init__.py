"""Small bundled sets of real language-model embeddings."""

from sdm_sklearn.datasets._base import load_intents, load_true_false

__all__ = ["load_intents", "load_true_false"]
