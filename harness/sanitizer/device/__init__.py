"""A GPU that this machine does not have: `device="cuda"` on the memory and CPU that are here."""
