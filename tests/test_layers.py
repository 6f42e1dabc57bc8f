"""Layers: what they accept, the models' published sizes, and PipeDream's measured profiles."""

from __future__ import annotations

import re

import pytest
from shared_files import shared_data

from commsched.models import InputError
from commsched.problems.steps.experts import EXPERTS, Experts, all_to_all_bytes, estimated_experts
from commsched.problems.steps.layer_models import PROFILED, estimated_profile, measured_profile
from commsched.problems.steps.layers import Layer, LayerProfile, Tensor, check_profile

# Tensors and parameters: torchvision (DenseNet-121), Hugging Face (GPT-2, Mixtral 8x7B); for GNMT
# PipeDream's profile of gnmt_large has 1110.9 MB in float32.
PUBLISHED = {
    "densenet121": (364, 7_978_856),
    "gnmt": (77, 277_718_593),
    "gpt2": (148, 124_439_808),
    "mixtral-8x7b": (995, 46_702_792_704),
    "resnet50": (161, 25_557_032),
    "llama3-8b": (291, 8_030_261_248),
}


@pytest.mark.parametrize("model", PUBLISHED)
@pytest.mark.parametrize("by", ["tensor", "module", "block"])
def test_a_models_profile_has_the_published_sizes(model, by):
    """However tensors are grouped into layers, none is lost and none comes twice."""
    profile = estimated_profile(model, samples=1, tflops=1, dtype="float16", by=by)
    tensors = [tensor.name for layer in profile.layers for tensor in layer.gradients]
    assert (len(set(tensors)), profile.parameter_bytes) == (
        PUBLISHED[model][0],
        2 * PUBLISHED[model][1],
    )
    if by == "tensor":
        assert [layer.name for layer in profile.layers] == tensors


def test_gnmt_is_as_large_as_pipedreams():
    assert round(4 * PUBLISHED["gnmt"][1] / 1e6, 1) == 1110.9


def test_estimated_times_are_work_over_throughput():
    """DenseNet-121 has 2.85e9 multiply-adds an image (torchvision's table: 2.83)."""
    profile = estimated_profile("densenet121", samples=32, tflops=10, by="block")
    assert profile.forward_ns == pytest.approx(2 * 2.85e9 * 32 / 10e3, rel=0.01)
    assert profile.backward_ns == 2 * profile.forward_ns
    for layer in profile.layers:
        assert 2 * layer.weight_gradient_ns == layer.backward_ns
    twice = estimated_profile("densenet121", samples=64, tflops=10, by="block")
    assert twice.forward_ns == pytest.approx(2 * profile.forward_ns, abs=len(profile.layers))
    assert "estimated" in profile.name


def test_blocks_are_the_layers_that_people_speak_of():
    names = [n.name for n in estimated_profile("llama3-8b", samples=1, tflops=1, by="block").layers]
    assert names == ["embed_tokens", *(f"layers.{k}" for k in range(32)), "norm", "lm_head"]
    names = [
        n.name for n in estimated_profile("densenet121", samples=1, tflops=1, by="block").layers
    ]
    assert names.count("features.denseblock1.denselayer1") == 1
    assert sum("denselayer" in name for name in names) == 6 + 12 + 24 + 16


def test_the_fixed_list_of_models_is_there():
    for model in PROFILED:
        assert estimated_profile(model, samples=1, tflops=1, by="module").parameter_bytes
    assert {"vgg16", "resnet50", "densenet121", "gnmt", "bert-large", "gpt2"} <= PROFILED.keys()


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "count", "size"), [("vgg16", 16, 553_430_176), ("resnet50", 107, 102_228_128)]
)
def test_a_measured_profile_keeps_all_times_and_bytes(name, count, size):
    """Sums as counted in the file with regular expressions."""
    path = shared_data(f"pipedream/{name}.graph.txt")
    profile = measured_profile(path)
    assert sum(layer.parameter_bytes > 0 for layer in profile.layers) == count
    assert profile.parameter_bytes == size
    text = path.read_text()
    for key, ns in (("forward", profile.forward_ns), ("backward", profile.backward_ns)):
        found = re.findall(rf"{key}_compute_time=([\d.]+)", text)
        assert ns == round(1e6 * sum(map(float, found)))
    merged = measured_profile(path, per_layer=4)
    assert len(merged.layers) == -(-len(profile.layers) // 4)
    assert (merged.forward_ns, merged.parameter_bytes) == (profile.forward_ns, size)


def test_merged_layers_add_up():
    profile = LayerProfile(
        (
            Layer("a", 1, 2, 4, weight_gradient_ns=1),
            Layer("relu", 10, 20),
            Layer("b", 100, 200, tensors=(Tensor("b.w", 8), Tensor("b.b", 2))),
        )
    )
    first, second = profile.merged(2).layers
    assert first == Layer("a .. relu", 11, 22, 4, weight_gradient_ns=1, tensors=(Tensor("a", 4),))
    assert second == profile.layers[2]
    whole = profile.merged(3).layers[0]
    assert [t.name for t in whole.gradients] == ["a", "b.w", "b.b"]
    assert profile.merged(1) == profile


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Layer("", 1, 1), "layer: name: '' must be a non-empty text"),
        (lambda: Layer("a", -1, 1), "layer 'a': forward_ns: -1 must be at least 0"),
        (lambda: Layer("a", 1, True), "backward_ns: True is a boolean"),
        (lambda: Layer("a", 1, 1, 1.5), "parameter_bytes: 1.5 must be a whole number"),
        (lambda: Layer("a", 1, 1, float("nan")), "nan is not a finite number"),
        (lambda: Layer("a", 1, 1, 2**51), "at most"),
        (lambda: Layer("a", 1, 1, dtype=""), "dtype: '' must be"),
        (lambda: Layer("a", 1, 1, weight_gradient_ns=2), "weight_gradient_ns 2 is longer"),
        (lambda: Layer("a", 1, 1, 5, tensors=(("w", 4),)), "5 is not the 4 bytes"),
        (lambda: Layer("a", 1, 1, tensors=(("w", 4), ("w", 4))), "'w': the name is used twice"),
        (lambda: Layer("a", 1, 1, tensors=("w",)), "tensor 'w' must be a name and its bytes"),
        (lambda: Layer("a", 1, 1, tensors="w"), "tensors 'w' must be a list"),
        (lambda: LayerProfile(()), "it has no layer"),
        (lambda: LayerProfile(("a",)), "profile: item 0 is 'a', not a Layer"),
        (lambda: LayerProfile((Layer("a", 1, 1),) * 2), "layer 'a': the name is used twice"),
        (lambda: LayerProfile((Layer("a", 1, 1),)).merged(0), "count: 0 must be a whole number"),
        (lambda: check_profile(LayerProfile((Layer("a", 1, 1),))), "no layer has parameters"),
        (lambda: check_profile("vgg16"), "'vgg16' is not a LayerProfile"),
        (
            lambda: LayerProfile((Layer("a", 1, 1, 4), Layer("b", 1, 1, 4, "float16"))).merged(2),
            "parameters of float16 and float32 would meet",
        ),
        (lambda: estimated_profile("vgg17", samples=1, tflops=1), "'vgg17' is not one of"),
        (lambda: estimated_profile("vgg16", samples=0, tflops=1), "samples: 0 must be"),
        (lambda: estimated_profile("vgg16", samples=1, tflops=0), "tflops: 0 must be above 0"),
        (lambda: estimated_profile("vgg16", samples=1, tflops=1, dtype="x"), "dtype: 'x'"),
        (lambda: estimated_profile("vgg16", samples=1, tflops=1, by="x"), "by: 'x'"),
        (lambda: estimated_profile("vgg16", samples=10**9, tflops=1e-9), "13 days"),
        (lambda: estimated_experts("gpt2", samples=1, tflops=1), "'gpt2' is not one of"),
        (lambda: Experts(1, 1, -1), "experts: dispatch_bytes: -1 must be at least 0"),
        (lambda: Experts(1, 1, 1, weight_gradient_ns=2), "weight_gradient_ns 2 is longer"),
        (lambda: all_to_all_bytes([[1]], 1), "at least 2 needed"),
    ],
)
def test_what_is_refused(make, message):
    with pytest.raises(InputError) as error:
        make()
    assert message in str(error.value)


def test_an_unbalanced_all_to_all_is_sized_by_its_busiest_rank():
    """Received, sent, and the transposed way back give one size; balanced is a rank's buffer."""
    assert all_to_all_bytes([[4] * 4] * 4, 100) == 1600
    # Rank 2 receives 9 from others: (3 * 9) tokens stand for 4/3 of that.
    hot = [[0, 0, 3], [0, 0, 3], [0, 0, 3]]
    assert all_to_all_bytes(hot, 10) == 6 * 10 * 3 // 2
    assert all_to_all_bytes([*zip(*hot, strict=True)], 10) == all_to_all_bytes(hot, 10)
    assert all_to_all_bytes([[7, 0], [0, 9]], 10) == 0  # nothing leaves its rank


def test_mixtrals_parts_are_all_of_it():
    """Dense layers and experts together are the whole model; work splits the same way."""
    (model,) = EXPERTS
    whole = estimated_profile(model, samples=2048, tflops=200, dtype="bfloat16", by="block")
    dense, experts = estimated_experts(model, samples=2048, tflops=200)
    assert len(experts) == 32
    expert_parameters = 32 * 8 * 3 * 4096 * 14336
    assert dense.parameter_bytes + 2 * expert_parameters == whole.parameter_bytes
    forward = dense.forward_ns + sum(one.forward_ns for one in experts.values())
    assert forward == pytest.approx(whole.forward_ns, abs=100)
    assert {one.dispatch_bytes for one in experts.values()} == {2048 * 2 * 4096 * 2}
    _, shared = estimated_experts(model, samples=2048, tflops=200, shared=True)
    one = shared["layers.0"]
    assert 2 * one.shared_forward_ns == pytest.approx(one.forward_ns, abs=2)
