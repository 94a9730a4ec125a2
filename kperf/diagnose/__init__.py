"""What is wrong with a kernel, where, what to write instead, and what that gives.

Called, `kperf.diagnose(...)` is `kperf.api.diagnose`.
"""
