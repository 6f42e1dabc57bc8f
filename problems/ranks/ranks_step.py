"""Merging the DDP steps of several ranks: a gradient is ready when its last rank has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from commsched.models.errors import InputError
from commsched.problems.ranks.ranks_clock import align
from commsched.problems.ranks.ranks_gates import Gate, gate, gate_lines, merge_launch, spans
from commsched.problems.ranks.ranks_input import RankRecording, numbers_text
from commsched.problems.ranks.ranks_match import (
    Matched,
    alike,
    difference,
    match_gradients,
    match_launches,
)
from commsched.problems.ranks.ranks_report import (
    clock_checks,
    clock_notes,
    count_check,
    left_out_checks,
    merge_reports,
    run_checks,
    run_notes,
)
from commsched.problems.recorded import Check, RecordedLaunch, RecordedStep


def merge_steps(
    all_ranks: Sequence[RankRecording],
    same_step: Sequence[RankRecording],
    why: Mapping[int, str],
    notes: Sequence[str],
) -> RecordedStep:
    """Return one step for those of all ranks.

    Most ranks must agree on the launches and the gradients; the others are left out. A gradient
    is ready when it is on its last rank, for then its all-reduce can start.

    Parameters
    ----------
    all_ranks
        All ranks that were read.
    same_step
        Those of the chosen step, each with a :class:`RecordedStep`, by their numbers.
    why
        Why the others are left out, by the rank's number.
    notes
        Assumptions made so far.

    Raises
    ------
    InputError
        If no two ranks agree, or a time is out of range.
    """
    kept, why = _majority(same_step, why)
    steps = {one.number: one.recording for one in kept if isinstance(one.recording, RecordedStep)}
    reference = steps[kept[0].number]
    found, unmatched = match_launches(kept)
    ends = [max(step.backward_end_ns, 0) for step in steps.values()]
    clock = align([one.origin_ns for one in kept], spans(found, kept), ends)
    zeros = {one.number: zero for one, zero in zip(kept, clock.zeros_ns, strict=True)}
    ready: dict[int, list[int]] = {}
    reordered = []
    for number, step in steps.items():
        gradients, other_order = match_gradients(reference, step)
        ready[number] = [gradient.ready_ns + zeros[number] for gradient in gradients]
        if other_order:
            reordered.append(number)
    latest = [max(times) for times in zip(*ready.values(), strict=True)]
    order = sorted(range(len(latest)), key=lambda k: latest[k])
    place = {reference.gradients[k].name: at for at, k in enumerate(order)}
    launches = _launches(reference, kept[0].number, found, zeros, place)
    gates = _gates(reference, launches, ready)
    sizes = {step.ranks for step in steps.values()}
    notes = [
        *notes,
        *clock_notes(clock, kept),
        "a gradient is ready when its last rank has it; names are those of "
        f"rank {kept[0].rank}, and gradients of one size in one launch cannot be told apart",
    ]
    if reordered:
        notes.append(f"{numbers_text(reordered)}: gradients became ready in another order")
    if order != sorted(order):
        notes.append("the ranks' latest times put the gradients in another order")
    notes += run_notes(found, zeros)
    checks = [
        *left_out_checks(why),
        *count_check(len(kept), reference.ranks if len(sizes) == 1 else None),
        *clock_checks(clock, kept),
        *run_checks(found),
        *(Check(f"launches of group {g!r:.60} compared: {r}", False) for g, r in unmatched.items()),
    ]
    if len(sizes) > 1:
        checks.append(Check("the ranks agree on how many ranks the job has", False))
    try:
        gradients_out = tuple(replace(reference.gradients[k], ready_ns=latest[k]) for k in order)
    except InputError as error:
        raise InputError(f"{kept[0].source} and other ranks: {error}") from None
    return RecordedStep(
        name=f"{reference.name}, {len(kept)} ranks",
        gradients=gradients_out,
        launches=launches,
        backward_end_ns=max(step.backward_end_ns + zeros[n] for n, step in steps.items()),
        step_name=reference.step_name,
        report=merge_reports(
            all_ranks, kept, notes, checks, gate_lines(gates, "its gradients were ready last")
        ),
        ranks=reference.ranks if len(sizes) == 1 else None,
    )


def _majority(
    ranks: Sequence[RankRecording], why: Mapping[int, str]
) -> tuple[list[RankRecording], dict[int, str]]:
    """Return the largest set of ranks that agree; among several the one with most launches."""
    classes = alike(ranks)
    best = max(classes, key=lambda own: (len(own), len(own[0].recording.launches)))
    reasons = dict(why)
    for own in classes:
        if own is best:
            continue
        reason = difference(own[0], best[0])
        if len(best) == 1:
            raise InputError(
                f"{own[0].source}: rank {own[0].rank} does not fit rank {best[0].rank}: {reason}; "
                "leave one of them out"
            )
        reasons.update({one.number: reason for one in own})
    return best, reasons


def _launches(
    reference: RecordedStep,
    number: int,
    found: Sequence[Matched],
    zeros: Mapping[int, int],
    place: Mapping[str, int],
) -> tuple[RecordedLaunch, ...]:
    """Return the reference's launches with the times of all ranks, where they can be compared."""
    matched = {one.positions[number]: one for one in found if number in one.positions}
    launches = []
    for position, launch in enumerate(reference.launches):
        names = tuple(sorted(launch.names, key=lambda name: place.get(name, -1)))
        one = matched.get(position) or Matched(launch.group, {number: launch}, {number: position})
        launches.append(merge_launch(one, names, zeros))
    launches.sort(key=lambda launch: launch.issued_ns)
    return tuple(launches)


def _gates(
    reference: RecordedStep,
    launches: Sequence[RecordedLaunch],
    ready: Mapping[int, Sequence[int]],
) -> list[Gate]:
    index = {gradient.name: k for k, gradient in enumerate(reference.gradients)}
    gates = []
    for number, launch in enumerate(launches):
        members = [index[name] for name in launch.names if name in index]
        if members:
            when = {rank: max(times[k] for k in members) for rank, times in ready.items()}
            gates.append(gate(launch, number, when))
    return gates
