"""Comparisons, side by side in one run; nothing here ships or is imported by what ships."""
