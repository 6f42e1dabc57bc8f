"""What a caller gave is of the type that it should be, or one line says what it is instead."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from commsched.models.errors import InputError

T = TypeVar("T")


def given(value: object, kind: type[T], what: str) -> T:
    """Return a value if it is of a type.

    Raises
    ------
    InputError
        If it is not.

    Examples
    --------
    >>> given("fc", int, "item")
    Traceback (most recent call last):
    commsched.models.errors.InputError: item: 'fc' must be of type int
    """
    if not isinstance(value, kind):
        raise InputError(f"{what}: {value!r:.60} must be of type {kind.__name__}")
    return value


def items_of(values: object, what: str, *kinds: type[Any]) -> tuple[Any, ...]:
    """Return values as a tuple if all of them are of one of some types.

    Raises
    ------
    InputError
        If they are no list, or something else is among them.

    Examples
    --------
    >>> items_of(["a", 3], "names", str)
    Traceback (most recent call last):
    commsched.models.errors.InputError: names: item 1 is 3, not a str
    """
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise InputError(f"{what}: {values!r:.60} must be a list")
    found = tuple(values)
    if not {*map(type, found)}.issubset(kinds):  # thousands of items are looked at in C
        for place, one in enumerate(found):
            if not isinstance(one, kinds):
                wanted = " or ".join(kind.__name__ for kind in kinds)
                raise InputError(f"{what}: item {place} is {one!r:.60}, not a {wanted}")
    return found


def mapping_of(values: object, what: str) -> Mapping[Any, Any]:
    """Return values if they are a mapping.

    Raises
    ------
    InputError
        If they are not.
    """
    return given(values, Mapping, what)  # type: ignore[type-abstract]
