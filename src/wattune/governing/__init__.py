"""Holding a clock on a real board: saved first, verified, and always put back; standard library only."""
