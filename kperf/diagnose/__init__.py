"""What is wrong with a kernel, where, what to write instead, and what that gives."""
