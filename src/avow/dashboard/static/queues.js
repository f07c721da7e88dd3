// The list of queues that the token may read.

import { badge, field, h, link, table } from "./dom.js";
import { count, plural, retention } from "./format.js";
import { get } from "./api.js";

const state = { internal: false };

export const queues = { title: () => "Queues", every_ms: 2000, load, draw };

function load(_, signal) {
	return get(`/v1/queues${state.internal ? "?internal=true" : ""}`, { signal });
}

function draw({ queues }, _, { refresh }) {
	const rows = queues.map((queue) => ({
		key: queue.name,
		cells: [
			link(queue.name, "queues", queue.name),
			queue.strategy,
			count(queue.lanes.length),
			count(kept(queue)),
			led(queue) ? badge("writable", "good") : badge("not writable", "bad"),
			retention(queue.retention),
		],
	}));
	const flip = (event) => {
		state.internal = event.target.checked;
		refresh();
	};
	return [
		h("p.row", plural(queues.length, "queue"),
			field("show internal queues", h("input", { type: "checkbox", onchange: flip }))),
		table("Queues", ["Queue", "Strategy", "#~Lanes", "#Messages stored", "State", "~Retention"], rows,
			["There are no queues that you may read. ", h("code", "avow queue create orders"), " creates one, ", h("code", "avow enqueue orders hello"), " writes to it."]),
	];
}

const kept = ({ lanes }) => lanes.reduce((sum, lane) => sum + lane.end - lane.trimmed_to, 0);
const led = ({ lanes, strategy, open_lane }) => (strategy === "pub-sub" ? open_lane !== null : lanes.every((lane) => lane.coordinator));
