"""Opening an SQLite file that may be hostile: read only, plain tables only, bounded work."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote

from commsched.models.errors import InputError

MAGIC = b"SQLite format 3\0"
MAX_ROWS = 50_000_000
"""The most rows of one table that are looked at."""
MAX_TEXT = 1 << 20
"""The longest text or blob that SQLite may produce, in bytes."""

_STEPS = 1_000_000
_MAX_STEPS = 20_000
"""Times ``_STEPS`` instructions of SQLite's machine; some 10 million rows need 500."""
_PLAIN = re.compile(r"CREATE TABLE\b(?!.*\b(?:GENERATED|AS)\b\s*\()", re.IGNORECASE | re.DOTALL)
_COMMENT = re.compile(r"--[^\n]*")
_ALLOWED = (
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_PRAGMA,
)

Row = tuple[object, ...]


class SafeDatabase:
    """The plain tables of an SQLite file.

    Views, triggers, virtual tables and computed columns of the file are never run: only tables
    that were created as such are read, one at a time and whole, without any function.

    Parameters
    ----------
    path
        The file.
    what
        Its name for messages.

    Raises
    ------
    InputError
        If it cannot be opened.
    """

    def __init__(self, path: Path, what: str) -> None:
        self.what = what
        self._steps = 0
        try:
            self._connection = sqlite3.connect(
                f"file:{quote(os.fsencode(path.absolute()))}?mode=ro&immutable=1", uri=True
            )
        except sqlite3.Error as error:
            raise InputError(f"{what}: cannot be opened: {error}") from None
        try:
            self._restrict()
            self.tables = self._tables()
        except BaseException:
            self._connection.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._connection.close()

    def _restrict(self) -> None:
        connection = self._connection
        connection.text_factory = lambda data: data.decode("utf-8", errors="replace")
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_TEXT)
        connection.setlimit(sqlite3.SQLITE_LIMIT_COLUMN, 500)
        connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        connection.set_progress_handler(self._count, _STEPS)
        try:
            for pragma in (
                "trusted_schema=OFF",
                "query_only=ON",
                "mmap_size=0",
                "cell_size_check=ON",
            ):
                connection.execute(f"PRAGMA {pragma}")
        except sqlite3.Error as error:
            raise self._refusal(error) from None
        connection.set_authorizer(
            lambda action, *_: sqlite3.SQLITE_OK if action in _ALLOWED else sqlite3.SQLITE_DENY
        )

    def _count(self) -> int:
        self._steps += 1
        return self._steps > _MAX_STEPS

    def _refusal(self, error: Exception) -> InputError:
        if self._steps > _MAX_STEPS:
            return InputError(f"{self.what}: reading the database takes too long")
        return InputError(f"{self.what}: the SQLite file is damaged or no plain one: {error}")

    def _tables(self) -> dict[str, frozenset[str]]:
        """Return the columns of each plain table."""
        found = {}
        for name, sql in self._query("SELECT name, sql FROM sqlite_master WHERE type = 'table'"):
            if (
                isinstance(name, str)
                and isinstance(sql, str)
                and re.fullmatch(r"\w{1,100}", name)
                and _PLAIN.match(_COMMENT.sub("", sql))
            ):
                columns = self._query(f'PRAGMA table_info("{name}")')
                found[name] = frozenset(str(column[1]) for column in columns)
        return found

    def rows(self, table: str, columns: Sequence[str], limit: int | None = None) -> Iterator[Row]:
        """Return a table's rows; a column that it does not have is None in all of them.

        Parameters
        ----------
        table, columns
            Their names.
        limit
            The most rows; by default ``MAX_ROWS``.

        Raises
        ------
        InputError
            If it has too many rows, or the file is damaged.
        """
        have = self.tables.get(table)
        if have is None:
            return
        shown = ", ".join(f'"{name}"' if name in have else "NULL" for name in columns)
        sql = f'SELECT {shown} FROM "{table}"'  # noqa: S608  # checked names
        yield from self._query(sql, MAX_ROWS if limit is None else limit)

    def _query(self, sql: str, limit: int = 100_000) -> Iterator[Row]:
        try:
            cursor = self._connection.execute(sql)
            for number, row in enumerate(cursor):
                if number == limit:
                    raise InputError(f"{self.what}: a table has more than {limit} rows")
                yield row
        except (sqlite3.Error, OverflowError, UnicodeError, ValueError) as error:
            if isinstance(error, InputError):
                raise
            raise self._refusal(error) from None
