"""Real Jetson boards, read and written through sysfs; standard library only."""
