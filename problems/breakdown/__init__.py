"""Where a recording's time went."""
