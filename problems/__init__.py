"""Where steps come from: problem files, builders, and readers of other programs' files."""

from commsched.problems.builders import gradient_problem
from commsched.problems.cost_rows import read_network, write_network
from commsched.problems.digest import problem_digest
from commsched.problems.limit_rows import limits_of_texts
from commsched.problems.network import Network, NetworkCurve
from commsched.problems.plan_file import plan_of, read_plan
from commsched.problems.problem_file import problem_to_bytes, read_problem, write_problem
from commsched.problems.readers import ReadOptions
from commsched.problems.reading import Loaded, load, read, read_recording
from commsched.problems.recorded import (
    Check,
    ImportReport,
    RecordedGraph,
    RecordedLaunch,
    RecordedStep,
    Recording,
)

__all__ = [
    "Check",
    "ImportReport",
    "Loaded",
    "Network",
    "NetworkCurve",
    "ReadOptions",
    "RecordedGraph",
    "RecordedLaunch",
    "RecordedStep",
    "Recording",
    "gradient_problem",
    "limits_of_texts",
    "load",
    "plan_of",
    "problem_digest",
    "problem_to_bytes",
    "read",
    "read_network",
    "read_plan",
    "read_problem",
    "read_recording",
    "write_network",
    "write_problem",
]
