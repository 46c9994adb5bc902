"""SSA modules: parameters, SSA of scores, the multi-head drop-in, conversion."""

import copy
import pickle
import re
import textwrap
from pathlib import Path

import pytest
import torch
from torch import nn

from sdm_sklearn.attention import (
    SSA,
    SSAMultiheadAttention,
    SSAParameters,
    convert_to_ssa,
    ssa_parameter_groups,
    ssa_weights,
)


def inputs(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def close_to_softmax(**kwargs):
    """A PyTorch attention and an SSA attention with its weights, nearly softmax."""
    torch.manual_seed(0)
    soft = nn.MultiheadAttention(8, 2, **kwargs)
    signed = SSAMultiheadAttention(8, 2, **kwargs, n_init=1e6, b_init=1e-6)
    signed.load_state_dict(soft.state_dict(), strict=True)
    return soft, signed


# ---------------------------------------------------------------- parameters


def test_values_and_names():
    parameters = SSAParameters(3, n_init=2.5, b_init=0.3)
    torch.testing.assert_close(parameters.n, torch.full((3,), 2.5))
    torch.testing.assert_close(parameters.b, torch.full((3,), 0.3))
    assert list(parameters.state_dict()) == ["rho_n", "rho_b"]


def test_fixed_values_are_buffers_under_the_same_names():
    fixed = SSAParameters(2, n_init=1, learn_n=False, learn_b=False)
    assert not list(fixed.parameters())
    assert list(fixed.state_dict()) == ["rho_n", "rho_b"]
    assert (fixed.n == 1).all()
    trained = SSAParameters(2)
    trained.load_state_dict(fixed.state_dict())
    assert (trained.n == 1).all()


def test_softmax_start():
    parameters = SSAParameters(1, init="softmax")
    torch.testing.assert_close(parameters.n, torch.tensor([128.0]))
    torch.testing.assert_close(parameters.b, torch.tensor([1 / 128]))


@pytest.mark.parametrize("sign", [1, -1])
def test_no_step_leaves_the_range(sign):
    parameters = SSAParameters(2)
    optimiser = torch.optim.SGD(parameters.parameters(), lr=1e6)
    for _ in range(3):
        optimiser.zero_grad()
        (sign * (parameters.n + parameters.b).sum()).backward()
        optimiser.step()
    assert (parameters.n >= 1).all()
    assert (parameters.b > 0).all()
    assert parameters.n.isfinite().all()
    weights = ssa_weights(inputs(2, 3, 3), parameters.n, parameters.b)
    assert weights.isfinite().all()


@pytest.mark.parametrize("rho", [-25.0, 25.0, 1e30])
def test_parameters_come_back_from_beyond_the_limit(rho):
    parameters = SSAParameters(1)
    nn.init.constant_(parameters.rho_n, rho)
    nn.init.constant_(parameters.rho_b, rho)
    n, b = parameters.n, parameters.b
    limit = torch.tensor([20.0 if rho > 0 else -20.0]).exp()
    assert torch.equal(n, 1 + limit)
    assert torch.equal(b, limit)
    (n + b).sum().backward()
    assert torch.equal(parameters.rho_n.grad, limit)
    assert torch.equal(parameters.rho_b.grad, limit)


def assert_initial(ssa, n=2.5, b=0.3):
    for rho in (ssa.rho_n, ssa.rho_b):
        assert (rho.dtype, rho.device.type) == (torch.float32, "cpu")
    torch.testing.assert_close(ssa.n, torch.full_like(ssa.n, n))
    torch.testing.assert_close(ssa.b, torch.full_like(ssa.b, b))


@pytest.mark.parametrize("learn", [True, False])
def test_reset_parameters(learn):
    options = {"n_init": 2.5, "b_init": 0.3, "learn_n": learn, "learn_b": learn}
    attention = SSAMultiheadAttention(8, 2, **options)
    for reset in (attention.ssa.reset_parameters, attention._reset_parameters):
        nn.init.zeros_(attention.ssa.rho_n)
        nn.init.zeros_(attention.ssa.rho_b)
        reset()
        assert_initial(attention.ssa)


@pytest.mark.parametrize("learn", [True, False])
def test_modules_leave_the_meta_device_with_their_initial_values(learn):
    options = {"n_init": 2.5, "b_init": 0.3, "learn_n": learn, "learn_b": learn}

    def meta():
        return SSAMultiheadAttention(8, 2, **options, device="meta")

    assert_initial(meta().to_empty(device="cpu").ssa)
    assert_initial(meta().half().to_empty(device="cpu").ssa)
    soft = nn.MultiheadAttention(8, 2).half()
    for module in (meta(), nn.Sequential(meta())):
        prefix = "0." if isinstance(module, nn.Sequential) else ""
        state = {prefix + key: value for key, value in soft.state_dict().items()}
        module.load_state_dict(state, assign=True, strict=True)
        assert_initial(next(m for m in module.modules() if hasattr(m, "rho_n")))
    alone = SSAParameters(2, **options, device="meta")
    alone.load_state_dict({}, assign=True, strict=True)
    assert_initial(alone)


def test_assigned_half_precision_values_become_float32():
    saved = {"rho_n": torch.ones(2).bfloat16(), "rho_b": torch.ones(2).half()}
    parameters = SSAParameters(2)
    parameters.load_state_dict(saved, assign=True)
    assert parameters.rho_n.dtype == parameters.rho_b.dtype == torch.float32
    assert (parameters.rho_n == 1).all()


@pytest.mark.parametrize("cast", [nn.Module.half, nn.Module.bfloat16])
def test_half_precision_does_not_touch_them(cast):
    module = SSAMultiheadAttention(8, 2, n_init=1.7)
    before = module.ssa.rho_n.clone()
    module.ssa.n.sum().backward()
    cast(module)
    assert module.in_proj_weight.dtype != torch.float32
    assert torch.equal(module.ssa.rho_n, before)
    assert module.ssa.rho_n.grad.dtype == torch.float32
    assert module.double().ssa.rho_n.dtype == torch.float64


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_heads": 0}, "'num_heads' must be at least 1"),
        ({"init": "zeros"}, "'init' must be None or 'softmax'"),
        ({"n_init": 1.0}, "'n_init' must be above 1"),
        ({"n_init": float("inf")}, "'n_init' must be above 1"),
        ({"b_init": 0.0}, "'b_init' must be positive"),
        ({"b_init": 1e-12}, "'b_init' must not be further"),
    ],
)
def test_parameter_errors(options, message):
    with pytest.raises(ValueError, match=message):
        SSAParameters(**{"num_heads": 2, **options})


def test_groups_hold_every_parameter_once():
    model = nn.Sequential(nn.Linear(8, 8), SSAMultiheadAttention(8, 2))
    others, undecayed = ssa_parameter_groups(model, weight_decay=0.1, lr=0.5)
    assert others["weight_decay"] == 0.1
    assert undecayed["weight_decay"] == 0
    assert undecayed["lr"] == 0.5
    assert len(others["params"]) + len(undecayed["params"]) == len(
        list(model.parameters())
    )
    ssa = model[1].ssa
    assert {id(p) for p in undecayed["params"]} == {id(ssa.rho_n), id(ssa.rho_b)}


# ---------------------------------------------------------------- SSA of scores


def test_ssa_of_scores():
    module = SSA(dim=0, n_init=2.0, b_init=1.0)
    scores, mask = inputs(4, 3), inputs(4, 3, seed=1) > -1
    expected = ssa_weights(scores, 2.0, 1.0, mask=mask, dim=0)
    torch.testing.assert_close(module(scores, mask), expected)
    module(scores)[0].sum().backward()
    assert module.ssa.rho_n.grad.abs() > 0
    assert "dim=0" in repr(module)


# ---------------------------------------------------------------- multi-head attention

VARIANTS = [
    {},
    {"bias": False},
    {"batch_first": True},
    {"add_bias_kv": True},
    {"add_zero_attn": True, "add_bias_kv": True},
    {"kdim": 6, "vdim": 10},
]


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("options", VARIANTS)
def test_it_is_the_pytorch_module_in_the_softmax_limit(options, need_weights):
    soft, signed = close_to_softmax(**options)
    query, key = inputs(5, 3, 8), inputs(7, 3, options.get("kdim", 8), seed=1)
    value = inputs(7, 3, options.get("vdim", 8), seed=2)
    padding = torch.zeros(3, 7, dtype=torch.bool)
    padding[1, 5:] = True
    matrix = inputs(5, 7, seed=3) > 0.5
    matrix[:, 0] = False
    if options.get("batch_first"):
        query, key, value = (p.transpose(0, 1) for p in (query, key, value))
    calls = [
        {},
        {"key_padding_mask": padding},
        {"attn_mask": matrix},
        {"attn_mask": matrix, "key_padding_mask": padding},
        {"attn_mask": inputs(6, 5, 7, seed=4)},
        {"attn_mask": inputs(5, 7, seed=5), "average_attn_weights": False},
        {
            "attn_mask": torch.zeros(5, 7).masked_fill(matrix, -torch.inf),
            "key_padding_mask": torch.zeros(3, 7).masked_fill(padding, -torch.inf),
        },
    ]
    for call in calls:
        want, want_weights = soft(query, key, value, need_weights=need_weights, **call)
        got, weights = signed(query, key, value, need_weights=need_weights, **call)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
        if need_weights:
            torch.testing.assert_close(weights, want_weights, rtol=1e-3, atol=1e-4)
        else:
            assert weights is None


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("options", VARIANTS[:5])
def test_causal_hint(options, need_weights):
    soft, signed = close_to_softmax(**options)
    x = inputs(5, 3, 8)
    length = 3 if options.get("batch_first") else 5
    mask = nn.Transformer.generate_square_subsequent_mask(length)
    call = {"attn_mask": mask, "need_weights": need_weights}
    # Without the hint: with it and appended keys, PyTorch's result depends on
    # need_weights (its kernel hides these keys).
    want = soft(x, x, x, **call)[0]
    got = signed(x, x, x, is_causal=True, **call)[0]
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def test_without_a_batch():
    soft, signed = close_to_softmax()
    x, padding = inputs(5, 8), torch.tensor([False] * 4 + [True])
    for want, got in zip(
        soft(x, x, x, key_padding_mask=padding),
        signed(x, x, x, key_padding_mask=padding),
        strict=True,
    ):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def test_self_attention_by_one_argument():
    module, x = SSAMultiheadAttention(8, 2), inputs(5, 3, 8)
    assert torch.equal(module(x)[0], module(x, x, x)[0])


def test_same_seed_same_weights_as_pytorch():
    for options in VARIANTS:
        torch.manual_seed(1)
        soft = nn.MultiheadAttention(8, 2, **options)
        torch.manual_seed(1)
        signed = SSAMultiheadAttention(8, 2, **options)
        for name, weight in soft.state_dict().items():
            assert torch.equal(weight, signed.state_dict()[name])
        torch.manual_seed(1)
        soft._reset_parameters()
        torch.manual_seed(1)
        signed._reset_parameters()
        for name, weight in soft.named_parameters():
            assert torch.equal(weight, signed.get_parameter(name))


def test_padded_rows_are_zero_and_train():
    module = SSAMultiheadAttention(8, 2, batch_first=True)
    x = inputs(2, 5, 8).requires_grad_()
    padding = torch.zeros(2, 5, dtype=torch.bool)
    padding[1] = True
    for need_weights in (True, False):
        output, weights = module(
            x, x, x, key_padding_mask=padding, need_weights=need_weights
        )
        assert torch.equal(output[1], module.out_proj.bias.expand(5, 8))
        if need_weights:
            assert (weights[1] == 0).all()
        output.sum().backward()
        assert all(p.grad.isfinite().all() for p in module.parameters())


def test_dropout_only_in_training():
    torch.manual_seed(0)
    module, x = SSAMultiheadAttention(8, 2, dropout=0.9), inputs(6, 2, 8)
    for need_weights in (True, False):
        train = module.train()(x, x, x, need_weights=need_weights)[0]
        first, second = (
            module.eval()(x, x, x, need_weights=need_weights)[0] for _ in range(2)
        )
        assert torch.equal(first, second)
        assert not torch.allclose(train, first)


def test_weights_give_the_output():
    module, x = SSAMultiheadAttention(8, 2), inputs(6, 2, 8)
    with_weights, weights = module(x, x, x, average_attn_weights=False)
    assert weights.shape == (2, 2, 6, 6)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 2, 6))
    torch.testing.assert_close(with_weights, module(x, x, x, need_weights=False)[0])


def test_a_zero_projection_learns():
    module, x = SSAMultiheadAttention(8, 2), inputs(6, 4, 8)
    with torch.no_grad():
        module.in_proj_weight[:8] = 0
    module(x, x, x)[0].square().sum().backward()
    assert module.in_proj_weight.grad[:8].abs().max() > 1e-6
    # With all scores 0 the values of n and b have no effect yet.
    optimiser = torch.optim.SGD(module.parameters(), lr=0.1)
    optimiser.step()
    optimiser.zero_grad()
    module(x, x, x)[0].square().sum().backward()
    assert module.ssa.rho_n.grad.abs().min() > 0
    assert module.ssa.rho_b.grad.abs().min() > 0


@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))]
)
def test_copies(duplicate):
    module, x = (
        SSAMultiheadAttention(8, 2, n_init=3.0, batch_first=True),
        inputs(2, 6, 8),
    )
    twin = duplicate(module)
    assert torch.equal(module(x)[0], twin(x)[0])
    assert twin.ssa.rho_n is not module.ssa.rho_n
    fresh = SSAMultiheadAttention(8, 2, batch_first=True)
    fresh.load_state_dict(module.state_dict(), strict=True)
    assert torch.equal(module(x)[0], fresh(x)[0])


def test_a_softmax_checkpoint_keeps_the_values_of_the_constructor():
    soft = nn.MultiheadAttention(8, 2)
    signed = SSAMultiheadAttention(8, 2, n_init=3.0)
    assert not signed.load_state_dict(soft.state_dict(), strict=True).missing_keys
    torch.testing.assert_close(signed.ssa.n, torch.full((2,), 3.0))
    broken = {**soft.state_dict(), "ssa.rho_n": torch.zeros(2)}
    with pytest.raises(RuntimeError, match="rho_b"):
        signed.load_state_dict(broken, strict=True)


def test_autocast():
    module, x = SSAMultiheadAttention(8, 2), inputs(6, 2, 8)
    for need_weights in (True, False):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            output, _ = module(x, x, x, need_weights=need_weights)
        assert output.dtype == torch.bfloat16
        output.float().sum().backward()
        assert module.ssa.rho_n.grad.dtype == torch.float32


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ({"is_causal": True}, "'attn_mask' must be given"),
        ({"attn_mask": torch.zeros(4, 4)}, "'attn_mask' must have shape"),
        ({"attn_mask": torch.zeros(5, 5).long()}, "'attn_mask' must be boolean"),
        (
            {"key_padding_mask": torch.zeros(5, 3).bool()},
            "'key_padding_mask' must have",
        ),
        ({"key_padding_mask": torch.zeros(3, 5).int()}, "must be boolean"),
    ],
)
def test_multihead_errors(call, message):
    x = inputs(5, 3, 8)
    with pytest.raises(ValueError, match=message):
        SSAMultiheadAttention(8, 2)(x, x, x, **call)


# ---------------------------------------------------------------- conversion


def layers():
    torch.manual_seed(0)
    options = {"dropout": 0.0, "batch_first": True, "dim_feedforward": 16}
    yield nn.TransformerEncoderLayer(8, 2, **options)
    yield nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, **options), 2)
    yield nn.TransformerDecoderLayer(8, 2, **options)


def call(model, x, padding):
    if isinstance(model, nn.TransformerDecoderLayer):
        return model(
            x, x, tgt_key_padding_mask=padding, memory_key_padding_mask=padding
        )
    return model(x, src_key_padding_mask=padding)


# The PyTorch encoder announces that it leaves its nested-tensor path.
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("index", range(3))
def test_layers_use_ssa_in_training_and_evaluation(index, train):
    model = list(layers())[index].train(train)
    x, padding = inputs(2, 5, 8), torch.zeros(2, 5, dtype=torch.bool)
    padding[0, 3:] = True
    with torch.no_grad():
        soft = call(model, x, padding)
        near = call(convert_to_ssa(copy.deepcopy(model)), x, padding)
        far_model = convert_to_ssa(copy.deepcopy(model), init=None, n_init=3.0)
        far = call(far_model, x, padding)
        changed = x.clone()
        changed[0, 3:] = 9
        again = call(far_model, changed, padding)
    keep = ~padding
    torch.testing.assert_close(near[keep], soft[keep], rtol=2e-2, atol=2e-2)
    assert (far[keep] - soft[keep]).abs().max() > 1e-2
    torch.testing.assert_close(again[0, :3], far[0, :3], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((2, 3, 8), (1, 3, 8), (1, 3, 8)), "one batch size. Got 2, 1 and 1"),
        (((2, 3, 8), (2, 3, 8), (1, 3, 8)), "one batch size. Got 2, 2 and 1"),
        (((3, 8), (2, 3, 8), (2, 3, 8)), r"all 2 without a batch. Got \[2, 3, 3\]"),
        (((1, 2, 3, 8),) * 3, r"Got \[4, 4, 4\]"),
    ],
)
def test_inputs_that_do_not_belong_together_are_refused(shapes, message):
    parts = [inputs(*shape) for shape in shapes]
    with pytest.raises(ValueError, match=message):
        SSAMultiheadAttention(8, 2, batch_first=True)(*parts)


def test_nested_tensors_are_refused():
    x = torch.nested.nested_tensor([inputs(3, 8), inputs(5, 8)])
    with pytest.raises(ValueError, match="nested"):
        SSAMultiheadAttention(8, 2, batch_first=True)(x)
    for nested in ({"key": x}, {"key": inputs(2, 5, 8), "value": x}):
        with pytest.raises(ValueError, match="nested"):
            SSAMultiheadAttention(8, 2, batch_first=True)(inputs(2, 5, 8), **nested)


def test_conversion_keeps_identity_parameters_and_hooks():
    model = nn.TransformerEncoderLayer(8, 2, batch_first=True).eval()
    attention, weight = model.self_attn, model.self_attn.in_proj_weight
    calls = []
    attention.register_forward_hook(lambda *_: calls.append(1))
    assert convert_to_ssa(model) is model
    assert model.self_attn is attention
    assert model.self_attn.in_proj_weight is weight
    assert not model.self_attn.ssa.training
    model(inputs(2, 5, 8))
    assert calls
    direct = nn.MultiheadAttention(8, 2)
    assert isinstance(convert_to_ssa(direct), SSAMultiheadAttention)


def test_conversion_errors():
    with pytest.raises(ValueError, match=r"no nn\.MultiheadAttention"):
        convert_to_ssa(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="SSAMultiheadAttention uses SSA attention al"):
        convert_to_ssa(SSAMultiheadAttention(8, 2))

    class Own(nn.MultiheadAttention):
        pass

    with pytest.raises(ValueError, match="Own is a subclass"):
        convert_to_ssa(Own(8, 2))


# ---------------------------------------------------------------- the guide


def test_the_examples_of_the_guide_run(tmp_path, monkeypatch):
    pytest.importorskip("transformers").logging.disable_progress_bar()
    monkeypatch.chdir(tmp_path)
    page = Path(__file__).parent.parent / "docs/user_guide/ssa.rst"
    text = page.read_text().split("What the numbers mean")[0]
    blocks = re.findall(r"::\n\n((?:    .*\n|\n)+)", text)
    assert len(blocks) == 3
    for block in blocks:
        exec(textwrap.dedent(block), {"__name__": "guide"})
    assert (tmp_path / "tiny-ssa/model.safetensors").exists()
