"""The problem file, both forms: read with full validation, written so that it reads back alike."""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec import UNSET

from commsched.models import (
    Collective,
    Compute,
    CostCurve,
    Gradient,
    GradientProblem,
    Kind,
    Problem,
    Task,
)
from commsched.models.collectives import check_kind
from commsched.models.errors import CycleError, InputError
from commsched.models.units import NS_PER_US, ns_from_us
from commsched.problems.cost_rows import check_head, curve_from_row, row_from_curve
from commsched.problems.files import decode, read_bytes, write_bytes
from commsched.problems.schema import (
    PROBLEM_FORMAT,
    VERSION,
    CollectiveRow,
    ComputeRow,
    CostRow,
    GradientFile,
    GradientRow,
    GraphFile,
    Head,
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


def problem_from_bytes(data: bytes, path: str | Path) -> Problem:
    """Return the problem that a file's content describes; ``path`` is for messages.

    Raises
    ------
    InputError
        As for :func:`read_problem`.
    """
    head = decode(data, Head, path)
    check_head(head, PROBLEM_FORMAT, path)
    if (head.gradients is UNSET) == (head.tasks is UNSET):
        raise InputError(f"{path}: a problem has either 'gradients' or 'tasks'")
    try:
        if head.tasks is UNSET:
            return _from_gradients(decode(data, GradientFile, path), path)
        return _from_tasks(decode(data, GraphFile, path), path)
    except CycleError as error:
        raise CycleError(f"{path}: {error}", error.path) from None
    except InputError as error:
        text = str(error)
        raise InputError(text if text.startswith(f"{path}: ") else f"{path}: {text}") from None


def _from_gradients(file: GradientFile, path: str | Path) -> GradientProblem:
    if set(file.costs) != {"allreduce"}:
        other = sorted(set(file.costs) - {"allreduce"})
        what = f"{other[0]!r} is not used" if other else "'allreduce' is missing"
        raise InputError(f"costs: {what}; gradients need the cost of 'allreduce' and no other")
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
    return GradientProblem(
        gradients,
        _curve(file.costs["allreduce"], "allreduce", "costs.allreduce", path),
        name=file.name,
        backward_end_ns=backward_end_ns,
    )


def _from_tasks(file: GraphFile, path: str | Path) -> Problem:
    costs: dict[tuple[str, Kind], CostCurve] = {}
    for group, raw in file.costs.items():
        place = f"costs.{group}"
        for kind, cost in decode(raw, dict[str, msgspec.Raw], path, place).items():
            known = check_kind(kind, place)
            costs[group, known] = _curve(cost, known, f"{place}.{kind}", path)
    tasks: list[Task] = []
    for row in file.tasks:
        after = tuple(row.after)
        if isinstance(row, ComputeRow):
            duration_ns = ns_from_us(row.duration_us, f"task {row.name!r}: duration_us")
            tasks.append(Compute(row.name, duration_ns, row.stream, after))
        else:
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
                )
            )
    channels = None if file.channels is UNSET else file.channels
    return Problem(tasks, costs, channels=channels, name=file.name)


def _curve(raw: msgspec.Raw, kind: Kind, place: str, path: str | Path) -> CostCurve:
    return curve_from_row(decode(raw, CostRow, path, place), kind, place)


def problem_to_bytes(problem: Problem) -> bytes:
    """Return the problem file of a problem; gradient problems get the simplest form.

    Raises
    ------
    InputError
        If a cost cannot be written.
    """
    file: GradientFile | GraphFile
    file = _to_gradients(problem) if isinstance(problem, GradientProblem) else _to_tasks(problem)
    return msgspec.json.format(msgspec.json.encode(file), indent=1) + b"\n"


def write_problem(problem: Problem, path: str | Path) -> None:
    """Write a problem file, at once or not at all.

    Raises
    ------
    InputError
        If it cannot be written.
    """
    write_bytes(path, problem_to_bytes(problem))


def _to_gradients(problem: GradientProblem) -> GradientFile:
    (curve,) = problem.costs.values()
    ends_later = problem.backward_end_ns > max(problem.ready_ns)
    return GradientFile(
        format=PROBLEM_FORMAT,
        version=VERSION,
        name=problem.name,
        gradients=[
            GradientRow(
                g.name,
                g.bytes,
                microseconds(g.ready_ns),
                g.dtype,
                g.device or UNSET,
                g.sparse or UNSET,
            )
            for g in problem.gradients or ()
        ],
        costs={"allreduce": _raw(row_from_curve(curve, "costs.allreduce"))},
        backward_end_us=microseconds(problem.backward_end_ns) if ends_later else UNSET,
    )


def _to_tasks(problem: Problem) -> GraphFile:
    rows: dict[str, dict[str, CostRow]] = {}
    for (group, kind), curve in problem.costs.items():
        rows.setdefault(group, {})[kind] = row_from_curve(curve, f"costs.{group}.{kind}")
    shared = any(channel != group for group, channel in problem.channels.items())
    return GraphFile(
        format=PROBLEM_FORMAT,
        version=VERSION,
        name=problem.name,
        tasks=[
            ComputeRow(t.name, microseconds(t.duration_ns), t.stream, list(t.after))
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
            )
            for t in problem.tasks
        ],
        costs={group: _raw(kinds) for group, kinds in rows.items()},
        channels=problem.groups_of_channel if shared else UNSET,
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
