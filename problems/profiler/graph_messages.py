"""What a collective moves, and between whom, as far as a profiler trace says it.

Three sorts of events speak of one collective, nested in each other, and the kernel itself may do
so too. Which of them has the sizes depends on PyTorch's version and on the backend.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from commsched.models.collectives import Kind
from commsched.models.units import MAX_BYTES
from commsched.problems.profiler.chrome_trace import Op
from commsched.problems.profiler.trace_dtypes import dtype_name, itemsize, shape_of

_MAX_DEPTH = 4
_MAX_GROUP = 2**24
_OUTPUT_FIRST = re.compile(
    r"c10d::_?(?:allgather|reduce_scatter|alltoall|gather|scatter)[a-z_]*", re.IGNORECASE
)
_UNNAMED = ("", "undefined", "default_pg_undefined")


@dataclass(slots=True)
class Message:
    """What is known of a collective's message and group; None or empty where it is not recorded.

    Attributes
    ----------
    sent, received
        Elements that this rank gives and gets.
    dtype
        Their type.
    group, description
        The process group's short name and its description.
    ranks
        How many ranks the group has.
    sequence
        Its number within the group.
    """

    sent: int | None = None
    received: int | None = None
    dtype: str | None = None
    group: str = ""
    description: str = ""
    ranks: int | None = None
    sequence: int | None = None

    def learn(self, other: Message) -> None:
        """Fill in what another event knows and this one does not."""
        self.sent = other.sent if self.sent is None else self.sent
        self.received = other.received if self.received is None else self.received
        self.dtype = self.dtype or other.dtype
        self.group = self.group or other.group
        self.description = self.description or other.description
        self.ranks = self.ranks or other.ranks
        self.sequence = other.sequence if self.sequence is None else self.sequence

    def bytes(self, kind: Kind, ranks: int | None) -> int | None:
        """Return the size that nccl-tests prints: the larger one of a rank's two buffers.

        Parameters
        ----------
        kind
            The collective's kind.
        ranks
            Ranks of the group. They are needed where only a share of the whole was recorded.

        Examples
        --------
        >>> Message(sent=1000, dtype="float32").bytes("all_gather", 4)
        16000
        >>> Message(sent=1000, received=250, dtype="float16").bytes("reduce_scatter", None)
        2000
        """
        if self.dtype is None:
            return None
        sizes = [size for size in (self.sent, self.received) if size is not None]
        if kind == "all_gather" and self.received is None and self.sent is not None:
            sizes = [] if ranks is None else [self.sent * ranks]
        elif kind == "reduce_scatter" and self.sent is None and self.received is not None:
            sizes = [] if ranks is None else [self.received * ranks]
        if not sizes:
            return None
        size = max(sizes) * itemsize(self.dtype)
        return size if size <= MAX_BYTES else None


def message_of_arguments(arguments: Mapping[str, object]) -> Message:
    """Return what a kernel's or ``record_param_comms``' arguments say of a collective."""
    message = Message()
    message.dtype = dtype_name(arguments.get("dtype"))
    if message.dtype is not None:
        message.sent = _count(arguments.get("In msg nelems"))
        message.received = _count(arguments.get("Out msg nelems"))
    message.group = _text(arguments.get("Process Group Name"))
    message.description = _text(arguments.get("Process Group Description"))
    size = arguments.get("Group size")
    if type(size) is int and 1 <= size <= _MAX_GROUP:
        message.ranks = size
    for key in ("Seq", "Sequence", "seq"):
        if type(arguments.get(key)) is int:
            message.sequence = _count(arguments.get(key))
    return message


def message_of_op(op: Op) -> Message:
    """Return what an event on the processor says of a collective."""
    arguments = op.arguments
    named = message_of_arguments(arguments) if op.name == "record_param_comms" else Message()
    dims, types = arguments.get("Input Dims"), arguments.get("Input type")
    if not isinstance(dims, list):
        return named
    texts = types if isinstance(types, list) else []
    shown = Message()
    first, second = _elements(dims, texts, 0), _elements(dims, texts, 1)
    if _OUTPUT_FIRST.fullmatch(op.name):
        shown.received, shown.sent = first, second
    else:
        shown.sent = first
    known = [dtype_name(text) for text in texts[:2]]
    shown.dtype = next((dtype for dtype in known if dtype is not None), None)
    if "functional" in op.name and shown.sent is not None:
        shown.ranks = _functional_ranks(arguments.get("Concrete Inputs"), op.name)
    named.learn(shown)
    return named


def _functional_ranks(values: object, name: str) -> int | None:
    """Return the group's size, which some functional collectives have among their inputs."""
    at = {"all_gather_into_tensor": 1, "reduce_scatter_tensor": 2}.get(name.rpartition("::")[2])
    if at is None or not isinstance(values, list) or len(values) <= at:
        return None
    text = values[at]
    if isinstance(text, str) and text.isascii() and text.isdecimal() and len(text) < 9:
        return int(text) or None
    return None


def _count(value: object) -> int | None:
    return value if type(value) is int and 0 <= value <= MAX_BYTES else None


def _text(value: object) -> str:
    if not isinstance(value, str):
        return ""
    value = value.strip()[:100]
    return "" if value in _UNNAMED else value


def _elements(dims: list[object], types: list[object], at: int) -> int | None:
    """Return the elements of one input: a tensor, a list of tensors, or a list of such lists."""
    if at >= len(dims):
        return None
    value = dims[at]
    if value == []:
        # A scalar tensor; a list whose shapes were not recorded looks the same but for its type.
        text = types[at] if at < len(types) else None
        return 1 if dtype_name(text) is not None else None
    return _sum(value, _MAX_DEPTH)


def _sum(value: object, depth: int) -> int | None:
    if not isinstance(value, list) or not depth:
        return None
    shape = shape_of(value)
    if shape is not None and value:
        total = prod(shape)
    else:
        parts = [1 if part == [] else _sum(part, depth - 1) for part in value]
        if not parts or any(part is None for part in parts):
            return None
        total = sum(part for part in parts if part is not None)
    return total if total <= MAX_BYTES else None
