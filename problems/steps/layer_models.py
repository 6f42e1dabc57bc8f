"""Layer profiles of well-known models (estimated) and of PipeDream's profiler (measured).

Parameters are exact, tensor by tensor. Times of a model by its name are *estimated*: two operations
for each multiply-add of a sample in the forward pass, twice that in backward, of which half for the
gradients of the parameters, over a stated throughput.
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Literal, get_args

from commsched.models.dtypes import ITEM_BYTES
from commsched.models.errors import InputError
from commsched.models.units import exact, shown
from commsched.problems.estimates.architectures import MODELS
from commsched.problems.estimates.model_decoders import DECODERS
from commsched.problems.estimates.model_layers import (
    Config,
    Parameter,
    embedding,
    gpt2_body,
    linear,
    with_head,
)
from commsched.problems.readers import ReadOptions
from commsched.problems.sources.single_file import read_text
from commsched.problems.sources.source import Source
from commsched.problems.steps.layers import Layer, LayerProfile, Tensor, check_count
from commsched.problems.workloads.pipedream_profile import parse_profile, topological_order
from commsched.problems.workloads.pipedream_profile import read as read_pipedream

By = Literal["tensor", "module", "block"]
"""What makes a layer of a model: each tensor, each module, or each block of modules."""
FLOPS_PER_NS = 1000
"""Operations in a nanosecond at one TFLOP/s."""
_BLOCK = re.compile(r"\d+|denselayer\d+")
_MAX_SAMPLES = 10**9

MIXTRAL: Mapping[str, int] = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 32,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}
"""Mixtral 8x7B's numbers (Mistral AI 2023)."""


def _densenet121() -> Iterator[Parameter]:
    """DenseNet-121 for 224 x 224 images (Huang et al. 2017; torchvision's names)."""

    def convolution(name: str, fan_in: int, fan_out: int, kernel: int, side: int) -> Parameter:
        elements = fan_in * fan_out * kernel**2
        return Parameter(f"{name}.weight", elements, elements * side**2)

    def batch_norm(name: str, width: int, side: int) -> Iterator[Parameter]:
        yield Parameter(f"{name}.weight", width, width * side**2)
        yield Parameter(f"{name}.bias", width, 0)

    growth, width, side = 32, 64, 56
    yield convolution("features.conv0", 3, width, 7, 112)
    yield from batch_norm("features.norm0", width, 112)
    for block, layers in enumerate((6, 12, 24, 16), 1):
        for layer in range(1, layers + 1):
            name = f"features.denseblock{block}.denselayer{layer}"
            yield from batch_norm(f"{name}.norm1", width, side)
            yield convolution(f"{name}.conv1", width, 4 * growth, 1, side)
            yield from batch_norm(f"{name}.norm2", 4 * growth, side)
            yield convolution(f"{name}.conv2", 4 * growth, growth, 3, side)
            width += growth
        if block < 4:
            yield from batch_norm(f"features.transition{block}.norm", width, side)
            yield convolution(f"features.transition{block}.conv", width, width // 2, 1, side)
            width, side = width // 2, side // 2
    yield from batch_norm("features.norm5", width, side)
    yield from linear("classifier", width, 1000)


def _gnmt() -> Iterator[Parameter]:
    """GNMT of 8 + 8 layers of width 1024 (Wu et al. 2016), as PipeDream's ``gnmt_large``.

    Vocabulary of 32,320 (NVIDIA's GNMT v2 for PyTorch, whose names these are), no shared
    embedding; a sample is a token on both sides.
    """
    vocabulary, width = 32320, 1024

    def lstm(name: str, fan_in: int, *, both_ways: bool = False) -> Iterator[Parameter]:
        for way in ("", "_reverse") if both_ways else ("",):
            for part, rows in (("ih", fan_in), ("hh", width)):
                size = 4 * width * rows
                yield Parameter(f"{name}.weight_{part}_l0{way}", size, size)
            for part in ("ih", "hh"):
                yield Parameter(f"{name}.bias_{part}_l0{way}", 4 * width, 0)

    yield embedding("encoder.embedder", vocabulary, width)
    yield from lstm("encoder.rnn_layers.0", width, both_ways=True)
    for layer in range(1, 8):
        yield from lstm(f"encoder.rnn_layers.{layer}", 2 * width if layer == 1 else width)
    yield embedding("decoder.embedder", vocabulary, width)
    yield from lstm("decoder.att_rnn.rnn", width)
    yield from linear("decoder.att_rnn.attn.linear_q", width, width, bias=False)
    yield from linear("decoder.att_rnn.attn.linear_k", width, width, bias=False)
    yield Parameter("decoder.att_rnn.attn.linear_att", width, width)
    yield Parameter("decoder.att_rnn.attn.normalize_scalar", 1, 0)
    yield Parameter("decoder.att_rnn.attn.normalize_bias", width, 0)
    for layer in range(7):
        yield from lstm(f"decoder.rnn_layers.{layer}", 2 * width)
    yield from linear("decoder.classifier.classifier", width, vocabulary)


def _gpt2() -> Iterator[Parameter]:
    """GPT-2, 124 million parameters (Radford et al. 2019), its head tied to the embedding."""
    values = {"vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12}
    return with_head(gpt2_body(Config(values, "gpt2")), "lm_head", 50257, 768, tied=True)


def _mixtral() -> Iterator[Parameter]:
    body = DECODERS["mixtral"].body(Config(MIXTRAL, "mixtral-8x7b"))
    return with_head(body, "lm_head", MIXTRAL["vocab_size"], MIXTRAL["hidden_size"], tied=False)


PROFILED: Mapping[str, Callable[[], Iterator[Parameter]]] = {
    **MODELS,
    "densenet121": _densenet121,
    "gnmt": _gnmt,
    "gpt2": _gpt2,
    "mixtral-8x7b": _mixtral,
}
"""The models that have an estimated profile, by name."""


def estimated_profile(
    model: str,
    *,
    samples: int,
    tflops: float,
    dtype: str = "float32",
    by: By = "module",
) -> LayerProfile:
    """Return a model's layers with estimated times.

    Parameters
    ----------
    model
        One of :data:`PROFILED`.
    samples
        Images or tokens that a rank processes in a step.
    tflops
        Operations that a rank does in a second, in 1e12.
    dtype
        The parameters' element type.
    by
        ``"module"``: a layer for each module with parameters. ``"block"``: for each numbered
        block of modules (``layers.3``, ``layer2.1``), and for each module outside of these.
        ``"tensor"``: for each tensor.

    Raises
    ------
    InputError
        If the model, the type or the grouping is unknown, or a number is out of range.

    Examples
    --------
    >>> profile = estimated_profile("gpt2", samples=1024, tflops=100, by="block")
    >>> len(profile.layers), profile.layers[2].name, profile.parameter_bytes // 4
    (15, 'h.0', 124439808)
    """
    if model not in PROFILED:
        raise InputError(f"model: {model!r:.60} is not one of {', '.join(PROFILED)}")
    layers = layers_of(PROFILED[model](), samples=samples, tflops=tflops, dtype=dtype, by=by)
    return LayerProfile(
        tuple(layers), f"{model} (estimated: {samples} samples at {float(tflops):g} TFLOP/s)"
    )


def layers_of(
    found: Iterator[Parameter] | Sequence[Parameter],
    *,
    samples: int,
    tflops: float,
    dtype: str,
    by: By,
) -> list[Layer]:
    """Return the layers that parameters in registration order form, with estimated times.

    Raises
    ------
    InputError
        As for :func:`estimated_profile`.

    Examples
    --------
    >>> parameters = [Parameter("fc.weight", 10, 1000), Parameter("fc.bias", 2, 0)]
    >>> layers_of(parameters, samples=5, tflops=1, dtype="float32", by="module")[0].backward_ns
    20
    """
    speed = exact(tflops, "tflops") * FLOPS_PER_NS
    if not 0 < speed <= FLOPS_PER_NS * 10**9:
        raise InputError(f"tflops: {shown(tflops)} must be above 0 and at most 1e9")
    if type(samples) is not int or not 1 <= samples <= _MAX_SAMPLES:
        raise InputError(
            f"samples: {samples!r:.60} must be a whole number from 1 to {_MAX_SAMPLES}"
        )
    if dtype not in ITEM_BYTES:
        raise InputError(f"dtype: {dtype!r:.60} is not one of {', '.join(ITEM_BYTES)}")
    if by not in get_args(By):
        raise InputError(f"by: {by!r:.60} is not one of {', '.join(get_args(By))}")
    layers = []
    for name, members in groupby(found, key=lambda parameter: _layer_of(parameter.name, by)):
        group = list(members)
        forward_ns = math.ceil(2 * sum(p.work for p in group) * samples / speed)
        tensors = tuple(Tensor(p.name, p.elements * ITEM_BYTES[dtype]) for p in group)
        layers.append(
            Layer(
                name,
                forward_ns,
                2 * forward_ns,
                dtype=dtype,
                weight_gradient_ns=forward_ns,
                tensors=tensors,
            )
        )
    return layers


def measured_profile(path: str | os.PathLike[str], *, per_layer: int = 1) -> LayerProfile:
    """Return the layers of a PipeDream profile (``graph.txt``) with their measured times.

    The forward order is that of :mod:`commsched.problems.workloads.pipedream_profile`.

    Parameters
    ----------
    path
        The profile.
    per_layer
        How many nodes that follow each other make a layer; a node without parameters (an
        activation, a pooling) joins the node before it.

    Raises
    ------
    InputError
        If the file is no such profile.
    """
    check_count(per_layer, "per_layer")
    source = Source(Path(path))
    step = read_pipedream([source], ReadOptions())
    dtype = step.gradients[0].dtype
    nodes, edges = parse_profile(source, read_text(source, Counter()))
    layers: list[Layer] = []
    for node in topological_order(source, nodes, edges):
        layer = Layer(node.name, node.forward_ns, node.backward_ns, node.size, dtype)
        if node.size or not layers:
            layers.append(layer)
        else:
            layers[-1] = _with_time_of(layers[-1], layer)
    return LayerProfile(tuple(layers), step.name).merged(per_layer)


def _with_time_of(layer: Layer, other: Layer) -> Layer:
    return Layer(
        layer.name,
        layer.forward_ns + other.forward_ns,
        layer.backward_ns + other.backward_ns,
        layer.parameter_bytes,
        layer.dtype,
    )


def _layer_of(name: str, by: By) -> str:
    if by == "tensor":
        return name
    parts = name.split(".")
    module = parts[:-1] or parts
    if by == "block":
        for place, part in enumerate(module):
            if _BLOCK.fullmatch(part):
                return ".".join(module[: place + 1])
    return ".".join(module)
