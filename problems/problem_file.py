"""The problem file, both forms: read with full validation, written so that it reads back alike.

A file may lack its costs, as a recording does; then whoever reads it says what the network costs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import UNSET

from commsched.models import (
    Collective,
    Compute,
    CostCurve,
    Gradient,
    GradientProblem,
    Hold,
    Kind,
    Problem,
    Task,
)
from commsched.models.collectives import check_kind, check_ranks
from commsched.models.errors import CycleError, InputError
from commsched.models.given import given
from commsched.models.problem import Costs
from commsched.models.units import NS_PER_US, ns_from_us
from commsched.problems.cost_rows import curve_from_row, row_from_curve
from commsched.problems.files import decode, read_bytes, write_bytes
from commsched.problems.limit_rows import limit_of_row, row_of_limit
from commsched.problems.network import Need, Network
from commsched.problems.own_file import decode_own, own_head
from commsched.problems.recorded import RecordedGraph, RecordedStep
from commsched.problems.schema import (
    PROBLEM_FORMAT,
    VERSION,
    CollectiveRow,
    ComputeRow,
    CostRow,
    GradientFile,
    GradientRow,
    GraphFile,
    HoldRow,
)


def read_problem(path: str | Path) -> Problem:
    """Read a problem file in either form; ``-`` means standard input.

    Raises
    ------
    InputError
        If anything in the file is wrong; one line names the file, the item, the value and the rule.
    CycleError
        If tasks wait for each other in a circle.
    """
    return problem_from_bytes(read_bytes(path), path)


def problem_from_bytes(data: bytes, path: str | Path, network: Network | None = None) -> Problem:
    """Return the problem that a file's content describes.

    Parameters
    ----------
    data
        The file's content.
    path
        For messages.
    network
        What launches cost, instead of the file's own costs.

    Raises
    ------
    InputError
        As for :func:`read_problem`; also if neither the file nor the network has the costs.
    """
    return problem_and_notes(data, path, network)[0]


def problem_and_notes(
    data: bytes, path: str | Path, network: Network | None = None
) -> tuple[Problem, tuple[str, ...]]:
    """Return the problem, and what was taken for granted about the network's costs.

    The parameters and errors are those of :func:`problem_from_bytes`.
    """
    head = own_head(data, PROBLEM_FORMAT, path)
    if (head.gradients is UNSET) == (head.tasks is UNSET):
        raise InputError(f"{path}: a problem has either 'gradients' or 'tasks'")
    try:
        if head.tasks is UNSET:
            return _from_gradients(decode_own(data, GradientFile, path), path, network)
        return _from_tasks(decode_own(data, GraphFile, path), path, network)
    except CycleError as error:
        raise CycleError(f"{path}: {error}", error.path) from None
    except InputError as error:
        text = str(error)
        raise InputError(text if text.startswith(f"{path}: ") else f"{path}: {text}") from None


def _from_gradients(
    file: GradientFile, path: str | Path, network: Network | None
) -> tuple[GradientProblem, tuple[str, ...]]:
    ranks = None if file.ranks is UNSET else check_ranks(file.ranks)
    notes: tuple[str, ...] = ()
    if network is not None:
        costs, notes = network.costs({("dp", "allreduce"): ranks}, str(path))
        cost = costs["dp", "allreduce"]
    elif not file.costs:
        raise _no_costs(path, "gradients need that of allreduce")
    elif set(file.costs) != {"allreduce"}:
        other = sorted(set(file.costs) - {"allreduce"})
        what = f"{other[0]!r} is not used" if other else "'allreduce' is missing"
        raise InputError(f"costs: {what}; gradients need the cost of 'allreduce' and no other")
    else:
        cost = _curve(file.costs["allreduce"], "allreduce", "costs.allreduce", path)
    gradients = [
        Gradient(
            row.name,
            row.bytes,
            ns_from_us(row.ready_us, f"gradient {row.name!r}: ready_us"),
            row.dtype,
            row.device or "",
            bool(row.sparse),
        )
        for row in file.gradients
    ]
    backward_end_ns = None
    if file.backward_end_us is not UNSET:
        backward_end_ns = ns_from_us(file.backward_end_us, "backward_end_us")
        last = max((gradient.ready_ns for gradient in gradients), default=0)
        if backward_end_ns < last:
            raise InputError(
                f"backward_end_us: {file.backward_end_us} lies before the last gradient, "
                f"which is ready at {microseconds(last)}"
            )
    problem = GradientProblem(
        gradients,
        cost,
        name=file.name,
        backward_end_ns=backward_end_ns,
        limits=map(limit_of_row, file.limits or ()),
    )
    return problem, notes


def _no_costs(path: str | Path, need: str) -> InputError:
    return InputError(
        f"{path}: has no costs, {need}; say what the network costs: --alpha-us and --bandwidth-gb-s, "
        "or --costs FILE"
    )


def _from_tasks(
    file: GraphFile, path: str | Path, network: Network | None
) -> tuple[Problem, tuple[str, ...]]:
    tasks: list[Task] = []
    for row in file.tasks:
        after = tuple(row.after)
        if isinstance(row, ComputeRow):
            duration_ns = ns_from_us(row.duration_us, f"task {row.name!r}: duration_us")
            tasks.append(Compute(row.name, duration_ns, row.stream, after, bool(row.movable)))
        else:
            hold = row.hold
            kind = check_kind(row.kind, f"task {row.name!r}: kind")
            tasks.append(
                Collective(
                    row.name,
                    row.bytes,
                    kind,
                    row.group,
                    row.dtype,
                    after,
                    row.device or "",
                    bool(row.sparse),
                    None if hold is UNSET else Hold(hold.pool, hold.since, tuple(hold.until)),
                )
            )
    ranks = {} if file.ranks is UNSET else file.ranks
    groups = {task.group for task in tasks if isinstance(task, Collective)}
    for group in ranks:
        if group not in groups:
            raise InputError(f"ranks: group {group!r} has no collective")
    needs: dict[Need, int | None] = {
        (task.group, task.kind): check_ranks(ranks[task.group]) if task.group in ranks else None
        for task in tasks
        if isinstance(task, Collective)
    }
    notes: tuple[str, ...] = ()
    if network is not None:
        costs, notes = network.costs(needs, str(path))
    elif needs and not file.costs:
        first = next(task for task in tasks if isinstance(task, Collective))
        text = f"task {first.name!r} needs that of {first.kind} in group {first.group!r}"
        raise _no_costs(path, text)
    else:
        costs = _file_costs(file, path)
    channels = None if file.channels is UNSET else file.channels
    limits = map(limit_of_row, file.limits or ())
    return Problem(tasks, costs, channels=channels, name=file.name, limits=limits), notes


def _file_costs(file: GraphFile, path: str | Path) -> Costs:
    costs: dict[Need, CostCurve] = {}
    for group, raw in file.costs.items():
        place = f"costs.{group}"
        for kind, cost in decode(raw, dict[str, msgspec.Raw], path, place).items():
            known = check_kind(kind, place)
            costs[group, known] = _curve(cost, known, f"{place}.{kind}", path)
    return costs


def _curve(raw: msgspec.Raw, kind: Kind, place: str, path: str | Path) -> CostCurve:
    return curve_from_row(decode(raw, CostRow, path, place), kind, place)


def problem_to_bytes(problem: Problem | RecordedStep | RecordedGraph) -> bytes:
    """Return the problem file of a problem, or of a recording, which has no costs.

    Gradients get the simplest form.

    Raises
    ------
    InputError
        If a cost or a name cannot be written.
    """
    file: GradientFile | GraphFile
    if isinstance(problem, RecordedStep):
        end_ns = problem.backward_end_ns
        file = _gradient_file(problem.name, problem.gradients, end_ns)
        file.ranks = problem.ranks or UNSET
    elif isinstance(problem, RecordedGraph):
        channels = {channel: list(groups) for channel, groups in problem.channels.items()}
        file = _graph_file(problem.name, problem.tasks, channels)
        groups = {group for group, _ in problem.needs}  # a recording may know of others, too
        file.ranks = {g: n for g, n in problem.ranks.items() if g in groups} or UNSET
    elif isinstance(problem, GradientProblem):
        (curve,) = problem.costs.values()
        gradients = problem.gradients or ()
        file = _gradient_file(problem.name, gradients, problem.backward_end_ns)
        file.costs = {"allreduce": _raw(row_from_curve(curve, "costs.allreduce"))}
    else:
        given(problem, Problem, "problem")
        shared = any(channel != group for group, channel in problem.channels.items())
        channels = problem.groups_of_channel if shared else {}
        file = _graph_file(problem.name, problem.tasks, channels)
        rows: dict[str, dict[str, CostRow]] = {}
        for (group, kind), curve in problem.costs.items():
            rows.setdefault(group, {})[kind] = row_from_curve(curve, f"costs.{group}.{kind}")
        file.costs = {group: _raw(kinds) for group, kinds in rows.items()}
    if isinstance(problem, Problem) and problem.limits:
        file.limits = [row_of_limit(limit) for limit in problem.limits]
    if isinstance(file.name, str):  # may come from the name of a file, which need not be UTF-8
        file.name = file.name.encode("utf-8", "backslashreplace").decode()
    try:
        return msgspec.json.format(msgspec.json.encode(file), indent=1) + b"\n"
    except UnicodeEncodeError as error:
        raise InputError(f"the name {error.object!r:.100} cannot be written as UTF-8") from None


def write_problem(problem: Problem | RecordedStep | RecordedGraph, path: str | Path) -> None:
    """Write a problem file, at once or not at all; that of a recording has no costs.

    Raises
    ------
    InputError
        If it cannot be written.
    """
    write_bytes(path, problem_to_bytes(problem))


def _gradient_file(name: str, gradients: Sequence[Gradient], end_ns: int) -> GradientFile:
    ends_later = end_ns > max((gradient.ready_ns for gradient in gradients), default=0)
    return GradientFile(
        format=PROBLEM_FORMAT,
        version=VERSION,
        name=name,
        gradients=[
            GradientRow(
                g.name,
                g.bytes,
                microseconds(g.ready_ns),
                g.dtype,
                g.device or UNSET,
                g.sparse or UNSET,
            )
            for g in gradients
        ],
        backward_end_us=microseconds(end_ns) if ends_later else UNSET,
    )


def _graph_file(name: str, tasks: Sequence[Task], channels: Mapping[str, list[str]]) -> GraphFile:
    return GraphFile(
        format=PROBLEM_FORMAT,
        version=VERSION,
        name=name,
        tasks=[
            ComputeRow(
                t.name,
                microseconds(t.duration_ns),
                t.stream,
                list(t.after),
                t.movable or UNSET,
            )
            if isinstance(t, Compute)
            else CollectiveRow(
                t.name,
                t.kind,
                t.bytes,
                t.group,
                t.dtype,
                list(t.after),
                t.device or UNSET,
                t.sparse or UNSET,
                UNSET if t.hold is None else HoldRow(t.hold.pool, t.hold.since, [*t.hold.until]),
            )
            for t in tasks
        ],
        channels=dict(channels) or UNSET,
    )


def _raw(row: object) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(row))


def microseconds(ns: int) -> int | float:
    """Return whole nanoseconds as microseconds for a file: an int where it is one.

    Examples
    --------
    >>> microseconds(2000), microseconds(2001)
    (2, 2.001)
    """
    whole, rest = divmod(ns, NS_PER_US)
    return ns / NS_PER_US if rest else whole
