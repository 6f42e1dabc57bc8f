"""The launches of a timeline as CSV, a row each."""

from __future__ import annotations

import csv
import io
import json

from commsched.models import Timeline, launch_exposures
from commsched.models.units import us_from_ns

COLUMNS = (
    "launch",
    "kind",
    "group",
    "dtype",
    "channel",
    "members",
    "bytes",
    "ready_us",
    "start_us",
    "end_us",
    "exposed_us",
    "why_exposed",
    "names",
)


def launch_table(timeline: Timeline) -> bytes:
    """Return the launches in order of start; ``names`` is a JSON list.

    Examples
    --------
    >>> from commsched.models import AlphaBeta, Gradient, GradientProblem, Plan, evaluate
    >>> problem = GradientProblem([Gradient("a", 1000, ready_ns=500)], AlphaBeta(1, 1))
    >>> print(launch_table(evaluate(problem, Plan.of([["a"]]))).decode().splitlines()[1])
    1,allreduce,dp,float32,dp,1,1000,0.5,0.5,2.5,2.0,waits for gradient,"[""a""]"
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    exposures = launch_exposures(timeline)
    for number, (launch, exposure) in enumerate(zip(timeline.launches, exposures, strict=True), 1):
        writer.writerow(
            [
                number,
                launch.key.kind,
                launch.key.group,
                launch.key.dtype,
                launch.channel,
                len(launch.names),
                launch.bytes,
                us_from_ns(launch.ready_ns),
                us_from_ns(launch.start_ns),
                us_from_ns(launch.end_ns),
                us_from_ns(exposure.exposed_ns),
                str(exposure.reason),
                json.dumps(list(launch.names), ensure_ascii=False),
            ]
        )
    return out.getvalue().encode()
