"""The figures of SFB."""
