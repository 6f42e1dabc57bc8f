"""Well-known models: their published sizes, and ready times in order."""

from __future__ import annotations

import pytest

from commsched.models import InputError
from commsched.problems.estimates.architectures import MODELS, estimated_gradients, parameters

# Parameters as published: torchvision (ResNet-50, VGG-16), Hugging Face (BERT-large with pooler,
# GPT-2 XL), Meta (Llama-3-8B and 70B). Multiply-adds a sample: torchvision's table (4.09 and 15.47 G).
PUBLISHED = {
    "resnet50": (161, 25_557_032, 4.10e9),
    "vgg16": (32, 138_357_544, 15.47e9),
    "bert-large": (391, 335_141_888, None),
    "gpt2-xl": (580, 1_557_611_200, None),
    "llama3-8b": (291, 8_030_261_248, None),
    "llama3-70b": (723, 70_553_706_496, None),
}


@pytest.mark.parametrize("model", MODELS)
def test_sizes_are_the_published_ones(model):
    """Number of tensors and of parameters to the last one; work to two digits."""
    found = parameters(model)
    count, elements, work = PUBLISHED[model]
    assert (len(found), sum(p.elements for p in found)) == (count, elements)
    assert len({p.name for p in found}) == count
    if work is not None:
        assert sum(p.work for p in found) == pytest.approx(work, rel=0.01)


@pytest.mark.parametrize("model", MODELS)
def test_backward_visits_the_layers_in_reverse_and_ends_in_time(model):
    """Ready times never fall, the last is the end of backward, and sizes follow the type."""
    gradients = estimated_gradients(model, 80, forward_ms=20, dtype="bfloat16")
    ready = [g.ready_ns for g in gradients]
    assert ready == sorted(ready)
    assert ready[0] >= 20_000_000
    assert ready[-1] == 100_000_000
    assert [g.name for g in gradients] == [p.name for p in parameters(model)][::-1]
    assert sum(g.bytes for g in gradients) == 2 * sum(p.elements for p in parameters(model))


def test_unknown_models_and_types_are_refused():
    """The message lists what is known."""
    with pytest.raises(InputError, match="resnet50, vgg16"):
        parameters("resnet51")
    with pytest.raises(InputError, match="float32"):
        estimated_gradients("vgg16", 10, dtype="float33")
