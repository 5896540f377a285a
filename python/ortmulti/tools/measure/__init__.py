"""What measurements share: fresh processes, devices, page caches, memory, results."""
