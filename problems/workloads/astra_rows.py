"""The text of ASTRA-sim's and SimAI's workloads: the header and a row for each layer.

A row is ``name reserved  time comm bytes  time comm bytes  time comm bytes  update``: the forward
pass, the input gradient, the weight gradient, and a delay after each collective.
"""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

from commsched.models.collectives import Kind
from commsched.models.errors import InputError
from commsched.models.units import check_bytes, check_ns
from commsched.problems.sources.source import Source

POLICIES = (
    "DATA",
    "MODEL",
    "HYBRID_DATA_MODEL",
    "HYBRID_MODEL_DATA",
    "HYBRID_CUSTOMIZED",
    "HYBRID_TRANSFORMER",
    "HYBRID_TRANSFORMER_FWD_IN_BCKWD",
    "HYBRID_DLRM",
    "HYBRID_DLRM_ENHANCED",
    "DISTRIBUTED_INFERENCE",
    "MICRO",
)
"""The training loops that the simulators know."""

_COMM = re.compile(r"(ALLREDUCE|ALLGATHER|REDUCESCATTER|ALLTOALL)(?:_(TP|DP|EP|DP_EP))?")
_KINDS: Mapping[str, Kind] = {
    "ALLREDUCE": "allreduce",
    "ALLGATHER": "all_gather",
    "REDUCESCATTER": "reduce_scatter",
    "ALLTOALL": "all_to_all",
}
_WHOLE = re.compile(r"\d{1,30}")
_KEYS = {
    "model_parallel_NPU_group:": "tp",
    "ep:": "ep",
    "pp:": "pp",
    "vpp:": "vpp",
    "ga:": "ga",
    "all_gpus:": "all_gpus",
    "pp_comm": "pp_comm",
    "pp_comm:": "pp_comm",
    "DLRM_LAST_BOTTOM_LAYER:": "last_bottom",
}
_LISTS = {"checkpoints:": "checkpoints", "checkpoint_initiates:": "initiates"}
_MAX_ROWS = 100_000
_MAX_NAME = 200
_MAX_LINE = 20_000


@dataclass(frozen=True, slots=True)
class Comm:
    """A collective of a row.

    Attributes
    ----------
    kind, bytes
        As written.
    group
        The group that the type names (``ep`` of ``ALLTOALL_EP``); empty if none.
    """

    kind: Kind
    bytes: int
    group: str


@dataclass(frozen=True, slots=True)
class Row:
    """A layer.

    Attributes
    ----------
    name
        As written, with the row's number where several have the name.
    forward_ns, input_ns, weight_ns
        Compute times of the forward pass, the input gradient and the weight gradient.
    forward, input, weight
        The collective after each; None if there is none.
    update_ns
        The delay after each collective.
    policy
        The layer's own loop in ``HYBRID_CUSTOMIZED``; else empty.
    """

    name: str
    forward_ns: int
    forward: Comm | None
    input_ns: int
    input: Comm | None
    weight_ns: int
    weight: Comm | None
    update_ns: int
    policy: str = ""


@dataclass(frozen=True, slots=True)
class Workload:
    """A workload as it is written.

    Attributes
    ----------
    policy
        The training loop, one of ``POLICIES``.
    numbers
        Numbers of the header by name: ``tp``, ``ep``, ``pp``, ``vpp``, ``ga``, ``all_gpus``,
        ``pp_comm``, ``last_bottom``.
    checkpoints, initiates
        Layers whose input is kept, and layers whose backward starts a recomputation.
    rows
        The layers.
    empty
        How many collectives have no bytes; they are left out of the rows.
    extra
        How many lines follow the stated number of rows.
    unused
        Words of the header that mean nothing here.
    """

    policy: str
    numbers: Mapping[str, int]
    checkpoints: tuple[int, ...]
    initiates: tuple[int, ...]
    rows: tuple[Row, ...]
    empty: int
    extra: int
    unused: tuple[str, ...]

    @property
    def simai(self) -> bool:
        """Whether the header is one of SimAI (AICB), which names the number of all GPUs."""
        return "all_gpus" in self.numbers


@dataclass(slots=True)
class _Header:
    numbers: dict[str, int] = field(default_factory=dict)
    lists: dict[str, tuple[int, ...]] = field(default_factory=dict)
    unused: list[str] = field(default_factory=list)


def parse_workload(source: Source, text: str) -> Workload:
    """Return a workload's header and rows.

    Raises
    ------
    InputError
        If the file ends early or a line is malformed; the message names line and value.
    """
    lines = _words(source, text)
    number, words = next(lines, (1, [""]))
    if words[0] not in POLICIES:
        raise InputError(f"{source}: line {number} must begin with one of {', '.join(POLICIES)}")
    policy = words[0]
    header = _header(source, policy, words[1:])
    number, words = next(lines, (2, []))
    if len(words) != 1:
        raise InputError(f"{source}: line {number} must hold the number of layers alone")
    count = _whole(words[0], f"{source}: line {number}: number of layers")
    if not 1 <= count <= _MAX_ROWS:
        raise InputError(f"{source}: line {number}: {count} layers; there must be 1 to {_MAX_ROWS}")
    rows = list(islice(lines, count))
    if len(rows) < count:
        raise InputError(
            f"{source}: the file ends after {len(rows)} of {count} layers: it was cut off"
        )
    names = Counter(words[0] for _, words in rows)
    empty = Counter[str]()
    return Workload(
        policy,
        header.numbers,
        header.lists.get("checkpoints", ()),
        header.lists.get("initiates", ()),
        tuple(
            _row(f"{source}: line {number}", words, k, names, policy, empty)
            for k, (number, words) in enumerate(rows)
        ),
        empty["collectives"],
        sum(1 for _ in lines),
        tuple(header.unused),
    )


def _words(source: Source, text: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the words of each line that is not blank, with its number."""
    for number, line in enumerate(io.StringIO(text), 1):
        if len(line) > _MAX_LINE:
            raise InputError(f"{source}: line {number} has more than {_MAX_LINE} characters")
        words = line.split()
        if words:
            yield number, words


def _header(source: Source, policy: str, words: list[str]) -> _Header:
    header = _Header()
    what = f"{source}: line 1"
    if policy.startswith("HYBRID_DLRM") and words and _WHOLE.fullmatch(words[0]):
        words = ["DLRM_LAST_BOTTOM_LAYER:", *words]
    k = 0
    while k < len(words):
        word = words[k]
        if word in _KEYS:
            value = words[k + 1] if k + 1 < len(words) else ""
            header.numbers[_KEYS[word]] = _whole(value, f"{what}: {word}")
            k += 2
        elif word in _LISTS:
            count = _whole(words[k + 1] if k + 1 < len(words) else "", f"{what}: {word}")
            values = words[k + 2 : k + 2 + count]
            if len(values) < count:
                raise InputError(f"{what}: {word} must name {count} layers, {len(values)} follow")
            header.lists[_LISTS[word]] = tuple(_whole(v, f"{what}: {word}") for v in values)
            k += 2 + count
        else:
            header.unused.append(word[:60])
            k += 1
    if policy.startswith("HYBRID_DLRM") and "last_bottom" not in header.numbers:
        raise InputError(f"{what}: {policy} needs the number of the last bottom layer")
    return header


def _row(
    where: str,
    words: list[str],
    number: int,
    names: Mapping[str, int],
    policy: str,
    empty: Counter[str],
) -> Row:
    own = policy == "HYBRID_CUSTOMIZED"
    if len(words) != 12 + own:
        raise InputError(f"{where}: a layer has {12 + own} fields, this one {len(words)}")
    name = words[0]
    if len(name) > _MAX_NAME:
        raise InputError(f"{where}: the layer's name has more than {_MAX_NAME} characters")
    if own and words[12] not in (
        "DATA",
        "MODEL",
        "HYBRID_DATA_MODEL",
        "HYBRID_MODEL_DATA",
    ):
        raise InputError(f"{where}: {words[12]!r:.60} is no loop of a single layer")

    def time(column: int, what: str) -> int:
        return check_ns(_whole(words[column], f"{where}: {what}"), f"{where}: {what}")

    def comm(column: int, what: str) -> Comm | None:
        size = check_bytes(
            _whole(words[column + 1], f"{where}: {what} bytes"), f"{where}: {what} bytes"
        )
        kind = words[column]
        if kind == "NONE":
            return None
        match = _COMM.fullmatch(kind)
        if match is None:
            raise InputError(
                f"{where}: {what}: {kind!r:.60} is not NONE or one of {', '.join(_KINDS)}, "
                "perhaps with _TP, _DP, _EP or _DP_EP"
            )
        if size == 0:
            empty["collectives"] += 1
            return None
        return Comm(_KINDS[match[1]], size, (match[2] or "").lower())

    return Row(
        name if names[name] == 1 else f"{name} [{number}]",
        time(2, "forward time"),
        comm(3, "forward"),
        time(5, "input gradient time"),
        comm(6, "input gradient"),
        time(8, "weight gradient time"),
        comm(9, "weight gradient"),
        time(11, "update time"),
        words[12] if own else "",
    )


def _whole(text: str, what: str) -> int:
    if not _WHOLE.fullmatch(text):
        raise InputError(f"{what}: {text!r:.60} must be a whole number of at least 0")
    return int(text)
