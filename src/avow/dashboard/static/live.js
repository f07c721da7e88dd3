// Streams a queue's messages over a channel without moving a subscriber's cursor.
//
// The peer sends a group of messages and a commit; acknowledging the commit requests more. To pause, the page delays
// the acknowledgement: the peer then waits, and nothing is skipped. If the peer fails, the next one is asked for the
// messages after the last one received.

import { connect } from "/v1/channel.js";
import { channel_at, on_change, pass_over } from "./api.js";

const PATIENCE_S = 4, RETRY_MS = 500, RETRY_MS_MAX = 10000;
const PERMANENT = new Set(["NOT_AUTHENTICATED", "FORBIDDEN", "UNKNOWN_QUEUE"]); // a retry would fail in the same way

// `after`: lane -> the version to start after. `state`: connecting, live, paused, lost.
export function follow(queue, after, { on_messages, on_state }) {
	const reached = { ...after };
	let channel, owed = 0, paused = false, over = false, timer, tries = 0, turn = 0, state = "";

	function tell(now, error) {
		state = now;
		on_state(now, error);
	}

	function open() {
		clearTimeout(timer);
		const mine = ++turn, before = Object.entries(reached).map(([lane, version]) => `${lane}:${version}`).join(",");
		const query = { role: "reader", queue, format: "json", ...(before ? { after: before } : { from: "end" }) };
		const { url, options } = channel_at(query);
		const group = [];
		tell("connecting");
		channel?.close();
		channel = connect(url, { ...options, patience_s: PATIENCE_S });
		channel.on_message = (bytes) => mine === turn && take(JSON.parse(new TextDecoder().decode(bytes)), group);
		channel.on_commit = (id) => mine === turn && commit(id, group);
		channel.on_end = (error) => mine === turn && ended(error);
	}

	function take(message, group) {
		tries = 0;
		if (message.lanes) {
			for (const [lane, version] of Object.entries(message.lanes)) reached[lane] ??= version;
			return tell(paused ? "paused" : "live");
		}
		group.push(message);
		reached[message.lane] = message.version;
	}

	function commit(id, group) {
		on_messages(group.splice(0));
		if (paused) owed = id;
		else channel.ack_commit(id);
	}

	function ended(error) {
		if (over) return;
		if (error && PERMANENT.has(error.name_)) return tell("lost", error);
		tell("connecting", error);
		if (error?.name_ === "TRIMMED") for (const lane of Object.keys(reached)) delete reached[lane]; // continue with the existing messages
		if (error?.reason === "EXPIRED") return pass_over(); // this notifies on_change, which opens the channel there
		clearTimeout(timer);
		timer = setTimeout(open, Math.min(RETRY_MS_MAX, RETRY_MS * 2 ** tries++));
	}

	const forget = on_change((what) => what === "peer" && !over && state !== "lost" && open());
	open();
	return {
		reached,
		pause() {
			paused = true;
			tell("paused");
		},
		resume() {
			paused = false;
			tell("live");
			if (owed) channel.ack_commit(owed);
			owed = 0;
		},
		stop() {
			over = true;
			turn++;
			forget();
			clearTimeout(timer);
			channel.close();
		},
	};
}
