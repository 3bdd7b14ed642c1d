"""Kernels before and after a change; see README.md here."""
