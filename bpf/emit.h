// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Writes samples to the buffer, and wakes up the agent when it fills.
#pragma once
#include "counters.h"
#include "maps.h"
#include "sample.h"

#if !PERF_BUFFER
#define BATCHES_TO_WAKE_UP ((RING_PAGES * 4096 / sizeof(struct sample) / SAMPLES_PER_BATCH / 4) ?: 1)

// Return 1 if another quarter of the buffer was written. Two CPUs may count as one, then it is slightly more.
static inline bool fills(u64 written)
{
	u32 all = 0;
	u64 *count = written % SAMPLES_PER_BATCH ? 0 : sample_batches.lookup(&all);
	return count && ++*count % BATCHES_TO_WAKE_UP == 0;
}
#endif

// Write a sample to the buffer. Return nonzero if the buffer is full. A wake-up costs more than a sample, so the agent polls at
// intervals and is woken only when the buffer fills.
static inline int emit(void *ctx, struct sample *sample)
{
	u32 which = COUNT_SAMPLES;
	u64 *written = counters.lookup(&which);
	if (!written)
		return -1;
	__sync_fetch_and_add(written, 1);
#if PERF_BUFFER
	return events.perf_submit(ctx, sample, sizeof(*sample));
#else
	return events.ringbuf_output(sample, sizeof(*sample), fills(*written) ? BPF_RB_FORCE_WAKEUP : BPF_RB_NO_WAKEUP);
#endif
}

// Write a sample to the buffer. Return 0 and count the loss if the buffer is full.
static inline int try_emit(void *ctx, struct sample *sample)
{
	int full = emit(ctx, sample) != 0;
	if (full)
		count(LOST_RING_FULL, 1);
	return !full;
}
