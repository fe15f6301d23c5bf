"""Proofs and lifecycles, kept."""
