"""Tables and plots of measurements."""
