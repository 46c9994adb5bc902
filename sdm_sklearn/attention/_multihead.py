"""Multi-head SSA attention in the place of ``torch.nn.MultiheadAttention``."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sdm_sklearn.attention._functional import attention_and_weights, ssa_attention
from sdm_sklearn.attention._modules import SSAParameters


class SSAMultiheadAttention(nn.MultiheadAttention):
    """Drop-in replacement of :class:`torch.nn.MultiheadAttention` with SSA weights.

    Constructor, ``forward``, masks (True removes, as there) and parameter names are
    those of the PyTorch class; ``ssa.rho_n`` and ``ssa.rho_b`` come on top. A
    checkpoint of the PyTorch class loads strictly and leaves them as constructed.
    Queries that see no key get weights 0 instead of NaN.

    Parameters
    ----------
    embed_dim, num_heads : int
        Width of the output and number of heads.
    dropout : float, default=0.0
        Probability with which a weight is dropped in training.
    bias, add_bias_kv, add_zero_attn : bool, default=True, False, False
        As for :class:`torch.nn.MultiheadAttention`.
    kdim, vdim : int or None, default=None
        Widths of keys and values, ``embed_dim`` for None.
    batch_first : bool, default=False
        Whether inputs are (N, L, E) and not (L, N, E).
    device, dtype : torch.device, torch.dtype or None, default=None
        Of the projections; n and b stay in float32.
    n_init, b_init : float, default=1.5, 0.8
        Initial n and b, above 1 and above 0.
    learn_n, learn_b : bool, default=True
        Whether n and b are trained.
    init : None or "softmax", default=None
        "softmax" starts at n = 128, b = 1 / 128, close to softmax.

    Attributes
    ----------
    ssa : SSAParameters
        The exponent n and the scale b of each head.

    See Also
    --------
    convert_to_ssa : Converts the attention of a whole model.

    Notes
    -----
    ``need_weights=True``, the default as in PyTorch, stores all L x S weights. Pass
    False (as ``nn.TransformerEncoderLayer`` does) for memory linear in L.

    Examples
    --------
    >>> import torch
    >>> from sdm_sklearn.attention import SSAMultiheadAttention
    >>> attention = SSAMultiheadAttention(16, num_heads=2, batch_first=True)
    >>> x = torch.randn(3, 5, 16)
    >>> output, weights = attention(x, x, x)
    >>> output.shape, weights.shape
    (torch.Size([3, 5, 16]), torch.Size([3, 5, 5]))
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        n_init: float = 1.5,
        b_init: float = 0.8,
        learn_n: bool = True,
        learn_b: bool = True,
        init: str | None = None,
    ):
        super().__init__(
            embed_dim,
            num_heads,
            dropout,
            bias,
            add_bias_kv,
            add_zero_attn,
            kdim,
            vdim,
            batch_first,
            device,
            dtype,
        )
        self.ssa = SSAParameters(
            num_heads, n_init, b_init, learn_n, learn_b, init, device
        )

    @property
    def _qkv_same_embed_dim(self) -> bool:
        # nn.TransformerEncoderLayer asks this before its fast path, which computes
        # softmax attention from the weights without calling forward.
        return "ssa" not in self._modules and self.__dict__["_qkv_same_embed_dim"]

    @_qkv_same_embed_dim.setter
    def _qkv_same_embed_dim(self, value: bool) -> None:
        self.__dict__["_qkv_same_embed_dim"] = value

    def _reset_parameters(self) -> None:
        parts = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        whole = self.in_proj_weight
        for weight in parts if whole is None else (whole,):
            nn.init.xavier_uniform_(weight)
        if self.in_proj_bias is not None:
            nn.init.zeros_(self.in_proj_bias)
            nn.init.zeros_(self.out_proj.bias)
        for extra in (self.bias_k, self.bias_v):
            if extra is not None:
                nn.init.xavier_normal_(extra)
        if "ssa" in self._modules:
            self.ssa.reset_parameters()

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        weight = state_dict.get(f"{prefix}out_proj.weight")
        if weight is not None:
            self.ssa._complete(state_dict, f"{prefix}ssa.", weight.device)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend; arguments and returns as of ``torch.nn.MultiheadAttention.forward``.

        Parameters
        ----------
        query, key, value : Tensor of shape (L, N, E), (N, L, E) or (L, E)
            The second if ``batch_first``, the last without a batch. ``key`` may be
            left out for ``query``, ``value`` for ``key``.
        key_padding_mask : Tensor of shape (N, S) or (S,), or None
            Boolean, where True removes the key, or floating, which is added to the
            transformed scores (-1e4 and less remove).
        need_weights : bool, default=True
            Whether to return the weights.
        attn_mask : Tensor of shape (L, S) or (N * H, L, S), or None
            As ``key_padding_mask``.
        average_attn_weights : bool, default=True
            Whether the returned weights are the mean over the heads.
        is_causal : bool, default=False
            A hint that ``attn_mask`` is the causal mask, which must be given too.

        Returns
        -------
        output : Tensor of the shape of ``query``
        weights : Tensor of shape (N, L, S) or (N, H, L, S), or None

        Raises
        ------
        ValueError
            If ``is_causal`` is given without ``attn_mask``, a mask does not fit, the
            inputs differ in their number of dimensions or their batch size, or one is
            a nested tensor.
        """
        if is_causal and attn_mask is None:
            raise ValueError(
                "'is_causal' is a hint: 'attn_mask' must be given as well."
            )
        key = query if key is None else key
        value = key if value is None else value
        if query.is_nested or key.is_nested or value.is_nested:
            raise ValueError(
                "Nested tensors are not supported: pass padded tensors and "
                "'key_padding_mask'. (In nn.TransformerEncoder: "
                "enable_nested_tensor=False.)"
            )
        batched = _is_batched(query, key, value)
        if self.batch_first and batched:
            query, key, value = (part.transpose(0, 1) for part in (query, key, value))
        elif not batched:
            query, key, value = (part.unsqueeze(1) for part in (query, key, value))
            if key_padding_mask is not None:
                key_padding_mask = key_padding_mask.unsqueeze(0)
        if not query.shape[1] == key.shape[1] == value.shape[1]:
            raise ValueError(
                "'query', 'key' and 'value' must have one batch size. Got "
                f"{query.shape[1]}, {key.shape[1]} and {value.shape[1]}."
            )
        q, k, v = self._project(query, key, value)
        length, batch = q.shape[:2]
        n_keys = key.shape[0]
        n_appended = k.shape[0] - n_keys
        # The hint stands for a mask that would show the appended keys to no one.
        use_hint = is_causal and n_appended == 0
        mask = _merge(
            None
            if use_hint
            else _attention_mask(attn_mask, (batch, self.num_heads, length, n_keys)),
            _padding_mask(key_padding_mask, (batch, n_keys)),
        )
        if mask is not None and n_appended:
            keep = 1.0 if mask.dtype == torch.bool else 0.0
            mask = F.pad(mask, (0, n_appended), value=keep)
        q, k, v = (self._split_heads(part) for part in (q, k, v))
        n, b = self.ssa.n, self.ssa.b
        dropout_p = self.dropout if self.training else 0.0
        weights = None
        if need_weights:
            mixed, weights = attention_and_weights(
                q, k, v, n, b, mask, dropout_p, use_hint
            )
            weights = weights.mean(1) if average_attn_weights else weights
        else:
            mixed = ssa_attention(q, k, v, n, b, mask, dropout_p, use_hint)
        output = self.out_proj(mixed.permute(2, 0, 1, 3).flatten(2))
        if not batched:
            return output.squeeze(1), None if weights is None else weights.squeeze(0)
        return (output.transpose(0, 1) if self.batch_first else output), weights

    def _project(self, query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
        """Project the inputs (L, N, E) and append the trained and the zero key."""
        if self.in_proj_weight is not None:
            weights = self.in_proj_weight.chunk(3)
        else:
            weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        biases = (
            (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        )
        inputs = (query, key, value)
        q, k, v = (
            F.linear(*args) for args in zip(inputs, weights, biases, strict=True)
        )
        batch = q.shape[1]
        if self.bias_k is not None and self.bias_v is not None:
            k = torch.cat([k, self.bias_k.to(k.dtype).expand(1, batch, -1)])
            v = torch.cat([v, self.bias_v.to(v.dtype).expand(1, batch, -1)])
        if self.add_zero_attn:
            k, v = (F.pad(part, (0, 0, 0, 0, 0, 1)) for part in (k, v))
        return [q, k, v]

    def _split_heads(self, part: Tensor) -> Tensor:
        return part.unflatten(-1, (self.num_heads, self.head_dim)).permute(1, 2, 0, 3)


def convert_to_ssa(
    model: nn.Module,
    *,
    init: str | None = "softmax",
    n_init: float = 1.5,
    b_init: float = 0.8,
    learn_n: bool = True,
    learn_b: bool = True,
) -> nn.Module:
    """Give every ``nn.MultiheadAttention`` of a model SSA weights, in place.

    The modules keep their identity, their parameters and their hooks; each gains
    ``ssa``. For models of the transformers library see
    :func:`sdm_sklearn.attention.huggingface.convert_to_ssa`.

    Parameters
    ----------
    model : nn.Module
        The model, changed in place.
    init : None or "softmax", default="softmax"
        The default starts close to softmax, for models that were trained with it;
        pass ``init=None`` for models yet to be trained.
    n_init, b_init : float, default=1.5, 0.8
        Initial n and b, where ``init`` is None.
    learn_n, learn_b : bool, default=True
        Whether n and b are trained.

    Returns
    -------
    nn.Module
        The same model.

    Raises
    ------
    ValueError
        If there is nothing to convert, all was converted before, or there is a
        subclass of ``nn.MultiheadAttention`` whose own forward would be lost.

    Examples
    --------
    >>> from torch import nn
    >>> from sdm_sklearn.attention import convert_to_ssa
    >>> layer = convert_to_ssa(nn.TransformerEncoderLayer(16, 2, batch_first=True))
    >>> type(layer.self_attn).__name__
    'SSAMultiheadAttention'
    """
    found = [m for m in model.modules() if isinstance(m, nn.MultiheadAttention)]
    any_found = bool(found)
    found = [m for m in found if not isinstance(m, SSAMultiheadAttention)]
    if any_found and not found:
        raise ValueError(f"{type(model).__name__} uses SSA attention already.")
    if not found:
        raise ValueError(
            "The model has no nn.MultiheadAttention to convert. For models of the "
            "transformers library use sdm_sklearn.attention.huggingface.convert_to_ssa."
        )
    for module in found:
        if type(module) is not nn.MultiheadAttention:
            raise ValueError(
                f"{type(module).__name__} is a subclass of nn.MultiheadAttention whose "
                "forward would be lost. Replace it by SSAMultiheadAttention yourself."
            )
    for module in found:
        ssa = SSAParameters(
            module.num_heads,
            n_init,
            b_init,
            learn_n,
            learn_b,
            init,
            device=module.out_proj.weight.device,
        )
        module.__class__ = SSAMultiheadAttention
        module.ssa = ssa.train(module.training)
    for encoder in model.modules():
        if isinstance(encoder, nn.TransformerEncoder):
            # Decided when it was built; its fast path wants softmax layers.
            encoder.use_nested_tensor = False
    return model


def _is_batched(*inputs: Tensor) -> bool:
    n_dims = [part.dim() for part in inputs]
    if n_dims not in ([2] * 3, [3] * 3):
        raise ValueError(
            "'query', 'key' and 'value' must all have 3 dimensions, or all 2 without a "
            f"batch. Got {n_dims}."
        )
    return n_dims[0] == 3


def _attention_mask(mask: Tensor | None, shape: tuple[int, ...]) -> Tensor | None:
    """Turn a mask of nn.MultiheadAttention into one of (N or 1, H or 1, L, S)."""
    if mask is None:
        return None
    batch, heads, *matrix = shape
    if tuple(mask.shape) == (batch * heads, *matrix):
        mask = mask.view(shape)
    elif tuple(mask.shape) == tuple(matrix):
        mask = mask[None, None]
    else:
        raise ValueError(
            f"'attn_mask' must have shape {tuple(matrix)} or "
            f"{(batch * heads, *matrix)}. Got {tuple(mask.shape)}."
        )
    return _kept(mask, "attn_mask")


def _padding_mask(mask: Tensor | None, shape: tuple[int, int]) -> Tensor | None:
    if mask is None:
        return None
    if tuple(mask.shape) != shape:
        raise ValueError(
            f"'key_padding_mask' must have shape {shape}. Got {tuple(mask.shape)}."
        )
    return _kept(mask, "key_padding_mask")[:, None, None]


def _kept(mask: Tensor, name: str) -> Tensor:
    """Invert a boolean mask: here True removes, in ssa_attention it keeps."""
    if mask.dtype == torch.bool:
        return ~mask
    if not mask.is_floating_point():
        raise ValueError(
            f"'{name}' must be boolean (True removes) or floating. Got {mask.dtype}."
        )
    return mask


def _merge(left: Tensor | None, right: Tensor | None) -> Tensor | None:
    """Combine two masks of ssa_attention."""
    if left is None or right is None:
        return right if left is None else left
    if left.dtype == right.dtype == torch.bool:
        return left & right
    floating = left.dtype if left.is_floating_point() else right.dtype
    left, right = (
        torch.zeros_like(m, dtype=floating).masked_fill(~m, -math.inf)
        if m.dtype == torch.bool
        else m
        for m in (left, right)
    )
    return left + right
