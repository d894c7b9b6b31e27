"""Capture: returns the kernel's samples as a NumPy structured array. No other package uses BPF."""
