"""The figures of ASAP."""
