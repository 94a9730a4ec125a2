"""What ran where and what came out."""
