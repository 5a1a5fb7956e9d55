"""From the table of measured sweeps to a governor, and its judgement on workloads it has not seen."""
