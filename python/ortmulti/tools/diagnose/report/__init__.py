"""A diagnosis as a report: in the terminal, as one HTML page, as a plot. Each is loaded when it is asked for."""
