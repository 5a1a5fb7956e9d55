"""The emulator: a live file tree of a modelled board that unmodified tools can read and write."""
