"""What profiling costs, and the tools of others beside ours."""
