/**
 * A channel to Avow, in a browser or in Node: messages and commits in both directions, each exactly once and in order,
 * even if sockets are lost. docs/channel.md defines the protocol, docs/reference/channel-wire.md the bytes.
 *
 *     import { connect } from "/v1/channel.js";
 *
 *     const channel = connect("/v1/channel?role=producer&queue=orders&format=json&producer=" + id + "&tried=0");
 *     channel.send('{"value": "hello"}');
 *     await channel.commit(); // stored on a quorum
 *
 * A lost socket is not a failure: another one is opened at once, then after random pauses below a bound that doubles;
 * without a pause when the browser fires `online` or the page becomes visible again. The channel fails when the other end
 * ends it, when the application aborts it, or after `patience_s` without a connection.
 */

/**
 * What is known about a message that is not covered by an acknowledged commit. delivered: the other end received it;
 * unknown: it was sent, and the other end may have received it; unsent: the other end did not receive it.
 */
export type Fate = "delivered" | "unknown" | "unsent";

/** `commit`: the first commit that covers it, 0 if there is none. */
export interface Pending {
	number: number;
	value: Uint8Array;
	fate: Fate;
	commit: number;
}

/** Why a channel ended. ENDED: it had ended before. */
export type Reason =
	| "CLOSED" | "ABORTED" | "UNKNOWN_CHANNEL" | "EXPIRED" | "IMPOSSIBLE" | "PROTOCOL" | "CAP_EXCEEDED" | "FENCED"
	| "REFUSED" | "MOVED" | "GOING" | "ENDED";

/** The channel has ended permanently. `pending`: all messages not covered by an acknowledged commit, in order. */
export class ChannelFailed extends Error {
	constructor(text: string, reason?: Reason, name_?: string, pending?: Pending[]);
	reason: Reason;
	/** The code of the underlying error, if there is one: OFFLINE, UNKNOWN_QUEUE, ... */
	name_: string;
	pending: Pending[];
}

/**
 * Thrown when the API is misused; nothing was changed. BUSY: the channel is suspended, wait for writable(); from
 * connect(): there are more messages to resend than the bounds allow. TOO_LARGE: a message of more than 9 MiB.
 * INVALID_REQUEST: an ack of a commit that was never delivered, or bounds that are too low.
 */
export interface Refused extends Error {
	code: "BUSY" | "TOO_LARGE" | "INVALID_REQUEST";
}

/** `pending_*`: the limit at which the sender is suspended. `cap_*`: what this end accepts beyond its last ack. */
export interface Bounds {
	/** 4,096 */
	pending_count?: number;
	/** 8 MiB; an empty message counts 64 bytes */
	pending_bytes?: number;
	/** 65,536; at least 4,096 */
	cap_count?: number;
	/** 32 MiB; at least 20 MiB */
	cap_bytes?: number;
}

/** The part of the WebSocket interface that connect() uses. */
export interface SocketLike {
	binaryType?: string;
	readonly bufferedAmount?: number;
	send(packet: any): void;
	close(): void;
	onopen?: ((event?: any) => void) | null;
	/** Called with the packet as an ArrayBuffer in `data`. */
	onmessage?: ((event: any) => void) | null;
	onclose?: ((event?: any) => void) | null;
	onerror?: ((event?: any) => void) | null;
}

export interface Options {
	/** A bearer token, sent as a subprotocol because pages cannot set headers. */
	token?: string;
	/** Subprotocols; the default is ["avow.channel.v1"]. */
	protocols?: string[];
	/** Opens a socket; the default is `new WebSocket(url, protocols)`. */
	socket?: (url: string, protocols: string[]) => SocketLike;
	bounds?: Bounds;
	/** How long the other end is asked to keep the channel without a socket; 0: its default. */
	window_s?: number;
	/** How long this end tries to connect before the channel fails with EXPIRED; 30. */
	patience_s?: number;
	/** Commit ids continue after this one. */
	last_commit?: number;
	/** The `pending` of a failed channel: sent first, with the commit ids they had. */
	resend?: readonly Pick<Pending, "value" | "commit">[];
}

export interface Channel {
	/** Sent at the end of this turn; strings as UTF-8. Throws BUSY, TOO_LARGE, or ChannelFailed after the end. */
	send(value: string | Uint8Array | ArrayBuffer): void;
	/**
	 * Covers everything sent before it. Resolves, and calls `callback`, when it or a newer one is acknowledged; rejects
	 * with ChannelFailed. An ignored promise causes no unhandled rejection. Throws ChannelFailed after the end.
	 */
	commit(callback?: () => void): Promise<void>;
	/** Everything up to this commit is processed. Idempotent. */
	ack_commit(id: number): void;
	/** Resolves when a message may be sent; rejects with ChannelFailed. */
	writable(): Promise<void>;
	/** Ends the channel with ABORTED; on_end gets the pending messages. */
	abort(text?: string): void;
	/** Ends the channel with CLOSED; await a commit first. */
	close(): void;
	readonly suspended: boolean;
	/** The number of messages not covered by an acknowledged commit. */
	readonly non_acked_message_count: number;
	statistics(): Statistics;

	/**
	 * Called with one message at a time; the next call waits for the returned promise. Set it right after connect(), before
	 * the first message can arrive. If it throws or rejects, the channel is aborted.
	 */
	on_message?: ((value: Uint8Array) => unknown) | null;
	/** Called after on_message has taken all that the commit covers. Without this hook the commit is acknowledged then. */
	on_commit?: ((id: number) => unknown) | null;
	/** Called when a suspended channel may send again. */
	on_resume?: (() => void) | null;
	/** Called once, after all received messages. null: closed by either side with nothing pending here. */
	on_end?: ((error: ChannelFailed | null) => void) | null;

	/** Aliases: the names used in the original specification. */
	onCommit?: ((id: number) => unknown) | null;
	ackCommit(id: number): void;
	getNonAckedMessageCount(): number;
}

export function connect(url: string, options?: Options): Channel;

export interface Statistics {
	link: "down" | "greeting" | "up" | "ended";
	sender: "flowing" | "suspended" | "ended";
	receiver: "clear" | "owing" | "ended";
	generation: number;
	sent_to: number;
	released_to: number;
	pending: number;
	pending_bytes: number;
	commits: number;
	acked: number;
	received_to: number;
	commits_received_to: number;
	acknowledged: number;
}

export type CoreEvent =
	| ["Messages", first: number, values: Uint8Array[]]
	| ["CommitDelivered", id: number, upto: number]
	| ["CommitAcked", id: number]
	| ["Suspended"]
	| ["Resumed"]
	| ["Connected", generation: number]
	| ["Ended", error: ChannelFailed, remote: boolean];

export interface CoreOptions {
	/** 16 random bytes each. */
	channel: Uint8Array;
	token: Uint8Array;
	/** Whether this end opens the sockets; the default is true. */
	initiator?: boolean;
	bounds?: Bounds;
	window_s?: number;
	last_commit?: number;
}

/**
 * One end without a clock or a socket. After each call, process take_events(), then packet() until it is empty. A socket
 * is identified by its generation; packets of an older socket are ignored.
 */
export interface Core {
	send(value: Uint8Array): number;
	commit(): number;
	/** Only on a new end. If this throws BUSY, discard the end. */
	resend(pending: readonly Pick<Pending, "value" | "commit">[]): void;
	ack_commit(id: number): void;
	end(code: Reason, text?: string, name?: string): void;
	/** Initiator: attach a new socket. Returns its generation. */
	socket(): number;
	/** Acceptor: attach a new socket by its first packet, a Hello. Returns its generation; 0: it is refused. */
	greeted(packet: Uint8Array): number;
	received(generation: number, packet: Uint8Array): void;
	/** Without a generation: the newest socket. */
	lost(generation?: number): void;
	take_events(): CoreEvent[];
	packet(size_bytes?: number): Uint8Array;
	statistics(): Statistics;
}

export function Core(options: CoreOptions): Core;
