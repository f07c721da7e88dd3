"""Every limit of Avow. The last word of a name is its unit."""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

# Messages and batches
MESSAGE_SIZE_BYTES_MAX: Final = 1 * MIB
BATCH_SIZE_BYTES_MAX: Final = 8 * MIB
BATCH_COUNT_MAX: Final = 65_536
CONTROL_SIZE_BYTES_MAX: Final = 64 * KIB
WRITE_ID_SIZE_BYTES: Final = 16
WRITE_AGE_UNKNOWN_MS: Final = 10**12 - 1  # age of a write that may be a repetition from any time; real ones are smaller
CLOCK_AHEAD_MS_MAX: Final = 1_000  # a `created_ms` further in the future says nothing about the age of a write
IDENTITY_SIZE_BYTES: Final = 16  # a uuid
CHANNEL_ID_SIZE_BYTES: Final = 16

# Frames between peers
FRAME_SIZE_BYTES_MAX: Final = 48 * MIB  # a lane's snapshot is one frame; entries are sent in smaller ones
ENQUEUE_ENTRIES_MAX: Final = 256
ENQUEUE_SIZE_BYTES_MAX: Final = 8 * MIB
IN_FLIGHT_ENTRIES_MAX: Final = 4_096
POSITION_MAX: Final = 1 << 62  # of an entry: sums of two positions still fit into 64 bits
BALLOT_ROUND_MAX: Final = 1 << 47  # half of what a ballot has room for: the next round after it can still be named
PIPELINE_ENTRIES_MAX: Final = 1_024
PIPELINE_SIZE_BYTES_MAX: Final = 16 * MIB  # sent to one peer for one lane, and not answered

# Names and counts
QUEUE_NAME_CHARS_MAX: Final = 200
SUBSCRIBER_NAME_CHARS_MAX: Final = 200
MEMBER_NAME_CHARS_MAX: Final = 200
TRANSACTION_NAME_BYTES_MAX: Final = 200
LANES_PER_QUEUE_MAX: Final = 1_024
INTERNAL_QUEUE_PREFIX: Final = "avow."  # of the cluster's own queues: clients cannot create, change or write them
PIPELINES_QUEUE: Final = "avow.pipelines"  # the exception: pipelines create it and write to it like any client
PEERS_MAX: Final = 31
PEER_NUMBER_MAX: Final = 65_535
ADDRESS_CHARS_MAX: Final = 300
PEERS_EVER_COUNT: Final = 4_096  # peer numbers assigned in the lifetime of a cluster; none is reused

# Limits of a lane's replicated state
WRITE_ID_WINDOW_COUNT: Final = 65_536
DECIDED_TRANSACTIONS_COUNT: Final = 65_536
OPEN_TRANSACTIONS_COUNT: Final = 1_024
VISIBLE_BATCHES_COUNT: Final = 4_000_000  # in one lane: 8 bytes each in memory and in every snapshot
STAGED_BATCHES_COUNT: Final = 65_536  # in one open transaction
PREPARES_COUNT: Final = 64  # different ones of one open transaction: each by a publish that did not come to its end
TRANSACTION_PARTS_COUNT_MAX: Final = 4_096  # named by one publish: they fit into an entry's control bytes
SUBSCRIBERS_COUNT: Final = 4_096

# The metadata lane
QUEUES_COUNT: Final = 4_096
TWO_PHASE_LANES_COUNT: Final = 16_384  # of all queues: about 16 KiB of memory each on every peer that holds it
LANES_COUNT: Final = 65_536  # pub-sub lanes not yet forgotten, ended ones included
SUBSCRIPTIONS_COUNT: Final = 4_096  # of one queue: subscribers that have a reader at present
MEMBERS_COUNT: Final = 256  # of one subscription

LANES_OPENED_MAX: Final = 64  # in one tick: opening a lane takes about 0.1 ms, and heartbeats wait meanwhile

# Requests that wait at one peer
WAITING_REQUESTS_MAX: Final = 16_384

# The part of a lane's log in memory; older entries are read from storage
LOG_MEMORY_ENTRIES_MAX: Final = 4_096
LOG_MEMORY_SIZE_BYTES_MAX: Final = 8 * MIB
IN_FLIGHT_SIZE_BYTES_MAX: Final = 64 * MIB  # appended to a lane and not committed

# Small writes that wait for the same sync are merged into one record
MERGEABLE_SIZE_BYTES_MAX: Final = 16 * KIB  # of one write
MERGED_SIZE_BYTES_MAX: Final = 256 * KIB  # of all that are held
MERGED_WRITES_MAX: Final = 4_096

# Time
HEARTBEAT_INTERVAL_S: Final = 0.05
HEARTBEAT_FRESH_S: Final = 0.25
LINK_BEAT_S: Final = 0.05  # each end of a link sends something at least this often,
LINK_SILENT_S: Final = 1.0  # and closes a link on which nothing arrived for this long
LINK_DIAL_EVERY_S: Final = 0.2  # a dial that is not answered is not waited for: another one begins beside it
CLAIM_DELAY_S: Final = 0.3
CLAIM_JITTER_S: Final = 0.3
LATE_TICK_S: Final = 0.1  # a tick that comes so late shows that this process did not run
WOKEN_PER_S: Final = 20_000  # components, when a peer falls silent or is heard again
CLAIMS_MAX: Final = 64  # lanes of one peer that claim at a time
OWNER_DEAD_AFTER_S: Final = 1.0
STAGE_DEADLINE_S_MAX: Final = 24 * 3600.0
SUBSCRIPTION_SILENT_S: Final = 10.0  # a peer that sends nothing for this long loses its subscriptions

# Storage
WAL_SEGMENT_SIZE_BYTES: Final = 64 * MIB
WAL_SEGMENTS_MIN: Final = 3
LANE_SEGMENT_SIZE_BYTES: Final = 64 * MIB
INDEX_INTERVAL_BYTES: Final = 64 * KIB
STORE_WRITE_SIZE_BYTES: Final = 8 * MIB  # of one write to storage, or one operation; far less than a segment
RESERVED_SIZE_BYTES: Final = 4 * MIB

# Pub-sub lanes: how much of a lane stays in memory, and when a snapshot of its state is written
PUBSUB_MEMORY_ENTRIES_MAX: Final = 4_096
PUBSUB_MEMORY_BYTES_MAX: Final = 8 * MIB
PUBSUB_SNAPSHOT_ENTRIES: Final = 16_384
PUBSUB_SNAPSHOT_BYTES: Final = 32 * MIB
PUBSUB_SNAPSHOT_BYTES_PER_ENTRY: Final = 256
PUBSUB_LANE_KEPT_S: Final = 3600.0  # an ended lane is kept at least this long: its writers may still look up outcomes

# Channels
CHANNEL_VALUE_SIZE_BYTES_MAX: Final = 9 * MIB  # a batch with its header and the prefix that a role adds
CHANNEL_PACKET_SIZE_BYTES_MAX: Final = CHANNEL_VALUE_SIZE_BYTES_MAX + 64 * KIB
CHANNEL_PACKET_SIZE_BYTES: Final = 64 * KIB  # a packet is closed at this size
CHANNEL_FRAME_COUNT_MAX: Final = 65_536  # messages in one frame
CHANNEL_PENDING_COUNT: Final = 4_096  # default: a sender with this many pending messages is suspended
CHANNEL_PENDING_SIZE_BYTES: Final = 8 * MIB
CHANNEL_CAP_COUNT_MIN: Final = 4_096  # every receiver accepts this much beyond the last commit it acknowledged
CHANNEL_CAP_SIZE_BYTES_MIN: Final = 20 * MIB
CHANNEL_CAP_COUNT: Final = 65_536
CHANNEL_CAP_SIZE_BYTES: Final = 32 * MIB

# What one channel may have done in one turn of the event loop. Without it a few bytes each (empty commits, fragments,
# pings) would keep every other connection waiting for seconds
CHANNEL_TURN_WS_FRAMES: Final = 512  # of WebSocket, empty ones and pings too
CHANNEL_TURN_FRAMES: Final = 512  # of the channel: commits, acks, data
CHANNEL_TURN_MESSAGES: Final = 1_024  # messages and commits that are handed to the application
CHANNEL_TURN_SIZE_BYTES: Final = 256 * KIB  # of these messages, or one message

# Pledges
PLEDGE_URL_CHARS_MAX: Final = 1_024
PLEDGE_STEPS_MAX: Final = 99
PLEDGE_BRANCHES_MAX: Final = 1_024  # topics expanded
PLEDGE_SIZE_BYTES_MAX: Final = 4 * MIB  # all payloads, topics expanded
PLEDGE_ATTEMPTS_KEPT: Final = 16
PLEDGE_ERROR_CHARS_MAX: Final = 300
PLEDGE_FRESH_COUNT: Final = 16_384  # prepared here and not submitted yet: kept in memory to save a read
PLEDGE_FRESH_SIZE_BYTES: Final = 4 * KIB  # larger ones are read again from the store
PLEDGE_ANSWER_SIZE_BYTES_MAX: Final = 1 * MIB  # of a branch; a longer answer is not parsed
TOPIC_SUBSCRIBERS_MAX: Final = 256
PLEDGES_PER_LANE_COUNT: Final = 250_000  # in memory; above this, the oldest finished pledges are removed early

# Stores of pledges
PLEDGE_ID_BYTES_MAX: Final = 128
PLEDGE_OWNER_BYTES_MAX: Final = 200
PLEDGE_STORED_SIZE_BYTES_MAX: Final = 12 * MIB  # encoded: steps, with their payloads repeated for every subscriber
PLEDGE_GROUP_COUNT: Final = 1_024  # operations in one transaction
PLEDGE_GROUP_SIZE_BYTES: Final = 4 * MIB  # above this size a group accepts no more operations
PLEDGE_WAITING_COUNT: Final = 16_384  # operations that wait for their group
PLEDGE_PAGE_COUNT_MAX: Final = 1_000
TOPIC_NAME_BYTES_MAX: Final = 128
TOPIC_SIZE_BYTES_MAX: Final = 1 * MIB
STORE_CONNECT_TIMEOUT_S: Final = 5
STORE_ANSWER_TIMEOUT_S: Final = 30  # of a database; the connection is then closed
STORE_LOCK_TIMEOUT_S: Final = 10
STORE_ATTEMPTS_MAX: Final = 12  # of a transaction that the database aborted because of a conflict
