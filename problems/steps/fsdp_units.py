"""The units of a sharded step: layers whose parameters are gathered and scattered together."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from commsched.models import Alike, Apart, Limit
from commsched.models.dtypes import ITEM_BYTES
from commsched.models.errors import InputError
from commsched.problems.steps.layers import Layer, LayerProfile, known_layers

Units = Literal["decided", "layers"]
Reshard = bool | Literal["all-but-last"]


@dataclass(frozen=True, slots=True)
class Unit:
    """Layers that are gathered by one collective and scattered by one.

    Attributes
    ----------
    name
        The layer's name, or ``root``.
    layers
        In forward order; more than one only in the root unit.
    kept
        Whether its parameters stay gathered from forward to backward.
    root
        Whether it is the root unit, which is fused with no other.
    """

    name: str
    layers: tuple[Layer, ...]
    kept: bool
    root: bool = False

    @property
    def dtype(self) -> str:
        """The parameters' type."""
        return self.layers[0].dtype

    @property
    def gathered_bytes(self) -> int:
        """Bytes of the parameters, as an all-gather's size counts them."""
        return sum(layer.parameter_bytes for layer in self.layers)

    def scattered_bytes(self, dtype: str | None) -> int:
        """Return the bytes of the gradients in a type; None is that of the parameters."""
        if dtype is None or dtype == self.dtype:
            return self.gathered_bytes
        return -(-self.gathered_bytes * ITEM_BYTES[dtype] // ITEM_BYTES[self.dtype])


def units_of(
    profile: LayerProfile, root: Sequence[str], reshard: Reshard, reduce_dtype: str | None
) -> list[Unit]:
    """Return the units in forward order, the root unit first.

    Raises
    ------
    InputError
        If ``root`` names an unknown layer, one without parameters or several types, ``reshard``
        is no valid choice, or a type is unknown.
    """
    if reshard is not True and reshard is not False and reshard != "all-but-last":
        raise InputError(
            f"reshard_after_forward: {reshard!r:.60} must be True, False or 'all-but-last'"
        )
    roots = tuple(profile.by_name[name] for name in known_layers(profile, root, "root"))
    units = []
    if roots:
        for layer in roots:
            if not layer.parameter_bytes:
                raise InputError(f"root: layer {layer.name!r:.100} has no parameters")
        if len({layer.dtype for layer in roots}) > 1:
            raise InputError("root: its layers have parameters of several types")
        # Gathered before everything else and kept until the end of backward.
        units.append(Unit("root", roots, kept=True, root=True))
    own = [layer for layer in profile.layers if layer.parameter_bytes and layer not in roots]
    for place, layer in enumerate(own):
        kept = reshard is False or (reshard == "all-but-last" and place == len(own) - 1)
        units.append(Unit(layer.name, (layer,), kept))
    if reduce_dtype is not None:
        for dtype in (reduce_dtype, *(unit.dtype for unit in units)):
            if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
                raise InputError(
                    f"reduce_dtype: {dtype!r:.60} is not one of {', '.join(ITEM_BYTES)}"
                )
    return units


def unit_limits(
    units: Sequence[Unit],
    choice: Units,
    rows: Sequence[Sequence[str]],
    regathered: Sequence[Sequence[str]],
) -> Iterator[Limit]:
    """Yield the limits that make buckets units of layers, the same in every pass.

    Parameters
    ----------
    units
        The units.
    choice
        Whether neighbours may form one unit.
    rows
        Names of collectives, one a unit: the first row is the gathers of the first forward.
    regathered
        Rows of the gathers before backward, one for each unit that is not kept.

    Raises
    ------
    InputError
        If the choice is unknown.
    """
    if choice not in get_args(Units):
        raise InputError(f"units: {choice!r:.60} is not one of {', '.join(get_args(Units))}")
    if choice == "layers":
        yield from (Apart(tuple(row)) for row in (*rows, *regathered) if len(row) > 1)
        return
    if len(units) > 1:
        yield Alike(tuple(tuple(row) for row in rows))
    own = [name for name, unit in zip(rows[0], units, strict=True) if not unit.kept]
    if len(own) > 1:
        yield Alike((tuple(own), *(tuple(row) for row in regathered)))
    yield from _kept_apart(units, rows[0])


def _kept_apart(units: Collection[Unit], gathers: Sequence[str]) -> Iterator[Limit]:
    """Yield limits so that no unit has parameters that stay and others that do not."""
    named = list(zip(units, gathers, strict=True))
    for place, (unit, name) in enumerate(named):
        for other, twin in named[place + 1 :]:
            if unit.kept != other.kept or unit.root:
                yield Apart((name, twin))
