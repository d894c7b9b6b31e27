// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Defines struct sample, the only struct that is copied to user space. It has 248 bytes: with the ring buffer's header of 8 bytes
// a slot has 256, so the ring is an array. agent/kafka_probe/capture/sample.py defines the same layout; a test compares the two
// field by field.
#pragma once
#include <linux/types.h>

#define DATA_BYTES 208
#define COMMAND_LINE_BYTES 92

enum sample_kind {
	SAMPLE_FRAME = 1, // data: the frame from behind its correlation id, with record sets replaced by struct set_summary
	SAMPLE_OPEN,      // data: struct open_data, on first sight of a connection
	SAMPLE_OWNER,     // data: struct open_data, when another process uses the connection
	SAMPLE_CLOSE, // data: struct close_data, when the owner has closed the connection or no more bytes can pass; bytes received
		      // before may still be read
	SAMPLE_REJECT, // the connection does not speak plain Kafka; api_key: enum protocol
	SAMPLE_GONE,   // the last sample of the connection
	SAMPLE_RESET,  // data: struct open_data, only addresses and netns: an RST answered a segment without a socket
	SAMPLE_LISTEN, // data: struct open_data, local end, netns and tgid: a listening socket opened, or closed (FLAG_CLOSED)
};

enum sample_flag {
	FLAG_RESPONSE = 1, // the frame is a response, else a request
	FLAG_MORE = 2,     // the connection's next sample of this direction continues the frame
	FLAG_CUT = 4,      // the copy ended before the frame did
	FLAG_CLOSED = 8,   // the listening socket was closed
	FLAG_RESYNC = 16   // earlier frames of its direction were skipped while the cursor searched for a start
};

#define NO_API 255 // API key of a response without a matched request

enum protocol { PROTOCOL_TLS = 1, PROTOCOL_UNKNOWN };

struct sample {
	u64 ts_ns;   // CLOCK_MONOTONIC time at which the frame's header was complete
	u64 conn;    // id of the connection, unique per agent run
	u32 tcp_seq; // sequence number of the frame's first byte
	u32 frame_bytes;
	s32 correlation_id;
	u32 latency_us; // responses: time since the request's header
	u8 api_key;
	u8 api_version;
	u8 kind;
	u8 flags;
	u16 size; // used bytes of data
	u16 part; // index of the sample in its frame, from 0
	u8 data[DATA_BYTES];
};

struct open_data {
	u64 start_ns;     // of the process, since boot
	u64 cgroup_id;    // in the hierarchy of cgroup v2
	u64 cgroup_v1_id; // in that of a v1 controller, 0 without one
	u64 cookie;       // 0: the kernel has not made one yet
	u32 tgid;         // of the owner, 0: unknown
	u32 uid;
	u32 netns;
	u32 rx_base; // initial sequence numbers, which identify the flow on both hosts
	u32 tx_base;
	u32 handshake_us; // 0: unknown
	u16 local_port;
	u16 peer_port;
	u16 family;
	u8 server_side;
	u8 from_start; // seen from its first byte
	u16 command_line_size;
	u16 keepalive_s; // silence after which the kernel probes the peer, 1 to 65,535; 0: never
	u8 local_address[16];
	u8 peer_address[16];
	char comm[16];
	u8 command_line[COMMAND_LINE_BYTES];
};

#define BURST_NS 50000000ull
#define REPLY_NS 1000000000ull
#define ALERTS_BYTES 128 // two TLS alerts: the longest are those of TLS 1.2 with padding to a block

struct close_data {
	u64 closing_ns; // time at which this end left ESTABLISHED
	u64 sent_ns;    // time of the last payload in this direction, 0: none was seen
	u64 received_ns;
	u64 silence_ns; // silence before the first sent payload that is not acknowledged
	// Start of the last burst: payloads in either direction with gaps below BURST_NS. The first payload in the other
	// direction also belongs to it within REPLY_NS of its start, if the burst has at most ALERTS_BYTES so far and did not
	// start with a broker's response.
	u64 burst_ns;
	u64 pause_ns; // silence before the burst
	u64 sent_bytes;
	u64 received_bytes;
	u32 unacked_bytes;
	u32 retransmits;
	u32 srtt_us;
	u32 in_flight;
	u32 error; // sk_err
	u32 user_timeout_ms;
	u32 burst_bytes;
	u32 last_request_bytes;
	u8 first_state; // the TCP state that ESTABLISHED changed to
	u8 last_api_key;
	u8 last_api_version;
	u8 no_response; // the last request was a Produce with acks=0
	u8 retransmits_unanswered;
	u8 keepalive;
	u8 owner_exiting;
	u8 burst_direction; // direction of its first payload, enum direction
	u8 burst_response;  // its first payload is a broker's and follows one of the client
	u8 pad[7];
};

// Replaces a record set in a frame's data. Big-endian, like the rest of the frame.
struct set_summary {
	u8 records[4];
	u8 batches[4];
	u8 magic;
	u8 codec;
	u8 status;         // enum set_status
	u8 flags;          // enum set_flag, the union of all its batches
	u8 producer_id[8]; // of the first batch of magic 2; -1: no such batch, or it has no producer id
	u8 producer_epoch[2];
	u8 zero[2];
	u8 first_offset[8]; // of the first batch or message, -1: none was read
	u8 last_offset[8];  // of the last one that was read
};

enum set_flag { SET_TRANSACTIONAL = 1, SET_CONTROL = 2 };

enum set_status {
	SET_COUNTED,
	SET_UNREADABLE,  // sent from the page cache, so no buffer can be read
	SET_PARTIAL,     // the broker cut the last batch; it is not counted
	SET_WRAPPER,     // compressed messages of magic 0 or 1: the inner count is unknown
	SET_IMPLAUSIBLE, // the record count of a batch is negative or too large for its bytes, or its magic is above 2
};

enum counter {
	COUNT_REQUESTS,
	COUNT_RESPONSES,
	COUNT_SAMPLES,
	COUNT_CONNECTIONS,
	COUNT_REJECTED,
	LOST_RING_FULL,         // samples
	LOST_MAP_FULL,          // connections that are not followed, because the map is full
	LOST_GAP,               // gaps: bytes that no hook saw, across the start of a frame
	LOST_RESYNC,            // calls and frames skipped while searching for a frame's start
	LOST_HEADER_INCOMPLETE, // connections that ended inside a header
	LOST_UNREADABLE,        // elements in a caller's buffer that could not be read
	LOST_LIMIT, // frames cut or hopped over: a copy limit, a full map, or more in one call than the program can follow
	LOST_UNKNOWN_VERSION, // frames of an API or version without a rule: no body is copied
	LOST_MALFORMED,       // frames whose lengths contradict each other
	LOST_UNMATCHED,       // responses whose request was not seen
	LOST_UNANSWERED,      // requests whose response was not seen
	LOST_OVERFLOW,        // requests in flight that were evicted
	LOST_BEFORE_PROOF,    // possible frames before the one that proved their connection to be Kafka
	LOST_RECORD_COUNT,    // record batches with an impossible record count
	LOST_PEER_LIMITED,    // samples of a peer that had used its share while the buffer was more than half full
	LOST_URGENT_DATA,     // connections with urgent data, which Kafka never sends
	COUNTERS,
};
