"""Boards: the port and its kinds. Here alone are mW, mV, mA and Hz spoken."""
