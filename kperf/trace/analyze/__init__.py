"""From the bytes of a profile buffer to a timeline and its verdict."""
