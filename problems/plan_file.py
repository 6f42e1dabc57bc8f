"""The plan file: a plan, the digest of its problem, and what was claimed of it."""

from __future__ import annotations

from pathlib import Path

from msgspec import UNSET

from commsched.models import Bucket, Chunk, Plan
from commsched.models.errors import InputError
from commsched.models.units import ns_from_us
from commsched.problems.own_file import read_own
from commsched.problems.schema import PLAN_FORMAT, PlanFile


def read_plan(path: str | Path) -> PlanFile:
    """Read a plan file; ``-`` means standard input.

    Raises
    ------
    InputError
        If the file is not a valid plan file.
    """
    file = read_own(path, PLAN_FORMAT, PlanFile)
    if not file.buckets:
        raise InputError(f"{path}: the plan has no buckets")
    for number, row in enumerate(file.buckets):
        if not row.names:
            raise InputError(f"{path}: buckets[{number}]: names is empty")
    return file


def plan_of(file: PlanFile, path: str | Path = "plan") -> Plan:
    """Return the plan of a plan file; ``path`` is for messages.

    Raises
    ------
    InputError
        If a bucket is held back until an invalid time.
    """
    buckets = []
    for number, row in enumerate(file.buckets):
        held = 0 if row.not_before_us is UNSET else row.not_before_us
        what = f"{path}: buckets[{number}].not_before_us"
        chunks = [] if row.chunks is UNSET else row.chunks
        try:
            bucket = Bucket(
                tuple(row.names),
                ns_from_us(held, what),
                tuple(None if chunk is None else Chunk(*chunk) for chunk in chunks),
            )
        except InputError as error:
            text = str(error)
            raise InputError(text if text.startswith(what) else f"{path}: {text}") from None
        buckets.append(bucket)
    orders = {} if file.orders is UNSET else file.orders
    return Plan(tuple(buckets), {stream: tuple(names) for stream, names in orders.items()})
