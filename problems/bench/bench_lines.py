"""Lines of logs without what launchers, log collectors and quoting put around them."""

from __future__ import annotations

import re

from commsched.problems.bench.bench_result import NCCL_TEXT

_COLOUR = re.compile(r"\x1b\[[0-9;?]{0,20}[A-Za-z]")
_PREFIX = re.compile(
    r"\s*(?:"
    r"\[\d{1,9},\d{1,9}\](?:<[a-z]{1,9}>)?:"  # mpirun --tag-output: [1,0]<stdout>:
    r"|\[\d{1,9}\](?=\s)"
    r"|\d{1,7}:(?=\s)"  # srun --label
    r"|>(?=\s)"  # quoted text
    r"|\([^()]{0,200}\bpid=\d{1,12}[^()]{0,200}\)"  # Ray
    r"|\d{4}-\d\d-\d\d[T ][0-9:.,]{5,20}(?:Z|[+-]\d\d:?\d\d)?(?=\s)"
    r"|(?!rccl-tests:)[A-Za-z][\w./-]{0,79}:(?=\s)"  # a host or a pod
    r"|[A-Za-z][\w./-]{0,79}\s{1,20}\|(?=\s)"
    r")"
)
_TAG = re.compile(r"\[(?:[\w.-]{1,60}[,@])?\d{1,9},\d{1,9}\]<std(?:out|err)>:")
_MAX_PREFIXES = 4
_MARK = re.compile(
    r"#\s{0,20}(?:nThreads?\b|nccl-tests version|Collective test|Using devices|Rank\s|OSU\s|Size\s"
    r"|size\s|bytes\s|Datatype:|\(B\)|Out of bounds|Avg bus|Reducing maxBytes)"
    r"|(?<![\w#])(?:size\s{1,40}count|size\(B\)\s{1,40}count\(elems\)|rccl-tests: Version)\b"
)
"""How lines begin that only a benchmark prints, whatever stands before."""
_ROW_OF_TYPE = re.compile(
    r"(?<![\w.,:=-])\d{1,18}\s{1,40}\d{1,18}\s{1,40}"
    r"(?:u?int(?:8|32|64)|bfloat16|half|float|double|f8e4m3|f8e5m2|fp8_e4m3|fp8_e5m2|b?fp?\d\d)\s"
)
_MAX_PREFIX = 200


def unprefixed(line: str) -> str:
    """Return a line without the prefixes of well known launchers and log collectors.

    Examples
    --------
    >>> unprefixed("[1,0]<stdout>:   8   2  float"), unprefixed("> 0: # Rank 1")
    ('8   2  float', '# Rank 1')
    """
    text = _COLOUR.sub("", line)
    for _ in range(_MAX_PREFIXES):
        match = _PREFIX.match(text)
        if match is None:
            break
        text = text[match.end() :]
    if "]<std" in text:  # mpirun cut the line, and its tag stands where it goes on
        text = _TAG.sub("", text)
    return text.strip()


class Unprefixer:
    """Takes the prefixes off the lines of a log, also those that nobody has told it of.

    What stands before the words that only a benchmark prints is a prefix; the next lines begin with
    the same, but for its numbers and spaces.

    Examples
    --------
    >>> lines = Unprefixer()
    >>> lines.text("09:14:01 gpu[7] #  size  count  type"), lines.text("09:14:02 gpu[7]    8  2")
    ('#  size  count  type', '8  2')
    """

    def __init__(self) -> None:
        self._learnt: re.Pattern[str] | None = None

    def text(self, line: str) -> str:
        """Return what the benchmark itself printed, as far as that can be told."""
        text = _COLOUR.sub("", line)
        if mark := _MARK.search(text):
            self._learnt = _like(text[: mark.start()])
            return _unquoted(text[mark.start() :])
        if self._learnt is not None and (match := self._learnt.match(text)):
            return _unquoted(text[match.end() :])
        plain = unprefixed(text)
        if plain[:1].isdigit() and _ROW_OF_TYPE.match(plain):
            return _unquoted(plain)
        if row := _ROW_OF_TYPE.search(text):
            # What another process printed into the row's line may have cut it.
            spliced = NCCL_TEXT.search(text, 0, row.start())
            return _unquoted(text[row.start() :]) + (f" {spliced[0]}" if spliced else "")
        return _unquoted(plain)


def _like(prefix: str) -> re.Pattern[str] | None:
    """Return the pattern of prefixes like this one, None if there is none to speak of."""
    if not prefix.strip() or len(prefix) > _MAX_PREFIX:
        return None
    parts = re.findall(r"[0-9]+|\s+|[^0-9\s]+", prefix)
    if parts[-1].isspace():
        parts.pop()
    return re.compile(
        r"\s*"
        + "".join(
            "[0-9]+" if part[0] in "0123456789" else r"\s+" if part.isspace() else re.escape(part)
            for part in parts
        )
    )


def _unquoted(text: str) -> str:
    if "]<std" in text:
        text = _TAG.sub("", text)
    return text.strip().rstrip('",`').rstrip()
