"""Launching ranks, taking turns, judging and drawing: shared by all benchmarks."""
