"""A Chakra trace's nodes as a step: streams, collectives, and what waits for what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from commsched.models.errors import InputError, printable
from commsched.models.step import Collective
from commsched.models.units import MAX_NS, NS_PER_US, ns_from_us
from commsched.problems.chakra.chakra_collectives import collective_of, is_communication, kind_of
from commsched.problems.chakra.chakra_nodes import COMPUTE, SEND, ChakraNode
from commsched.problems.readers import ReadOptions
from commsched.problems.recorded import Check, ImportReport, RecordedGraph, RecordedLaunch
from commsched.problems.segments import Merged, Node, merge, shared_channels, topological
from commsched.problems.sources.source import Source

_SPLIT = ("all_gather", "reduce_scatter", "all_to_all")


@dataclass(slots=True)
class _Step:
    """The nodes on their way to a graph, and what there is to report."""

    source: Source
    nodes: Sequence[ChakraNode]
    converted: bool
    dropped: Counter[str] = field(default_factory=Counter)
    unknown: Counter[str] = field(default_factory=Counter)
    kept: Counter[str] = field(default_factory=Counter)
    queues: dict[str, set[str]] = field(default_factory=dict)


def recorded_graph(
    source: Source, nodes: Sequence[ChakraNode], options: ReadOptions
) -> RecordedGraph:
    """Return the step that a Chakra trace describes.

    Parameters
    ----------
    source
        The file.
    nodes
        Its nodes.
    options
        What the user said.

    Raises
    ------
    InputError
        If the nodes wait in a circle, an id is used twice, or it has no collective with a size.
    """
    converted = any(
        node.attributes.get("is_cpu_op") is True or "rf_id" in node.attributes for node in nodes
    )
    step = _Step(source, nodes, converted)
    after = _dependencies(step)
    starts = [_time(step, node, "start_us") for node in nodes]
    try:
        order = topological(
            after,
            [(start, node.id) for start, node in zip(starts, nodes, strict=True)],
            lambda k: str(nodes[k].id),
        )
    except InputError as error:
        raise InputError(f"{source}: {error}") from None
    position = {k: number for number, k in enumerate(order)}
    twins = _processor_side(step)
    items = [_item(step, k, [position[b] for b in after[k]], k in twins) for k in order]
    collectives = [item.collective for item in items if item.collective is not None]
    _check_collectives(step, collectives)
    try:
        merged = merge(items)
    except InputError as error:
        raise InputError(f"{source}: {error}") from None
    return _graph(step, options, merged, collectives)


def _dependencies(step: _Step) -> list[list[int]]:
    """Return the positions that each node waits for.

    A trace that was converted from PyTorch keeps the caller of an operation as its ``ctrl_deps``,
    and an operation does not wait for its caller to end; the converter has written everything
    that it does wait for into ``data_deps``.
    """
    positions: dict[int, int] = {}
    for k, node in enumerate(step.nodes):
        if node.id in positions:
            raise InputError(f"{step.source}: two nodes have the id {node.id}")
        positions[node.id] = k
    after = []
    for node in step.nodes:
        found = node.data_deps if step.converted else node.data_deps + node.ctrl_deps
        known = [positions[other] for other in found if other in positions]
        step.dropped["dependencies on nodes that are not in the file"] += len(found) - len(known)
        if step.converted:
            step.dropped["callers of operations (ctrl_deps)"] += len(node.ctrl_deps)
        after.append(known)
    return after


def _processor_side(step: _Step) -> set[int]:
    """Return the communication nodes that only issue or wrap one that is a node of its own.

    ``c10d::allreduce_``, ``record_param_comms`` and ``nccl:all_reduce`` on the processor are of
    the same type as the kernel that they launch.
    """
    if not step.converted:
        return set()
    comms = [k for k, node in enumerate(step.nodes) if is_communication(node)]
    on_gpu = [k for k in comms if step.nodes[k].attributes.get("is_cpu_op") is False]
    if on_gpu:
        return set(comms) - set(on_gpu)
    # On the processor alone the innermost one is the collective.
    wrapped = {other for k in comms for other in step.nodes[k].ctrl_deps}
    return {k for k in comms if step.nodes[k].id in wrapped}


def _item(step: _Step, k: int, after: list[int], is_twin: bool) -> Node:
    node = step.nodes[k]
    collective: Collective | None = None
    kind = None
    if is_communication(node) and not is_twin:
        kind = kind_of(node)
        if kind != "barrier":
            collective = collective_of(node, str(step.source), step.unknown)
    stream = _stream(step, node)
    if collective is not None:
        step.queues.setdefault(stream, set()).add(collective.group)
        return Node(after=after, collective=collective)
    duration = _time(step, node, "duration_us")
    if kind == "barrier":
        step.dropped["barriers"] += 1
        return Node(after=after)
    if is_communication(node) and not is_twin:
        step.dropped[f"collectives that cannot be planned, kept as fixed tasks ({kind})"] += 1
        return Node(f"communication {kind}", duration, after)
    if is_twin:
        step.kept["issuing side of collectives, as compute"] += 1
    elif node.type == COMPUTE:
        step.kept["compute nodes"] += 1
        step.unknown["compute nodes without a duration"] += not duration
    else:
        step.kept["nodes of other types"] += 1
    return Node(stream, duration, after)


def _stream(step: _Step, node: ChakraNode) -> str:
    if not step.converted:
        # A simulated device computes one thing at a time; loads and stores run beside it.
        return {COMPUTE: "compute", 2: "memory", 3: "memory"}.get(node.type, "")
    if node.type == 1:
        return ""
    cpu = node.attributes.get("is_cpu_op") is not False
    number = node.attributes.get("tid") if cpu else node.attributes.get("stream")
    if number is None:
        number = node.attributes.get("tid", "")
    return f"{'cpu' if cpu else 'gpu'} {printable(str(number)[:40])}".rstrip()


def _time(step: _Step, node: ChakraNode, name: str) -> int:
    value = getattr(node, name)
    if value is None:
        return 0
    if type(value) is int and 0 <= value <= MAX_NS // NS_PER_US:
        return value * NS_PER_US  # The common case first.
    try:
        return ns_from_us(value, name)
    except InputError as error:
        raise InputError(f"{step.source}: node {node.id}: {error}") from None


def _check_collectives(step: _Step, collectives: Sequence[Collective]) -> None:
    if not collectives:
        raise InputError(f"{step.source}: the Chakra trace has no collective: nothing to plan")
    if all(one.kind == "send_recv" for one in collectives):
        sends = sum(node.type == SEND for node in step.nodes)
        raise InputError(
            f"{step.source}: the Chakra trace has only {sends} sends and "
            f"{len(collectives) - sends} receives, as one collective's algorithm has: when a "
            "receive ends is decided by another rank, which is not in this file"
        )


def _graph(
    step: _Step, options: ReadOptions, merged: Merged, collectives: Sequence[Collective]
) -> RecordedGraph:
    launches: tuple[RecordedLaunch, ...] = ()
    if step.converted:
        launches = tuple(
            RecordedLaunch(
                (one.name,), one.kind, one.group, one.dtype, one.bytes,
                merged.ready_ns[one.name], None, None, exact=True,
            )
            for one in sorted(collectives, key=lambda one: merged.ready_ns[one.name])
        )  # fmt: skip
    for one in collectives:
        step.kept[f"{one.kind} collectives"] += 1
    step.kept["tasks after merging"] = len(merged.tasks)
    return RecordedGraph(
        name=f"{step.source.name.split('.')[0]} (Chakra)",
        tasks=merged.tasks,
        launches=launches,
        step_name="the whole trace",
        report=ImportReport(
            source=step.source.name,
            events_read=len(step.nodes),
            kept={key: count for key, count in step.kept.items() if count},
            dropped={key: count for key, count in step.dropped.items() if count},
            assumptions=_assumptions(step, options, merged, collectives),
            checks=_checks(step, collectives),
        ),
        channels=shared_channels(step.queues) if step.converted else {},
    )


def _assumptions(
    step: _Step, options: ReadOptions, merged: Merged, collectives: Sequence[Collective]
) -> tuple[str, ...]:
    found = [
        "the trace has durations and dependencies but no start times: "
        "times follow from them, every stream in the order of the nodes",
    ]
    if not merged.waiting:
        found.append("nothing waits for a collective, for the trace has no such dependency")
    if step.converted:
        found.append(
            "operations do not wait for their callers (ctrl_deps), only for their data_deps"
        )
    count = step.unknown["compute nodes without a duration"]
    if count:
        found.append(f"{count} compute nodes without a duration (or below 1 us) take no time")
    if any(one.kind == "send_recv" for one in collectives):
        found.append("sends and receives find the other rank ready")
    if step.unknown["element types of collectives"] == len(collectives):
        found.append("no element type is recorded: all collectives are taken to have the same one")
    if options.sizes is not None:
        found.append(f"the collectives' sizes come from {options.sizes.name}")
    return tuple(found)


def _checks(step: _Step, collectives: Sequence[Collective]) -> tuple[Check, ...]:
    found = []
    durations = sum(bool(node.duration_us) for node in step.nodes if node.type == COMPUTE)
    compute = sum(node.type == COMPUTE for node in step.nodes)
    if compute:
        found.append(
            Check(f"{durations} of {compute} compute nodes have a duration", durations > 0)
        )
    split = sum(one.kind in _SPLIT for one in collectives)
    if split:
        found.append(
            Check(
                f"Chakra does not say whether comm_size is a rank's part or the total: "
                f"{split} sizes of {', '.join(_SPLIT)} are taken as totals",
                passed=False,
            )
        )
    count = step.unknown["element types of collectives"]
    if 0 < count < len(collectives):
        found.append(
            Check(
                f"{count} of {len(collectives)} collectives have no element type: they share no "
                "bucket with the others",
                passed=False,
            )
        )
    return tuple(found)
