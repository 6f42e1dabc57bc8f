"""Step timelines of Megatron jobs, as ByteDance's straggler analysis publishes them.

They have the times of every rank's forward and backward passes and collectives, but no size of
anything, so no problem can be made of them: this reader says so instead of another one guessing.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence

from commsched.models.errors import InputError
from commsched.problems.readers import Reader, ReadOptions
from commsched.problems.recorded import Recording
from commsched.problems.sources.source import Source
from commsched.problems.sources.trace_bytes import valid_utf8

_LIST = re.compile(rb"(?:\xef\xbb\xbf)?\s*\[\s*\{")
_CAT = re.compile(
    rb'"cat"\s*:\s*"(?:(?:forward|backward)-(?:compute|send|recv)|grads-reduce-scatter'
    rb'|params-all-gather|layernorm-grads-all-reduce|embedding-grads-all-reduce)"'
)
_MICRO = re.compile(rb'"mb_id"\s*:')


def recognises(start: bytes) -> bool:
    """Return whether a file is such a timeline."""
    return bool(_LIST.match(start) and _CAT.search(start) and _MICRO.search(start))


def read(files: Sequence[Source], options: ReadOptions) -> Recording:
    """Refuse the file, and say what it is and lacks.

    Raises
    ------
    InputError
        Always.
    """
    data = valid_utf8(files[0].read(), Counter())
    try:
        events: object = json.loads(data, strict=False)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{files[0]}: this is no whole JSON file: {error}") from None
    cats: Counter[str] = Counter()
    steps, ranks = set(), set()
    for event in events if isinstance(events, list) else []:
        arguments = event.get("args") if isinstance(event, dict) else None
        if not isinstance(arguments, dict) or event.get("ph") != "X":
            continue
        cats[str(event.get("cat"))] += 1
        steps.add(str(arguments.get("step")))
        ranks.add((str(event.get("pid")), str(arguments.get("step"))))
    found = ", ".join(f"{count} {cat}" for cat, count in cats.most_common() if "-" in cat)
    raise InputError(
        f"{files[0]}: this is a Megatron step timeline (straggler analysis) of {len(steps)} steps "
        f"({found}): it has times but no size of any collective, so there is no problem to plan; "
        "record a torch.profiler trace of the same job"
    )


READER = Reader(title="Megatron step timeline", recognises=recognises, read=read)
