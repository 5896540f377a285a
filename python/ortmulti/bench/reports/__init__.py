"""The texts, tables and plots of measurements."""
