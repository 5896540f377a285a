"""Devices, execution providers with their options, and plug-ins."""
