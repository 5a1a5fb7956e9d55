"""The report page: what the pipeline found, as one HTML file for people; standard library only."""
