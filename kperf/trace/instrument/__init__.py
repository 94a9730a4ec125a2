"""Into the compiler: which operations are recorded, and what lies between two records."""
