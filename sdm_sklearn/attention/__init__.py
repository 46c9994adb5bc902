"""Scaled Signed Averaging (SSA) attention for torch.

SSA [1]_ replaces the softmax of attention scores by weights that grow as a power of the
score, not exponentially, so that one extreme score does not silence the others.

:mod:`sdm_sklearn.attention.huggingface` brings it to models of the transformers library
and is imported only on request.

References
----------
.. [1] "Scaled Signed Averaging", arXiv:2508.14685.
"""

from sdm_sklearn.attention._functional import (
    ssa_attention,
    ssa_transform,
    ssa_weights,
)
from sdm_sklearn.attention._modules import SSA, SSAParameters, ssa_parameter_groups
from sdm_sklearn.attention._multihead import SSAMultiheadAttention, convert_to_ssa

__all__ = [
    "SSA",
    "SSAMultiheadAttention",
    "SSAParameters",
    "convert_to_ssa",
    "ssa_attention",
    "ssa_parameter_groups",
    "ssa_transform",
    "ssa_weights",
]
