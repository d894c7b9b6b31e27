"""Tests the product on Debian's kernels, from 5.10 to the newest, each in a virtual machine without KVM."""
