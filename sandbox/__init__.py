"""Run: untrusted programs, isolated."""
