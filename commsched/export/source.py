"""What an exporter is given: a plan with the facts of its launches, and the problem if there is one."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from msgspec import UNSET

from commsched.models import FusionKey, Plan, Problem
from commsched.models.collectives import check_kind, check_ranks
from commsched.models.coverage import fit
from commsched.models.errors import InputError, NotApplicableError
from commsched.models.units import check_bytes
from commsched.problems import plan_of
from commsched.problems.schema import PlanFile

STAGES = (0, 1, 2, 3)
_VERSION = re.compile(r"v?(\d{1,4}(?:\.\d{1,4}){0,3})(?!\d)")


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """What an export needs to know beside the plan.

    Attributes
    ----------
    version
        The framework's version as it prints it (torch's for DDP, FSDP2 and Inductor); empty if it
        is not known, and then the export says which one it needs.
    zero_stage
        DeepSpeed's ZeRO stage.
    distributed_optimizer
        Whether Megatron-core runs its distributed optimizer, which aligns parameters.
    ranks
        Ranks of the group, for frameworks that count a reduce-scatter by what one rank keeps.

    Raises
    ------
    InputError
        If the version is none, the stage unknown or the ranks out of range.
    """

    version: str = ""
    zero_stage: int = 2
    distributed_optimizer: bool = False
    ranks: int | None = None

    def __post_init__(self) -> None:
        if self.version and not (
            isinstance(self.version, str) and _VERSION.match(self.version.strip())
        ):
            raise InputError(f"version: {self.version!r:.60} is no version such as 2.11.0")
        if isinstance(self.zero_stage, bool) or self.zero_stage not in STAGES:
            raise InputError(f"zero_stage: {self.zero_stage!r:.60} is not one of 0, 1, 2, 3")
        if self.ranks is not None:
            check_ranks(self.ranks)

    def older_than(self, version: str) -> bool:
        """Return whether the version is known and older than another one.

        Examples
        --------
        >>> ExportOptions("2.9.1+cu128").older_than("2.11"), ExportOptions().older_than("2.11")
        (True, False)
        """
        return bool(self.version) and _numbers(self.version) < _numbers(version)


def _numbers(version: str) -> tuple[int, ...]:
    found = _VERSION.match(version.strip())
    return tuple(map(int, found[1].split("."))) if found else ()


@dataclass(frozen=True, slots=True)
class PlannedLaunch:
    """A bucket with what its collectives have in common, and its bytes."""

    names: tuple[str, ...]
    key: FusionKey
    bytes: int


@dataclass(frozen=True)
class ExportSource:
    """A plan to be exported.

    Attributes
    ----------
    plan
        The plan.
    launches
        Its buckets with kind, group, dtype and bytes, in the plan's order.
    problem
        The problem, without which no framework's rule can be simulated; None if it is not there.
    options
        What else the export needs.
    """

    plan: Plan
    launches: tuple[PlannedLaunch, ...]
    problem: Problem | None = None
    options: ExportOptions = field(default_factory=ExportOptions)

    @classmethod
    def of(cls, problem: Problem, plan: Plan, options: ExportOptions | None = None) -> ExportSource:
        """Return the source of a plan for a problem.

        Raises
        ------
        PlanError
            If the plan does not fit the problem.
        """
        members = fit(problem, plan)
        launches = tuple(
            PlannedLaunch(bucket.names, problem.keys[positions[0]], size)
            for bucket, positions, size in zip(
                plan.buckets, members.positions, members.sizes, strict=True
            )
        )
        return cls(plan, launches, problem, options or ExportOptions())

    @classmethod
    def of_file(
        cls, file: PlanFile, path: str | Path, options: ExportOptions | None = None
    ) -> ExportSource:
        """Return the source of a plan file alone.

        Raises
        ------
        InputError
            If the file leaves out what the problem would say.
        """
        launches = []
        seen: set[str] = set()
        for number, row in enumerate(file.buckets):
            what = f"{path}: buckets[{number}]"
            for name in ("kind", "group", "dtype", "bytes"):
                if getattr(row, name) is UNSET:
                    raise InputError(f"{what}: {name} is missing; give the problem as well")
            for member in row.names:
                if member in seen and row.chunks is UNSET:
                    raise InputError(f"{what}: {member!r:.100} is launched twice")
                seen.add(member)
            kind = check_kind(row.kind, f"{what}: kind")
            key = FusionKey(kind, str(row.group), str(row.dtype))
            size = check_bytes(row.bytes, f"{what}: bytes")
            launches.append(PlannedLaunch(tuple(row.names), key, size))
        return cls(plan_of(file, path), tuple(launches), None, options or ExportOptions())

    @property
    def keys(self) -> list[FusionKey]:
        """The fusion keys that occur, in order of launch."""
        return list(dict.fromkeys(launch.key for launch in self.launches))

    def check(
        self, who: str, kinds: Collection[str], *, holds: bool = False, memory: bool = False
    ) -> None:
        """Refuse what a framework has not.

        Parameters
        ----------
        who
            The framework, for messages.
        kinds
            The kinds of collectives that it buckets.
        holds
            Whether it holds launches back by itself, so that a plan of its own rule may come back.
        memory
            Whether launches may wait for memory of a limited pool.

        Raises
        ------
        NotApplicableError
            At the first thing that it has not.
        """
        others = sorted({key.kind for key in self.keys} - set(kinds))
        if others:
            raise NotApplicableError(
                f"{who} does not bucket {', '.join(others)}, which the plan launches; "
                f"it buckets {' and '.join(kinds)}"
            )
        for bucket in self.plan.buckets:
            if bucket.chunks:
                raise NotApplicableError(
                    f"{who} launches tensors whole; the plan splits {bucket.names[0]!r:.100}"
                )
            if bucket.not_before_ns and not holds:
                raise NotApplicableError(
                    f"{who} launches a bucket as soon as it is ready; the plan holds the one of "
                    f"{bucket.names[0]!r:.100} back"
                )
        for stream in self.plan.orders:
            raise NotApplicableError(
                f"{who} does not reorder compute; the plan moves tasks of stream {stream!r:.100}"
            )
        if self.problem is not None and not memory:
            for pool in self.problem.limited_pools:
                raise NotApplicableError(
                    f"{who} does not wait for memory; the problem limits {pool!r:.100}"
                )

    def one_group(self, who: str) -> None:
        """Refuse plans of several process groups.

        Raises
        ------
        NotApplicableError
            If there are several.
        """
        groups = sorted({key.group for key in self.keys})
        if len(groups) > 1:
            raise NotApplicableError(f"{who} has one process group; the plan uses {groups}")

    def no_sparse(self, who: str) -> None:
        """Refuse collectives that must travel alone.

        Raises
        ------
        NotApplicableError
            If there is one.
        """
        for key in self.keys:
            if key.alone:
                raise NotApplicableError(f"{who}: the sparse gradient {key.alone!r:.100}")

    def members(self) -> Iterator[tuple[str, FusionKey]]:
        """Yield each collective's name with its fusion key, in order of launch."""
        for launch in self.launches:
            for name in launch.names:
                yield name, launch.key
