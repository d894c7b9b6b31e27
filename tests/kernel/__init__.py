"""The product on other kernels: Debian's, from 5.10 to the newest, each booted in a virtual machine without KVM."""
