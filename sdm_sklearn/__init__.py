"""Selective classification on precomputed language-model embeddings.

Names are loaded on first use (PEP 562), so that importing the package costs
nothing and never imports torch, pynndescent or matplotlib.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_MODULE_OF = {
    "ModelFileError": "_container",
    "NoRegionWarning": "_region",
    "OutputEmbeddings": "_semantic_embeddings",
    "SDMClassifier": "_classifier",
    "SelectiveThresholdCV": "_threshold_cv",
    "SemanticSoftmaxCalibrator": "_semantic_softmax",
    "ThinEvidenceWarning": "_evidence",
    "find_label_tokens": "_semantic_labels",
    "predict_selective": "_selective",
    "read_top_logprobs": "_semantic_inputs",
}
_SUBMODULES = ("activation", "attention", "datasets", "metrics", "plotting")

__all__ = [*sorted(_MODULE_OF), "__version__", *_SUBMODULES]


def __getattr__(name: str) -> Any:
    if name in _MODULE_OF:
        value = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    elif name in _SUBMODULES:
        value = import_module(f"{__name__}.{name}")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
