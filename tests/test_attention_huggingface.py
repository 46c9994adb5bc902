"""SSA in tiny, randomly initialised models of the transformers library."""

import copy
import inspect
import itertools

import pytest
import torch

from sdm_sklearn.attention import SSAParameters, ssa_weights
from sdm_sklearn.attention import convert_to_ssa as convert_modules

transformers = pytest.importorskip("transformers")

from sdm_sklearn.attention import huggingface  # noqa: E402 (needs transformers)
from sdm_sklearn.attention.huggingface import (  # noqa: E402 (needs transformers)
    convert_to_ssa,
    load_ssa,
    register_ssa,
)

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

SIZES = {"vocab_size": 61, "attn_implementation": "sdpa"}
LLAMA = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "eos_token_id": None,
}
BERT = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
}
GPT2 = {
    "n_positions": 64,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "eos_token_id": None,
}
T5 = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
BART = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 64,
    "forced_eos_token_id": None,
    "eos_token_id": None,
}
MODELS = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", LLAMA),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", LLAMA),
    "gemma2": ("Gemma2ForCausalLM", "Gemma2Config", {**LLAMA, "head_dim": 8}),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", GPT2),
    "bert": ("BertForMaskedLM", "BertConfig", BERT),
    "roberta": ("RobertaForMaskedLM", "RobertaConfig", {**BERT, "pad_token_id": 0}),
    "t5": (
        "T5ForConditionalGeneration",
        "T5Config",
        {**T5, "decoder_start_token_id": 0, "eos_token_id": None},
    ),
    "bart": (
        "BartForConditionalGeneration",
        "BartConfig",
        {**BART, "eos_token_id": None},
    ),
}
DECODERS = ("llama", "qwen2", "gemma2", "gpt2")
SEQ2SEQ = ("t5", "bart")


def build(name):
    model_class, config_class, options = MODELS[name]
    torch.manual_seed(0)
    config = getattr(transformers, config_class)(**{**SIZES, **options})
    if name == "gemma2":
        config._attn_implementation = "eager"
    model = getattr(transformers, model_class)(config).eval()
    with torch.no_grad():
        # Scores far enough from 0 to tell the weights apart; those of T5 are.
        for parameter in model.parameters():
            parameter.mul_(1 if name == "t5" else 3)
    return model


def converted(name, **options):
    return convert_to_ssa(build(name), **(options or {"init": None, "n_init": 2.0}))


def tokens(rows=2, length=9, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(5, 61, (rows, length), generator=generator)


def logits(model, ids, **kwargs):
    if model.config.is_encoder_decoder:
        kwargs = {"decoder_input_ids": tokens(len(ids), 6, seed=1), **kwargs}
    with torch.no_grad():
        return model(input_ids=ids, **kwargs).logits


@pytest.mark.parametrize("name", MODELS)
def test_conversion(name):
    model, ids = build(name), tokens()
    soft = logits(model, ids)
    near = logits(convert_to_ssa(copy.deepcopy(model), init="softmax"), ids)
    far_model = convert_to_ssa(model, init=None, n_init=2.0)
    far = logits(far_model, ids)
    assert (far - soft).abs().max() > 5 * (near - soft).abs().max()
    assert (far - soft).abs().max() > 1e-3
    found = [m for m in far_model.modules() if isinstance(m, SSAParameters)]
    assert len(found) == (6 if name in SEQ2SEQ else 2)
    assert all(len(m.rho_n) == 4 for m in found)
    assert model.config.ssa_attention["n_init"] == 2.0


@pytest.mark.parametrize("name", MODELS)
def test_padding_changes_nothing(name):
    model, ids = converted(name), tokens(1)
    alone = logits(model, ids)
    pad = torch.zeros(1, 3, dtype=torch.long)
    mask = torch.ones(1, 9, dtype=torch.long)
    padded = logits(
        model,
        torch.cat([ids, pad], 1),
        attention_mask=torch.cat([mask, pad], 1),
    )
    torch.testing.assert_close(padded[:, : alone.shape[1]], alone, rtol=1e-4, atol=1e-4)
    if name in DECODERS:
        positions = (torch.cat([pad, mask], 1).cumsum(1) - 1).clamp(min=0)
        left = logits(
            model,
            torch.cat([pad, ids], 1),
            attention_mask=torch.cat([pad, mask], 1),
            position_ids=positions,
        )
        torch.testing.assert_close(left[:, 3:], alone, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", DECODERS)
def test_cached_decoding_equals_the_full_forward(name):
    model, ids = converted(name), tokens()
    full = logits(model, ids)
    cache = transformers.DynamicCache(config=model.config)
    known = inspect.signature(model.forward).parameters
    cached = {"cache" if "cache" in known else "past_key_values": cache}
    bounds = [0, 4, 5, 6, 7, 8, 9]
    parts = [
        logits(model, ids[:, start:stop], use_cache=True, **cached)
        for start, stop in itertools.pairwise(bounds)
    ]
    torch.testing.assert_close(torch.cat(parts, 1), full, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", DECODERS + SEQ2SEQ)
def test_generation_equals_greedy_search_without_cache(name):
    model, ids = converted(name), tokens()
    options = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
    mask = torch.ones_like(ids)
    cached, plain = (
        model.generate(ids, attention_mask=mask, use_cache=cache, **options)
        for cache in (True, False)
    )
    assert torch.equal(cached, plain)


def test_generation_with_a_static_cache():
    model, ids = converted("llama"), tokens()
    options = {"max_new_tokens": 4, "do_sample": False, "disable_compile": True}
    mask = torch.ones_like(ids)
    dynamic = model.generate(ids, attention_mask=mask, **options)
    static = model.generate(
        ids, attention_mask=mask, cache_implementation="static", **options
    )
    assert torch.equal(dynamic, static)


@pytest.mark.parametrize("name", MODELS)
def test_gradients_with_and_without_checkpointing(name):
    model, ids = converted(name).train(), tokens()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    for module in model.modules():
        for option in ("attention_dropout", "dropout"):
            if isinstance(getattr(module, option, None), float):
                setattr(module, option, 0.0)
    found = []
    for checkpointing in (False, True):
        if checkpointing:
            # transformers renamed it in version 5
            enable = getattr(
                model,
                "activation_checkpointing_enable",
                model.gradient_checkpointing_enable,
            )
            enable()
        model.zero_grad()
        model(input_ids=ids, labels=ids).loss.backward()
        found.append(
            {
                k: p.grad.clone()
                for k, p in model.named_parameters()
                if p.grad is not None
            }
        )
    for key, grad in found[0].items():
        torch.testing.assert_close(found[1][key], grad, rtol=1e-4, atol=1e-6)
    ours = [g for key, g in found[0].items() if ".ssa." in key]
    assert len(ours) == 2 * (6 if name in SEQ2SEQ else 2)
    assert all(g.isfinite().all() and g.abs().max() > 0 for g in ours)


@pytest.mark.parametrize("name", MODELS)
def test_attentions_are_those_used(name):
    model, ids = converted(name), tokens()
    kwargs = {"decoder_input_ids": ids[:, :5]} if name in SEQ2SEQ else {}
    with torch.no_grad():
        result = model(input_ids=ids, output_attentions=True, **kwargs)
        plain = model(input_ids=ids, **kwargs)
    torch.testing.assert_close(result.logits, plain.logits, rtol=1e-4, atol=1e-4)
    assert not plain.get("attentions")
    names = ["attentions"]
    if name in SEQ2SEQ:
        names = ["encoder_attentions", "decoder_attentions", "cross_attentions"]
    for attentions in (result[n] for n in names):
        assert len(attentions) == 2
        for weights in attentions:
            assert weights.shape[:2] == (2, 4)
            torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:3]))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_save_and_load_are_exact(name, dtype, tmp_path):
    model, ids = converted(name).to(dtype), tokens()
    with torch.no_grad():
        for place, module in enumerate(model.modules()):
            if isinstance(module, SSAParameters):
                module.rho_n.add_(0.01 * place)
                module.rho_b.sub_(0.01 * place)
    model.save_pretrained(tmp_path)
    loaded = load_ssa(tmp_path, dtype=dtype).eval()
    assert type(loaded) is type(model)
    state = loaded.state_dict()
    for key, value in model.state_dict().items():
        assert torch.equal(value, state[key]), key
        if ".ssa." in key:
            assert state[key].dtype == torch.float32
    if dtype == torch.float32:  # .to(bfloat16) rounds rotary buffers, loading does not
        assert torch.equal(logits(loaded, ids), logits(model, ids))


def test_load_into_the_model_without_head_and_from_shards(tmp_path):
    model, ids = converted("bert", init=None, n_init=4.0, learn_b=False), tokens()
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert (tmp_path / "model.safetensors.index.json").exists()
    base = load_ssa(tmp_path, model_class=transformers.BertModel).eval()
    with torch.no_grad():
        want = model.bert(input_ids=ids).last_hidden_state
        got = base(input_ids=ids).last_hidden_state
    torch.testing.assert_close(got, want)
    ssa = next(m for m in base.modules() if isinstance(m, SSAParameters))
    assert "rho_b" not in dict(ssa.named_parameters())


VISION = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "image_size": 16,
    "patch_size": 8,
}


def vit():
    config = transformers.ViTConfig(**VISION)
    return transformers.ViTForImageClassification(config)


def llava():
    config = transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(**VISION),
        text_config=transformers.LlamaConfig(vocab_size=61, **LLAMA),
        image_token_index=60,
        image_seq_length=4,
    )
    return transformers.LlavaForConditionalGeneration(config)


@pytest.mark.parametrize("make", [vit, llava])
def test_checkpoints_whose_names_are_not_those_of_the_modules(make, tmp_path):
    torch.manual_seed(0)
    model = convert_to_ssa(make().eval(), init=None)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(tmp_path)
    loaded = load_ssa(tmp_path)
    assert type(loaded) is type(model)
    state = loaded.state_dict()
    assert any(".ssa.rho_n" in key for key in state)
    for key, value in model.state_dict().items():
        assert torch.equal(value, state[key]), key
    pixels = torch.ones(1, 3, 16, 16)
    inputs = {"pixel_values": pixels}
    if make is llava:
        inputs["input_ids"] = torch.tensor([[60, 60, 60, 60, 5, 6]])
    with torch.no_grad():
        assert torch.equal(loaded(**inputs).logits, model(**inputs).logits)


def test_options_of_from_pretrained(tmp_path):
    model = converted("llama")
    model.save_pretrained(tmp_path / "inner", variant="fp32")
    loaded, info = load_ssa(
        tmp_path, subfolder="inner", variant="fp32", output_loading_info=True
    )
    assert not any(info.values())
    assert torch.equal(logits(loaded.eval(), tokens()), logits(model, tokens()))
    assert type(copy.deepcopy(loaded)) is transformers.LlamaForCausalLM
    loaded.save_pretrained(tmp_path / "again")
    assert load_ssa(tmp_path / "again").config.architectures == ["LlamaForCausalLM"]
    with pytest.raises(TypeError, match="Got AutoModelForCausalLM"):
        load_ssa(tmp_path / "again", model_class=transformers.AutoModelForCausalLM)
    with pytest.raises(TypeError, match="Got LlamaForCausalLM"):
        load_ssa(tmp_path / "again", model_class="LlamaForCausalLM")
    with pytest.raises(ValueError, match="is 'ssa'. Got 'eager'"):
        load_ssa(tmp_path / "again", attn_implementation="eager")
    load_ssa(tmp_path / "again", attn_implementation="ssa")


def test_a_model_loaded_without_its_values_is_refused(tmp_path):
    converted("llama").save_pretrained(tmp_path)
    softmax = transformers.LlamaForCausalLM.from_pretrained(tmp_path)
    with pytest.raises(ValueError, match="was saved with SSA: load it with load_ssa"):
        convert_to_ssa(softmax)
    softmax.config.ssa_attention = None
    convert_to_ssa(softmax)


def gpt_oss():
    config = transformers.GptOssConfig(
        **{**SIZES, **LLAMA, "head_dim": 8, "num_local_experts": 2},
        layer_types=["full_attention"] * 2,
    )
    config._attn_implementation = "eager"
    return transformers.GptOssForCausalLM(config)


def tiny(model_class, config_class, **options):
    torch.manual_seed(0)
    config = getattr(transformers, config_class)(vocab_size=61, **options)
    return getattr(transformers, model_class)(config).eval()


def git():
    """Text attention of its own beside vision attention that could be converted."""
    return tiny("GitModel", "GitConfig", **BERT)


def nllb_moe():
    """Its decoder would see the future: no causal flag, and a mask of None."""
    return tiny("NllbMoeModel", "NllbMoeConfig", **BART, num_experts=2)


def splinter():
    return tiny("SplinterModel", "SplinterConfig", **BERT)


def gemma4():
    return tiny(
        "Gemma4ForCausalLM",
        "Gemma4TextConfig",
        **{**LLAMA, "num_hidden_layers": 4, "head_dim": 8, "global_head_dim": 8},
        num_kv_shared_layers=2,
        layer_types=["sliding_attention", "full_attention"] * 2,
        sliding_window=64,
        vocab_size_per_layer_input=61,
        hidden_size_per_layer_input=8,
    )


def siglip():
    """Its pooling head is an nn.MultiheadAttention."""
    return transformers.SiglipVisionModel(
        transformers.SiglipVisionConfig(
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=1,
            num_attention_heads=4,
            image_size=8,
            patch_size=4,
        )
    ).eval()


def llama_with_attentions():
    model = build("llama")
    model.set_attn_implementation("eager")
    model.config.output_attentions = True
    return model


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (gpt_oss, {}, "attention sinks"),
        (llama_with_attentions, {}, "output_attentions=True to forward instead"),
        (lambda: build("llama"), {"init": None, "n_init": 0.5}, "'n_init' must be"),
        (git, {}, "GitVision.* cannot be converted: transformers offers no"),
        (nllb_moe, {}, "NllbMoe.* cannot be converted"),
        (splinter, {}, "Splinter.* cannot be converted"),
    ],
)
def test_a_refused_conversion_changes_nothing(make, options, message):
    model = make()
    before, names = model.config.to_dict(), list(model.state_dict())
    implementation = model.config._attn_implementation
    with pytest.raises(ValueError, match=message):
        convert_to_ssa(model, **options)
    assert model.config.to_dict() == before
    assert model.config._attn_implementation == implementation
    assert list(model.state_dict()) == names


def test_an_implementation_that_cannot_be_set_changes_nothing(monkeypatch):
    model = build("llama")

    def refuse(self, name):
        raise ValueError("not this one")

    monkeypatch.setattr(type(model), "set_attn_implementation", refuse)
    with pytest.raises(ValueError, match="not this one"):
        convert_to_ssa(model)
    assert not any(isinstance(m, SSAParameters) for m in model.modules())


def test_fewer_queries_without_a_mask_are_refused():
    model, ids = gemma4(), tokens()
    full = logits(convert_to_ssa(model, init=None), ids)
    last = logits(model, ids, logits_to_keep=1)
    torch.testing.assert_close(last, full[:, -1:], rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="3 queries to 9 keys without a mask. Leave"):
        logits(model, ids, logits_to_keep=3)


def test_attention_that_stays_as_it_is_is_named(tmp_path):
    model = siglip()
    with pytest.warns(UserWarning, match="MultiheadAttention.* is left as it is"):
        convert_to_ssa(model)
    model.save_pretrained(tmp_path / "one")
    load_ssa(tmp_path / "one")  # said once, when it was converted
    convert_modules(model)
    model.save_pretrained(tmp_path / "both")
    with pytest.raises(ValueError, match="whose attention load_ssa leaves as it is"):
        load_ssa(tmp_path / "both")


def test_a_model_may_be_converted_part_by_part():
    options = {"init": None, "n_init": 2.0}
    model, whole = build("bart"), converted("bart", **options)
    convert_to_ssa(model.model.encoder, **options)
    with pytest.raises(RuntimeError, match="no SSA parameters"):
        logits(model, tokens())
    with pytest.raises(ValueError, match="Part of this .* pass the same for all"):
        convert_to_ssa(model, **{**options, "n_init": 3.0})
    convert_to_ssa(model, **options)
    assert torch.equal(logits(model, tokens()), logits(whole, tokens()))
    with pytest.raises(ValueError, match="uses SSA attention already"):
        convert_to_ssa(model, **options)


def test_copies_work():
    model, ids = converted("gpt2"), tokens()
    twin = copy.deepcopy(model)
    assert torch.equal(logits(model, ids), logits(twin, ids))
    twin(input_ids=ids, output_attentions=True)


def attention_module(**attributes):
    module = torch.nn.Module()
    module.ssa = SSAParameters(2)
    for name, value in attributes.items():
        setattr(module, name, value)
    return module


def test_softcap_and_position_bias_act_before_the_transform():
    query, key, value = torch.randn(
        3, 1, 2, 5, 4, generator=torch.Generator().manual_seed(0)
    )
    bias = torch.arange(5.0).expand(1, 2, 5, 5)
    forward = huggingface._ssa_attention_forward
    module = attention_module(is_causal=False)
    scores = query @ key.mT * 0.5 + bias
    for softcap in (None, 2.0):
        capped = scores if softcap is None else softcap * torch.tanh(scores / softcap)
        expected = ssa_weights(capped, module.ssa.n, module.ssa.b) @ value
        output, _ = forward(
            module,
            query,
            key,
            value,
            None,
            scaling=0.5,
            position_bias=bias,
            softcap=softcap,
        )
        torch.testing.assert_close(output, expected.transpose(1, 2))


def test_the_implementation_switches_between_softmax_and_ssa():
    model, ids = build("llama"), tokens()
    soft = logits(model, ids)
    convert_to_ssa(model, init=None)
    signed = logits(model, ids)
    with pytest.raises(ValueError, match="output_attentions"):
        model.config.output_attentions = True
    model.set_attn_implementation("eager")
    torch.testing.assert_close(logits(model, ids), soft, rtol=1e-4, atol=1e-4)
    model.set_attn_implementation("ssa")
    assert torch.equal(logits(model, ids), signed)


def test_errors(tmp_path):
    x = torch.zeros(1, 2, 3, 4)
    register_ssa()
    with pytest.raises(RuntimeError, match="convert_to_ssa"):
        huggingface._ssa_attention_forward(torch.nn.Linear(1, 1), x, x, x, None)
    for name in ("s_aux", "sinks", "indices", "block_indices"):
        with pytest.raises(ValueError, match=f"sinks or sparse attention .'{name}'"):
            huggingface._ssa_attention_forward(
                attention_module(), x, x, x, None, **{name: torch.zeros(2)}
            )
    model = build("bert")
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="not saved with SSA"):
        load_ssa(tmp_path)
    with pytest.raises(ValueError, match="uses SSA attention already"):
        convert_to_ssa(convert_to_ssa(model))
    with pytest.raises(TypeError, match="must be a PreTrainedModel"):
        convert_to_ssa(torch.nn.Linear(2, 2))
    with pytest.raises(ValueError, match="no attention that goes"):
        huggingface._convert(torch.nn.Linear(2, 2), {})
    with pytest.raises(ValueError, match="number of heads"):
        huggingface._number_of_heads(torch.nn.Linear(2, 2))


def test_missing_values_are_an_error(tmp_path):
    model = build("bert")
    model.config.ssa_attention = {"init": None}
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"holds no value of .*ssa\.rho"):
        load_ssa(tmp_path)
