"""The JSON report of nccl-tests (``-J``), read as its text tables are."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, TypeGuard

import msgspec

from commsched.models.errors import InputError
from commsched.models.units import MAX_NS, NS_PER_US
from commsched.problems.bench.bench_kinds import Counted, Listed, operation_named
from commsched.problems.bench.bench_nccl import Run, check_results, nccl_table, nccl_version
from commsched.problems.bench.bench_result import (
    DAMAGED,
    DISAGREE,
    NO_BYTES,
    NO_TIME,
    TOO_LARGE,
    Findings,
    point,
)
from commsched.problems.bench.bench_tables import CPU_TIME, Columns, Row, Side
from commsched.problems.files import decode

_COLUMNS = Columns(("size", "count", "type", "redop", "root"), ("time", "algbw", "busbw", "#wrong"))
_DATE = re.compile(r"(\d{4}-\d\d-\d\d) \d\d:\d\d:\d\d")


class _File(msgspec.Struct):
    """What is used of such a report; more is not looked at."""

    results: list[Any]
    config: dict[str, Any] = {}
    args: list[Any] = []
    start_time: str | None = None
    nccl_version: int | None = None
    version: int | None = None


def read_json_report(data: bytes, found: Findings) -> None:
    """Add the table of a report to the findings.

    Raises
    ------
    InputError
        If it is no such report or its results are wrong.
    """
    head = decode(data, dict[str, msgspec.Raw], found.source)
    if "results" not in head:
        if {"node_betas_list", "remote_alpha"} & set(head):
            raise InputError(
                f"{found.source}: is a TACCL topology: it prices single links, in units that it does "
                "not name, not collectives"
            )
        raise InputError(f"{found.source}: is JSON, but no report of nccl-tests (-J)")
    file = decode(data, _File, found.source)
    run = Run(
        started=_operation(file.args),
        library="" if file.nccl_version is None else f"NCCL {nccl_version(str(file.nccl_version))}",
        tool="nccl-tests",
    )
    _count(run, file.config, found)
    rows = []
    for number, result in enumerate(file.results):
        found.row()
        row = _row(result)
        if isinstance(row, str):
            found.dropped[row] += 1
            continue
        check_results(row, f"{found.source}: results[{number}]")
        rows.append(row)
    dates = _DATE.findall(file.start_time or "")[:1]
    if rows:
        found.add(nccl_table(rows, _COLUMNS, run, found, line=0, dates=dates))
    elif not found.dropped:
        found.unusable.append("its results are empty")


def _operation(args: list[Any]) -> str | None:
    if not args or not isinstance(args[0], str):
        return None
    return operation_named(Path(args[0]).name.removesuffix("_perf"))


def _count(run: Run, config: dict[str, Any], found: Findings) -> None:
    """Take ranks and nodes out of the devices: one entry for the first rank of each process."""
    devices = config.get("devices")
    each = [config.get(name, 1) for name in ("nthreads", "ngpus")]
    if not isinstance(devices, list) or not all(type(n) is int and 0 < n < 1000 for n in each):
        return
    listed = []
    for device in devices:
        if not isinstance(device, dict):
            return
        rank, group, host = (device.get(name) for name in ("rank", "group", "hostname"))
        if type(rank) is not int or type(group) is not int or not isinstance(host, str):
            return
        listed.append(Listed(group, rank, host))
    if len({one.group for one in listed}) > 1:
        found.notes.append("several groups of ranks run at the same time")
        return
    hosts = {one.host for one in listed}
    run.stated = Counted(len(listed) * each[0] * each[1] or None, len(hosts) or None)


def _row(result: object) -> Row | str:
    if not isinstance(result, dict):
        return DAMAGED
    size, dtype, redop, root = (result.get(name) for name in ("size", "type", "redop", "root"))
    if type(size) is not int or not isinstance(dtype, str) or not isinstance(redop, str):
        return DAMAGED
    if not isinstance(root, str) or not re.fullmatch(r"\s*-?\d{1,9}", root):
        return DAMAGED
    if size <= 0:
        return NO_BYTES
    sides = [_side(result.get(name), size) for name in ("out_of_place", "in_place")]
    first, second = sides
    if isinstance(first, str):
        return first
    return Row(size, dtype, redop, int(root), first, None if isinstance(second, str) else second)


def _side(values: object, size: int) -> Side | str:
    if not isinstance(values, dict):
        return NO_TIME
    if "cpu_time" in values:
        return CPU_TIME
    time, algbw, busbw = (values.get(name) for name in ("time", "alg_bw", "bus_bw"))
    if not _number(time) or not _number(algbw) or not _number(busbw):
        return DAMAGED
    if time * NS_PER_US > MAX_NS:
        return TOO_LARGE
    made = point(size, float(time))
    if isinstance(made, str):
        return made
    if abs(size / time / 1e3 - algbw) > 0.01 * algbw + 1e-4:
        return DISAGREE
    wrong = values.get("nwrong")
    if wrong is not None and not _number(wrong):
        return DAMAGED
    return Side(made[1], algbw, busbw, wrong is not None, f"{wrong:g}" if wrong else "")


def _number(value: object) -> TypeGuard[float]:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return 0 <= value < 1e30
