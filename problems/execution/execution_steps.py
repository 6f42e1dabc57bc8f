"""PyTorch execution traces on their own: a step with sizes, order and launches, but no times.

Where the user states how long the backward pass takes, the gradients' ready times are spread over
it evenly. In the profiler traces that this was compared with (ResNet50 and ResNet18 on GPUs, a
transformer on processors), autograd produced gradients at an even pace; a pace by bytes would be
wrong, for the last layers of a network hold the most parameters and the first take the most time.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from commsched.models.errors import InputError
from commsched.models.step import Gradient
from commsched.models.units import ns_from_us
from commsched.problems.execution.execution_collectives import (
    ExecutionCollective,
    execution_collectives,
)
from commsched.problems.execution.execution_trace import (
    ACCUMULATE,
    STEP_STARTS,
    execution_nodes,
    gradient_size,
)
from commsched.problems.profiler.trace_dtypes import TensorSize
from commsched.problems.readers import Reader, ReadOptions
from commsched.problems.recorded import Check, ImportReport, RecordedLaunch, RecordedStep
from commsched.problems.sources.source import Source

_START = re.compile(rb"(?:\xef\xbb\xbf)?\s*\{")
_SCHEMA = re.compile(rb'"schema"\s*:\s*"\d[^"]{0,60}"')
_NODES = re.compile(rb'"nodes"\s*:\s*\[')
_OTHERS = re.compile(rb'"(?:traceEvents|workload_graph|format)"\s*:')
_STEP = re.compile(r"ProfilerStep#(\d{1,18})")


@dataclass(slots=True)
class _Pass:
    """A backward pass: its gradients and all-reduces in order of their nodes' ids."""

    step: int | None
    gradients: list[tuple[int, TensorSize]] = field(default_factory=list)
    allreduces: list[ExecutionCollective] = field(default_factory=list)
    undefined: int = 0
    others: Counter[str] = field(default_factory=Counter)

    @property
    def title(self) -> str:
        return "the whole trace" if self.step is None else f"ProfilerStep#{self.step}"


def recognises(start: bytes) -> bool:
    """Return whether a file is a PyTorch execution trace."""
    return bool(
        _START.match(start)
        and _SCHEMA.search(start)
        and _NODES.search(start)
        and not _OTHERS.search(start)
    )


def read(files: Sequence[Source], options: ReadOptions) -> RecordedStep:
    """Read one step of one rank.

    Raises
    ------
    InputError
        If it cannot be read, has no gradient, or the length of the backward pass is not stated.
    """
    if len(files) != 1:
        raise InputError(f"{files[0]}: name the execution trace of one rank, not {len(files)}")
    what = str(files[0])
    nodes = execution_nodes(files[0].read(), what)
    passes = _passes(what, nodes)
    chosen, notes = _choose(what, passes, options.step)
    if options.backward_us is None:
        raise InputError(
            f"{what}: the execution trace has the sizes and the order of "
            f"{len(chosen.gradients)} gradients and {len(chosen.allreduces)} all-reduces but no "
            "times: give it to the profiler trace of the same run "
            "(commsched import TRACE --sizes THIS), or state --backward-us"
        )
    backward_ns = ns_from_us(options.backward_us, "backward_us")
    if not backward_ns:
        raise InputError("backward_us: 0 must be above 0")
    return _step(files[0], len(nodes), passes, chosen, notes, backward_ns)


def _passes(what: str, nodes: Sequence[dict[str, object]]) -> list[_Pass]:
    """Cut the trace where another step or another forward pass starts."""
    collectives = {one.node: one for one in execution_collectives(nodes)}
    passes = [_Pass(None)]
    step: int | None = None
    for node in nodes:
        name, number = node.get("name"), node.get("id")
        if not isinstance(name, str) or type(number) is not int:
            continue
        found = _STEP.fullmatch(name)
        step = int(found[1]) if found else step
        if name.startswith(STEP_STARTS) and passes[-1].gradients:
            passes.append(_Pass(step))
        if not passes[-1].gradients:
            passes[-1].step = step
        if name == ACCUMULATE:
            size = gradient_size(what, node)
            if size is None:
                passes[-1].undefined += 1
            else:
                passes[-1].gradients.append((number, size))
        elif number in collectives and collectives[number].kind == "allreduce":
            passes[-1].allreduces.append(collectives[number])
        elif number in collectives:
            passes[-1].others[collectives[number].kind] += 1
    whole = [one for one in passes if one.gradients]
    if not whole:
        raise InputError(
            f"{what}: the execution trace has no gradient (no {ACCUMULATE}), and no times"
        )
    for one in passes:
        if not one.gradients:
            whole[-1].others.update(one.others)
            whole[-1].others["allreduce"] += len(one.allreduces)
    return whole


def _choose(what: str, passes: Sequence[_Pass], step: int | None) -> tuple[_Pass, list[str]]:
    if step is not None:
        for one in passes:
            if one.step == step:
                return one, []
        have = ", ".join(sorted({str(p.step) for p in passes if p.step is not None})) or "none"
        raise InputError(f"{what}: step {step} is not there or has no gradient (there: {have})")
    chosen = passes[-1]
    if len(passes) == 1:
        return chosen, []
    return chosen, [f"of {len(passes)} steps the last one is used ({chosen.title})"]


def _step(
    source: Source,
    read: int,
    passes: Sequence[_Pass],
    chosen: _Pass,
    notes: list[str],
    backward_ns: int,
) -> RecordedStep:
    count = len(chosen.gradients)
    width = max(3, len(str(count - 1)))
    try:
        gradients = tuple(
            Gradient(
                f"grad{k:0{width}d} [{'x'.join(map(str, size.shape)) or 'scalar'}]",
                size.bytes,
                backward_ns * (k + 1) // count,
                size.dtype,
            )
            for k, (_, size) in enumerate(chosen.gradients)
        )
    except InputError as error:
        raise InputError(f"{source}: {error}") from None
    dropped = Counter({"gradients that were not defined": chosen.undefined})
    launches = _launches(chosen, gradients, dropped)
    dropped.update(
        {
            f"{kind} collectives, whose place in time is not known": n
            for kind, n in chosen.others.items()
        }
    )
    exact = sum(launch.exact for launch in launches)
    same = [one.gradients == chosen.gradients or _sizes(one) == _sizes(chosen) for one in passes]
    ranks = {one.ranks for one in chosen.allreduces if one.ranks is not None}
    checks = [
        Check(
            f"{exact} of {len(launches)} all-reduces have the bytes of the gradients before them",
            exact == len(launches),
        )
    ]
    if len(passes) > 1:
        checks.append(
            Check(f"{sum(same)} of {len(passes)} steps have the same gradients", all(same))
        )
    return RecordedStep(
        name=f"{source.name.split('.')[0]} (estimated times)",
        gradients=gradients,
        launches=launches,
        backward_end_ns=backward_ns,
        step_name=chosen.title,
        report=ImportReport(
            source=source.name,
            events_read=read,
            kept={"gradients": count, "launches": len(launches), "steps in the trace": len(passes)},
            dropped={reason: number for reason, number in dropped.items() if number},
            assumptions=(
                "estimated: the trace has no times, so the gradients are spread evenly, in the "
                f"recorded order, over the stated {backward_ns / 1000:g} us of backward",
                *notes,
            ),
            checks=tuple(checks),
        ),
        ranks=ranks.pop() if len(ranks) == 1 else None,
    )


def _sizes(one: _Pass) -> list[TensorSize]:
    return [size for _, size in one.gradients]


def _launches(
    chosen: _Pass, gradients: Sequence[Gradient], dropped: Counter[str]
) -> tuple[RecordedLaunch, ...]:
    """Give each all-reduce the gradients since the one before it."""
    launches = []
    at = 0
    for one in chosen.allreduces:
        first = at
        while at < len(gradients) and chosen.gradients[at][0] < one.node:
            at += 1
        members = gradients[first:at]
        if not members:
            dropped["all-reduces with no gradient before them"] += 1
            continue
        size = sum(gradient.bytes for gradient in members)
        dtypes = {gradient.dtype for gradient in members}
        launches.append(
            RecordedLaunch(
                names=tuple(gradient.name for gradient in members),
                kind="allreduce",
                group=one.group or "dp",
                dtype=one.dtype or members[0].dtype,
                bytes=size if one.bytes is None else one.bytes,
                issued_ns=members[-1].ready_ns,
                start_ns=None,
                end_ns=None,
                exact=one.bytes == size and dtypes == {one.dtype},
            )
        )
    return tuple(launches)


READER = Reader(
    title="PyTorch execution trace",
    recognises=recognises,
    read=read,
    options=frozenset({"step", "backward_us"}),
)
