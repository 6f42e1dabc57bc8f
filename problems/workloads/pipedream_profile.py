"""PipeDream's layer profiles (``graph.txt``): what each layer takes and weighs, and its edges.

The profile says how long each layer's forward and backward run and how many bytes its parameters
have. Under data parallelism that is a step: the whole forward pass, then backward in reverse
order, and a layer's gradient is ready when its backward has ended.
"""

from __future__ import annotations

import heapq
import io
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from commsched.models import Gradient
from commsched.models.dtypes import ITEM_BYTES
from commsched.models.errors import InputError
from commsched.models.units import MAX_NS, NS_PER_MS, check_bytes, format_ns
from commsched.problems.readers import Reader, ReadOptions
from commsched.problems.recorded import Check, ImportReport, RecordedStep
from commsched.problems.sources.single_file import only_file, read_text, start_lines
from commsched.problems.sources.source import Source

_NODE = re.compile(r"(node\w{1,60}) -- (.{0,10000}) -- (forward_compute_time=.{0,10000})")
_EDGE = re.compile(r"(node\w{1,60}) -- (node\w{1,60})")
_FIELD = re.compile(r"(\w{1,60})=(\[[^\]\[=]*\]|[^,\s]*)")
_NUMBER = re.compile(r"\d{1,20}(?:\.\d{1,20})?(?:[eE][+-]?\d{1,2})?")
_LINEAR = re.compile(
    r"Linear\(in_features=(\d{1,9}), out_features=(\d{1,9})(?:, bias=(True|False))?\)"
)
_CONVOLUTION = re.compile(
    r"Conv2d\((\d{1,9}), (\d{1,9}), kernel_size=\((\d{1,9}), (\d{1,9})\)(?!.*groups)"
)
_NORM = re.compile(r"BatchNorm\dd\((\d{1,9}),.*affine=True")
_DTYPES = {4: "float32", 2: "float16", 8: "float64"}
_MAX_NODES = 200_000
_MAX_EDGES = 1_000_000


@dataclass(frozen=True, slots=True)
class ProfiledLayer:
    """A node of a profile: what it is, its times in nanoseconds and its parameters' bytes."""

    node: str
    what: str
    forward_ns: int
    backward_ns: int
    size: int

    @property
    def name(self) -> str:
        """The node and what kind of layer it is: ``node12 Conv2d``."""
        kind = self.what.split("(", 1)[0].strip()[:100]
        return f"{self.node} {kind}" if kind else self.node

    @property
    def elements(self) -> int | None:
        """How many parameters the layer's description says; None if it does not."""
        biased = "bias=False" not in self.what
        if match := _LINEAR.match(self.what):
            return (int(match[1]) + biased) * int(match[2])
        if match := _CONVOLUTION.match(self.what):
            return (int(match[1]) * int(match[3]) * int(match[4]) + biased) * int(match[2])
        if match := _NORM.match(self.what):
            return 2 * int(match[1])
        return None

    @property
    def order(self) -> tuple[int, str]:
        """Nodes are numbered as the profiler met them."""
        digits = self.node[len("node") :]
        return (int(digits) if digits.isdecimal() else 1 << 62, self.node)


def recognises(start: bytes) -> bool:
    """Return whether a file begins with a node of a PipeDream profile."""
    return any(_NODE.match(line) for line in start_lines(start, 1))


def read(files: Sequence[Source], options: ReadOptions) -> RecordedStep:
    """Read the step of data-parallel training that a profile describes.

    Parameters
    ----------
    files
        One profile.
    options
        None is used.

    Raises
    ------
    InputError
        If a line is malformed, a node is missing or there twice, the edges make a circle, or no
        layer has parameters.
    """
    source = only_file(files)
    repairs = Counter[str]()
    layers, edges = parse_profile(source, read_text(source, repairs))
    order = topological_order(source, layers, edges)
    now = sum(layer.forward_ns for layer in order)
    forward_ns = now
    gradients = []
    for layer in reversed(order):
        now += layer.backward_ns
        if layer.size:
            gradients.append((layer, now))
    if now > MAX_NS:
        raise InputError(f"{source}: the layers together take longer than 13 days")
    if not gradients:
        raise InputError(f"{source}: no layer has parameters, so there is nothing to all-reduce")
    described = [layer for layer, _ in gradients if layer.elements]
    widths = Counter(layer.size / (layer.elements or 1) for layer in described)
    width = widths.most_common(1)[0][0] if widths else 4
    dtype = _DTYPES.get(int(width), "float32") if width == int(width) else "float32"
    branches = sum(count > 1 for count in Counter(before for before, _ in edges).values())
    assumptions = [
        "pure data parallelism: every rank runs all layers and all-reduces all gradients",
        f"time starts with the forward pass, which takes {format_ns(forward_ns)}; then backward runs "
        "the layers in reverse, one at a time, and a layer's gradient is ready when its backward ends",
        "the next step's forward pass is not part of it, so nothing waits for a gradient",
        "a layer's weight and bias are one gradient, for the profile has one size for both",
        f"the gradients are {dtype}"
        + ("" if described else ": the profile does not say their type"),
    ]
    if branches:
        assumptions.append(
            f"the graph branches at {branches} nodes: of the layers that could be next, the one of "
            "the lowest number runs first (the profiler numbered them as it met them)"
        )
    assumptions += [f"mended while reading: {what} ({n})" for what, n in repairs.items() if n]
    total = sum(layer.size for layer, _ in gradients)
    agree = sum(layer.size == (layer.elements or 0) * ITEM_BYTES[dtype] for layer in described)
    upward = sum(layers[a].order < layers[b].order for a, b in edges)
    return RecordedStep(
        name=f"{_stem(source)} (layer profile)",
        gradients=tuple(Gradient(layer.name, layer.size, at, dtype) for layer, at in gradients),
        launches=(),
        backward_end_ns=now,
        step_name="profile",
        report=ImportReport(
            source=source.name,
            events_read=len(layers) + len(edges),
            kept={"layers": len(layers), "edges": len(edges), "gradients": len(gradients)},
            dropped={
                "layers without parameters (their time is kept)": len(layers) - len(gradients),
                "activation sizes (they matter to pipeline parallelism only)": len(layers),
            },
            assumptions=tuple(assumptions),
            checks=(
                Check(
                    f"parameters of {total} bytes: {agree} of {len(described)} layers have the "
                    f"size that their description gives in {dtype}",
                    agree == len(described),
                ),
                Check(
                    f"edges that lead to a higher number: {upward} of {len(edges)}",
                    upward == len(edges),
                ),
            ),
        ),
    )


def parse_profile(
    source: Source, text: str
) -> tuple[dict[str, ProfiledLayer], list[tuple[str, str]]]:
    """Return a profile's layers by node and its edges.

    Raises
    ------
    InputError
        If a line is neither, or an edge leads to a node that is not listed.
    """
    layers: dict[str, ProfiledLayer] = {}
    edges: dict[tuple[str, str], None] = {}
    for number, line in enumerate(io.StringIO(text), 1):
        line = line.strip()
        if not line:
            continue
        where = f"{source}: line {number}"
        if match := _NODE.fullmatch(line):
            node, what, fields = match.groups()
            if node in layers:
                raise InputError(f"{where}: {node} is listed twice")
            layers[node] = _layer(where, node, what, dict(_FIELD.findall(fields)))
        elif match := _EDGE.fullmatch(line):
            edges[match[1], match[2]] = None
        else:
            raise InputError(f"{where}: {line!r:.100} is neither a node with times nor an edge")
        if len(layers) > _MAX_NODES or len(edges) > _MAX_EDGES:
            raise InputError(f"{where}: at most {_MAX_NODES} nodes and {_MAX_EDGES} edges are read")
    if not layers:
        raise InputError(f"{source}: the profile has no node")
    for edge in edges:
        for node in edge:
            if node not in layers:
                raise InputError(f"{source}: edge {edge[0]} -- {edge[1]}: {node} is not listed")
    return layers, list(edges)


def _layer(where: str, node: str, what: str, fields: Mapping[str, str]) -> ProfiledLayer:
    def number(key: str) -> Decimal:
        text = fields.get(key)
        if text is None:
            raise InputError(f"{where}: {node}: {key} is missing")
        if not _NUMBER.fullmatch(text):
            raise InputError(f"{where}: {node}: {key}={text!r:.60} must be a number of at least 0")
        return Decimal(text)

    def ns(key: str) -> int:
        value = math.ceil(number(key) * NS_PER_MS)
        if value > MAX_NS:
            raise InputError(f"{where}: {node}: {key}={fields[key]} ms is longer than 13 days")
        return value

    size = number("parameter_size")
    return ProfiledLayer(
        node,
        what,
        ns("forward_compute_time"),
        ns("backward_compute_time"),
        check_bytes(size, f"{where}: {node}: parameter_size"),
    )


def topological_order(
    source: Source, layers: Mapping[str, ProfiledLayer], edges: Sequence[tuple[str, str]]
) -> list[ProfiledLayer]:
    """Return the layers so that every edge leads forward, the lowest number first."""
    waits_for = Counter(after for _, after in edges)
    followers: dict[str, list[str]] = {}
    for before, after in edges:
        followers.setdefault(before, []).append(after)
    heap = [(layer.order, node) for node, layer in layers.items() if not waits_for[node]]
    heapq.heapify(heap)
    order = []
    while heap:
        _, node = heapq.heappop(heap)
        order.append(layers[node])
        for after in followers.get(node, ()):
            waits_for[after] -= 1
            if not waits_for[after]:
                heapq.heappush(heap, (layers[after].order, after))
    if len(order) < len(layers):
        left = min(
            (layer for node, layer in layers.items() if waits_for[node] > 0),
            key=lambda layer: layer.order,
        )
        raise InputError(
            f"{source}: the edges make a circle: {left.node} is in it or behind it "
            f"({len(layers) - len(order)} nodes are)"
        )
    return order


def _stem(source: Source) -> str:
    name = source.name
    for suffix in (".gz", ".txt", ".graph"):
        name = name.removesuffix(suffix)
    return name or source.name


READER = Reader(title="PipeDream layer profile", recognises=recognises, read=read)
