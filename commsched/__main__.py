"""``python -m commsched``."""

from commsched.cli import main

if __name__ == "__main__":
    main()
