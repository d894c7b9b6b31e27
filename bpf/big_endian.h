// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Reads and writes big-endian numbers, as on the wire.
#pragma once
#include <linux/types.h>

static inline u32 be32(const u8 *p)
{
	return (u32)p[0] << 24 | (u32)p[1] << 16 | (u32)p[2] << 8 | p[3];
}

static inline u16 be16(const u8 *p)
{
	return (u16)p[0] << 8 | p[1];
}

static inline u64 be64(const u8 *p)
{
	return (u64)be32(p) << 32 | be32(p + 4);
}

static inline void put_be32(u8 *p, u32 value)
{
	p[0] = value >> 24;
	p[1] = value >> 16;
	p[2] = value >> 8;
	p[3] = value;
}

static inline void put_be64(u8 *p, u64 value)
{
	put_be32(p, value >> 32);
	put_be32(p + 4, value);
}
