/**
 * A channel to Avow, in a browser or in Node: messages both ways with commits among them, each exactly once and in order
 * through any loss of sockets. The rules are in docs/channel.md, the bytes in docs/reference/channel-wire.md.
 *
 *     import { connect } from "/v1/channel.js";
 *
 *     const channel = connect("/v1/channel?role=producer&queue=orders&format=json&producer=" + id);
 *     channel.send('{"value": "hello"}');
 *     await channel.commit(); // a quorum has it
 *
 * A socket that is lost is no failure: another one is opened, at once, then after pauses that are drawn at random below
 * a bound that doubles; when the browser says `online`, or the page is seen again, without a pause. The channel fails when
 * the other end says so, when it gives up by itself, or when it had no connection for `patience_s`.
 */

/** What became of a message that no acknowledged commit covers: the other end had it; it left; it was never received. */
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

/** A channel is over for good. `pending` are all messages that no acknowledged commit covers, in order, handed back once. */
export class ChannelFailed extends Error {
	constructor(text: string, reason?: Reason, name_?: string, pending?: Pending[]);
	reason: Reason;
	/** The code of the error behind it, if there is one: OFFLINE, UNKNOWN_QUEUE, ... */
	name_: string;
	pending: Pending[];
}

/**
 * Thrown when this end is misused; nothing was changed. BUSY: the channel is suspended, wait for writable(), or, from
 * connect(), there is more to resend than the bounds allow. TOO_LARGE: a message of more than 9 MiB. INVALID_REQUEST: an
 * ack of a commit that never came, or bounds that are too low.
 */
export interface Refused extends Error {
	code: "BUSY" | "TOO_LARGE" | "INVALID_REQUEST";
}

/** `pending_*`: where this end's sender is suspended. `cap_*`: what it takes beyond the last commit it acknowledged. */
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

/** What connect() needs of a WebSocket. */
export interface SocketLike {
	binaryType?: string;
	readonly bufferedAmount?: number;
	send(packet: any): void;
	close(): void;
	onopen?: ((event?: any) => void) | null;
	/** With the packet as an ArrayBuffer in `data`. */
	onmessage?: ((event: any) => void) | null;
	onclose?: ((event?: any) => void) | null;
	onerror?: ((event?: any) => void) | null;
}

export interface Options {
	/** A bearer token, sent as a subprotocol because pages cannot set headers. */
	token?: string;
	/** Subprotocols, ["avow.channel.v1"] unless said. */
	protocols?: string[];
	/** Opens a socket; `new WebSocket(url, protocols)` unless said. */
	socket?: (url: string, protocols: string[]) => SocketLike;
	bounds?: Bounds;
	/** How long the other end is asked to keep the channel without a socket; 0: as long as it usually does. */
	window_s?: number;
	/** How long this end tries without success before the channel fails, EXPIRED; 30. */
	patience_s?: number;
	/** Commit ids go on after this one. */
	last_commit?: number;
	/** What a channel that failed has handed back: sent first, under the commit ids it had. */
	resend?: readonly Pick<Pending, "value" | "commit">[];
}

export interface Channel {
	/** Leaves at the end of this turn. Strings as UTF-8. Throws BUSY, TOO_LARGE, or ChannelFailed after the end. */
	send(value: string | Uint8Array | ArrayBuffer): void;
	/**
	 * Covers everything sent before it. Resolves, and calls back, when it or a newer one is acknowledged; rejects with
	 * ChannelFailed. Who does not wait need not catch. Throws ChannelFailed after the end.
	 */
	commit(callback?: () => void): Promise<void>;
	/** Done with everything up to this commit. Twice is harmless. */
	ack_commit(id: number): void;
	/** Resolves when a message may be sent; rejects with ChannelFailed. */
	writable(): Promise<void>;
	/** Gives up: the other end is told, on_end gets what is pending. */
	abort(text?: string): void;
	/** Finishes; await a commit first. */
	close(): void;
	readonly suspended: boolean;
	/** Messages that no acknowledged commit covers. */
	readonly non_acked_message_count: number;
	statistics(): Statistics;

	/**
	 * Gets messages one after the other, the next when what it returned is settled. It must be there before the first can
	 * come: set it right after connect(). If it throws or rejects, the channel is aborted.
	 */
	on_message?: ((value: Uint8Array) => unknown) | null;
	/** A commit, when all that it covers was taken by on_message. Without this hook it is acknowledged then. */
	on_commit?: ((id: number) => unknown) | null;
	/** A suspended channel may send again. */
	on_resume?: (() => void) | null;
	/** Once, after all messages that came. null: closed by either side with nothing pending here. */
	on_end?: ((error: ChannelFailed | null) => void) | null;

	/** The names of the text this was written for. */
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
	/** Whether this end opens the sockets; true. */
	initiator?: boolean;
	bounds?: Bounds;
	window_s?: number;
	last_commit?: number;
}

/**
 * One end without clock and socket. Inputs are calls; then come take_events(), and packet() until it is empty. A socket is
 * known by its generation, and nothing that an older one still says is heard.
 */
export interface Core {
	send(value: Uint8Array): number;
	commit(): number;
	/** On a new end. One that throws BUSY here is of no more use. */
	resend(pending: readonly Pick<Pending, "value" | "commit">[]): void;
	ack_commit(id: number): void;
	end(code: Reason, text?: string, name?: string): void;
	/** Initiator: a new socket. Its generation. */
	socket(): number;
	/** Acceptor: the packet with the Hello that came first on a new socket. Its generation; 0: it is refused. */
	greeted(packet: Uint8Array): number;
	received(generation: number, packet: Uint8Array): void;
	/** Without a generation: the newest. */
	lost(generation?: number): void;
	take_events(): CoreEvent[];
	packet(size_bytes?: number): Uint8Array;
	statistics(): Statistics;
}

export function Core(options: CoreOptions): Core;
