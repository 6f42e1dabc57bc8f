"""The shape of our files, as msgspec types: unknown fields and wrong types are refused by name."""

from __future__ import annotations

from typing import Any, Literal

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
    device: str | UnsetType = UNSET
    sparse: bool | UnsetType = UNSET


class HoldRow(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The memory that a collective's tensors take up."""

    pool: str
    since: Literal["start", "ready"] = "start"
    until: list[str] = []


class LimitRow(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """What a plan must respect; which fields it has depends on its type."""

    type: str
    bytes: int | UnsetType = UNSET
    count: int | UnsetType = UNSET
    pool: str | UnsetType = UNSET
    names: list[str] | UnsetType = UNSET
    rows: list[list[str]] | UnsetType = UNSET


class ComputeRow(msgspec.Struct, forbid_unknown_fields=True, tag_field="type", tag="compute"):
    """A compute task of the general problem file."""

    name: str
    duration_us: int | float
    stream: str = "gpu"
    after: list[str] = []
    movable: bool | UnsetType = UNSET


class CollectiveRow(
    msgspec.Struct,
    forbid_unknown_fields=True,
    tag_field="type",
    tag="collective",
):
    """A collective of the general problem file."""

    name: str
    kind: str
    bytes: int
    group: str
    dtype: str = "float32"
    after: list[str] = []
    device: str | UnsetType = UNSET
    sparse: bool | UnsetType = UNSET
    hold: HoldRow | UnsetType = UNSET


class GradientFile(msgspec.Struct, forbid_unknown_fields=True):
    """The simplest problem file."""

    format: str
    version: int
    gradients: list[GradientRow]
    costs: dict[str, msgspec.Raw] = {}  # a CostRow for each kind
    name: str = ""
    backward_end_us: int | float | UnsetType = UNSET
    ranks: int | UnsetType = UNSET
    limits: list[LimitRow] | UnsetType = UNSET


class GraphFile(msgspec.Struct, forbid_unknown_fields=True):
    """The general problem file."""

    format: str
    version: int
    tasks: list[ComputeRow | CollectiveRow]
    costs: dict[str, msgspec.Raw] = {}  # for each group, a CostRow for each kind
    name: str = ""
    channels: dict[str, list[str]] | UnsetType = UNSET
    ranks: dict[str, int] | UnsetType = UNSET
    limits: list[LimitRow] | UnsetType = UNSET


class CurveRow(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A curve of a cost file: what it is for, what it costs, and where it comes from."""

    kind: str  # a kind of collective, or "any"
    cost: CostRow
    ranks: int | UnsetType = UNSET
    nodes: int | UnsetType = UNSET
    group: str = ""
    source: str = ""
    date: str = ""
    tool: str = ""
    mean_error: int | float | UnsetType = UNSET
    max_error: int | float | UnsetType = UNSET


class CostsFile(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A cost file: the curves of a network, for steps that come without them.

    A field with the name of a kind is short for a curve of that kind without anything else.
    """

    format: str
    version: int
    name: str = ""
    curves: list[CurveRow] | UnsetType = UNSET
    allreduce: CostRow | UnsetType = UNSET
    reduce_scatter: CostRow | UnsetType = UNSET
    all_gather: CostRow | UnsetType = UNSET
    all_to_all: CostRow | UnsetType = UNSET
    broadcast: CostRow | UnsetType = UNSET
    send_recv: CostRow | UnsetType = UNSET


class BucketRow(msgspec.Struct, forbid_unknown_fields=True):
    """A bucket of a plan file. Only names, chunks and ``not_before_us`` decide anything."""

    names: list[str]
    chunks: list[tuple[int, int] | None] | UnsetType = UNSET
    not_before_us: int | float | UnsetType = UNSET
    kind: str | UnsetType = UNSET
    group: str | UnsetType = UNSET
    dtype: str | UnsetType = UNSET
    bytes: int | UnsetType = UNSET
    ready_us: int | float | UnsetType = UNSET
    start_us: int | float | UnsetType = UNSET
    end_us: int | float | UnsetType = UNSET
    channel: str | UnsetType = UNSET
    exposed_us: int | float | UnsetType = UNSET
    reason: str | UnsetType = UNSET


class PlanFile(msgspec.Struct, forbid_unknown_fields=True):
    """A plan file; what ``commsched plan --json`` prints is one.

    All but the digest, the buckets and the scope is for people: it is verified, never trusted.
    """

    format: str
    version: int
    problem_digest: str
    buckets: list[BucketRow]
    orders: dict[str, list[str]] | UnsetType = UNSET
    problem: str | UnsetType = UNSET
    scope: Literal["in-order", "fifo", "any"] = "in-order"
    status: Literal["optimal", "feasible"] | UnsetType = UNSET
    method: str | UnsetType = UNSET
    reason: str | UnsetType = UNSET
    verdict: str | UnsetType = UNSET
    makespan_us: int | float | UnsetType = UNSET
    exposed_us: int | float | UnsetType = UNSET
    compute_us: int | float | UnsetType = UNSET
    communication_us: int | float | UnsetType = UNSET
    lower_bound_us: int | float | UnsetType = UNSET
    bound_proof: str | UnsetType = UNSET
    gap: int | float | UnsetType = UNSET
    slack_us: int | float | UnsetType = UNSET
    launches: int | UnsetType = UNSET
    peak_bytes: int | UnsetType = UNSET
    settings: dict[str, Any] | UnsetType = UNSET
    limit_prices: list[dict[str, Any]] | UnsetType = UNSET
    overheads: dict[str, Any] | UnsetType = UNSET
    slowdown: dict[str, Any] | UnsetType = UNSET
