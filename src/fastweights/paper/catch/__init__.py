"""Agents that learn Catch, and ablations of them."""
