"""One pass of ASTRA-sim's training loops over a workload's layers, as compute and collectives."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from commsched.models import Collective, Compute
from commsched.models.errors import InputError
from commsched.models.step import Task
from commsched.models.units import check_bytes
from commsched.problems.sources.source import Source
from commsched.problems.workloads.astra_rows import Comm, Row, Workload

_NEVER = "collectives that this loop never issues"
_ALONE = "collectives in a group of one rank"
_FLOAT32_ROWS = ("cross_entropy", "optimizer")

# The groups of forward and input gradient, and of the weight gradient, by loop.
_GROUPS: Mapping[str, tuple[str, str]] = {
    "DATA": ("dp", "dp"),
    "MICRO": ("dp", "dp"),
    "HYBRID_DLRM": ("dp", "dp"),
    "HYBRID_DLRM_ENHANCED": ("dp", "dp"),
    "MODEL": ("tp", "tp"),
    "DISTRIBUTED_INFERENCE": ("tp", "tp"),
}
# The same for single layers of a mixed workload, whose groups lie across each other.
_OWN_GROUPS: Mapping[str, tuple[str, str]] = {
    "DATA": ("", "all"),
    "MODEL": ("all", ""),
    "HYBRID_DATA_MODEL": ("first dimension", "other dimensions"),
    "HYBRID_MODEL_DATA": ("other dimensions", "first dimension"),
}


def ranks_of(workload: Workload) -> tuple[dict[str, int], bool]:
    """Return the groups' numbers of ranks, and whether the header's numbers divide each other.

    Examples
    --------
    >>> header = {"tp": 2, "ep": 16, "pp": 12, "all_gpus": 9216}
    >>> ranks_of(Workload("HYBRID_TRANSFORMER", header, (), (), (), 0, 0, ()))
    ({'tp': 2, 'ep': 16, 'dp': 384, 'dp_ep': 24}, True)
    """
    numbers = workload.numbers
    ranks = {key: numbers[key] for key in ("tp", "ep") if numbers.get(key)}
    if not workload.simai:
        return ranks, True
    inner = ranks.get("tp", 1) * (numbers.get("pp") or 1)
    fits = numbers["all_gpus"] > 0 and numbers["all_gpus"] % inner == 0
    if fits:
        ranks["dp"] = numbers["all_gpus"] // inner
        fits = ranks["dp"] % ranks.get("ep", 1) == 0
        if fits:
            ranks["dp_ep"] = ranks["dp"] // ranks.get("ep", 1)
    return ranks, fits


@dataclass(slots=True)
class Steps:
    """The tasks of a pass, and what was left out of them.

    Attributes
    ----------
    workload
        What they are made of.
    delayed
        Whether the delays after collectives are kept.
    tasks, collectives
        All tasks, and the collectives among them.
    issued_ns
        When each collective is issued if none takes any time; right where nothing waits for one.
    compute_ns
        All the layers' compute time.
    ranks, divisible
        As :func:`ranks_of` says.
    dropped
        Collectives that are left out, by reason.
    gathers, unknown_gathers
        All-gathers, and those whose size depends on an unknown number of ranks.
    updates, dropped_updates, recomputed
        How many delays were kept and left out, and how many layers are recomputed.
    frontier
        What the next task on the main stream waits for.
    scattered
        The last reduce-scatter of weight gradients of each group.
    met
        The collectives that the loop came to, by layer and phase.
    """

    workload: Workload
    delayed: bool = True
    tasks: list[Task] = field(default_factory=list)
    collectives: list[Collective] = field(default_factory=list)
    issued_ns: list[int] = field(default_factory=list)
    compute_ns: int = 0
    ranks: dict[str, int] = field(default_factory=dict)
    divisible: bool = True
    dropped: Counter[str] = field(default_factory=Counter)
    gathers: int = 0
    unknown_gathers: int = 0
    updates: int = 0
    dropped_updates: int = 0
    recomputed: int = 0
    frontier: tuple[str, ...] = ()
    scattered: dict[str, str] = field(default_factory=dict)
    met: set[tuple[str, str]] = field(default_factory=set)

    def compute(self, name: str, duration_ns: int) -> None:
        """Add work to the main stream."""
        if duration_ns:
            self.tasks.append(Compute(name, duration_ns, after=self.frontier))
            self.frontier = (name,)
            self.compute_ns += duration_ns

    def issue(
        self, row: Row, comm: Comm | None, phase: str, *, blocking: bool, again: str = ""
    ) -> str:
        """Add a collective after all that was done; return what ends it, empty if there is none.

        The delay after a blocking one is on the main stream, which waits for it anyhow.
        """
        if comm is None:
            return ""
        self.met.add((row.name, phase))
        group = self._group(row, comm, phase)
        if not group:
            return ""
        name = row.name + {"weight": "", "input": " input gradient"}.get(phase, f" {again}forward")
        after = self.frontier
        weights = phase == "weight" and self.workload.simai
        if weights and comm.kind == "all_gather" and group in self.scattered:
            after = tuple(dict.fromkeys((*after, self.scattered[group])))
        size = self._size(row, comm, group)
        task = Collective(name, size, comm.kind, group, self._dtype(row, comm, phase), after)
        self.tasks.append(task)
        self.collectives.append(task)
        self.issued_ns.append(self.compute_ns)
        if weights and comm.kind == "reduce_scatter":
            self.scattered[group] = name
        end = name
        if row.update_ns and not self.delayed:
            self.dropped_updates += 1
        elif row.update_ns:
            end = f"update after {name}"
            stream = "gpu" if blocking else f"{phase} updates"
            self.tasks.append(Compute(end, row.update_ns, stream, (name,)))
            self.updates += 1
        if blocking:
            self.frontier = (end,)
        return end

    def wait(self, end: str) -> None:
        """Let what follows wait for a collective too."""
        if end:
            self.frontier = (*self.frontier, end)

    def _group(self, row: Row, comm: Comm, phase: str) -> str:
        pairs = _OWN_GROUPS if row.policy else _GROUPS
        pair = pairs.get(row.policy or self.workload.policy, ("tp", "dp"))
        group = comm.group or pair[phase == "weight"]
        if not group:
            self.dropped[_NEVER] += 1
        elif self.ranks.get(group) == 1:
            self.dropped[_ALONE] += 1
            return ""
        return group

    def _size(self, row: Row, comm: Comm, group: str) -> int:
        if comm.kind != "all_gather":
            return comm.bytes
        self.gathers += 1
        if self.workload.simai:
            return comm.bytes
        ranks = self.ranks.get(group)
        if ranks is None:
            self.unknown_gathers += 1
        return check_bytes(comm.bytes * (ranks or 1), f"layer {row.name!r}: bytes of all ranks")

    def _dtype(self, row: Row, comm: Comm, phase: str) -> str:
        if not self.workload.simai or row.name.startswith(_FLOAT32_ROWS):
            return "float32"
        reduced = phase == "weight" and comm.kind in ("reduce_scatter", "allreduce")
        return "float32" if reduced else "bfloat16"


def build_steps(source: Source, workload: Workload, *, delayed: bool) -> Steps:
    """Return one pass of a workload's loop.

    Parameters
    ----------
    source
        The file, for messages.
    workload
        Its content.
    delayed
        Whether to keep the delays after collectives.

    Raises
    ------
    InputError
        If the header's checkpoints or its last bottom layer do not fit the layers.
    """
    steps = Steps(workload, delayed)
    steps.ranks, steps.divisible = ranks_of(workload)
    policy = workload.policy
    if policy == "MICRO":
        steps.issue(workload.rows[0], workload.rows[0].weight, "weight", blocking=False)
    elif policy == "DATA":
        _data(steps)
    elif policy.startswith("HYBRID_DLRM"):
        _dlrm(source, steps)
    elif policy.startswith("HYBRID_TRANSFORMER"):
        _transformer(steps, _recomputations(source, workload))
    else:
        _layered(steps)
    written = sum(
        comm is not None for row in workload.rows for comm in (row.forward, row.input, row.weight)
    )
    steps.dropped[_NEVER] += written - len(steps.met)
    return steps


def _forward(steps: Steps, row: Row, again: str = "") -> None:
    steps.compute(f"{again}forward of {row.name}", row.forward_ns)
    steps.issue(row, row.forward, "forward", blocking=True, again=again)


def _data(steps: Steps) -> None:
    rows = steps.workload.rows
    for row in rows:
        steps.compute(f"forward of {row.name}", row.forward_ns)
    for number, row in reversed(list(enumerate(rows))):
        steps.compute(f"weight gradient of {row.name}", row.weight_ns)
        steps.issue(row, row.weight, "weight", blocking=False)
        if number:
            steps.compute(f"input gradient of {row.name}", row.input_ns)


def _transformer(steps: Steps, recomputed: Mapping[int, range]) -> None:
    rows = steps.workload.rows
    for row in rows:
        _forward(steps, row)
    for number, row in reversed(list(enumerate(rows))):
        for layer in recomputed.get(number, ()):
            _forward(steps, rows[layer], "recomputed ")
            steps.recomputed += 1
        steps.compute(f"input gradient of {row.name}", row.input_ns)
        steps.issue(row, row.input, "input", blocking=True)
        steps.compute(f"weight gradient of {row.name}", row.weight_ns)
        steps.issue(row, row.weight, "weight", blocking=False)


def _layered(steps: Steps) -> None:
    """Add the loop of model parallelism and of its mixtures with data parallelism."""
    rows, policy = steps.workload.rows, steps.workload.policy
    for row in rows:
        _forward(steps, row)
    if policy == "DISTRIBUTED_INFERENCE":
        return
    for number, row in reversed(list(enumerate(rows))):
        steps.compute(f"input gradient of {row.name}", row.input_ns)
        end = steps.issue(row, row.input, "input", blocking=False) if number else ""
        steps.compute(f"weight gradient of {row.name}", row.weight_ns)
        if policy != "MODEL":
            steps.issue(row, row.weight, "weight", blocking=False)
        steps.wait(end)


def _dlrm(source: Source, steps: Steps) -> None:
    rows, last_bottom = steps.workload.rows, steps.workload.numbers["last_bottom"]
    if last_bottom >= len(rows):
        raise InputError(
            f"{source}: line 1: the last bottom layer is {last_bottom}, there are {len(rows)} "
            "layers, counted from 0"
        )
    exchanged = ""
    for number, row in enumerate(rows):
        steps.compute(f"forward of {row.name}", row.forward_ns)
        if row.forward is not None and row.forward.kind == "all_to_all":
            end = steps.issue(row, row.forward, "forward", blocking=False)
            exchanged = exchanged if number else end
        elif number == last_bottom:
            steps.wait(exchanged)
    exchanged = ""
    for number, row in reversed(list(enumerate(rows))):
        steps.compute(f"weight gradient of {row.name}", row.weight_ns)
        steps.issue(row, row.weight, "weight", blocking=False)
        if number:
            steps.compute(f"input gradient of {row.name}", row.input_ns)
            if number == last_bottom + 1:
                exchanged = steps.issue(rows[0], rows[0].input, "input", blocking=False)
    if steps.workload.policy == "HYBRID_DLRM" and exchanged:
        steps.wait(exchanged)
        steps.tasks.append(Compute("end of backward", 0, after=steps.frontier))


def _recomputations(source: Source, workload: Workload) -> dict[int, range]:
    """Return the layers that are recomputed before the backward of each layer that asks for it."""
    count = len(workload.rows)
    for layer in (*workload.checkpoints, *workload.initiates):
        if layer >= count:
            raise InputError(
                f"{source}: line 1: layer {layer} is named, there are {count}, counted from 0"
            )
    kept, asked = sorted(set(workload.checkpoints)), sorted(set(workload.initiates))
    ranges = {}
    for position, layer in enumerate(asked):
        before = bisect_right(kept, layer)
        from_layer = kept[before - 1] if before else layer
        earlier = asked[position - 1] if position else -1
        if from_layer == layer or earlier > from_layer:
            raise InputError(
                f"{source}: line 1: recomputing for layer {layer} needs a checkpoint before it, "
                "after the layer before that asks for one"
            )
        ranges[layer] = range(from_layer, layer)
    return ranges
