// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Counts what the programs see and lose.
#pragma once
#include "maps.h"

// Add to a counter. Atomic, because another fexit program may preempt this one on its CPU.
static inline void count(u32 which, u64 n)
{
	u64 *value = counters.lookup(&which);
	if (value)
		__sync_fetch_and_add(value, n);
}
