"""Estimates from a model's configuration: published totals, real tensor names, and refusals."""

from __future__ import annotations

import copy
import gzip
import json
import random

import pytest
from shared_files import shared_data

from commsched.models import AlphaBeta, InputError
from commsched.problems import read_recording
from commsched.problems.estimates.architectures import MODELS, parameters
from commsched.problems.estimates.model_config import READER, model_parameters
from commsched.problems.estimates.model_layers import Config, Parameter, listed, with_head
from commsched.problems.estimates.model_tensors import read_model_tensors
from commsched.problems.readers import ReadOptions
from commsched.problems.recorded import RecordedStep
from commsched.problems.sources.source import Source
from commsched.problems.workloads import astra_workload, ddp_logging, pipedream_profile

COST = {("dp", "allreduce"): AlphaBeta(30, 10)}


def llama(kind, width, inner, layers, heads, keys, vocabulary, **more):
    return {
        "model_type": kind,
        "hidden_size": width,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": keys,
        "vocab_size": vocabulary,
        **more,
    }


def bert(architecture):
    return {
        "model_type": "bert",
        "architectures": [architecture],
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "vocab_size": 30522,
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
    }


def gpt2(width, layers):
    return {"model_type": "gpt2", "n_embd": width, "n_layer": layers, "vocab_size": 50257}


def neox(width, inner, layers, vocabulary):
    return {
        "model_type": "gpt_neox",
        "hidden_size": width,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "vocab_size": vocabulary,
    }


DEEPSEEK_V3 = llama(
    "deepseek_v3",
    7168,
    18432,
    61,
    128,
    128,
    129280,
    q_lora_rank=1536,
    kv_lora_rank=512,
    qk_nope_head_dim=128,
    qk_rope_head_dim=64,
    v_head_dim=128,
    n_routed_experts=256,
    n_shared_experts=1,
    moe_intermediate_size=2048,
    first_k_dense_replace=3,
    moe_layer_freq=1,
    num_experts_per_tok=8,
    num_nextn_predict_layers=1,
)
DEEPSEEK_V2 = {
    **DEEPSEEK_V3,
    "model_type": "deepseek_v2",
    "hidden_size": 5120,
    "intermediate_size": 12288,
    "num_hidden_layers": 60,
    "vocab_size": 102400,
    "n_routed_experts": 160,
    "n_shared_experts": 2,
    "moe_intermediate_size": 1536,
    "first_k_dense_replace": 1,
    "num_experts_per_tok": 6,
}
DEEPSEEK_V2_LITE = {
    **DEEPSEEK_V2,
    "hidden_size": 2048,
    "intermediate_size": 10944,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "q_lora_rank": None,
    "n_routed_experts": 64,
    "moe_intermediate_size": 1408,
}
MIXTRAL = llama(
    "mixtral", 4096, 14336, 32, 32, 8, 32000, num_local_experts=8, num_experts_per_tok=2
)
QWEN3_MOE = llama(
    "qwen3_moe",
    2048,
    6144,
    48,
    32,
    4,
    151936,
    head_dim=128,
    num_experts=128,
    num_experts_per_tok=8,
    moe_intermediate_size=768,
    decoder_sparse_step=1,
    mlp_only_layers=[],
)
QWEN_MOE = llama(
    "qwen2_moe",
    2048,
    5632,
    24,
    16,
    16,
    151936,
    num_experts=60,
    num_experts_per_tok=4,
    moe_intermediate_size=1408,
    shared_expert_intermediate_size=5632,
)
GRANITE_MOE = llama(
    "granitemoe",
    1024,
    512,
    24,
    16,
    8,
    49155,
    num_local_experts=32,
    num_experts_per_tok=8,
    tie_word_embeddings=True,
)
# Parameters as their publishers count them; DeepSeek-V3 without the 58 x 256 numbers that steer
# its router and get no gradient.
PUBLISHED = {
    "Llama-2-7B": (llama("llama", 4096, 11008, 32, 32, 32, 32000), 6_738_415_616),
    "Llama-3-8B": (llama("llama", 4096, 14336, 32, 32, 8, 128256), 8_030_261_248),
    "Llama-3-70B": (llama("llama", 8192, 28672, 80, 64, 8, 128256), 70_553_706_496),
    "Llama-3.2-1B": (
        llama("llama", 2048, 8192, 16, 32, 8, 128256, tie_word_embeddings=True, head_dim=64),
        1_235_814_400,
    ),
    "Mistral-7B": (llama("mistral", 4096, 14336, 32, 32, 8, 32000), 7_241_732_096),
    "Mixtral-8x7B": (MIXTRAL, 46_702_792_704),
    "Qwen2-7B": (llama("qwen2", 3584, 18944, 28, 28, 4, 152064), 7_615_616_512),
    "Qwen2-0.5B": (
        llama("qwen2", 896, 4864, 24, 14, 2, 151936, tie_word_embeddings=True),
        494_032_768,
    ),
    "Qwen3-8B": (llama("qwen3", 4096, 12288, 36, 32, 8, 151936), 8_190_735_360),
    "Qwen3-30B-A3B": (QWEN3_MOE, 30_532_122_624),
    "Qwen1.5-MoE": (QWEN_MOE, 14_315_784_192),
    "Gemma-2B": (llama("gemma", 2048, 16384, 18, 8, 1, 256000), 2_506_172_416),
    "Gemma-7B": (llama("gemma", 3072, 24576, 28, 16, 16, 256000), 8_537_680_896),
    "Gemma-2-2B": (llama("gemma2", 2304, 9216, 26, 8, 4, 256000), 2_614_341_888),
    "Phi-3-mini": (llama("phi3", 3072, 8192, 32, 32, 32, 32064), 3_821_079_552),
    "Granite-3.1-1B-A400M": (GRANITE_MOE, 1_334_628_352),
    "Granite-3.1-8B": (
        llama("granite", 4096, 12800, 40, 32, 8, 49155, tie_word_embeddings=True),
        8_170_848_256,
    ),
    "DeepSeek-V2": (DEEPSEEK_V2, 235_741_434_880),
    "DeepSeek-V2-Lite": (DEEPSEEK_V2_LITE, 15_706_484_224),
    "DeepSeek-V3": (DEEPSEEK_V3, 671_026_419_200 - 58 * 256),
    "GPT-2": (gpt2(768, 12), 124_439_808),
    "GPT-2 XL": (gpt2(1600, 48), 1_557_611_200),
    "Pythia-70M": (neox(512, 2048, 6, 50304), 70_426_624),
    "GPT-NeoX-20B": (neox(6144, 24576, 44, 50432), 20_554_567_680),
    "BERT-base": (bert("BertModel"), 109_482_240),
    "BERT-base, masked": (bert("BertForMaskedLM"), 109_514_298),
    "BERT-base, pre-training": (bert("BertForPreTraining"), 110_106_428),
}
SMALL = llama("llama", 8, 16, 2, 4, 2, 32)


def read(path, config=None, *, tokens=1000, tflops=1.0, sizes=None) -> RecordedStep:
    if config is not None:
        path.write_bytes(config if isinstance(config, bytes) else json.dumps(config).encode())
    return READER.read([Source(path)], ReadOptions(tokens=tokens, tflops=tflops, sizes=sizes))


def outcome(path, config) -> RecordedStep | str:
    """Return what is read, or the message of the refusal."""
    try:
        return read(path, config)
    except InputError as error:
        return str(error)


@pytest.mark.parametrize("model", PUBLISHED)
def test_totals_are_the_published_ones(model):
    """Every tensor has a name of its own, and together they have the published number."""
    config, total = PUBLISHED[model]
    found, _ = model_parameters(config, model)
    assert sum(p.elements for p in found) == total
    assert len({p.name for p in found}) == len(found)


@pytest.mark.parametrize(
    ("model", "config", "prefix"),
    [
        ("llama3-8b", PUBLISHED["Llama-3-8B"][0], "model."),
        ("gpt2-xl", PUBLISHED["GPT-2 XL"][0], "transformer."),
    ],
)
def test_named_architectures_are_the_same_models(model, config, prefix):
    """The same tensors in the same order; a tied head's work is the last norm's."""
    found, _ = model_parameters(config, model)
    named = parameters(model)
    assert [p.name.removeprefix(prefix) for p in found] == [p.name for p in named]
    assert [p.elements for p in found] == [p.elements for p in named]
    assert [p.work for p in found[:-1]] == [p.work for p in named[:-1]]
    assert model in MODELS


@pytest.mark.parametrize(
    ("model", "active"),
    [("Mixtral-8x7B", 12.7e9), ("DeepSeek-V3", 36.6e9), ("Qwen3-30B-A3B", 3.04e9)],
)
def test_tokens_pass_through_their_experts_only(model, active):
    """The work of a token is that of the published active parameters without the embedding."""
    found, notes = model_parameters(PUBLISHED[model][0], model)
    assert sum(p.work for p in found) == pytest.approx(active, rel=0.01)
    assert any("all experts" in note for note in notes)


def test_times_follow_from_work_over_throughput(tmp_path):
    """A token takes 2 operations a number forward and 4 in backward."""
    step = read(tmp_path / "config.json", SMALL, tokens=10**6, tflops=2.5)
    found, _ = model_parameters(SMALL, "small")
    forward_ns = 2 * sum(p.work for p in found) * 10**6 / 2.5e12 * 1e9
    assert step.backward_end_ns == round(3 * forward_ns)
    assert [g.name for g in step.gradients] == [p.name for p in found][::-1]
    assert step.gradients[0].name == "lm_head.weight"
    head = 2 * 2 * found[-1].work * 10**6 / 2.5e12 * 1e9
    assert step.gradients[0].ready_ns == pytest.approx(forward_ns + head, abs=1)
    assert step.name == "llama (estimated: 1000000 tokens at 2.5 TFLOP/s)"
    assert step.step_name == "estimated"
    assert "estimated" in step.report.assumptions[0]
    assert step.launches == ()
    step.with_costs(COST)


def test_type_and_name_come_from_the_configuration(tmp_path):
    """bfloat16 halves the bytes; float32 where nothing is said, which is said."""
    plain = read(tmp_path / "config.json", SMALL)
    half = read(
        tmp_path / "config.json",
        {**SMALL, "torch_dtype": "bfloat16", "_name_or_path": "someone/tiny"},
    )
    assert [g.bytes for g in plain.gradients] == [2 * g.bytes for g in half.gradients]
    assert {g.dtype for g in half.gradients} == {"bfloat16"}
    assert half.name.startswith("tiny (estimated: ")
    assert any("names no type" in note for note in plain.report.assumptions)
    newer = read(tmp_path / "config.json", {**SMALL, "dtype": "float16"})
    assert {g.dtype for g in newer.gradients} == {"float16"}


def test_heads(tmp_path):
    """Bare models have none, tied ones no tensor of their own, others are refused by name."""
    bare = read(tmp_path / "c.json", {**SMALL, "architectures": ["LlamaModel"]})
    names = [g.name for g in bare.gradients]
    assert "embed_tokens.weight" in names
    assert not any(name.startswith(("model.", "lm_head")) for name in names)
    tied = read(tmp_path / "c.json", {**SMALL, "tie_word_embeddings": True})
    assert len(tied.gradients) == len(bare.gradients)
    assert any("tied" in note for note in tied.report.assumptions)
    assert tied.gradients[0].name == "model.norm.weight"
    assert tied.gradients[-1].ready_ns == tied.backward_end_ns
    with pytest.raises(InputError, match="head of 'LlamaForTokenClassification' is not known"):
        read(tmp_path / "c.json", {**SMALL, "architectures": ["LlamaForTokenClassification"]})
    with pytest.raises(InputError, match="head of 'BertForX' is not known"):
        read(tmp_path / "c.json", bert("BertForX"))


@pytest.mark.shared
def test_real_granite():
    """514 tensors with the names of the index, and its total size to the byte."""
    path = shared_data("hf/granite-3b-code_config.json")
    index = shared_data("hf/granite-3b-code_model.safetensors.index.json")
    assert READER.recognises(path.read_bytes())
    step = read(path, tokens=8192, tflops=200, sizes=index)
    assert len(step.gradients) == 514
    assert {g.name for g in step.gradients} == json.loads(index.read_text())["weight_map"].keys()
    assert sum(g.bytes for g in step.gradients) == 6_965_007_360
    assert {g.dtype for g in step.gradients} == {"bfloat16"}
    assert [check.passed for check in step.report.checks] == [True, True]
    assert step.name.endswith("(estimated: 8192 tokens at 200 TFLOP/s)")
    step.with_costs(COST)


@pytest.mark.shared
def test_every_real_file_has_at_most_one_of_these_readers():
    """Each takes its own files and no other of the many kinds."""
    folder = shared_data("hf").parent
    readers = {
        "astra-sim/text_workloads": astra_workload.READER,
        "hf": READER,
        "local-torch-2.14.1": ddp_logging.READER,
        "pipedream": pipedream_profile.READER,
        "simai": astra_workload.READER,
    }
    taken = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            raw = path.read_bytes()
            start = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
            found = [r for r in set(readers.values()) if r.recognises(start[: 1 << 20])]
            name = path.relative_to(folder).as_posix()
            if found:
                taken[name] = found
                assert found == [readers[name.rpartition("/")[0]]]
    assert len(taken) == 6 + 1 + 2 + 2 + 1


def safetensors(path, tensors, cut=None):
    header = json.dumps({"__metadata__": {"format": "pt"}, **tensors}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header[:cut])
    return path


def test_sizes_are_checked_against_a_checkpoint(tmp_path):
    """Names and shapes of a safetensors header; what differs fails a check."""
    found, _ = model_parameters(SMALL, "small")
    tensors = {
        p.name: {"dtype": "F32", "shape": [p.elements], "data_offsets": [0, 0]} for p in found
    }
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = {"shape": [1]}
    file = safetensors(tmp_path / "model.safetensors", tensors)
    step = read(tmp_path / "c.json", SMALL, sizes=file)
    assert [check.passed for check in step.report.checks] == [True, True]
    tensors["lm_head.weight"]["shape"] = [3]
    tensors["more"] = {"shape": []}
    step = read(tmp_path / "c.json", SMALL, sizes=safetensors(file, tensors))
    assert [check.passed for check in step.report.checks] == [False, False]
    assert "1 more there" in step.report.checks[0].text
    index = tmp_path / "index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 12.0}, "weight_map": {"a": "b"}}))
    step = read(tmp_path / "c.json", SMALL, sizes=index)
    assert [check.passed for check in step.report.checks] == [False, False]


def test_checkpoints_that_cannot_be_read_are_refused(tmp_path):
    """Cut off, without shapes, without tensors, something else."""
    file = tmp_path / "model.safetensors"
    for tensors, cut, message in (
        ({"a": {"shape": [1]}}, 20, "cut off"),
        ({"a": {"shape": [-1]}}, None, "'a' has no shape"),
        ({"a": 3}, None, "'a' has no shape"),
        ({}, None, "has no tensor"),
    ):
        with pytest.raises(InputError, match=message):
            read_model_tensors(Source(safetensors(file, tensors, cut)))
    file.write_bytes((9).to_bytes(8, "little") + b"{not json")
    with pytest.raises(InputError, match="no valid JSON"):
        read_model_tensors(Source(file))
    file.write_text('{"weights": 1}')
    with pytest.raises(InputError, match="neither a safetensors file nor its index"):
        read_model_tensors(Source(file))
    with pytest.raises(InputError, match="cannot be read"):
        read_model_tensors(Source(tmp_path / "none"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokens": None}, "has no times: say --tokens .* and --tflops"),
        ({"tflops": None}, "has no times"),
        ({"tokens": 0}, "tokens: 0 must be a whole number from 1"),
        ({"tokens": 1.5}, "tokens: 1.5 must be a whole number"),
        ({"tokens": True}, "tokens: True is a boolean"),
        ({"tokens": 10**13}, "tokens"),
        ({"tflops": 0}, "tflops: 0 must be above 0"),
        ({"tflops": float("nan")}, "tflops: nan is not a finite number"),
        ({"tflops": float("inf")}, "tflops: inf is not a finite number"),
        ({"tflops": 1e10}, "at most 1e9"),
        ({"tokens": 10**12, "tflops": 1e-9}, "longer than 13 days"),
    ],
)
def test_speeds_out_of_range_are_refused(tmp_path, options, message):
    """The message says what to give."""
    with pytest.raises(InputError, match=message):
        read(tmp_path / "c.json", SMALL, **options)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "mamba"}, "model_type 'mamba' is not one of bert, deepseek_v2"),
        ({"model_type": None}, "model_type None is not one of"),
        ({"model_type": "x", "text_config": {"model_type": "llama"}}, "text_config alone"),
        ({"hidden_size": None}, "model_type 'llama': hidden_size is missing"),
        ({"hidden_size": True}, "hidden_size: True must be a whole number"),
        ({"hidden_size": 8.0}, "hidden_size: 8.0 must be a whole number"),
        ({"hidden_size": -8}, "hidden_size: -8 must be a whole number"),
        ({"hidden_size": 0}, "hidden_size must be above 0"),
        ({"hidden_size": 10}, "10 is no multiple of num_attention_heads 4"),
        ({"head_dim": 0}, "head_dim must be above 0"),
        ({"hidden_size": 2**40}, "q_proj.weight has .* numbers: too many"),
        ({"num_hidden_layers": 2**40}, "more than 300000 tensors"),
        ({"attention_bias": 1}, "attention_bias: 1 must be true or false"),
        ({"model_type": "mistral", "num_key_value_heads": None}, "num_key_value_heads is missing"),
        ({"torch_dtype": "int8"}, "'int8' is no type that gradients have"),
        ({"torch_dtype": ["x"]}, "no type that gradients have"),
        ({**MIXTRAL, "num_experts_per_tok": 9}, "9 is more than the 8 experts"),
        ({**QWEN3_MOE, "mlp_only_layers": "all"}, "must be a list of layer numbers"),
    ],
)
def test_configurations_that_lack_something_are_refused(tmp_path, changes, message):
    """One line that names the file, the kind of model and the value."""
    path = tmp_path / "c.json"
    with pytest.raises(InputError, match=message):
        read(path, {**SMALL, **changes})


def test_other_files_are_refused_and_not_recognised(tmp_path):
    """Traces, our own files and damaged JSON are no configurations."""
    text = json.dumps(SMALL)
    assert READER.recognises(text.encode())
    assert READER.recognises(b'{"model_type": "new", "text_config": {}}')
    for other in (
        text[:-1],
        '{"traceEvents": [],' + text[1:],
        '{"format": "commsched/problem",' + text[1:],
        '{"model_type": "llama"}',
        '{"model_type": 3, "hidden_size": 3}',
        '["model_type", "hidden_size"]',
    ):
        assert not READER.recognises(other.encode())
    with pytest.raises(InputError, match="no valid JSON"):
        read(tmp_path / "c.json", text[:-1].encode())
    with pytest.raises(InputError, match="a JSON object is needed"):
        read(tmp_path / "c.json", b"[]")
    path = tmp_path / "c.json"
    with pytest.raises(InputError, match="one at a time"):
        READER.read([Source(path), Source(path)], ReadOptions(tokens=1, tflops=1))


def test_parts():
    """A head after nothing, the bound on the number of tensors, null as nothing."""
    assert list(with_head(iter(()), "head", 3, 2, tied=True)) == []
    untied = list(with_head(iter([Parameter("a", 1, 1)]), "head", 3, 2, tied=False))
    assert untied == [Parameter("a", 1, 1), Parameter("head.weight", 6, 6)]
    assert len(listed(iter(untied), "x")) == 2
    assert Config({"a": None}, "x").number("a", 3) == 3
    assert Config({"a": 0}, "x").number("a", 0) == 0


def test_damage_never_escapes(tmp_path):
    """Changed types, lost keys and flipped bytes give a valid step or a refusal."""
    path = tmp_path / "c.json"
    rng = random.Random(7)
    small_experts = {**MIXTRAL, "hidden_size": 64, "num_hidden_layers": 2}
    latent = {**DEEPSEEK_V3, "num_hidden_layers": 4, "n_routed_experts": 8}
    values = [None, True, -1, 0, 1, 2**20, 2**70, 1.5, "", "llama", [], [1], {}, "bfloat16"]
    for number in range(400):
        made = copy.deepcopy(rng.choice([SMALL, small_experts, latent, gpt2(8, 2)]))
        if number % 2:
            made |= {"torch_dtype": "float32", "architectures": ["XForCausalLM"]}
            for _ in range(rng.randint(1, 3)):
                key = rng.choice([k for k in made if k != "num_hidden_layers"])
                made[key] = rng.choice(values)
            text = json.dumps(made).encode()
        else:
            raw = bytearray(json.dumps(made).encode())
            for _ in range(rng.randint(1, 3)):
                at = rng.randrange(len(raw))
                raw[at : at + rng.randint(0, 2)] = bytes([rng.randrange(256)])
            text = bytes(raw)
        READER.recognises(text)
        step = outcome(path, text)
        if isinstance(step, str):
            assert "\n" not in step
        else:
            step.with_costs(COST)


@pytest.mark.shared
def test_damaged_real_files_never_escape(tmp_path):
    """Flipped bytes and cuts of a real configuration."""
    rng = random.Random(23)
    for name in ("hf/granite-3b-code_config.json",):
        whole = shared_data(name).read_bytes()
        for _ in range(120):
            data = bytearray(whole)
            for _ in range(rng.randint(1, 8)):
                at = rng.randrange(len(data))
                data[at : at + rng.randint(0, 4)] = bytes([rng.randrange(256)])
            if rng.random() < 0.2:
                del data[rng.randrange(1, len(data)) :]
            path = tmp_path / "damaged"
            path.write_bytes(data)
            step = outcome(path, None)
            if isinstance(step, str):
                assert "\n" not in step
            else:
                step.with_costs(COST)


def test_a_model_of_an_unknown_family_is_named(tmp_path):
    """Whatever names its dimensions have."""
    path = tmp_path / "config.json"
    config = {"model_type": "distilbert", "architectures": ["DistilBertModel"], "dim": 768}
    path.write_text(json.dumps(config))
    with pytest.raises(InputError, match="model_type 'distilbert' is not one of"):
        read_recording(path, options=ReadOptions(tokens=1, tflops=1.0))
