"""From what the ranks measured to one recorded step, with a report that hides nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from commsched.models.errors import InputError
from commsched.models.gradients import GROUP, KIND
from commsched.models.step import Gradient
from commsched.models.units import format_bytes, format_ns
from commsched.problems.recorded import Check, ImportReport, RecordedLaunch, RecordedStep
from commsched.torch.ranks import RankRecord

_SHOWN = 5
_SPREAD = 0.1
"""Ready times that scatter more than this part of the backward end are doubtful."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """How the steps were run.

    Attributes
    ----------
    title
        The step's title.
    warmup
        How many steps ran before the measured ones.
    frozen
        How many parameters require no gradient.
    ignored
        How many parameters DDP was told to ignore.
    ranks
        Number of ranks; None if nothing is distributed.
    ddp, silent, nested_ddp
        Whether the model is in DDP, did not communicate, and has DDP only inside.
    rebuilt_meanwhile
        Whether DDP rebuilt its buckets after the first measured step.
    """

    title: str
    warmup: int
    frozen: int
    ignored: int
    ranks: int | None
    ddp: bool
    silent: bool
    nested_ddp: bool
    rebuilt_meanwhile: bool


class _Times:
    """The maximum over the ranks in each step, and its median over the steps.

    ``gates`` counts for each rank how often it was the last with a gradient, and ``held_up`` sums
    how much later than the first rank it then was.
    """

    def __init__(self, records: Sequence[RankRecord]) -> None:
        count = len(records[0].steps)
        self.steps: list[dict[int, int]] = [{} for _ in range(count)]
        self.gates = Counter[int]()
        self.held_up = Counter[int]()
        for number, worst in enumerate(self.steps):
            gate: dict[int, int] = {}
            best: dict[int, int] = {}
            for rank, record in enumerate(records):
                for k, ns in record.steps[number].ready.items():
                    best[k] = min(ns, best.get(k, ns))
                    if k not in worst or ns > worst[k]:
                        worst[k], gate[k] = ns, rank
            self.gates.update(gate.values())
            for k, rank in gate.items():
                self.held_up[rank] += worst[k] - best[k]
        found = sorted({k for worst in self.steps for k in worst})
        self.samples = {k: [worst[k] for worst in self.steps if k in worst] for k in found}
        self.ready = {k: _median(values) for k, values in self.samples.items()}
        # DDP gives rank 0's order to all ranks (Reducer::sync_bucket_indices). Launches stand in it,
        # so a ready time that would contradict it says no more than the one before.
        first = records[0].steps
        own = {
            k: _median(step.ready[k] for step in first if k in step.ready)
            for k in found
            if any(k in step.ready for step in first)
        }
        # Equal times keep the order in which a step had them.
        last = {k: place for place, k in enumerate(self.steps[-1])}
        self.order = sorted(found, key=lambda k: (own.get(k, self.ready[k]), last.get(k, -1)))
        self.raised = 0
        for before, k in pairwise(self.order):
            if self.ready[k] < self.ready[before]:
                self.ready[k] = self.ready[before]
                self.raised += 1
        self.backward_end = _median(
            max(record.steps[number].backward_end for record in records) for number in range(count)
        )
        self.step_end = _median(
            max(record.steps[number].end for record in records) for number in range(count)
        )

    def spread(self, k: int) -> int:
        """Return the median absolute deviation of a ready time."""
        return _median(abs(ns - self.ready[k]) for ns in self.samples[k])

    def same_order(self) -> int:
        """Return how many steps have the ready order of the medians."""
        place = {k: number for number, k in enumerate(self.order)}
        return sum(
            all(worst[one] <= worst[two] for one, two in pairwise(here))
            for worst in self.steps
            for here in [sorted(worst, key=lambda k: place[k])]
        )


def summarised(records: Sequence[RankRecord], conditions: Conditions) -> RecordedStep:
    """Return one step for all ranks; every rank that has the same records gets the same.

    Parameters
    ----------
    records
        What each rank measured, of the same model.
    conditions
        How the steps were run.

    Raises
    ------
    InputError
        If there was no gradient.
    """
    times = _Times(records)
    if not times.order:
        raise InputError(
            "step: no gradient arrived at a parameter of the model: it must run backward"
        )
    first = records[0]
    several = len(first.devices[0]) > 1
    sparse = {
        k for record in records for k, m in enumerate(record.metas) if m.sparse_bytes is not None
    }
    gradients = tuple(
        Gradient(
            first.names[k],
            first.metas[k].bytes,
            times.ready[k],
            first.metas[k].dtype,
            first.devices[0][first.devices[1][k]] if several else "",
            k in sparse,
        )
        for k in times.order
    )
    launches = _launches(first, gradients)
    report = ImportReport(
        source=f"capture of {conditions.title}",
        events_read=sum(
            len(step.ready) + step.repeats for record in records for step in record.steps
        ),
        kept=_kept(records, gradients, launches),
        dropped=_dropped(records, conditions, times),
        assumptions=tuple(_assumptions(records, conditions, times, sparse)),
        checks=tuple(_checks(records, conditions, times, launches)),
    )
    count = len(times.steps)
    return RecordedStep(
        name=conditions.title,
        gradients=gradients,
        launches=launches,
        backward_end_ns=max(times.backward_end, gradients[-1].ready_ns),
        step_name=f"median of {count} steps" if count > 1 else "one step",
        report=report,
        ranks=conditions.ranks,
    )


def _launches(first: RankRecord, gradients: Sequence[Gradient]) -> tuple[RecordedLaunch, ...]:
    if first.ddp is None:
        return ()
    place = {gradient.name: number for number, gradient in enumerate(gradients)}
    launches = []
    issued = 0
    for bucket in first.ddp.buckets:
        members = sorted(place[name] for name in bucket.names if name in place)
        # DDP launches its buckets in order, each when its last gradient is ready.
        issued = max([issued, *(gradients[k].ready_ns for k in members)])
        size = sum(gradients[k].bytes for k in members)
        launches.append(
            RecordedLaunch(
                names=tuple(gradients[k].name for k in members),
                kind=KIND,
                group=GROUP,
                dtype=bucket.dtype,
                bytes=bucket.bytes,
                issued_ns=issued,
                start_ns=None,
                end_ns=None,
                exact=size == bucket.bytes and len(members) == len(bucket.names),
            )
        )
    return tuple(launches)


def _kept(
    records: Sequence[RankRecord],
    gradients: Sequence[Gradient],
    launches: Sequence[RecordedLaunch],
) -> dict[str, int]:
    kept = {"gradients": len(gradients), "steps": len(records[0].steps)}
    if launches:
        kept["launches"] = len(launches)
    if len(records) > 1:
        kept["ranks"] = len(records)
    return kept


def _dropped(
    records: Sequence[RankRecord], conditions: Conditions, times: _Times
) -> dict[str, int]:
    dropped = {
        "steps of the warm-up": conditions.warmup,
        "frozen parameters": conditions.frozen,
        "parameters that DDP ignores": conditions.ignored,
        "parameters that never got a gradient": len(records[0].names) - len(times.order),
        "gradients before the last of the same parameter in a step": sum(
            step.repeats for record in records for step in record.steps
        ),
    }
    return {reason: count for reason, count in dropped.items() if count}


def _assumptions(
    records: Sequence[RankRecord], conditions: Conditions, times: _Times, sparse: set[int]
) -> Iterable[str]:
    first = records[0]
    yield (
        f"{len(times.steps)} steps after {conditions.warmup} for warm-up: the median step took "
        f"{format_ns(times.step_end)}, its backward ended at {format_ns(times.backward_end)}"
    )
    if all(device == "cpu" for device in first.devices[0]):
        yield (
            "time starts with the step's call and is the processor's; a gradient is ready when "
            "autograd has accumulated it, and the hooks' own time (a few microseconds each) is in it"
        )
    else:
        yield (
            "time starts when the GPU's stream reaches the step; a gradient is ready when the "
            "stream has accumulated it"
        )
    if len(first.devices[0]) > 1:
        yield "several devices: their clocks were set to one zero by waiting for all before a step"
    if conditions.silent:
        yield (
            "nothing was all-reduced meanwhile: contention between backward and communication is "
            "not in the times"
        )
    elif conditions.ddp:
        yield (
            "DDP all-reduced meanwhile, with the buckets of today: what backward loses to that, "
            "and to filling the buckets, is in the times"
        )
    elif conditions.ranks is not None and conditions.ranks > 1:
        yield (
            "the model is not in DDP: unless the step communicates itself, contention between "
            "backward and communication is not in the times"
        )
    if times.raised:
        yield (
            f"gradients are in rank 0's order, which DDP gives to all ranks: {times.raised} ready "
            "times that contradict it are those of the gradient before"
        )
    if len(records) > 1:
        total = times.gates.total()
        rank, ns = max(times.held_up.items(), key=lambda item: (item[1], -item[0]))
        yield (
            f"ready times are the maximum over {len(records)} ranks, as if they began each step "
            f"together; rank {rank} holds the others up most: it is last for "
            f"{times.gates[rank] / total:.0%} of the gradients, {format_ns(ns // times.gates[rank])} "
            "after the first rank on average"
        )
    missing = [name for k, name in enumerate(first.names) if k not in times.ready]
    if missing:
        yield f"no gradient ever arrived at {_some(missing)}: left out"
        if first.ddp is not None and first.ddp.buckets:
            yield "DDP sends zeros for parameters without a gradient: they are in its buckets' bytes"
    if sparse:
        seen = max(sum(record.metas[k].sparse_bytes or 0 for k in sparse) for record in records)
        yield (
            f"{len(sparse)} sparse gradients count with the bytes of the whole parameter; their "
            f"indices and values had {format_bytes(seen)} in the first step"
        )
    if first.ddp is not None and first.ddp.buckets:
        yield "a launch is issued when its last gradient is ready and those before it are issued"
        if not first.ddp.rebuilt:
            yield (
                "DDP has not rebuilt its buckets: they follow the order of definition, and DDP "
                "does not take a plan in the order of ready times"
            )
        if first.ddp.hook:
            yield (
                f"a communication hook ({first.ddp.hook}) is registered: what it sends may have "
                "another size than the buckets"
            )


def _checks(
    records: Sequence[RankRecord],
    conditions: Conditions,
    times: _Times,
    launches: Sequence[RecordedLaunch],
) -> Iterable[Check]:
    count = len(times.steps)
    steady = sum(len(worst) == len(times.order) for worst in times.steps)
    yield Check(f"steps with all the gradients: {steady} of {count}", steady == count)
    same = times.same_order()
    yield Check(f"steps with this ready order: {same} of {count}", same == count)
    spreads = {k: times.spread(k) for k in times.order}
    worst = max(times.order, key=lambda k: spreads[k])
    yield Check(
        f"ready times are steady: median absolute deviation {format_ns(_median(spreads.values()))} "
        f"typically, {format_ns(spreads[worst])} at most ({records[0].names[worst]})",
        spreads[worst] <= _SPREAD * max(times.backward_end, 1),
    )
    if len(records) > 1:
        whole = sum(
            all(k in step.ready for record in records for step in record.steps) for k in times.order
        )
        yield Check(
            f"gradients that every rank has: {whole} of {len(times.order)}",
            whole == len(times.order),
        )
    if conditions.nested_ddp:
        yield Check(
            "the model is in DDP as a whole: only parts are, their buckets are not read", False
        )
    log = records[0].ddp
    if log is None:
        return
    if log.unknown:
        yield Check(f"DDP's buckets are known: {log.unknown}", False)
        return
    if conditions.rebuilt_meanwhile:
        text = "DDP had its buckets before the steps: it rebuilt them meanwhile, warm up longer"
        yield Check(text, False)
    exact = sum(launch.exact for launch in launches)
    yield Check(
        f"buckets reproduced to the byte: {exact} of {len(launches)}", exact == len(launches)
    )
    held = {name for launch in launches for name in launch.names}
    yield Check(
        f"gradients that a launch holds: {len(held)} of {len(times.order)}",
        len(held) == len(times.order),
    )
    if len(records) > 1:
        alike = sum(record.ddp == log for record in records)
        yield Check(
            f"ranks with the same buckets: {alike} of {len(records)}", alike == len(records)
        )


def _some(names: Sequence[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _median(values: Iterable[int]) -> int:
    """Return the median; between two values their mean, rounded up."""
    ordered = sorted(values)
    return -(-(ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) // 2)
