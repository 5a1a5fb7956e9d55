"""One thin module per pipeline stage: read, one call, write."""
