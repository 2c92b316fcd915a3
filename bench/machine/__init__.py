"""The limits of a machine: memory, links, NICs, instructions."""
