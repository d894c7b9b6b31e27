// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Stands in for the kernel header of this name: BCC's prelude includes it, the programs need nothing of it.
