"""The shape of our files, as msgspec types: unknown fields and wrong types are refused by name."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

PROBLEM_FORMAT = "commsched/problem"
PLAN_FORMAT = "commsched/plan"
COSTS_FORMAT = "commsched/costs"
VERSION = 1


class Head(msgspec.Struct):
    """What every file of ours says of itself; other fields are not looked at."""

    format: Any = None
    version: Any = None
    gradients: msgspec.Raw | UnsetType = UNSET
    tasks: msgspec.Raw | UnsetType = UNSET


class CostRow(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A cost in one of its forms: alpha-beta, bus bandwidth, points, or a table of steps."""

    alpha_us: int | float | UnsetType = UNSET
    bandwidth_gb_s: int | float | UnsetType = UNSET
    bus_bandwidth_gb_s: int | float | UnsetType = UNSET
    ranks: int | UnsetType = UNSET
    algorithm: str | UnsetType = UNSET
    points: list[tuple[int, int | float]] | UnsetType = UNSET
    table: list[tuple[int, int | float]] | UnsetType = UNSET


class GradientRow(msgspec.Struct, forbid_unknown_fields=True):
    """A gradient of the simplest problem file."""

    name: str
    bytes: int
    ready_us: int | float
    dtype: str = "float32"


class ComputeRow(msgspec.Struct, forbid_unknown_fields=True, tag_field="type", tag="compute"):
    """A compute task of the general problem file."""

    name: str
    duration_us: int | float
    stream: str = "gpu"
    after: list[str] = []


class CollectiveRow(msgspec.Struct, forbid_unknown_fields=True, tag_field="type", tag="collective"):
    """A collective of the general problem file."""

    name: str
    kind: str
    bytes: int
    group: str
    dtype: str = "float32"
    after: list[str] = []


class GradientFile(msgspec.Struct, forbid_unknown_fields=True):
    """The simplest problem file."""

    format: str
    version: int
    gradients: list[GradientRow]
    costs: dict[str, CostRow]
    name: str = ""
    backward_end_us: int | float | UnsetType = UNSET


class GraphFile(msgspec.Struct, forbid_unknown_fields=True):
    """The general problem file."""

    format: str
    version: int
    tasks: list[ComputeRow | CollectiveRow]
    costs: dict[str, dict[str, CostRow]]
    name: str = ""
    channels: dict[str, list[str]] | UnsetType = UNSET


class CostsFile(msgspec.Struct, forbid_unknown_fields=True):
    """A cost file: the curves of a network, for steps that come without one."""

    format: str
    version: int
    allreduce: CostRow
    name: str = ""


class BucketRow(msgspec.Struct, omit_defaults=True):
    """A bucket of a plan file. All but the names is for people and is verified, not trusted."""

    names: list[str]
    kind: str = ""
    group: str = ""
    dtype: str = ""
    bytes: int = -1
    ready_us: float = -1.0
    start_us: float = -1.0
    end_us: float = -1.0
    channel: str = ""
    not_before_us: int | float = 0


class PlanFile(msgspec.Struct):
    """A plan file; what ``commsched plan --json`` prints is one."""

    format: str
    version: int
    problem_digest: str
    buckets: list[BucketRow]
    problem: str = ""
    scope: str = "in-order"
    status: str = ""
    method: str = ""
    reason: str = ""
    makespan_us: float | UnsetType = UNSET
    exposed_us: float | UnsetType = UNSET
    compute_us: float | UnsetType = UNSET
    lower_bound_us: float | UnsetType = UNSET
    bound_proof: str = ""
    gap: float | UnsetType = UNSET
    slack_us: float = 0.0
    launches: int | UnsetType = UNSET
    peak_bytes: int | UnsetType = UNSET
    verdict: str = ""
    settings: dict[str, Any] | UnsetType = UNSET
