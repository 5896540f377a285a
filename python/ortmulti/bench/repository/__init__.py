"""Latencies of many models behind a budget of memory: `ortmulti bench repository`."""
