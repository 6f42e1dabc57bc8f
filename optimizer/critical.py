"""What a plan's makespan hangs on: the launches without which it would not be as long."""

from __future__ import annotations

from commsched.models import Timeline


def critical(timeline: Timeline) -> set[str]:
    """Return the collectives whose launches lie on a path that makes the step as long as it is.

    Going back from what ends last, a launch or task is followed to all that end at the moment when it
    starts and that it may have waited for: what it depends on, and what ran before it on its channel
    or stream. Where nothing of that explains its start (it waited for memory), everything that
    ends then is followed.

    Examples
    --------
    >>> from commsched.models import AlphaBeta, Gradient, GradientProblem, Plan, evaluate
    >>> problem = GradientProblem(
    ...     [Gradient("c", 1, 0), Gradient("b", 9, 5), Gradient("a", 9, 8)], AlphaBeta(0, 1))
    >>> sorted(critical(evaluate(problem, Plan.of([["c"], ["b"], ["a"]]))))
    ['a', 'b']
    """
    problem = timeline.problem
    lane: dict[str, str] = {}
    start: dict[str, int] = {}
    end: dict[str, int] = {}
    for launch in timeline.launches:
        for name in launch.names:
            lane[name] = f"channel {launch.channel}"
            start[name], end[name] = launch.start_ns, launch.end_ns
    for span in timeline.tasks:
        lane[span.name] = f"stream {span.stream}"
        start[span.name], end[span.name] = span.start_ns, span.end_ns
    ending: dict[int, list[str]] = {}
    for name, ns in end.items():
        ending.setdefault(ns, []).append(name)
    mates = {name: launch.names for launch in timeline.launches for name in launch.names}
    last = max(end.values())
    stack = list(ending[last])
    seen = set(stack)
    while stack:
        name = stack.pop()
        members = mates.get(name, (name,))
        earlier = [other for other in ending.get(start[name], ()) if other not in members]
        before = {other for member in members for other in problem.graph.pred[member]}
        why = [other for other in earlier if other in before or lane[other] == lane[name]]
        for other in why or earlier:
            if other not in seen:
                seen.add(other)
                stack.append(other)
    return seen & problem.index.keys()
