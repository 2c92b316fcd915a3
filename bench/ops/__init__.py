"""One operation of hpcomm beside its peers, on one host and between hosts."""
