// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Replaces each record set by a summary. Batches are skipped by their lengths, and no byte of a record is copied. It reads batches
// of magic 2 (Kafka's "Record Batch") and of 0 and 1 ("Message Set").
#pragma once
#include "big_endian.h"
#include "cursor.h"
#include "maps.h"
#include "sample.h"

#define BATCH_PEEK 18  // offset 8, length 4, leader epoch or CRC 4, magic 1, attributes of magic 0 and 1
#define BATCH_BYTES 61 // the header of magic 2, up to and with its record count
// Size of the shortest record of magic 2: seven fields of one byte (length, attributes, time, offset, key, value, headers).
#define RECORD_BYTES 7
#define MESSAGE_BYTES 26        // size of the shortest message of magic 0: no key, no value; magic 1 adds a timestamp
#define MOST_RECORDS 0x7fffffff // readers of the summary take it for a signed number

static inline void end_set(struct cursor *c, u8 status)
{
	if (c->set.status == SET_COUNTED) // an unknown count stays unknown, whatever batches follow
		c->set.status = status;
	put_be32(c->set.records, c->records);
	put_be32(c->set.batches, c->batches);
	append(c, &c->set, sizeof(c->set), MAX_SUMMARY);
	c->next = c->set_end;
	advance(c);
}

static inline void expect_batch(struct cursor *c)
{
	u32 left = c->set_end - c->next;
	c->batch = c->next;
	if (left)
		expect(c, BATCH, left < BATCH_PEEK ? left : BATCH_PEEK);
	else
		end_set(c, c->set.status);
}

static inline void record_set(struct cursor *c, u32 bytes)
{
	c->set_end = c->next + bytes;
	c->records = 0;
	c->batches = 0;
	__builtin_memset(&c->set, 0, sizeof(c->set));
	__builtin_memset(c->set.producer_id, 0xff, sizeof(c->set.producer_id));
	__builtin_memset(c->set.producer_epoch, 0xff, sizeof(c->set.producer_epoch));
	__builtin_memset(c->set.first_offset, 0xff, sizeof(c->set.first_offset));
	__builtin_memset(c->set.last_offset, 0xff, sizeof(c->set.last_offset));
	expect_batch(c);
}

// Return the largest size of decompressed bytes. Bytes per byte: gzip (deflate) 1032, snappy 64 in 3, lz4 255, zstd 128 KiB in 4.
static inline u64 inflated(u64 bytes, u8 codec)
{
	switch (codec) {
	case 0:
		return bytes;
	case 1:
		return bytes * 1032;
	case 2:
		return bytes * 64 / 3;
	case 3:
		return bytes * 255;
	default:
		return bytes << 15;
	}
}

// Add the records of a batch, if its bytes can contain that many and the sum fits.
static inline void add_records(struct cursor *c, u32 records, u64 most)
{
	c->records += records;
	if (records <= most && records <= MOST_RECORDS && c->records <= MOST_RECORDS)
		return;
	c->records = 0;
	c->set.status = SET_IMPLAUSIBLE;
	lost(c, LOST_RECORD_COUNT);
}

// Process the header of a batch, or as much of it as the record set still contains.
static inline void batch(struct cursor *c)
{
	u32 left = c->set_end - c->batch;
	u8 magic = c->element[16];
	if (c->have < BATCH_PEEK) {
		end_set(c, SET_PARTIAL);
		return;
	}
	u32 bytes = 12 + be32(c->element + 8);
	if (bytes < BATCH_PEEK || bytes > left) { // a Fetch response may end inside a batch
		end_set(c, SET_PARTIAL);
		return;
	}
	if (magic >= 2 && c->have == BATCH_PEEK) {
		if (left < BATCH_BYTES)
			end_set(c, SET_PARTIAL);
		else
			c->need = BATCH_BYTES;
		return;
	}
	if (!c->batches)
		__builtin_memcpy(c->set.first_offset, c->element, sizeof(c->set.first_offset));
	// A batch of magic 2 has the difference of its last offset to its first one, which a message is without.
	put_be64(c->set.last_offset, be64(c->element) + (magic >= 2 ? be32(c->element + 23) : 0));
	c->batches++;
	if (magic >= 2) {
		if (c->set.magic < 2) {
			__builtin_memcpy(c->set.producer_id, c->element + 43, sizeof(c->set.producer_id));
			__builtin_memcpy(c->set.producer_epoch, c->element + 51, sizeof(c->set.producer_epoch));
		}
		c->set.codec = c->element[22] & 7;
		c->set.flags |= c->element[22] >> 4 & (SET_TRANSACTIONAL | SET_CONTROL);
		u64 body = bytes > BATCH_BYTES && magic == 2 ? inflated(bytes - BATCH_BYTES, c->set.codec) : 0;
		add_records(c, be32(c->element + 57), body / RECORD_BYTES);
	} else {
		c->set.codec = c->element[17] & 7;
		if (c->set.codec)
			c->set.status = SET_WRAPPER;
		else
			add_records(c, 1, bytes / (MESSAGE_BYTES + 8 * magic));
	}
	c->set.magic = magic;
	c->next = c->batch + bytes;
	expect_batch(c);
}
