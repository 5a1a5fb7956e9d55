"""Wattune: the GPU clock at which fine-tuning on a Jetson costs the least energy."""

__version__ = "0.1.0"
