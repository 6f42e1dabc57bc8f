"""Layers in forward order with their times and sizes: what the builders of whole steps take."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from commsched.models.errors import InputError
from commsched.models.given import given, items_of
from commsched.models.units import check_bytes, check_ns

MAX_TASKS = 200_000
"""More layers times passes or chunks than a step may have."""


class Tensor(NamedTuple):
    """A parameter tensor of a layer: its name and its bytes."""

    name: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer of a model.

    Attributes
    ----------
    name
        Unique among the model's layers.
    forward_ns, backward_ns
        How long its forward and its backward run, in nanoseconds.
    parameter_bytes
        Bytes of its parameters, and so of its gradients; 0 where it has none.
    dtype
        Their element type.
    weight_gradient_ns
        How much of ``backward_ns`` computes the gradients of its parameters, which nothing in
        backward waits for; None if that is not known.
    tensors
        Its parameters in registration order, where they are known one by one; their bytes add up
        to ``parameter_bytes``, which may then be left out.

    Raises
    ------
    InputError
        If a name is empty, a number is out of range, the tensors do not add up, or the gradients
        of the parameters take longer than all of backward.

    Examples
    --------
    >>> Layer("fc", 10_000, 20_000, tensors=(Tensor("fc.weight", 4096),)).parameter_bytes
    4096
    >>> Layer("fc", 10_000, 20_000, 4096).gradients
    (Tensor(name='fc', bytes=4096),)
    """

    name: str
    forward_ns: int
    backward_ns: int
    parameter_bytes: int = 0
    dtype: str = "float32"
    weight_gradient_ns: int | None = None
    tensors: tuple[Tensor, ...] = ()

    def __post_init__(self) -> None:
        check_text(self.name, "layer: name")
        what = f"layer {self.name!r:.100}"
        check_text(self.dtype, f"{what}: dtype")
        for field in ("forward_ns", "backward_ns"):
            object.__setattr__(self, field, check_ns(getattr(self, field), f"{what}: {field}"))
        size = check_bytes(self.parameter_bytes, f"{what}: parameter_bytes")
        tensors = _checked_tensors(self.tensors, what)
        total = check_bytes(sum(tensor.bytes for tensor in tensors), f"{what}: all tensors")
        if tensors and size not in (0, total):
            raise InputError(
                f"{what}: parameter_bytes {size} is not the {total} bytes of its tensors"
            )
        object.__setattr__(self, "tensors", tensors)
        object.__setattr__(self, "parameter_bytes", size or total)
        if self.weight_gradient_ns is not None:
            part = check_ns(self.weight_gradient_ns, f"{what}: weight_gradient_ns")
            if part > self.backward_ns:
                raise InputError(
                    f"{what}: weight_gradient_ns {part} is longer than backward_ns "
                    f"{self.backward_ns}, of which it is a part"
                )
            object.__setattr__(self, "weight_gradient_ns", part)

    @property
    def gradients(self) -> tuple[Tensor, ...]:
        """Its tensors; where they are not known, one of the layer's name for all of them."""
        if self.tensors or not self.parameter_bytes:
            return self.tensors
        return (Tensor(self.name, self.parameter_bytes),)


@dataclass(frozen=True)
class LayerProfile:
    """A model's layers in the order in which the forward pass runs them.

    Attributes
    ----------
    layers
        At least one, each with a name of its own.
    name
        A title for people.

    Raises
    ------
    InputError
        If there is no layer, something else is among them, or a name is used twice.

    Examples
    --------
    >>> profile = LayerProfile((Layer("a", 10, 20, 400), Layer("b", 30, 60, 800)))
    >>> profile.forward_ns, profile.backward_ns, profile.parameter_bytes
    (40, 80, 1200)
    >>> profile.merged(2).layers[0].name
    'a .. b'
    """

    layers: tuple[Layer, ...]
    name: str = ""

    def __post_init__(self) -> None:
        layers = items_of(self.layers, "profile", Layer)
        given(self.name, str, "profile: name")
        if not layers:
            raise InputError("profile: it has no layer")
        seen = set()
        for layer in layers:
            if layer.name in seen:
                raise InputError(f"profile: layer {layer.name!r:.100}: the name is used twice")
            seen.add(layer.name)
        object.__setattr__(self, "layers", layers)

    @property
    def forward_ns(self) -> int:
        """How long all of forward runs."""
        return sum(layer.forward_ns for layer in self.layers)

    @property
    def backward_ns(self) -> int:
        """How long all of backward runs."""
        return sum(layer.backward_ns for layer in self.layers)

    @property
    def parameter_bytes(self) -> int:
        """Bytes of all parameters."""
        return sum(layer.parameter_bytes for layer in self.layers)

    @cached_property
    def by_name(self) -> dict[str, Layer]:
        """The layers by their names."""
        return {layer.name: layer for layer in self.layers}

    def merged(self, count: int) -> LayerProfile:
        """Return the profile in which every ``count`` layers that follow each other are one.

        Raises
        ------
        InputError
            If ``count`` is no whole number from 1, or parameters of two types meet in a layer.
        """
        check_count(count, "count")
        runs = [self.layers[k : k + count] for k in range(0, len(self.layers), count)]
        return LayerProfile(tuple(_one_of(run) for run in runs), self.name)


def check_profile(profile: object) -> LayerProfile:
    """Return a profile if it is one and has parameters.

    Raises
    ------
    InputError
        If it is none or has no parameters: then there is nothing to communicate.
    """
    if not isinstance(profile, LayerProfile):
        raise InputError(f"profile: {profile!r:.100} is not a LayerProfile")
    if not profile.parameter_bytes:
        raise InputError("profile: no layer has parameters, so there is nothing to plan")
    return profile


def check_count(value: object, what: str, least: int = 1) -> int:
    """Return a whole number of at least ``least`` and at most a million.

    Raises
    ------
    InputError
        If it is not.
    """
    if type(value) is not int or not least <= value <= 10**6:
        raise InputError(f"{what}: {value!r:.60} must be a whole number from {least} to 1000000")
    return value


def check_total(profile: LayerProfile, times: int, what: str) -> None:
    """Check that a step that runs every layer so many times is of this world.

    Raises
    ------
    InputError
        If it would have more than ``MAX_TASKS`` layers to run.
    """
    if times * len(profile.layers) > MAX_TASKS:
        raise InputError(
            f"{what}: {times} times {len(profile.layers)} layers is more than {MAX_TASKS}"
        )


def check_text(value: object, what: str) -> str:
    """Return a text that is not empty.

    Raises
    ------
    InputError
        If it is empty or no text.
    """
    if not isinstance(value, str) or not value:
        raise InputError(f"{what}: {value!r:.100} must be a non-empty text")
    return value


def known_layers(profile: LayerProfile, names: object, what: str) -> tuple[str, ...]:
    """Return names of layers of a profile in forward order.

    Raises
    ------
    InputError
        If it is no list of names, or a layer is unknown or named twice.
    """
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise InputError(f"{what}: {names!r:.100} must be a list of names of layers")
    found = list(names)
    for name in found:
        if not isinstance(name, str) or name not in profile.by_name:
            raise InputError(f"{what}: {name!r:.100} is no layer of the profile")
    if len(set(found)) != len(found):
        raise InputError(f"{what}: a layer is named twice")
    return tuple(layer.name for layer in profile.layers if layer.name in set(found))


def _checked_tensors(tensors: object, what: str) -> tuple[Tensor, ...]:
    if isinstance(tensors, str) or not isinstance(tensors, Iterable):
        raise InputError(f"{what}: tensors {tensors!r:.60} must be a list of names and bytes")
    return tuple(_checked(tensors, what))


def _checked(tensors: Iterable[object], what: str) -> Iterator[Tensor]:
    seen = set()
    for tensor in tensors:
        if not isinstance(tensor, tuple | list) or len(tensor) != 2:
            raise InputError(f"{what}: tensor {tensor!r:.60} must be a name and its bytes")
        name = check_text(tensor[0], f"{what}: tensor")
        if name in seen:
            raise InputError(f"{what}: tensor {name!r:.100}: the name is used twice")
        seen.add(name)
        yield Tensor(name, check_bytes(tensor[1], f"{what}: tensor {name!r:.100}: bytes"))


def _one_of(layers: tuple[Layer, ...]) -> Layer:
    if len(layers) == 1:
        return layers[0]
    first, last = layers[0], layers[-1]
    name = f"{first.name} .. {last.name}"
    dtypes = sorted({layer.dtype for layer in layers if layer.parameter_bytes})
    if len(dtypes) > 1:
        raise InputError(f"layer {name!r:.200}: parameters of {' and '.join(dtypes)} would meet")
    known = [n.weight_gradient_ns for n in layers if n.weight_gradient_ns is not None]
    return Layer(
        name,
        sum(layer.forward_ns for layer in layers),
        sum(layer.backward_ns for layer in layers),
        dtype=dtypes[0] if dtypes else first.dtype,
        weight_gradient_ns=sum(known) if known else None,
        tensors=tuple(tensor for layer in layers for tensor in layer.gradients),
    )
