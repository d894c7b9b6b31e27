// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Prevents optimizations of the compiler after which the verifier rejects the programs.
#pragma once

// Pins a value to one register, so that the next bounds check holds for it. The compiler may neither read the value again nor
// check a copy. The value has 64 bits, because BCC's instruction set has no 32-bit comparisons.
#define PINNED(value) asm volatile("" : "+r"(value))

// Makes the compiler read values from memory again. To the verifier such values are unknown numbers, so it merges the paths that
// led here. It also keeps the compiler from moving stores across it; x86-64 keeps their order.
#define FORGET asm volatile("" ::: "memory")
