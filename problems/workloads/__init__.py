"""Layer profiles, workloads and logging data of other tools."""
