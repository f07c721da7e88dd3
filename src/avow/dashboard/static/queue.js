// The page of a queue: its lanes, its subscribers, and its messages as they arrive.

import { badge, facts, field, h, href, panel, table } from "./dom.js";
import { ago, count, plural, retention } from "./format.js";
import { get, may, path_of } from "./api.js";
import { lag_badge, lead_of } from "./cluster.js";
import { follow } from "./live.js";
import { trim_form, write_form } from "./queue_forms.js";

const BEFORE = 30; // earlier messages of each lane that are loaded at first
const KEPT_MAX = 500, SHOWN_MAX = 60, REDRAW_MS = 200, VALUE_CHARS = 300, BEHIND = 20000;
const LIVE = { connecting: ["connecting", ""], live: ["live", "good"], paused: ["paused", "warn"], lost: ["refused", "bad"] };
let view = fresh();

function fresh() {
	return { messages: [], received: 0, filter: "", state: "connecting", error: null, live: null, timer: 0, tools: null };
}

export const queue = { title: ({ queue }) => `Queue ${queue}`, every_ms: 1000, load, draw, enter, leave };

function enter(_, tools) {
	view = fresh();
	view.tools = tools;
}

function leave() {
	view.live?.stop();
	clearTimeout(view.timer);
}

async function load({ queue: name }, signal) {
	const mine = view, found = await get(path_of("queues", name), { signal });
	const readable = may("read", name);
	const { subscribers } = readable ? await get(path_of("queues", name, "subscribers"), { signal }) : { subscribers: [] };
	if (readable && !mine.live && mine === view) begin(found);
	return { queue: found, subscribers, readable };
}

// ---------------------------------------------------------------------- messages

function begin({ name, lanes }, { from_end = false } = {}) {
	const mine = view;
	mine.live?.stop();
	const after = Object.fromEntries(lanes.map((lane) => [lane.lane, from_end ? lane.end : Math.max(lane.trimmed_to, lane.end - BEFORE)]));
	mine.live = follow(name, after, {
		on_messages(group) {
			mine.received += group.length;
			mine.messages = [...mine.messages, ...group].slice(-KEPT_MAX);
			soon(mine);
		},
		on_state(state, error) {
			Object.assign(mine, { state, error });
			soon(mine);
		},
	});
}

function soon(mine) {
	mine.timer ||= setTimeout(() => {
		mine.timer = 0;
		mine.tools.redraw();
	}, REDRAW_MS);
}

const text_of = (message, part) => message[part] ?? (message[`${part}_base64`] === undefined ? "" : `base64 ${message[`${part}_base64`]}`);

function matches(message) {
	const wanted = view.filter.toLowerCase();
	return !wanted || `${text_of(message, "key")} ${text_of(message, "value")} ${JSON.stringify(message.headers ?? {})}`.toLowerCase().includes(wanted);
}

function message_row(name, message) {
	const value = text_of(message, "value"), shown = value.length > VALUE_CHARS ? `${value.slice(0, VALUE_CHARS)}…` : value;
	return {
		key: `${message.lane}:${message.version}`,
		cells: [
			h("a", { href: href("queues", name, message.lane, message.version), title: "history of this message" }, count(message.version)),
			message.lane,
			text_of(message, "key"),
			h("code.value", shown),
			Object.entries(message.headers ?? {}).map(([header, text]) => h("span.header", `${header}: ${text}`)),
			ago(message.time_ms),
		],
	};
}

function live_panel({ queue, readable }) {
	const { name } = queue;
	if (!readable) return panel("Messages", h("p.empty", `Your token has no right to read ${name}.`));
	const [label, tone] = LIVE[view.state], paused = view.state === "paused";
	const reached = view.live?.reached ?? {};
	const behind = queue.lanes.reduce((sum, lane) => sum + Math.max(0, lane.end - (reached[lane.lane] ?? lane.end)), 0);
	const found = view.messages.filter(matches), rows = found.slice(-SHOWN_MAX).reverse().map((message) => message_row(name, message));
	return panel("Messages",
		h("div.row", badge(label, tone),
			h("button", { type: "button", onclick: () => (paused ? view.live.resume() : view.live.pause()) }, paused ? "Resume" : "Pause"),
			field("Filter", h("input", { type: "search", placeholder: "key, value or header", oninput: (event) => ((view.filter = event.target.value), view.tools.redraw()) })),
			h("span.hint", `${count(found.length)} of the last ${count(view.messages.length)} shown · ${count(view.received)} received`),
			behind > BEHIND && h("button", { type: "button", onclick: () => begin(queue, { from_end: true }) }, `${count(behind)} behind: jump to the end`)),
		view.error && view.state === "lost" && h("p.problem", view.error.message),
		h("div.tall", table("Messages, newest first", ["#Version", "#~Lane", "Key", "Value", "~Headers", "Written"], rows,
			view.filter ? "No received message matches the filter." : ["No messages yet. Write one above, or run ", h("code", `avow enqueue ${name} hello`), "."])));
}

// ---------------------------------------------------------------------- the rest of the page

function draw(data, { queue: name }, tools) {
	const { queue } = data;
	return [
		facts(["Strategy", queue.strategy], ["Retention", retention(queue.retention)], ["Peers", queue.peers.length ? queue.peers.join(", ") : "all"],
			["Messages stored", count(queue.lanes.reduce((sum, lane) => sum + lane.end - lane.trimmed_to, 0))]),
		h("div", { class: "halves", "data-key": "halves" }, panel("Lanes", lane_table(queue)), panel("Subscribers", subscriber_table(data))),
		panel("Write a message", write_form(name, tools)),
		live_panel(data),
		panel("Trim", trim_form(queue, tools)),
	];
}

function lane_table({ lanes }) {
	const rows = lanes.map((lane) => ({ key: lane.lane, cells: [`lane ${lane.lane}`, lead_of(lane), lane.voters.join(", "), count(lane.trimmed_to), count(lane.end)] }));
	return table("Lanes", ["Lane", "Coordinator", "~Voters", "#Trimmed to", "#End (version)"], rows, "No lanes yet.");
}

function subscriber_table({ queue, subscribers }) {
	const rows = subscribers.map((one) => {
		const lags = queue.lanes.map((lane) => Math.max(0, lane.end - Math.max(lane.trimmed_to, one.versions[lane.lane] ?? 0)));
		const readers = one.members.map((member) => `${member.member || "one reader"} at peer ${member.peer}`);
		return {
			key: one.name,
			cells: [[one.name, " ", one.hold && badge("hold", "")], lag_badge(lags.reduce((sum, lag) => sum + lag, 0)),
				Object.entries(one.versions).map(([lane, version]) => `${lane}: ${count(version)}`).join(", ") || "–",
				readers.join(", ") || "no reader"],
		};
	});
	return table(`Subscribers, ${plural(subscribers.length, "name")}`, ["Subscriber", "Lag", "~Cursor by lane", "~Readers now"], rows,
		["No subscribers yet. ", h("code", `avow tail ${queue.name} --subscriber me`), " creates one."]);
}
