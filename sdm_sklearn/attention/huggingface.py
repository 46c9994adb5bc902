"""SSA attention in models of the transformers library (extra ``transformers``).

transformers is imported by the functions, not with this module. :func:`convert_to_ssa`
changes a model in place, ``model.save_pretrained`` saves it and :func:`load_ssa` brings
it back; ``from_pretrained`` alone would drop n and b without an error.
"""

import inspect
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from sdm_sklearn.attention._functional import attention_and_weights, ssa_attention
from sdm_sklearn.attention._modules import SSAParameters

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["convert_to_ssa", "load_ssa", "register_ssa"]

_NAME = "ssa"

# What attention functions are told and SSA cannot do: sinks, and the keys that sparse
# attention chose.
_REFUSED = ("s_aux", "sinks", "indices", "block_indices")

# Where a checkpoint keeps n and b of an attention.
_VALUES = (".ssa.rho_n", ".ssa.rho_b")

# Arguments of from_pretrained that say where the config is, too.
_WHERE = ("subfolder", "revision", "token", "cache_dir", "local_files_only")


def register_ssa() -> None:
    """Make ``attn_implementation="ssa"`` known to transformers.

    :func:`convert_to_ssa` and :func:`load_ssa` do it themselves. Doing it again changes
    nothing.

    Examples
    --------
    >>> from sdm_sklearn.attention.huggingface import register_ssa  # doctest: +SKIP
    >>> register_ssa()  # doctest: +SKIP
    """
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    AttentionInterface.register(_NAME, _ssa_attention_forward)
    AttentionMaskInterface.register(_NAME, _ssa_mask)


def _ssa_mask(
    *, q_length: int, kv_length: int, allow_is_causal_skip: bool = True, **kwargs: Any
) -> Tensor | None:
    """Make the boolean mask of PyTorch's own attention.

    It may be None only where "causal" alone says who sees whom: for as many keys as
    queries, and for one query. So an attention that is handed fewer queries later, and
    no mask, can be told from one that is not.
    """
    from transformers.masking_utils import sdpa_mask

    plain = isinstance(q_length, int) and q_length in (1, kv_length)
    return sdpa_mask(
        q_length=q_length,
        kv_length=kv_length,
        allow_is_causal_skip=allow_is_causal_skip and plain,
        **kwargs,
    )


def convert_to_ssa(
    model: "PreTrainedModel",
    *,
    init: str | None = "softmax",
    n_init: float = 1.5,
    b_init: float = 0.8,
    learn_n: bool = True,
    learn_b: bool = True,
) -> "PreTrainedModel":
    """Give every attention of a transformers model SSA weights, in place.

    Parameters
    ----------
    model : PreTrainedModel
        A model whose attention goes through transformers' ``AttentionInterface``:
        Llama, Qwen, Gemma, GPT-2, BERT, RoBERTa, T5, BART and most others. A part of
        a model that was converted before may be converted as a whole, with the same
        settings.
    init : None or "softmax", default="softmax"
        The default starts close to softmax, for models that were trained with it;
        pass ``init=None`` for models yet to be trained.
    n_init, b_init : float, default=1.5, 0.8
        Initial n and b, where ``init`` is None.
    learn_n, learn_b : bool, default=True
        Whether n and b are trained.

    Returns
    -------
    PreTrainedModel
        The same model. Each attention module has gained ``ssa``, and
        ``config.ssa_attention`` says how it was converted.

    Raises
    ------
    TypeError
        If ``model`` is not a transformers model.
    ValueError
        If the model has no such attention, was converted before, was saved with SSA
        and loaded without, has attention sinks or ``config.output_attentions``, a part
        of it cannot run PyTorch's own attention in transformers either, or an
        attention module does not tell its number of heads. The model is unchanged.

    Warns
    -----
    UserWarning
        If other attention of the model is left as it is.

    Examples
    --------
    >>> from transformers import AutoModelForCausalLM  # doctest: +SKIP
    >>> from sdm_sklearn.attention.huggingface import convert_to_ssa  # doctest: +SKIP
    >>> model = convert_to_ssa(
    ...     AutoModelForCausalLM.from_pretrained("gpt2")
    ... )  # doctest: +SKIP
    """
    from transformers import PreTrainedModel

    if not isinstance(model, PreTrainedModel):
        raise TypeError(
            f"'model' must be a PreTrainedModel of transformers. Got "
            f"{type(model).__name__}. For models with nn.MultiheadAttention use "
            "sdm_sklearn.attention.convert_to_ssa."
        )
    converted = any(isinstance(m, SSAParameters) for m in model.modules())
    if getattr(model.config, "ssa_attention", None) is not None and not converted:
        raise ValueError(
            f"This {type(model).__name__} was saved with SSA: load it with load_ssa, "
            "as from_pretrained drops n and b. To start anew set "
            "model.config.ssa_attention = None before."
        )
    _convert(
        model,
        {
            "init": init,
            "n_init": n_init,
            "b_init": b_init,
            "learn_n": learn_n,
            "learn_b": learn_b,
        },
    )
    others = sorted({type(module).__name__ for module in _other_attention(model)})
    if others:
        warnings.warn(
            f"{', '.join(others)} of this {type(model).__name__} is left as it is: it "
            "does not go through transformers' AttentionInterface.",
            UserWarning,
            stacklevel=2,
        )
    return model


def load_ssa(path: str | Path, *, model_class: Any = None, **kwargs: Any) -> Any:
    """Load a converted model that ``save_pretrained`` wrote, with its n and b.

    Parameters
    ----------
    path : str or Path
        Directory that ``save_pretrained`` wrote, or its name on the hub.
    model_class : type or None, default=None
        A transformers model class, not an Auto class; None takes the one that was
        saved.
    **kwargs : dict
        Passed to its ``from_pretrained``.

    Returns
    -------
    PreTrainedModel
        With ``output_loading_info=True`` it comes with that dict, as a tuple.

    Raises
    ------
    TypeError
        If ``model_class`` is not a model class.
    ValueError
        If the model was not converted, n or b of an attention is missing or belongs to
        none, or ``attn_implementation`` is not "ssa".

    Examples
    --------
    >>> from sdm_sklearn.attention.huggingface import load_ssa  # doctest: +SKIP
    >>> model = load_ssa("my-ssa-model")  # doctest: +SKIP
    """
    import transformers

    if kwargs.get("attn_implementation", _NAME) != _NAME:
        raise ValueError(
            "'attn_implementation' of a model saved with SSA is 'ssa'. Got "
            f"{kwargs['attn_implementation']!r}: load it with from_pretrained for "
            "softmax."
        )
    where = {name: kwargs[name] for name in _WHERE if name in kwargs}
    config = transformers.AutoConfig.from_pretrained(path, **where)
    settings: Any = getattr(config, "ssa_attention", None)
    if settings is None:
        raise ValueError(
            f"The model in {str(path)!r} was not saved with SSA attention (its config "
            "has no 'ssa_attention'). Load it with from_pretrained and convert it."
        )
    if model_class is None:
        model_class = getattr(transformers, config.architectures[0])
    if not isinstance(model_class, type) or not issubclass(
        model_class, transformers.PreTrainedModel
    ):
        raise TypeError(
            "'model_class' must be a model class such as LlamaForCausalLM. Got "
            f"{getattr(model_class, '__name__', model_class)}."
        )

    class Converted(model_class):
        _keep_in_fp32_modules_strict = {
            *(model_class._keep_in_fp32_modules_strict or ()),
            "ssa.rho",
        }

        def __init__(self, *args: Any, **options: Any):
            super().__init__(*args, **options)
            _convert(self, settings)

    # from_pretrained reads the class's module, and messages its name.
    for name in ("__name__", "__qualname__", "__module__"):
        setattr(Converted, name, getattr(model_class, name))
    with_info = kwargs.pop("output_loading_info", False)
    model, info = Converted.from_pretrained(path, output_loading_info=True, **kwargs)
    model.__class__ = model_class
    for key in sorted(info["missing_keys"]):
        if key.endswith(_VALUES):
            raise ValueError(f"{str(path)!r} holds no value of {key!r}.")
    for key in sorted(info["unexpected_keys"]):
        if key.endswith(_VALUES):
            raise ValueError(
                f"{str(path)!r} holds {key!r}, whose attention load_ssa leaves as it "
                "is. Load with from_pretrained, convert as before, load_state_dict."
            )
    return (model, info) if with_info else model


def _convert(model: "PreTrainedModel", settings: dict[str, Any]) -> None:
    """Convert a model, after all that may fail has been tried."""
    from transformers import PreTrainedModel

    name = type(model).__name__
    modules = _attention_modules(model)
    if not modules:
        raise ValueError(
            f"{name} has no attention that goes through transformers' "
            "AttentionInterface, so it cannot be converted."
        )
    known = [module for module in modules if _is_converted(module)]
    if len(known) == len(modules):
        raise ValueError(f"{name} uses SSA attention already.")
    before = getattr(model.config, "ssa_attention", None)
    if known and before not in (None, settings):
        raise ValueError(
            f"Part of this {name} was converted with {before}: pass the same for all."
        )
    for part in dict.fromkeys(map(_owners(model).get, modules)):
        if part is not None and not (
            part._supports_sdpa or part._supports_attention_backend
        ):
            raise ValueError(
                f"{type(part).__name__} cannot be converted: transformers offers no "
                "other attention for it, so some of it would take SSA's masks wrongly."
            )
    modules = [module for module in modules if module not in known]
    if any(getattr(m, "sinks", None) is not None for m in modules):
        raise ValueError(f"{name} has attention sinks, which SSA does not support.")
    parts = [part for part in model.modules() if isinstance(part, PreTrainedModel)]
    if any(part.config.output_attentions for part in parts):
        raise ValueError(
            "config.output_attentions=True is not supported with SSA: set it to False "
            "and pass output_attentions=True to forward instead."
        )
    parameters = []
    for module in modules:
        device = next(module.parameters()).device
        one = SSAParameters(_number_of_heads(module), **settings, device=device)
        parameters.append(one.train(module.training))
    register_ssa()
    model.set_attn_implementation(_NAME)
    for module, one in zip(modules, parameters, strict=True):
        module.ssa = one
    model.config.ssa_attention = settings
    for part in parts:
        part.register_forward_pre_hook(_ask_for_weights, with_kwargs=True)
        part.register_forward_hook(_ask_no_more, with_kwargs=True, always_call=True)


def _attention_modules(model: nn.Module) -> list[nn.Module]:
    """Find the modules whose forward asks transformers' registry for its attention."""

    def asks(module: nn.Module) -> bool:
        code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
        return code is not None and "ALL_ATTENTION_FUNCTIONS" in code.co_names

    return [module for module in model.modules() if asks(module)]


def _is_converted(module: Any) -> bool:
    return isinstance(getattr(module, "ssa", None), SSAParameters)


def _owners(model: nn.Module) -> dict[nn.Module, Any]:
    """Map each module to the innermost transformers model that it belongs to."""
    from transformers import PreTrainedModel

    owners: dict[nn.Module, Any] = {}
    for part in model.modules():  # outer ones come first
        if isinstance(part, PreTrainedModel):
            owners.update(dict.fromkeys(part.modules(), part))
    return owners


def _other_attention(model: nn.Module) -> list[nn.Module]:
    """Find modules that attend in a way of their own, going by their names."""
    inside: set[nn.Module] = set()
    for module in model.modules():
        if _is_converted(module):
            inside.update(module.modules())
    found = []
    for module in model.modules():
        attends = "Attention" in type(module).__name__ and any(
            True for _ in module.parameters()
        )
        if attends and inside.isdisjoint(module.modules()):
            found.append(module)
            inside.update(module.modules())
    return found


def _number_of_heads(module: nn.Module) -> int:
    for owner in (module, getattr(module, "config", None)):
        for name in ("num_heads", "n_heads", "num_attention_heads"):
            if isinstance(getattr(owner, name, None), int):
                return getattr(owner, name)
    raise ValueError(f"{type(module).__name__} does not tell its number of heads.")


# Not all models hand `output_attentions` down to their attention modules.
def _ask_for_weights(model: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
    if kwargs.get("output_attentions"):
        _set_return_weights(model, True)


def _ask_no_more(
    model: nn.Module, args: Any, kwargs: dict[str, Any], output: Any
) -> None:
    if kwargs.get("output_attentions"):
        _set_return_weights(model, False)


def _set_return_weights(model: nn.Module, value: bool) -> None:
    for module in model.modules():
        if isinstance(module, SSAParameters):
            module.return_weights = value


def _ssa_attention_forward(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    softcap: float | None = None,
    output_attentions: bool | None = False,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attend as transformers' attention functions do: (B, H, L, D) to (B, L, H, D)."""
    if not _is_converted(module):
        raise RuntimeError(
            f"{type(module).__name__} has no SSA parameters. Pass the model to "
            "sdm_sklearn.attention.huggingface.convert_to_ssa (or load it with "
            "load_ssa) instead of setting attn_implementation='ssa'."
        )
    for name in _REFUSED:
        if kwargs.get(name) is not None:
            raise ValueError(
                f"SSA attention does not support attention sinks or sparse attention "
                f"({name!r} of {type(module).__name__})."
            )
    rows, columns = query.shape[2], key.shape[2]
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    is_causal = bool(is_causal) and attention_mask is None and rows > 1
    if is_causal and columns != rows:
        raise ValueError(
            f"{type(module).__name__} asks for causal attention of {rows} queries to "
            f"{columns} keys without a mask. Leave out logits_to_keep above 1."
        )
    if attention_mask is not None:
        attention_mask = attention_mask[..., :columns]
    arguments: dict[str, Any] = {
        "n": module.ssa.n,
        "b": module.ssa.b,
        "attn_mask": attention_mask,
        "dropout_p": dropout,
        "is_causal": is_causal,
        "scale": scaling,
        "enable_gqa": query.shape[1] != key.shape[1],
        "score_bias": position_bias,
    }
    weights = None
    if output_attentions or module.ssa.return_weights or softcap is not None:
        output, weights = attention_and_weights(
            query, key, value, softcap=softcap, **arguments
        )
    else:
        output = ssa_attention(query, key, value, **arguments)
    return output.transpose(1, 2).contiguous(), weights
