"""Trainable n and b, kept in their range, and SSA of scores as a module."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from sdm_sklearn.attention._functional import ssa_weights

# With n = 128 and b = 1 / n, SSA differs from softmax by a factor of at most
# exp(s ** 2 / 256) for scores up to s.
_SOFTMAX_N = 128.0

# exp(20) = 5e8: no optimiser step can push n or b out of what float32 can hold.
_RHO_LIMIT = 20.0


class SSAParameters(nn.Module):
    r"""The exponent n and the scale b of SSA, one of each per head.

    The trained parameters are ``rho_n`` and ``rho_b`` with
    :math:`n = 1 + e^{\rho_n}` and :math:`b = e^{\rho_b}`, so that every step of an
    optimiser leaves n >= 1 and b > 0 ([1]_, Section 5). They stay in float32 (or
    float64) when the model is cast to half precision, where small steps would be
    lost. On leaving the meta device they take their initial values. Leave them out of
    weight decay: see :func:`ssa_parameter_groups`.

    Parameters
    ----------
    num_heads : int
        H, the number of heads.
    n_init : float, default=1.5
        Initial exponent, above 1 (or 1 if it is not learnt).
    b_init : float, default=0.8
        Initial scale, above 0.
    learn_n, learn_b : bool, default=True
        Whether n and b are trained. Otherwise they are buffers, under the same names.
    init : None or "softmax", default=None
        "softmax" starts at n = 128, b = 1 / 128 in place of ``n_init`` and ``b_init``,
        where SSA is close to softmax: for models trained with softmax.
    device : torch.device or str or None, default=None
        Where the parameters are created.

    Attributes
    ----------
    n : Tensor of shape (H,)
        The exponents in use.
    b : Tensor of shape (H,)
        The scales in use.

    Raises
    ------
    ValueError
        If a value is out of its range.

    References
    ----------
    .. [1] "Scaled Signed Averaging", arXiv:2508.14685.

    Examples
    --------
    >>> from sdm_sklearn.attention import SSAParameters
    >>> SSAParameters(2).n
    tensor([1.5000, 1.5000], grad_fn=<AddBackward0>)
    """

    rho_n: Tensor
    rho_b: Tensor

    # Set by models that want the weights of one forward pass.
    return_weights = False

    def __init__(
        self,
        num_heads: int,
        n_init: float = 1.5,
        b_init: float = 0.8,
        learn_n: bool = True,
        learn_b: bool = True,
        init: str | None = None,
        device: Any = None,
    ):
        super().__init__()
        if num_heads < 1:
            raise ValueError(f"'num_heads' must be at least 1. Got {num_heads!r}.")
        if init not in (None, "softmax"):
            raise ValueError(f"'init' must be None or 'softmax'. Got {init!r}.")
        if init == "softmax":
            n_init, b_init = _SOFTMAX_N, 1 / _SOFTMAX_N
        if not (n_init > 1 or (n_init == 1 and not learn_n)) or math.isinf(n_init):
            raise ValueError(
                "'n_init' must be above 1 (or equal to it with learn_n=False). "
                f"Got {n_init!r}."
            )
        if not 0 < b_init < math.inf:
            raise ValueError(f"'b_init' must be positive. Got {b_init!r}.")
        rho_n = math.log(n_init - 1) if n_init > 1 else -_RHO_LIMIT
        self._initial = {"rho_n": rho_n, "rho_b": math.log(b_init)}
        for name, learn in (("n", learn_n), ("b", learn_b)):
            rho = self._initial[f"rho_{name}"]
            if abs(rho) > _RHO_LIMIT:
                raise ValueError(
                    f"'{name}_init' must not be further than a factor of 5e8 from 1. "
                    f"Got {n_init if name == 'n' else b_init!r}."
                )
            start = torch.full((num_heads,), rho, dtype=torch.float32, device=device)
            if learn:
                self.register_parameter(f"rho_{name}", nn.Parameter(start))
            else:
                self.register_buffer(f"rho_{name}", start)

    @property
    def n(self) -> Tensor:
        return 1 + _bounded(self.rho_n).exp()

    @property
    def b(self) -> Tensor:
        return _bounded(self.rho_b).exp()

    def reset_parameters(self) -> None:
        """Set n and b to their initial values."""
        for name, rho in self._tensors().items():
            nn.init.constant_(rho, self._initial[name])

    def extra_repr(self) -> str:
        learnt = [name for name in ("n", "b") if f"rho_{name}" in self._parameters]
        return f"num_heads={len(self.rho_n)}, learnt={learnt}"

    def _tensors(self) -> dict[str, Tensor]:
        return {"rho_n": self.rho_n, "rho_b": self.rho_b}

    def _apply(self, fn: Any, recurse: bool = True) -> "SSAParameters":
        # .half() and .to(bfloat16) must not round the parameters, not even once.
        before = {name: rho.detach() for name, rho in self._tensors().items()}
        super()._apply(fn, recurse)
        for name, rho in self._tensors().items():
            if rho.dtype in (torch.float16, torch.bfloat16):
                rho.data = before[name].to(rho.device)
                if rho.grad is not None:
                    rho.grad.data = rho.grad.data.to(before[name].dtype)
            if before[name].is_meta and not rho.is_meta:
                nn.init.constant_(rho, self._initial[name])
        return self

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        self._complete(state_dict, prefix, "cpu")
        for name in self._tensors():
            # With assign=True the loaded tensors take the place of the parameters.
            rho = state_dict.get(prefix + name)
            if rho is not None and rho.dtype in (torch.float16, torch.bfloat16):
                state_dict[prefix + name] = rho.float()
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def _complete(self, state_dict: dict[str, Any], prefix: str, device: Any) -> None:
        """Give a softmax checkpoint n and b, so that strict loading keeps them."""
        if any(key.startswith(prefix) for key in state_dict):
            return
        for name, rho in self._tensors().items():
            rho = rho.detach()
            if rho.is_meta:
                rho = torch.full_like(rho, self._initial[name], device=device)
            state_dict[prefix + name] = rho


class SSA(nn.Module):
    """Scaled Signed Averaging of scores with trainable n and b.

    Parameters
    ----------
    dim : int, default=-1
        Dimension along which the weights sum to 1.
    n_init, b_init : float, default=1.5, 0.8
        Initial values; see :class:`SSAParameters`.
    learn_n, learn_b : bool, default=True
        Whether they are trained.
    init : None or "softmax", default=None
        "softmax" starts close to softmax instead.

    See Also
    --------
    ssa_weights : The function.

    Examples
    --------
    >>> import torch
    >>> from sdm_sklearn.attention import SSA
    >>> SSA(n_init=2.0, b_init=1.0)(torch.tensor([1.0, 0.0, 0.0])).round(decimals=4)
    tensor([0.6667, 0.1667, 0.1667], grad_fn=<RoundBackward1>)
    """

    def __init__(
        self,
        dim: int = -1,
        n_init: float = 1.5,
        b_init: float = 0.8,
        learn_n: bool = True,
        learn_b: bool = True,
        init: str | None = None,
    ):
        super().__init__()
        self.dim = dim
        self.ssa = SSAParameters(1, n_init, b_init, learn_n, learn_b, init)

    def forward(self, scores: Tensor, mask: Tensor | None = None) -> Tensor:
        """Compute the weights of scores.

        Parameters
        ----------
        scores : Tensor of any shape
            The scores.
        mask : Tensor broadcastable to ``scores``, or None
            As for :func:`ssa_weights`.

        Returns
        -------
        Tensor
            Weights of the shape and dtype of ``scores``.
        """
        n, b = self.ssa.n[0], self.ssa.b[0]
        return ssa_weights(scores, n, b, mask=mask, dim=self.dim)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


def ssa_parameter_groups(model: nn.Module, **options: Any) -> list[dict[str, Any]]:
    """Split a model's parameters so that n and b are not decayed.

    Weight decay would pull them to n = 2 and b = 1, whatever the data say.

    Parameters
    ----------
    model : nn.Module
        A model, with or without SSA attention.
    **options : dict
        Options of the group of all other parameters, such as ``weight_decay``.

    Returns
    -------
    list of dict
        For a ``torch.optim`` optimiser: the other parameters with ``options``, and
        those of every :class:`SSAParameters` with ``options`` and a weight decay of 0.

    Examples
    --------
    >>> import torch
    >>> from sdm_sklearn.attention import SSAMultiheadAttention, ssa_parameter_groups
    >>> groups = ssa_parameter_groups(SSAMultiheadAttention(8, 2), weight_decay=0.1)
    >>> [(len(g["params"]), g["weight_decay"]) for g in groups]
    [(4, 0.1), (2, 0.0)]
    >>> optimiser = torch.optim.AdamW(groups, lr=1e-3)
    """
    chosen = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, SSAParameters)
        for parameter in module.parameters()
    }
    parameters = list(model.parameters())
    others = [p for p in parameters if id(p) not in chosen]
    undecayed = [p for p in parameters if id(p) in chosen]
    return [
        {**options, "params": others},
        {**options, "params": undecayed, "weight_decay": 0.0},
    ]


def _bounded(rho: Tensor) -> Tensor:
    """Clamp, with a gradient of 1 also beyond the limit, so that n and b come back."""
    bounded = rho.detach().clamp(-_RHO_LIMIT, _RHO_LIMIT)
    return bounded + (rho - rho.detach())
