"""Workloads: models and tasks, token lengths, operation cost. The only room that may import torch."""
