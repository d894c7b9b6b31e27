// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Conversations in the protocols that stand beside Kafka on a network, and in none at all: seeded, and with contents by chance.
#pragma once

#include "turns.h"

static void redis(void)
{
	static const char *const commands[] = { "GET", "SET", "HGETALL", "SUBSCRIBE", "XADD", "PING" };
	for (u32 rounds = between(1, 4); rounds; rounds--) {
		says(1);
		for (u32 pipelined = between(1, 4); pipelined; pipelined--) {
			u32 arguments = between(0, 3);
			put('*'), decimal(arguments + 1), text("\r\n$");
			const char *command = commands[below(6)];
			decimal(__builtin_strlen(command)), text("\r\n"), text(command), text("\r\n");
			for (; arguments; arguments--) {
				u32 size = below(60);
				put('$'), decimal(size), text("\r\n"), noise_of(size), text("\r\n");
			}
		}
		says(0);
		u32 size = below(200);
		if (below(2))
			text("+OK\r\n");
		put('$'), decimal(size), text("\r\n"), noise_of(size), text("\r\n");
	}
}

static void http(void)
{
	static const char *const methods[] = { "GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS" };
	for (u32 rounds = between(1, 3); rounds; rounds--) {
		says(1);
		text(methods[below(6)]), text(" /"), letters(below(40)), text(" HTTP/1.1\r\nHost: "), letters(9);
		text("\r\nContent-Length: ");
		u32 size = below(300);
		decimal(size), text("\r\n\r\n"), noise_of(size);
		says(0);
		size = below(600);
		text("HTTP/1.1 200 OK\r\nContent-Length: "), decimal(size), text("\r\n\r\n"), noise_of(size);
	}
}

static void http2_frame(u32 type, u32 flags, u32 stream, u32 size)
{
	be24_(size), put(type), put(flags), be32_(stream), noise_of(size);
}

static void http2(void)
{
	says(1);
	text("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
	http2_frame(4, 0, 0, 6 * below(6));
	http2_frame(8, 0, 0, 4);
	says(0);
	http2_frame(4, 0, 0, 6 * below(6));
	http2_frame(4, 1, 0, 0);
	for (u32 stream = 1; stream < 2 * between(1, 5); stream += 2) {
		says(1);
		http2_frame(1, 4, stream, between(10, 120));
		http2_frame(0, 1, stream, below(400));
		says(0);
		http2_frame(1, 4, stream, between(1, 60));
		http2_frame(0, 0, stream, below(800));
		http2_frame(1, 5, stream, between(1, 20));
	}
}

static void tls_record(u32 type, u32 version, u32 size)
{
	put(type), be16_(version), be16_(size), noise_of(size);
}

static void tls(void)
{
	says(1);
	u32 size = below(2) ? 508 : between(180, 600);
	put(0x16), be16_(below(4) ? 0x301 : 0x303), be16_(size + 4), put(1), be24_(size), be16_(0x303);
	noise_of(32), put(32), noise_of(32), be16_(8), be32_(0x13021303), be32_(0x1301c02f), put(1), put(0);
	noise_of(size - 78);
	says(0);
	tls_record(0x16, 0x303, between(80, 130));
	tls_record(0x14, 0x303, 1);
	for (u32 rounds = between(1, 4); rounds; rounds--) {
		says(1);
		tls_record(0x17, 0x303, between(20, 900));
		says(0);
		tls_record(0x17, 0x303, between(20, 1500));
	}
}

static void postgres_message(u32 type, u32 size)
{
	put(type), be32_(size + 4), noise_of(size);
}

static void postgres(void)
{
	says(1);
	if (below(3) == 0) { // SSLRequest, refused
		be32_(8), be32_(80877103);
		says(0);
		put('N');
		says(1);
	}
	u32 at = sized();
	be32_(0x30000), text("user"), put(0), letters(between(1, 20)), put(0), text("database"), put(0);
	letters(between(1, 120)), put(0), text("client_encoding"), put(0), text("UTF8"), put(0), put(0);
	end_sized(at, 4);
	says(0);
	put('R'), be32_(8), be32_(0), put('Z'), be32_(5), put('I');
	for (u32 rounds = between(1, 5); rounds; rounds--) {
		says(1);
		if (below(2)) {
			put('Q'), at = sized(), text("SELECT "), letters(between(5, 200)), put(0), end_sized(at, 4);
		} else {
			postgres_message('P', between(10, 200)), postgres_message('B', between(10, 60));
			postgres_message('E', 5), postgres_message('S', 0);
		}
		says(0);
		postgres_message('T', between(20, 120));
		for (u32 rows = below(8); rows; rows--)
			postgres_message('D', between(6, 120));
		put('Z'), be32_(5), put('I');
	}
}

static void mongodb_message(u32 id, u32 answers)
{
	u32 size = between(30, 700);
	le32_(size), le32_(id), le32_(answers), le32_(below(8) ? 2013 : 2004), le32_(0), put(0), noise_of(size - 21);
}

static void mongodb(void)
{
	u32 id = below(2) ? below(100) : (u32)chance();
	for (u32 rounds = between(1, 6); rounds; rounds--, id++) {
		says(1);
		mongodb_message(id, 0);
		says(0);
		mongodb_message(id + 1000, id);
	}
}

static void mysql_packet(u32 sequence, u32 first, u32 size)
{
	put(size), put(size >> 8), put(0), put(sequence), put(first), noise_of(size - 1);
}

static void mysql(void)
{
	says(0);
	put(74), put(0), put(0), put(0), put(10), text("8.0.36"), put(0), noise_of(66);
	says(1);
	mysql_packet(1, 0x8d, between(40, 200));
	says(0);
	mysql_packet(2, 0, 7);
	for (u32 rounds = between(1, 5); rounds; rounds--) {
		says(1);
		mysql_packet(0, 3, between(8, 300));
		says(0);
		for (u32 sequence = 1; sequence < between(2, 8); sequence++)
			mysql_packet(sequence, below(4), between(1, 120));
	}
}

static void amqp_frame(u32 type, u32 channel, u32 size)
{
	put(type), be16_(channel), be32_(size), be16_(between(10, 60)), be16_(between(10, 60));
	noise_of(size - 4), put(0xce);
}

static void amqp(void)
{
	says(1);
	text("AMQP"), put(0), put(0), put(9), put(1);
	for (u32 rounds = between(2, 6); rounds; rounds--) {
		says(0);
		amqp_frame(1, rounds & 1, between(4, 400));
		says(1);
		amqp_frame(1, rounds & 1, between(4, 300));
		amqp_frame(3, 1, between(4, 500));
	}
}

static void ssh(void)
{
	says(0);
	text("SSH-2.0-OpenSSH_9.2p1\r\n");
	says(1);
	text("SSH-2.0-"), letters(10), text("\r\n");
	for (u32 rounds = between(1, 6); rounds; rounds--)
		for (int by_client = 0; by_client < 2; by_client++) {
			u32 padding = between(4, 11), size = 8 * between(2, 100) - 4;
			says(by_client);
			be32_(size), put(padding), put(20 + below(12)), noise_of(size - 2);
		}
}

// Lengths in front, and numbers like an API, a version and a correlation id behind them.
static void zookeeper(void)
{
	says(1);
	be32_(45), be32_(0), be32_(0), be32_(0), be32_(30000), be32_(0), be32_(0), be32_(16), noise_of(16), put(0);
	says(0);
	be32_(37), be32_(0), be32_(30000), noise_of(8), be32_(16), noise_of(16), put(0);
	for (u32 xid = 1; xid < between(2, 7); xid++) {
		says(1);
		u32 at = sized(), length = between(1, 60);
		be32_(below(5) ? xid : 0xfffffffe), be32_(below(12)), be32_(length), letters(length), put(below(2));
		end_sized(at, 0);
		says(0);
		at = sized();
		be32_(xid), be32_(0), be32_(below(1000)), be32_(0), noise_of(below(120));
		end_sized(at, 0);
	}
}

static void framed_numbers(void)
{
	u32 id = below(1000), limit = 2 << below(12);
	for (u32 rounds = between(1, 6); rounds; rounds--, id += below(2)) {
		says(1);
		u32 at = sized();
		be32_(below(16)), be32_(id);
		for (u32 numbers = below(20); numbers; numbers--)
			be32_(below(limit));
		end_sized(at, 0);
		says(0);
		at = sized();
		be32_(id);
		for (u32 numbers = below(20); numbers; numbers--)
			be32_(below(limit));
		end_sized(at, 0);
	}
}

static void bytes_by_chance(u32 size)
{
	u32 limit = 2 << below(12);
	switch (below(8)) {
	case 0:
	case 1:
		noise_of(size);
		break;
	case 2: // few values
		while (size--)
			put(below(limit & 0xff));
		break;
	case 3: // mostly zeros
		while (size--)
			put(below(8) ? 0 : below(256));
		break;
	case 4:
		for (; size >= 4; size -= 4)
			be32_(below(limit));
		break;
	case 5:
		for (; size >= 2; size -= 2)
			be16_(below(limit));
		break;
	case 6:
		for (; size >= 4; size -= 4)
			le32_(below(limit));
		break;
	default: // framed, with anything inside
		be32_(size), noise_of(size);
	}
}

static void anything(void)
{
	for (u32 rounds = between(1, 8); rounds; rounds--)
		for (int by_client = 1; by_client >= 0; by_client--) {
			says(by_client);
			bytes_by_chance(between(1, below(4) ? 120 : 3000));
		}
}

static void noise_only(void)
{
	for (u32 rounds = between(1, 6); rounds; rounds--)
		for (int by_client = 1; by_client >= 0; by_client--) {
			says(by_client);
			noise_of(between(1, below(4) ? 120 : 3000));
		}
}

// Metadata, of any version: what has to be found.
static void kafka(void)
{
	u32 id = below(3) ? below(100) : (u32)chance() >> 1, version = below(9), name = below(20);
	for (u32 rounds = 6; rounds; rounds--, id += between(1, 9)) {
		says(1);
		u32 at = sized();
		be16_(3), be16_(version), be32_(id), be16_(name), letters(name), be32_(0), noise_of(3);
		end_sized(at, 0);
		says(0);
		at = sized();
		be32_(id), noise_of(between(8, 900));
		end_sized(at, 0);
	}
}

static void (*const PROTOCOLS[])(void) = {
	redis, http, http2, tls, postgres, mongodb, mysql, amqp, ssh, zookeeper, framed_numbers, anything, noise_only, kafka,
};
