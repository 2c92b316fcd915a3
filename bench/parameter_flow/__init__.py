"""The figures of Parameter Flow."""
