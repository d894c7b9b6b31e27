"""The archive: frames as evidence, as the kernel copied them, and the recorder that keeps the newest of them."""
