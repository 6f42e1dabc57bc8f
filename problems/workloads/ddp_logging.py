"""DDP's own logging data (``model._get_ddp_logging_data()``) as JSON, with the parameters' shapes.

The data hold the buckets exactly: which parameters share one, in which order they became ready.
They do not hold the parameters' sizes, so those must stand beside them. Of times they hold only a
few for the whole pass, so ready times are an estimate between those.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from commsched.models import Gradient
from commsched.models.collectives import MAX_RANKS
from commsched.models.errors import InputError, printable
from commsched.models.units import MAX_BYTES, MAX_NS, format_ns, ns_from_us
from commsched.problems.profiler.trace_dtypes import TensorSize, dtype_name, shape_of
from commsched.problems.readers import Reader, ReadOptions
from commsched.problems.recorded import Check, ImportReport, RecordedLaunch, RecordedStep
from commsched.problems.sources.single_file import only_file, read_object, start_object
from commsched.problems.sources.source import Source

_MARKS = ("bucket_sizes", "num_parameter_tensors", "world_size")
_HOW = (
    "add them when the data are saved: {'ddp_logging_data': model._get_ddp_logging_data(), "
    "'params': [(name, tuple(p.shape), str(p.dtype)) for name, p in model.named_parameters() "
    "if p.requires_grad]}"
)
_NUMBERS = re.compile(r"\d{1,19}")
_MAX_PARAMETERS = 1_000_000


@dataclass(frozen=True, slots=True)
class _Parameter:
    name: str
    size: TensorSize


def recognises(start: bytes) -> bool:
    """Return whether a file is DDP's logging data, bare or with the parameters beside it."""
    return _data_of(start_object(start, b'"bucket_sizes"')) is not None


def read(files: Sequence[Source], options: ReadOptions) -> RecordedStep:
    """Read the last step that DDP logged.

    Parameters
    ----------
    files
        One rank's logging data.
    options
        ``backward_us`` stands for the length of backward where the data have no times.

    Raises
    ------
    InputError
        If the sizes of the parameters are missing or do not fit the data, the buckets were not
        rebuilt yet, or there are no times.
    """
    source = only_file(files)
    top = read_object(source)
    data = _data_of(top)
    if data is None:
        raise InputError(f"{source}: this is no logging data of DDP: bucket_sizes is missing")
    parameters = _parameters(source, top, data)
    buckets = _buckets(source, data, len(parameters))
    order, ordered = _ready_order(data, buckets)
    sizes = _numbers(source, data, "rebuilt_bucket_sizes")
    times = _Times.of(source, data, options)
    ready = _ready_times(parameters, order, buckets[0], times)
    gradients = {
        k: Gradient(
            parameters[k].name, parameters[k].size.bytes, ready[k], parameters[k].size.dtype
        )
        for k in order
    }
    launches = []
    for number, members in enumerate(buckets):
        have = sum(gradients[k].bytes for k in members)
        recorded = sizes[number] if len(sizes) == len(buckets) else have
        launches.append(
            RecordedLaunch(
                names=tuple(gradients[k].name for k in members),
                kind="allreduce",
                group="dp",
                dtype=gradients[members[0]].dtype,
                bytes=recorded,
                issued_ns=max(gradients[k].ready_ns for k in members),
                start_ns=None,
                end_ns=None,
                exact=recorded == have,
            )
        )
    model = data.get("module_name")
    name = f"{model[:100]} (DDP logging data)" if isinstance(model, str) and model else source.name
    world = data.get("world_size")
    return RecordedStep(
        name=name,
        gradients=tuple(gradients[k] for k in order),
        launches=tuple(launches),
        backward_end_ns=times.forward_ns + times.backward_ns,
        step_name=f"iteration {data.get('iteration', 'unknown')!s:.30}",
        report=_report(source, data, parameters, launches, times, ordered=ordered),
        ranks=world if type(world) is int and 2 <= world <= MAX_RANKS else None,
    )


def _data_of(top: Mapping[str, object]) -> Mapping[str, object] | None:
    inner = top.get("ddp_logging_data", top)
    if isinstance(inner, dict) and all(mark in inner for mark in _MARKS):
        return inner
    return None


def _parameters(
    source: Source, top: Mapping[str, object], data: Mapping[str, object]
) -> list[_Parameter]:
    rows = top.get("params")
    if rows is None:
        raise InputError(f"{source}: the parameters' shapes are missing; {_HOW}")
    if not isinstance(rows, list) or not 0 < len(rows) <= _MAX_PARAMETERS:
        raise InputError(
            f"{source}: params must be a list of 1 to {_MAX_PARAMETERS} [name, shape, type]"
        )
    found = []
    for number, row in enumerate(rows):
        what = f"{source}: params: number {number}"
        if not isinstance(row, list) or len(row) != 3 or not isinstance(row[0], str) or not row[0]:
            raise InputError(f"{what}: {row!r:.100} must be [name, shape, type]")
        shape, dtype = shape_of(row[1]), dtype_name(row[2])
        if shape is None or dtype is None:
            raise InputError(f"{what}: {row[0]:.60}: {row[1:]!r:.100} is no shape and type")
        size = TensorSize(shape, dtype)
        if size.bytes > MAX_BYTES:
            raise InputError(f"{what}: {row[0]:.60}: {size.bytes} bytes are more than 1 PiB")
        found.append(_Parameter(row[0], size))
    if len({parameter.name for parameter in found}) < len(found):
        raise InputError(f"{source}: params: a name is listed twice")
    stated = data.get("num_parameter_tensors")
    if stated != len(found):
        raise InputError(
            f"{source}: params has {len(found)} entries, DDP logged {stated!r:.30} parameters: list "
            "those that need a gradient, in the model's order"
        )
    return found


def _buckets(source: Source, data: Mapping[str, object], count: int) -> list[list[int]]:
    text = data.get("rebuilt_per_bucket_param_indices")
    if not isinstance(text, str) or not text.strip():
        raise InputError(
            f"{source}: the buckets were not rebuilt yet (no rebuilt_per_bucket_param_indices): "
            "log after the second iteration; with find_unused_parameters DDP never rebuilds them"
        )
    key = "rebuilt_per_bucket_param_indices"
    buckets = [_indices(source, key, part.split(), count) for part in text.split(",")]
    every = [k for members in buckets for k in members]
    if len(set(every)) < len(every) or not all(buckets):
        raise InputError(f"{source}: {key}: a bucket is empty or a parameter is in two buckets")
    if len(every) < count:
        raise InputError(f"{source}: {key}: names {len(every)} of {count} parameters")
    return buckets


def _indices(source: Source, key: str, words: Sequence[str], count: int) -> list[int]:
    for word in words:
        if not _NUMBERS.fullmatch(word) or int(word) >= count:
            raise InputError(
                f"{source}: {key}: {word!r:.40} is no number of one of {count} parameters"
            )
    return [int(word) for word in words]


def _numbers(source: Source, data: Mapping[str, object], key: str) -> list[int]:
    """Return the whole numbers of a list in one text; empty if there is none."""
    text = data.get(key)
    if not isinstance(text, str) or not text.strip():
        return []
    words = [word.strip() for word in text.split(",")]
    for word in words:
        if not _NUMBERS.fullmatch(word) or int(word) > MAX_BYTES:
            raise InputError(f"{source}: {key}: {word!r:.40} is no whole number up to 1 PiB")
    return [int(word) for word in words]


def _ready_order(
    data: Mapping[str, object], buckets: Sequence[Sequence[int]]
) -> tuple[list[int], bool]:
    """Return the order in which gradients became ready, and whether it was logged for this pass."""
    of_buckets = [k for members in buckets for k in members]
    text = data.get("prev_iteration_grad_ready_order_indices")
    if isinstance(text, str):
        words = [word.strip() for word in text.split(",")]
        if all(_NUMBERS.fullmatch(word) for word in words):
            order = [int(word) for word in words]
            if sorted(order) == sorted(of_buckets):
                return order, True
    return of_buckets, False


@dataclass(frozen=True, slots=True)
class _Times:
    """Lengths in nanoseconds; ``first_ns`` is the first launch after backward's start, if known."""

    forward_ns: int
    backward_ns: int
    first_ns: int | None
    given: bool

    @classmethod
    def of(cls, source: Source, data: Mapping[str, object], options: ReadOptions) -> _Times:
        def time(key: str) -> int:
            value = data.get(key)
            return value if type(value) is int and 0 < value <= MAX_NS else 0

        if options.backward_us is not None:
            given = ns_from_us(options.backward_us, "backward_us")
            return cls(0, given, None, given=True)
        forward, backward = time("forward_compute_time"), time("backward_compute_time")
        if not backward:
            forward, backward = time("avg_forward_compute_time"), time("avg_backward_compute_time")
            if not backward:
                raise InputError(
                    f"{source}: the data have no backward_compute_time, for DDP takes times in "
                    "some iterations only: log after more of them, or say --backward-us"
                )
            return cls(forward, backward, None, given=False)
        start, first = data.get("backward_compute_time_start"), data.get("backward_comm_time_start")
        between = first - start if type(start) is int and type(first) is int else 0
        return cls(forward, backward, between if 0 < between <= backward else None, given=False)


def _ready_times(
    parameters: Sequence[_Parameter], order: Sequence[int], first: Sequence[int], times: _Times
) -> dict[int, int]:
    """Spread the gradients over backward by bytes; the first bucket is full at the first launch."""
    last_of_first = max(order.index(k) for k in first)
    cuts = [(len(order), times.backward_ns)]
    if times.first_ns is not None and last_of_first + 1 < len(order):
        cuts.insert(0, (last_of_first + 1, times.first_ns))
    ready: dict[int, int] = {}
    begin, now = 0, 0
    for end, until in cuts:
        part = order[begin:end]
        total = sum(parameters[k].size.bytes for k in part) or 1
        done = 0
        for k in part:
            done += parameters[k].size.bytes
            ready[k] = times.forward_ns + now + (until - now) * done // total
        # Parameters without elements alone have no bytes to spread.
        ready[part[-1]] = times.forward_ns + until
        begin, now = end, until
    return ready


def _report(
    source: Source,
    data: Mapping[str, object],
    parameters: Sequence[_Parameter],
    launches: Sequence[RecordedLaunch],
    times: _Times,
    *,
    ordered: bool,
) -> ImportReport:
    notes = ["ready times are an estimate: DDP logs no time of a single gradient"]
    if times.given:
        notes.append("backward has the given length; gradients are spread over it by bytes")
    else:
        notes.append(
            "time starts with the forward pass; backward's logged length is spread over the "
            "gradients by bytes"
        )
    if times.first_ns is not None:
        notes.append(
            "the first bucket's last gradient is ready when DDP issued the first all-reduce, "
            f"{format_ns(times.first_ns)} after backward began"
        )
    notes.append("a launch is issued when its last gradient is ready: its own time was not logged")
    if not ordered:
        notes.append(
            "the ready order was not logged in full: the order within buckets stands for it"
        )
    if data.get("world_size") == 1:
        notes.append("one rank only: its all-reduces moved nothing between ranks")
    hook = data.get("comm_hook")
    if isinstance(hook, str) and hook:
        notes.append(f"the communication hook {hook!r:.60} may send fewer bytes than the gradients")
    types = {parameter.size.dtype for parameter in parameters}
    if len(types) > 1:
        notes.append(f"the gradients are of {', '.join(sorted(types))}, each as its parameter is")
    total = sum(parameter.size.bytes for parameter in parameters)
    stated = data.get("total_parameter_size_bytes")
    exact = sum(launch.exact for launch in launches)
    sizes = "rebuilt_bucket_sizes" in data
    return ImportReport(
        source=source.name,
        events_read=len(parameters),
        kept={"gradients": len(parameters), "launches": len(launches)},
        dropped={},
        assumptions=tuple(notes),
        checks=(
            Check(
                f"buckets reproduced to the byte: {exact if sizes else 0} of {len(launches)}",
                sizes and exact == len(launches),
            ),
            Check(f"bytes of all parameters: {total}, DDP logged {stated!s:.30}", total == stated),
            *_errors(data),
        ),
    )


def _errors(data: Mapping[str, object]) -> list[Check]:
    """Return a failed check if DDP logged that the run failed."""
    if not data.get("has_error"):
        return []
    return [
        Check(f"the run had no error: DDP logged {printable(str(data.get('error'))[:100])}", False)
    ]


READER = Reader(
    title="DDP logging data",
    recognises=recognises,
    read=read,
    options=frozenset({"backward_us"}),
)
