// One step of a vector on the JavaScript core, told in the form of tools.channel_vectors.
import { createHash } from "node:crypto";

// Another module than the package's: one with a mistake, to see that it is noticed.
const MODULE = process.env.AVOW_CHANNEL_MODULE ?? new URL("../../src/avow/channel/browser/avow-channel.js", import.meta.url).href;
const { ChannelFailed, Core } = await import(MODULE);

const RUN = 64, SHOWN = 1600, SHOWN_COUNT = 32, TAKES = 10_000; // as in form.py
const OWN_WORDS = new Map([["IMPOSSIBLE", 4], ["PROTOCOL", 5], ["CAP_EXCEEDED", 6]]);

export const hex = (bytes) => Buffer.from(bytes.buffer, bytes.byteOffset, bytes.length).toString("hex");

export function spelled(text = "") {
	const pieces = typeof text === "string" ? [[text, 1]] : text;
	const whole = Buffer.concat(pieces.map(([piece, times]) => {
		const unit = Buffer.from(piece, "hex");
		return unit.length === 1 ? Buffer.alloc(times, unit[0]) : Buffer.concat(Array(times).fill(unit));
	}));
	return new Uint8Array(whole); // with a memory of its own, as a socket gives it
}

function repeated(bytes) {
	const pieces = [];
	let at = 0;
	for (let from = 0, to; from < bytes.length; from = to) {
		for (to = from + 1; bytes[to] === bytes[from]; ) to++;
		if (to - from < RUN) continue;
		if (from > at) pieces.push([hex(bytes.subarray(at, from)), 1]);
		pieces.push([hex(bytes.subarray(from, from + 1)), to - from]);
		at = to;
	}
	if (!pieces.length) return hex(bytes);
	return at < bytes.length ? [...pieces, [hex(bytes.subarray(at)), 1]] : pieces;
}

function shown(bytes) {
	const text = repeated(bytes), pieces = typeof text === "string" ? [[text]] : text;
	if (pieces.reduce((digits, [piece]) => digits + piece.length, 0) <= SHOWN) return text;
	return { size: bytes.length, sha256: createHash("sha256").update(bytes).digest("hex") };
}

function shown_values(values) {
	if (values.length <= SHOWN_COUNT) return values.map(shown);
	const digest = createHash("sha256");
	for (const value of values) digest.update(value.length.toString(16).padStart(8, "0")).update(value);
	return { count: values.length, sha256: digest.digest("hex") };
}

function told([type, ...fields]) {
	if (type === "Messages") return { type, first: fields[0], values: shown_values(fields[1]) };
	if (type === "CommitDelivered") return { type, id: fields[0], upto: fields[1] };
	if (type === "CommitAcked") return { type, id: fields[0] };
	if (type === "Connected") return { type, generation: fields[0] };
	if (type !== "Ended") return { type };
	const [error, remote] = fields, own = OWN_WORDS.has(error.reason) && !remote;
	const text = own ? null : error.message === error.reason ? "" : error.message;
	const pending = error.pending.map((one) => ({ ...one, value: shown(one.value) }));
	return { type, code: error.reason, name: error.name_, text, remote, pending };
}

function without_own_words(packet) {
	if (packet[0] !== 5 || ![...OWN_WORDS.values()].includes(packet[1])) return packet;
	const name = packet[18] + 256 * packet[19], short = packet.slice(0, 22 + name);
	short.fill(0, 20, 22);
	return short;
}

const CALLS = {
	send: (core, step) => core.send(spelled(step.value)),
	commit: (core) => core.commit(),
	resend: (core, step) => core.resend(step.pending.map((one) => ({ ...one, value: spelled(one.value) }))),
	ack_commit: (core, step) => core.ack_commit(step.id ?? 0),
	end: (core, step) => core.end(step.code, step.text, step.name),
	socket: (core) => core.socket(),
	greeted: (core, step) => core.greeted(spelled(step.packet)),
	received: (core, step) => core.received(step.generation, spelled(step.packet)),
	lost: (core, step) => core.lost(step.generation),
};

export const core_of = ({ channel, token, ...options }) => Core({ channel: spelled(channel), token: spelled(token), ...options });

/** What the step led to, as `expect` has it, and the packets as they are. */
export function perform(core, step, before) {
	const outcome = {}, packets = [];
	try {
		let gives;
		for (let left = step.times ?? 1; left--; ) gives = CALLS[step.do](core, step);
		if (gives !== undefined && ["send", "commit", "socket", "greeted"].includes(step.do)) outcome.gives = gives;
	} catch (error) {
		outcome.raises = error instanceof ChannelFailed ? "CHANNEL_FAILED" : error.code;
		if (!outcome.raises) throw error;
	}
	const events = core.take_events().map(told);
	for (let left = step.take ?? TAKES, packet; left-- && (packet = core.packet(step.size_bytes)).length; ) packets.push(packet);
	if (events.length) outcome.events = events;
	if (packets.length) outcome.packets = packets.map(without_own_words).map(shown);
	const now = core.statistics(), changed = Object.entries(now).filter(([name, figure]) => before[name] !== figure);
	if (changed.length) outcome.state = Object.fromEntries(changed);
	return { outcome, packets, now };
}
