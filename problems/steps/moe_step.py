"""A step of a model with experts: all-to-alls before and after the experts of each layer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

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
    chunk_overhead_ns
        What each chunk but the first adds to the experts' compute: smaller kernels are less
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
    step = _Step(of_layer, chunks, overhead_ns, movable, group)
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
    chunk_overhead_ns: int = 0,
    movable: bool = True,
    one_nic: bool = False,
) -> dict[int, Problem]:
    """Return the step for each number of chunks: the number is a decision outside of a plan.

    Parameters
    ----------
    profile, experts, costs, chunk_overhead_ns, movable, one_nic
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
    overhead_ns: int
    movable: bool
    group: str
    tasks: list[Task] = field(default_factory=list)
    before: tuple[str, ...] = ()
    """What the next layer's own compute waits for, beside the stream."""

    def forward(self, layer: Layer) -> None:
        """Add a layer's forward."""
        own = Compute(f"forward {layer.name}", layer.forward_ns, GPU, self.before)
        self.tasks.append(own)
        self.before = ()
        experts = self.experts.get(layer.name)
        if experts is None:
            return
        after = (own.name,)
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
        fillers: list[Compute] = []
        if experts is not None:
            # In reverse: gradients of the results go to the experts, those of the tokens back.
            part = experts.weight_gradient_ns if self.movable else 0
            sizes = (experts.combined_bytes, experts.dispatch_bytes)
            names = ("backward combine", "backward experts", "backward dispatch")
            there, computed, back = self._chunked(
                layer, experts, names, sizes, experts.backward_ns - part, self._stream_end()
            )
            self.tasks += there
            start = there[0].after
            self.before = ()
            self._shared(f"backward shared {layer.name}", experts.shared_backward_ns, start)
            self._pipelined(computed, back)
            if part:
                fillers.append(
                    Compute(
                        f"expert weights {layer.name}",
                        part,
                        GPU,
                        tuple(task.name for task in computed),
                        movable=True,
                    )
                )
        self.tasks += fillers
        own = backward_of(layer, movable=self.movable, after=self.before)
        self.tasks += own.tasks
        self.before = ()
        if gradient_group is not None and layer.parameter_bytes:
            self.tasks.append(
                Collective(
                    f"gradients {layer.name}",
                    layer.parameter_bytes,
                    "allreduce",
                    gradient_group,
                    layer.dtype,
                    (own.gradients,),
                )
            )

    def _stream_end(self) -> tuple[str, ...]:
        """Return what must have ended before the gradients of a layer's results are there."""
        if self.before:
            return self.before
        fixed = (t for t in reversed(self.tasks) if isinstance(t, Compute) and not t.movable)
        return (next(fixed).name,)

    def _chunked(
        self,
        layer: Layer,
        experts: Experts,
        names: tuple[str, str, str],
        sizes: tuple[int, int],
        compute_ns: int,
        after: tuple[str, ...],
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
            mark = f" [{number + 1}/{self.chunks}]" if self.chunks > 1 else ""
            send = self._all_to_all(f"{first} {layer.name}{mark}", sent, experts, after)
            extra_ns = self.overhead_ns if number else 0
            task = Compute(f"{middle} {layer.name}{mark}", ns + extra_ns, GPU, (send.name,))
            there.append(send)
            computed.append(task)
            name = f"{last} {layer.name}{mark}"
            back.append(self._all_to_all(name, returned, experts, (task.name,)))
        return there, computed, back

    def _all_to_all(
        self, name: str, size: int, experts: Experts, after: tuple[str, ...]
    ) -> Collective:
        return Collective(name, size, "all_to_all", self.group, experts.dtype, after)

    def _shared(self, name: str, duration_ns: int, after: tuple[str, ...]) -> None:
        if duration_ns:
            self.tasks.append(Compute(name, duration_ns, GPU, after, movable=self.movable))
            self.before = (name,)

    def _pipelined(self, computed: list[Compute], back: list[Collective]) -> None:
        for task, result in zip(computed, back, strict=True):
            self.tasks += (task, result)
        self.before = (*self.before, *(result.name for result in back))


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
