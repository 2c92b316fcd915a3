"""Benchmarks of single operations of hpcomm beside other libraries, on one host and between hosts."""
