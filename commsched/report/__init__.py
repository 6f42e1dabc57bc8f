"""A step as one page of HTML that needs nothing else: verdict, timelines, rules, what-if, import report.

The page is made in three stages: :mod:`~commsched.report.contents` decides and computes what it shows,
:mod:`~commsched.report.data` turns that into the plain data that the page's scripts draw, and
:mod:`~commsched.report.page` writes the texts and puts everything into one file.
"""

from commsched.report.contents import Contents, gather
from commsched.report.overheads import KnownOverheads
from commsched.report.page import page_bytes
from commsched.report.summary import summary_document, summary_lines

__all__ = [
    "Contents",
    "KnownOverheads",
    "gather",
    "page_bytes",
    "summary_document",
    "summary_lines",
]
