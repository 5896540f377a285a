"""The common parts of measurements: fresh processes, devices, page caches, memory, results."""
