"""The figures of PHub."""
