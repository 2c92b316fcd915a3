"""The figures of Poseidon."""
