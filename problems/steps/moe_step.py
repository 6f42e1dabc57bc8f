"""A step of a model with experts: all-to-alls before and after the experts of each layer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from commsched.models import Collective, Compute, CostCurve, Kind, Problem, Task
from commsched.models.errors import InputError
from commsched.models.units import check_ns
from commsched.problems.steps.experts import Experts
from commsched.problems.steps.layer_tasks import GPU, backward_of
from commsched.problems.steps.layers import (
    Layer,
    LayerProfile,
    check_count,
    check_text,
    check_total,
)

CHUNKS = (1, 2, 4, 8)


def moe_step(
    profile: LayerProfile,
    experts: Experts | Mapping[str, Experts],
    costs: Mapping[Kind, CostCurve],
    *,
    chunks: int = 1,
    across_layers: bool = False,
    chunk_overhead_ns: int = 0,
    movable: bool = True,
    one_nic: bool = False,
    group: str = "ep",
    gradient_group: str = "dp",
) -> Problem:
    """Return the step from the start of forward to the end of backward.

    Forward of a layer with experts: the layer's own compute (attention, router), the dispatching
    all-to-all, the experts, the combining all-to-all. Backward does the same in reverse. The
    tokens are cut into chunks: chunk i's experts wait for chunk i's all-to-all only, so that the
    one computes while the other is on its way.

    Parameters
    ----------
    profile
        The layers without their experts.
    experts
        The experts of each layer by name; one for all means that every layer has them.
    costs
        What an ``all_to_all`` costs. With an ``allreduce`` too, the gradients of the layers' own
        parameters are all-reduced in ``gradient_group`` (experts' gradients stay on their rank).
    chunks
        How many chunks the tokens are cut into.
    across_layers
        Whether the layers' own compute is cut into the same chunks, each of which then goes through
        all layers by itself: chunk i of a layer waits for chunk i's all-to-alls only, so others
        compute meanwhile (micro-batches of one batch that overlap). Without it a layer's own compute
        waits for all chunks.
    chunk_overhead_ns
        What each chunk but the first adds to a compute task that is cut: smaller kernels are less
        efficient.
    movable
        Whether a plan may move what can fill the wait for an all-to-all: shared experts, and the
        gradients of parameters. Otherwise shared experts run where the dispatch leaves off, and
        gradients with their backward.
    one_nic
        Whether all-to-alls and all-reduces share a channel.
    group, gradient_group
        The process groups.

    Raises
    ------
    InputError
        If no layer has experts, one of ``experts`` is no layer, a cost is missing, or an option is
        out of range.

    Examples
    --------
    >>> from commsched.models import AlphaBeta, Plan, evaluate
    >>> profile = LayerProfile((Layer("a", 1000, 2000),))
    >>> costs = {"all_to_all": AlphaBeta(1, 4)}
    >>> problem = moe_step(profile, Experts(4000, 8000, 4000), costs)
    >>> [task.name for task in problem.tasks if "backward" not in task.name]
    ['forward a', 'dispatch a', 'experts a', 'combine a']
    >>> evaluate(problem, Plan.of([name] for name in problem.names)).makespan_ns
    23000
    """
    if not isinstance(profile, LayerProfile):
        raise InputError(f"profile: {profile!r:.100} is not a LayerProfile")
    of_layer = _experts_of(profile, experts)
    check_total(profile, check_count(chunks, "chunks"), "chunks")
    overhead_ns = check_ns(chunk_overhead_ns, "chunk_overhead_ns")
    check_text(group, "group")
    check_text(gradient_group, "gradient_group")
    if not isinstance(costs, Mapping):
        raise InputError("costs: a mapping from kind to cost curve is needed")
    for kind in costs:
        if kind not in ("all_to_all", "allreduce"):
            raise InputError(f"costs: {kind!r:.60} is neither all_to_all nor allreduce")
    if "all_to_all" not in costs:
        raise InputError("costs: a cost curve for all_to_all is missing")
    if not isinstance(across_layers, bool):
        raise InputError(f"across_layers: {across_layers!r:.60} must be True or False")
    step = _Step(of_layer, chunks, chunks if across_layers else 1, overhead_ns, movable, group)
    for layer in profile.layers:
        step.forward(layer)
    reduces = "allreduce" in costs and profile.parameter_bytes > 0
    for layer in reversed(profile.layers):
        step.backward(layer, gradient_group if reduces else None)
    prices: dict[tuple[str, Kind], CostCurve] = {(group, "all_to_all"): costs["all_to_all"]}
    if reduces:
        prices[gradient_group, "allreduce"] = costs["allreduce"]
    channels: dict[str, tuple[str, ...]] = {}
    if one_nic and reduces and group != gradient_group:
        channels["nic"] = (group, gradient_group)
    what = f"step with experts, {chunks} {'chunk' if chunks == 1 else 'chunks'}"
    title = f"{profile.name}: {what}" if profile.name else what
    return Problem(step.tasks, prices, channels=channels, name=title)


def moe_steps(
    profile: LayerProfile,
    experts: Experts | Mapping[str, Experts],
    costs: Mapping[Kind, CostCurve],
    *,
    chunks: Iterable[int] = CHUNKS,
    across_layers: bool = False,
    chunk_overhead_ns: int = 0,
    movable: bool = True,
    one_nic: bool = False,
) -> dict[int, Problem]:
    """Return the step for each number of chunks: the number is a decision outside of a plan.

    Parameters
    ----------
    profile, experts, costs, across_layers, chunk_overhead_ns, movable, one_nic
        As for :func:`moe_step`.
    chunks
        The numbers to try.

    Raises
    ------
    InputError
        As for :func:`moe_step`, or if no number is given.

    Examples
    --------
    >>> from commsched.models import AlphaBeta
    >>> profile = LayerProfile((Layer("a", 1000, 2000),))
    >>> steps = moe_steps(profile, Experts(4000, 8000, 4000), {"all_to_all": AlphaBeta(1, 4)})
    >>> {count: len(step.names) for count, step in steps.items()}
    {1: 4, 2: 8, 4: 16, 8: 32}
    """
    counts = list(chunks) if isinstance(chunks, Iterable) else []
    if not counts:
        raise InputError(f"chunks: {chunks!r:.60} must be a list of at least one number")
    return {
        count: moe_step(
            profile,
            experts,
            costs,
            chunks=count,
            across_layers=across_layers,
            chunk_overhead_ns=chunk_overhead_ns,
            movable=movable,
            one_nic=one_nic,
        )
        for count in counts
    }


@dataclass
class _Step:
    """The tasks as they are listed."""

    experts: Mapping[str, Experts]
    chunks: int
    streams: int
    """Into how many chunks the layers' own compute is cut."""
    overhead_ns: int
    movable: bool
    group: str
    tasks: list[Task] = field(default_factory=list)
    before: list[tuple[str, ...]] = field(default_factory=list)
    """For each chunk what the next layer's own compute waits for, beside the stream."""
    ended: list[str] = field(default_factory=list)
    """For each chunk the last task of a layer's own compute."""

    def __post_init__(self) -> None:
        self.before = [()] * self.streams

    def _mark(self, number: int, parts: int) -> str:
        return f" [{number + 1}/{parts}]" if parts > 1 else ""

    def _extra_ns(self, number: int) -> int:
        return self.overhead_ns if number else 0

    def forward(self, layer: Layer) -> None:
        """Add a layer's forward."""
        self.ended = []
        for number, ns in enumerate(_cut(layer.forward_ns, self.streams)):
            name = f"forward {layer.name}{self._mark(number, self.streams)}"
            self.ended.append(name)
            ns += self._extra_ns(number)
            self.tasks.append(Compute(name, ns, GPU, self.before[number]))
        self.before = [()] * self.streams
        experts = self.experts.get(layer.name)
        if experts is None:
            return
        after: list[tuple[str, ...]] = [(name,) for name in self.ended]
        sizes = (experts.dispatch_bytes, experts.combined_bytes)
        names = ("dispatch", "experts", "combine")
        there, computed, back = self._chunked(
            layer, experts, names, sizes, experts.forward_ns, after
        )
        self.tasks += there
        self._shared(f"shared {layer.name}", experts.shared_forward_ns, after)
        self._pipelined(computed, back)

    def backward(self, layer: Layer, gradient_group: str | None) -> None:
        """Add a layer's backward, and the all-reduce of its own gradients."""
        experts = self.experts.get(layer.name)
        if experts is not None:
            # In reverse: gradients of the results go to the experts, those of the tokens back.
            part = experts.weight_gradient_ns if self.movable else 0
            sizes = (experts.combined_bytes, experts.dispatch_bytes)
            names = ("backward combine", "backward experts", "backward dispatch")
            # What must have ended before the gradients of the layer's results are there.
            start = [waits or (self.ended[k],) for k, waits in enumerate(self.before)]
            there, computed, back = self._chunked(
                layer, experts, names, sizes, experts.backward_ns - part, start
            )
            self.tasks += there
            self.before = [()] * self.streams
            self._shared(f"backward shared {layer.name}", experts.shared_backward_ns, start)
            self._pipelined(computed, back)
            if part:
                waits = tuple(task.name for task in computed)
                name = f"expert weights {layer.name}"
                self.tasks.append(Compute(name, part, GPU, waits, movable=True))
        self.ended = []
        gradients = []
        for number, own in enumerate(self._parts(layer)):
            suffix = self._mark(number, self.streams)
            found = backward_of(own, movable=self.movable, after=self.before[number], suffix=suffix)
            self.tasks += found.tasks
            self.ended.append(found.inner)
            gradients.append(found.gradients)
        self.before = [()] * self.streams
        if gradient_group is not None and layer.parameter_bytes:
            self.tasks.append(
                Collective(
                    f"gradients {layer.name}",
                    layer.parameter_bytes,
                    "allreduce",
                    gradient_group,
                    layer.dtype,
                    tuple(gradients),
                )
            )

    def _parts(self, layer: Layer) -> Iterator[Layer]:
        """Yield the chunks of a layer's backward."""
        weights = layer.weight_gradient_ns or 0
        shares = zip(
            _cut(layer.backward_ns - weights, self.streams),
            _cut(weights, self.streams),
            strict=True,
        )
        for number, (inner, part) in enumerate(shares):
            yield replace(
                layer,
                backward_ns=inner + part + self._extra_ns(number),
                weight_gradient_ns=None if layer.weight_gradient_ns is None else part,
            )

    def _chunked(
        self,
        layer: Layer,
        experts: Experts,
        names: tuple[str, str, str],
        sizes: tuple[int, int],
        compute_ns: int,
        after: list[tuple[str, ...]],
    ) -> tuple[list[Collective], list[Compute], list[Collective]]:
        """Return the all-to-alls there, the experts and the all-to-alls back, by chunk."""
        there, computed, back = [], [], []
        first, middle, last = names
        shares = zip(
            _cut(sizes[0], self.chunks),
            _cut(compute_ns, self.chunks),
            _cut(sizes[1], self.chunks),
            strict=True,
        )
        for number, (sent, ns, returned) in enumerate(shares):
            mark = self._mark(number, self.chunks)
            waits = after[number if self.streams > 1 else 0]
            send = self._all_to_all(f"{first} {layer.name}{mark}", sent, experts, waits)
            ns += self._extra_ns(number)
            task = Compute(f"{middle} {layer.name}{mark}", ns, GPU, (send.name,))
            there.append(send)
            computed.append(task)
            name = f"{last} {layer.name}{mark}"
            back.append(self._all_to_all(name, returned, experts, (task.name,)))
        return there, computed, back

    def _all_to_all(
        self, name: str, size: int, experts: Experts, after: tuple[str, ...]
    ) -> Collective:
        return Collective(name, size, "all_to_all", self.group, experts.dtype, after)

    def _shared(self, name: str, duration_ns: int, after: list[tuple[str, ...]]) -> None:
        if not duration_ns:
            return
        for number, ns in enumerate(_cut(duration_ns, self.streams)):
            one = f"{name}{self._mark(number, self.streams)}"
            ns += self._extra_ns(number)
            self.tasks.append(Compute(one, ns, GPU, after[number], movable=self.movable))
            self.before[number] = (one,)

    def _pipelined(self, computed: list[Compute], back: list[Collective]) -> None:
        for number, (task, result) in enumerate(zip(computed, back, strict=True)):
            self.tasks += (task, result)
            own = number if self.streams > 1 else 0
            self.before[own] = (*self.before[own], result.name)


def _cut(total: int, parts: int) -> Iterator[int]:
    """Yield whole parts of a whole that differ by one at most."""
    for number in range(parts):
        yield total * (number + 1) // parts - total * number // parts


def _experts_of(
    profile: LayerProfile, experts: Experts | Mapping[str, Experts]
) -> Mapping[str, Experts]:
    if isinstance(experts, Experts):
        return dict.fromkeys(profile.by_name, experts)
    if not isinstance(experts, Mapping) or not experts:
        raise InputError("experts: at least one layer must have experts")
    for name, one in experts.items():
        if name not in profile.by_name:
            raise InputError(f"experts: {name!r:.100} is no layer of the profile")
        if not isinstance(one, Experts):
            raise InputError(f"experts of {name!r:.100}: {one!r:.60} is not an Experts")
    return dict(experts)
