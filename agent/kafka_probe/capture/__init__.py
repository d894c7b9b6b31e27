"""Capture: the kernel's records come out as a NumPy structured array. The only room that touches BPF."""
