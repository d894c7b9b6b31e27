"""Capture: the kernel's samples come out as a NumPy structured array. The only package that touches BPF."""
