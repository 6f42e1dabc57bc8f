"""The list of readers: a new kind of recording is one module and one line here."""

from __future__ import annotations

from commsched.problems.chakra import chakra_trace
from commsched.problems.estimates import model_config
from commsched.problems.execution import execution_steps
from commsched.problems.nsight import nsight_graph
from commsched.problems.profiler import profiler_reader
from commsched.problems.readers import Reader
from commsched.problems.workloads import (
    astra_workload,
    ddp_logging,
    pipedream_profile,
    straggler_timeline,
)

READERS: tuple[Reader, ...] = (
    straggler_timeline.READER,  # before the profiler's, for it is a Chrome trace too
    chakra_trace.READER,
    execution_steps.READER,
    nsight_graph.READER,
    profiler_reader.READER,
    pipedream_profile.READER,
    astra_workload.READER,
    ddp_logging.READER,
    model_config.READER,
)
"""In the order in which they are asked whether a file is theirs; the first that says yes reads it."""
