"""Real fine-tuning runs of Hugging Face models, as a workload that is measured."""
