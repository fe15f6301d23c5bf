"""Covering arrays: few rows of axis values in which every allowed tuple occurs."""
