"""The virtual board against published measurements: sources, fit, comparison, page."""
