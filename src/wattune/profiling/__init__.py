"""Sweeps: measured cells on disk, foreign tables turned into sweeps, policies replayed on recorded curves."""
