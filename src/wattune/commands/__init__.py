"""What the commands do that is no room's own: describing a workload, choosing and explaining, the modelled board by hand."""
