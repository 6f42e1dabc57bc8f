"""``python -m commsched``."""

from commsched.cli import main

main()
