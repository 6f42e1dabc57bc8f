"""Comparing what was read from a trace with what the trace was made from."""

from __future__ import annotations

from pathlib import Path

import pytest
from trace_maker import NEW, Maker, Style, Truth, write_trace

from commsched.models import InputError, Plan
from commsched.problems.profiler.profiler_trace import read_profiler_trace
from commsched.problems.recorded import RecordedStep

SHAPES = [(1000,), (1000, 512), (64, 3, 7, 7), (), (256, 128)]
ENDS = (2, 5)


def made(path: Path, style: Style = NEW, **options) -> tuple[Path, Truth]:
    maker = Maker(style)
    truth = maker.step(SHAPES, ENDS, **options)
    return write_trace(path / "trace", maker.top()), truth


def check_step(step: RecordedStep, truth: Truth) -> None:
    """Compare everything that a trace has with what really happened."""
    assert [g.bytes for g in step.gradients] == truth.bytes
    assert [g.dtype for g in step.gradients] == truth.dtypes
    assert [g.ready_ns for g in step.gradients] == truth.ready
    names = [g.name for g in step.gradients]
    assert len(set(names)) == len(names)
    assert [launch.names for launch in step.launches] == [
        tuple(names[k] for k in bucket) for bucket in truth.buckets
    ]
    assert all(launch.exact for launch in step.launches)
    assert [(x.issued_ns, x.start_ns, x.end_ns) for x in step.launches] == truth.launches
    assert step.backward_end_ns == truth.backward_end
    assert step.plan == Plan.of([[names[k] for k in bucket] for bucket in truth.buckets])


def failed(step: RecordedStep) -> list[str]:
    return [check.text for check in step.report.checks if not check.passed]


def refused(path: Path, **options) -> str:
    with pytest.raises(InputError) as caught:
        read_profiler_trace(path, **options)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return message
