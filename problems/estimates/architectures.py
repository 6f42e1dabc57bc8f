"""Gradients of well-known models from their published shapes, with estimated ready times.

Sizes are exact: parameters in registration order as the model's reference code registers them. Ready
times are *estimated*: backward visits the parameters' layers in reverse, each layer takes time in
proportion to its multiply-adds, and a gradient is ready when its layer's backward is done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from commsched.models import Gradient
from commsched.models.dtypes import ITEM_BYTES
from commsched.models.errors import InputError
from commsched.problems.estimates.model_decoders import DECODERS
from commsched.problems.estimates.model_layers import (
    Config,
    Parameter,
    bert_body,
    gpt2_body,
    linear,
    with_head,
)

__all__ = ["MODELS", "Parameter", "estimated_gradients", "parameters", "spread_gradients"]


def parameters(model: str) -> list[Parameter]:
    """Return a model's parameters in registration order.

    Parameters
    ----------
    model
        One of :data:`MODELS`.

    Raises
    ------
    InputError
        If the model is unknown; the message lists those that are known.

    Examples
    --------
    >>> len(parameters("resnet50")), sum(p.elements for p in parameters("resnet50"))
    (161, 25557032)
    """
    if model not in MODELS:
        raise InputError(f"model: {model!r} is not one of {', '.join(MODELS)}")
    return list(MODELS[model]())


def estimated_gradients(
    model: str, backward_ms: float, *, forward_ms: float = 0.0, dtype: str = "float32"
) -> list[Gradient]:
    """Return a model's gradients with estimated ready times.

    Parameters
    ----------
    model
        One of :data:`MODELS`.
    backward_ms
        How long backward takes, in milliseconds.
    forward_ms
        How long the forward pass before it takes.
    dtype
        The gradients' element type.

    Raises
    ------
    InputError
        If the model or the type is unknown.

    Examples
    --------
    >>> gradients = estimated_gradients("vgg16", backward_ms=100)
    >>> gradients[0].name, gradients[-1].name, gradients[-1].ready_ns
    ('classifier.6.bias', 'features.0.weight', 100000000)
    """
    return spread_gradients(parameters(model), backward_ms, forward_ms=forward_ms, dtype=dtype)


def spread_gradients(
    found: Sequence[Parameter], backward_ms: float, *, forward_ms: float = 0.0, dtype: str
) -> list[Gradient]:
    """Return gradients whose ready times spread over backward by the work of their layers.

    Parameters
    ----------
    found
        Parameters in registration order; backward comes to them in reverse.
    backward_ms
        How long backward takes, in milliseconds.
    forward_ms
        How long the forward pass before it takes.
    dtype
        The gradients' element type.

    Raises
    ------
    InputError
        If the type is unknown, or a size or time is beyond the limit.

    Examples
    --------
    >>> layers = [Parameter("a", 10, 100), Parameter("b", 20, 300)]
    >>> [(g.name, g.bytes, g.ready_ns) for g in spread_gradients(layers, 4, dtype="float32")]
    [('b', 80, 3000000), ('a', 40, 4000000)]
    """
    if dtype not in ITEM_BYTES:
        raise InputError(f"dtype: {dtype!r} is not one of {', '.join(ITEM_BYTES)}")
    total = sum(parameter.work for parameter in found) or 1
    done = 0
    gradients = []
    for parameter in reversed(found):
        done += parameter.work
        ready_ms = forward_ms + backward_ms * done / total
        gradients.append(
            Gradient(
                parameter.name,
                parameter.elements * ITEM_BYTES[dtype],
                round(ready_ms * 1e6),
                dtype,
            )
        )
    return gradients


def _convolution(name: str, fan_in: int, fan_out: int, kernel: int, side: int) -> Parameter:
    elements = fan_in * fan_out * kernel * kernel
    return Parameter(f"{name}.weight", elements, elements * side * side)


def _batch_norm(name: str, width: int, side: int) -> Iterator[Parameter]:
    yield Parameter(f"{name}.weight", width, width * side * side)
    yield Parameter(f"{name}.bias", width, 0)


def _resnet50() -> Iterator[Parameter]:
    """ResNet-50 for 224 x 224 images (He et al. 2015; torchvision's names)."""
    yield _convolution("conv1", 3, 64, 7, 112)
    yield from _batch_norm("bn1", 64, 112)
    fan_in = 64
    for stage, (width, blocks, side) in enumerate(
        [(64, 3, 56), (128, 4, 28), (256, 6, 14), (512, 3, 7)], 1
    ):
        for block in range(blocks):
            name = f"layer{stage}.{block}"
            before = side * 2 if block == 0 and stage > 1 else side
            yield _convolution(f"{name}.conv1", fan_in, width, 1, before)
            yield from _batch_norm(f"{name}.bn1", width, before)
            yield _convolution(f"{name}.conv2", width, width, 3, side)
            yield from _batch_norm(f"{name}.bn2", width, side)
            yield _convolution(f"{name}.conv3", width, 4 * width, 1, side)
            yield from _batch_norm(f"{name}.bn3", 4 * width, side)
            if block == 0:
                yield _convolution(f"{name}.downsample.0", fan_in, 4 * width, 1, side)
                yield from _batch_norm(f"{name}.downsample.1", 4 * width, side)
            fan_in = 4 * width
    yield from linear("fc", 2048, 1000)


def _vgg16() -> Iterator[Parameter]:
    """VGG-16 for 224 x 224 images (Simonyan and Zisserman 2014; torchvision's names)."""
    fan_in, side, index = 3, 224, 0
    for width, convolutions in [(64, 2), (128, 2), (256, 3), (512, 3), (512, 3)]:
        for _ in range(convolutions):
            yield _convolution(f"features.{index}", fan_in, width, 3, side)
            yield Parameter(f"features.{index}.bias", width, 0)
            fan_in, index = width, index + 2
        side, index = side // 2, index + 1
    yield from linear("classifier.0", 512 * 7 * 7, 4096)
    yield from linear("classifier.3", 4096, 4096)
    yield from linear("classifier.6", 4096, 1000)


def _bert_large() -> Iterator[Parameter]:
    """BERT-large with its pooler (Devlin et al. 2018; Hugging Face's names)."""
    values = {
        "vocab_size": 30522,
        "max_position_embeddings": 512,
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 24,
    }
    return bert_body(Config(values, "bert-large"))


def _gpt2_xl() -> Iterator[Parameter]:
    """GPT-2 XL, 1.5 billion parameters (Radford et al. 2019; Hugging Face's names), headless."""
    values = {"vocab_size": 50257, "n_positions": 1024, "n_embd": 1600, "n_layer": 48}
    return gpt2_body(Config(values, "gpt2-xl"))


def _llama3(name: str, width: int, inner: int, heads: int, layers: int) -> Iterator[Parameter]:
    values = {
        "vocab_size": 128256,
        "hidden_size": width,
        "intermediate_size": inner,
        "num_attention_heads": heads,
        "num_key_value_heads": 8,
        "num_hidden_layers": layers,
    }
    body = DECODERS["llama"].body(Config(values, name))
    return with_head(body, "lm_head", 128256, width, tied=False)


def _llama3_8b() -> Iterator[Parameter]:
    """Llama-3-8B (Meta 2024; 32 layers, 8 key-value heads of 128, untied head)."""
    return _llama3("llama3-8b", 4096, 14336, 32, 32)


def _llama3_70b() -> Iterator[Parameter]:
    """Llama-3-70B (Meta 2024; 80 layers, 8 key-value heads of 128, untied head)."""
    return _llama3("llama3-70b", 8192, 28672, 64, 80)


MODELS: Mapping[str, Callable[[], Iterator[Parameter]]] = {
    "resnet50": _resnet50,
    "vgg16": _vgg16,
    "bert-large": _bert_large,
    "gpt2-xl": _gpt2_xl,
    "llama3-8b": _llama3_8b,
    "llama3-70b": _llama3_70b,
}
"""The models that are known, by name."""
