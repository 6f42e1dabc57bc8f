"""Gradients of well-known models from their published shapes, with estimated ready times.

Sizes are exact: parameters in registration order as the model's reference code registers them. Ready
times are *estimated*: backward visits the parameters' layers in reverse, each layer takes time in
proportion to its multiply-adds, and a gradient is ready when its layer's backward is done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from commsched.models import Gradient
from commsched.models.dtypes import ITEM_BYTES
from commsched.models.errors import InputError


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a model.

    Attributes
    ----------
    name
        As the reference code names it.
    elements
        How many numbers it has.
    work
        Multiply-adds that the forward pass does with it for one sample (image or token).
    """

    name: str
    elements: int
    work: int


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
    if dtype not in ITEM_BYTES:
        raise InputError(f"dtype: {dtype!r} is not one of {', '.join(ITEM_BYTES)}")
    found = parameters(model)[::-1]
    total = sum(parameter.work for parameter in found) or 1
    done = 0
    gradients = []
    for parameter in found:
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


def _norm(name: str, width: int, side: int = 1) -> Iterator[Parameter]:
    yield Parameter(f"{name}.weight", width, width * side * side)
    yield Parameter(f"{name}.bias", width, 0)


def _linear(name: str, fan_in: int, fan_out: int) -> Iterator[Parameter]:
    yield Parameter(f"{name}.weight", fan_in * fan_out, fan_in * fan_out)
    yield Parameter(f"{name}.bias", fan_out, 0)


def _resnet50() -> Iterator[Parameter]:
    """ResNet-50 for 224 x 224 images (He et al. 2015; torchvision's names)."""
    yield _convolution("conv1", 3, 64, 7, 112)
    yield from _norm("bn1", 64, 112)
    fan_in = 64
    for stage, (width, blocks, side) in enumerate(
        [(64, 3, 56), (128, 4, 28), (256, 6, 14), (512, 3, 7)], 1
    ):
        for block in range(blocks):
            name = f"layer{stage}.{block}"
            before = side * 2 if block == 0 and stage > 1 else side
            yield _convolution(f"{name}.conv1", fan_in, width, 1, before)
            yield from _norm(f"{name}.bn1", width, before)
            yield _convolution(f"{name}.conv2", width, width, 3, side)
            yield from _norm(f"{name}.bn2", width, side)
            yield _convolution(f"{name}.conv3", width, 4 * width, 1, side)
            yield from _norm(f"{name}.bn3", 4 * width, side)
            if block == 0:
                yield _convolution(f"{name}.downsample.0", fan_in, 4 * width, 1, side)
                yield from _norm(f"{name}.downsample.1", 4 * width, side)
            fan_in = 4 * width
    yield from _linear("fc", 2048, 1000)


def _vgg16() -> Iterator[Parameter]:
    """VGG-16 for 224 x 224 images (Simonyan and Zisserman 2014; torchvision's names)."""
    fan_in, side, index = 3, 224, 0
    for width, convolutions in [(64, 2), (128, 2), (256, 3), (512, 3), (512, 3)]:
        for _ in range(convolutions):
            yield _convolution(f"features.{index}", fan_in, width, 3, side)
            yield Parameter(f"features.{index}.bias", width, 0)
            fan_in, index = width, index + 2
        side, index = side // 2, index + 1
    yield from _linear("classifier.0", 512 * 7 * 7, 4096)
    yield from _linear("classifier.3", 4096, 4096)
    yield from _linear("classifier.6", 4096, 1000)


def _bert_large() -> Iterator[Parameter]:
    """BERT-large with its pooler (Devlin et al. 2018; Hugging Face's names)."""
    width = 1024
    for name, rows in (("word", 30522), ("position", 512), ("token_type", 2)):
        yield Parameter(f"embeddings.{name}_embeddings.weight", rows * width, width)
    yield from _norm("embeddings.LayerNorm", width)
    for layer in range(24):
        name = f"encoder.layer.{layer}"
        for part in ("query", "key", "value"):
            yield from _linear(f"{name}.attention.self.{part}", width, width)
        yield from _linear(f"{name}.attention.output.dense", width, width)
        yield from _norm(f"{name}.attention.output.LayerNorm", width)
        yield from _linear(f"{name}.intermediate.dense", width, 4 * width)
        yield from _linear(f"{name}.output.dense", 4 * width, width)
        yield from _norm(f"{name}.output.LayerNorm", width)
    yield from _linear("pooler.dense", width, width)


def _gpt2_xl() -> Iterator[Parameter]:
    """GPT-2 XL, 1.5 billion parameters (Radford et al. 2019; Hugging Face's names)."""
    width = 1600
    yield Parameter("wte.weight", 50257 * width, width)
    yield Parameter("wpe.weight", 1024 * width, width)
    for layer in range(48):
        name = f"h.{layer}"
        yield from _norm(f"{name}.ln_1", width)
        yield from _linear(f"{name}.attn.c_attn", width, 3 * width)
        yield from _linear(f"{name}.attn.c_proj", width, width)
        yield from _norm(f"{name}.ln_2", width)
        yield from _linear(f"{name}.mlp.c_fc", width, 4 * width)
        yield from _linear(f"{name}.mlp.c_proj", 4 * width, width)
    yield from _norm("ln_f", width)


def _llama3_8b() -> Iterator[Parameter]:
    """Llama-3-8B (Meta 2024; 32 layers, 8 key-value heads of 128, untied head)."""
    width, inner, keys, vocabulary = 4096, 14336, 1024, 128256
    yield Parameter("embed_tokens.weight", vocabulary * width, width)
    for layer in range(32):
        name = f"layers.{layer}"
        for part, rows, columns in (
            ("self_attn.q_proj", width, width),
            ("self_attn.k_proj", width, keys),
            ("self_attn.v_proj", width, keys),
            ("self_attn.o_proj", width, width),
            ("mlp.gate_proj", width, inner),
            ("mlp.up_proj", width, inner),
            ("mlp.down_proj", inner, width),
        ):
            yield Parameter(f"{name}.{part}.weight", rows * columns, rows * columns)
        yield Parameter(f"{name}.input_layernorm.weight", width, width)
        yield Parameter(f"{name}.post_attention_layernorm.weight", width, width)
    yield Parameter("norm.weight", width, width)
    yield Parameter("lm_head.weight", vocabulary * width, vocabulary * width)


MODELS: Mapping[str, Callable[[], Iterator[Parameter]]] = {
    "resnet50": _resnet50,
    "vgg16": _vgg16,
    "bert-large": _bert_large,
    "gpt2-xl": _gpt2_xl,
    "llama3-8b": _llama3_8b,
}
"""The models that are known, by name."""
