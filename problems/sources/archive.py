"""The members of tar and zip archives, recognised by content and read in place.

Nothing is unpacked. Archives may be hostile: every number in them is bounded before it is
believed, and names lead nowhere.
"""

from __future__ import annotations

from commsched.models.errors import InputError
from commsched.problems.sources.archive_member import MAX_ARCHIVE_BYTES, Member, Open
from commsched.problems.sources.tar_archive import BLOCK, GzipTape, PlainTape, is_tar, tar_members
from commsched.problems.sources.trace_bytes import Inflater, is_gzip, pieces_of, starting
from commsched.problems.sources.zip_archive import is_zip, zip_members


def members(open_: Open, name: str) -> list[Member] | None:
    """Return the files in an archive: tar, tar in gzip, or zip; None if it is no archive.

    Folders, links and devices are left out.

    Parameters
    ----------
    open_
        Opens it.
    name
        What it is called in messages.

    Raises
    ------
    InputError
        If it is damaged or breaks a limit.
    OSError
        If it cannot be read.
    """
    with open_() as file:
        start = file.read(BLOCK)
        if is_zip(start):
            return zip_members(open_, name)
        file.seek(0)
        if is_gzip(start):
            text = Inflater(pieces_of(file, MAX_ARCHIVE_BYTES), name)
            try:
                start = starting(text, BLOCK)
            except InputError:
                return None  # Whoever reads the file will say what is wrong with it.
            if not is_tar(start):
                return None
            file.seek(0)
            text = Inflater(pieces_of(file, MAX_ARCHIVE_BYTES), name)
            return tar_members(GzipTape(open_, name, text), name)
        return tar_members(PlainTape(open_, file), name) if is_tar(start) else None
