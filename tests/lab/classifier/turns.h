// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Builds a conversation byte by byte: what each end sends in turn, chosen at random from a seed.
#pragma once

#define TURNS 16
#define TURN_BYTES 4096

struct turn {
	int by_client;
	u32 size;
	u8 bytes[TURN_BYTES + 8];
};

static struct turn turns[TURNS];
static int turn_count;
static struct turn *now;

static u64 state;

static u64 chance(void)
{
	state ^= state >> 12;
	state ^= state << 25;
	state ^= state >> 27;
	return state * 0x2545f4914f6cdd1dull;
}

static u32 below(u32 limit)
{
	return (chance() >> 32) * limit >> 32;
}

static u32 between(u32 least, u32 most)
{
	return least + below(most - least + 1);
}

static void says(int by_client)
{
	now = &turns[turn_count < TURNS ? turn_count++ : TURNS - 1];
	now->by_client = by_client;
	now->size = 0;
}

static void put(u32 value)
{
	if (now->size < TURN_BYTES)
		now->bytes[now->size++] = value;
}

static void be16_(u32 value)
{
	put(value >> 8);
	put(value);
}

static void be24_(u32 value)
{
	put(value >> 16);
	be16_(value);
}

static void be32_(u32 value)
{
	be16_(value >> 16);
	be16_(value);
}

static void le32_(u32 value)
{
	be32_(__builtin_bswap32(value));
}

static void noise(u32 size)
{
	for (u32 end = now->size + size; now->size < end && now->size < TURN_BYTES; now->size += 8)
		*(u64 __attribute__((aligned(1), may_alias)) *)(now->bytes + now->size) = chance();
}

static void noise_of(u32 size)
{
	u32 end = now->size + size < TURN_BYTES ? now->size + size : TURN_BYTES;
	noise(size);
	now->size = end;
}

static void text(const char *words)
{
	while (*words)
		put(*words++);
}

static void letters(u32 size)
{
	while (size--)
		put('a' + below(26));
}

static void decimal(u32 value)
{
	if (value >= 10)
		decimal(value / 10);
	put('0' + value % 10);
}

// A length of the bytes that follow it, itself included by `extra`, filled in when they are there.
static u32 sized(void)
{
	be32_(0);
	return now->size;
}

static void end_sized(u32 at, u32 extra)
{
	if (at < 4)
		return;
	u32 size = now->size - at + extra;
	for (int i = 0; i < 4; i++)
		now->bytes[at - 4 + i] = size >> (24 - 8 * i);
}
