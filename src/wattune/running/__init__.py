"""Running: somebody's own training under a governed clock, measured, with a receipt; by command, callback or context manager."""
