"""Foreign logs and tables into our formats: `wattune import`."""
