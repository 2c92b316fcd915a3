"""Helpers of all benchmarks: they launch ranks, let contenders take turns, judge and draw."""
