// The map of the cluster: a column per peer, a row per lane. A row shows which peers store the lane and which one
// coordinates or owns it, and a bar from the first stored message to the last with the subscribers' cursors.

import { box, dot, drawing, h, line, s, words } from "./dom.js";
import { count, host, plural } from "./format.js";

const LANES_MAX = 24, NARROW = 640, HEAD = 66;

export function lane_map(data, width) {
	const known = data.lanes.filter((lane) => !lane.own && !lane.ended), lanes = known.slice(0, LANES_MAX), narrow = width < NARROW;
	const place = narrow ? narrow_place(data, width) : wide_place(data, width);
	const height = HEAD + Math.max(1, lanes.length) * place.row;
	const leads = data.peers.map((peer) => `peer ${peer.number} ${peer.up ? "is up" : "is down"} and leads ${plural(data.lanes.filter((lane) => lead(lane) === peer.number).length, "lane")}`);
	return h("div.canvas", 
		drawing({ title: "Map of the cluster", detail: leads.join("; "), width, height, key: "map" },
			data.peers.map((peer, at) => peer_box(peer, place.peers[at], data, place, height)),
			lanes.length ? lanes.map((lane, at) => lane_row(lane, HEAD + at * place.row, data, place)) : words(4, HEAD + 30, "no lanes yet", "faint")),
		data.lanes.length > lanes.length && h("p.hint", `${plural(data.lanes.length - lanes.length, "lane")} more in the table below (ended, internal${known.length > LANES_MAX ? ", or too many for the map" : ""}).`));
}

const lead = (lane) => (lane.ended ? 0 : lane.coordinator || lane.owner);

// The layout: `peers` are the middles of the columns, `bar` is its start and end.
function wide_place({ peers }, width) {
	const label = 190, column = Math.min(150, (width * 0.5) / peers.length);
	const from = label + peers.length * column + 16;
	return { row: 52, column, peers: peers.map((_, at) => label + column * (at + 0.5)), bar: [from, width - 190], label_y: 22, note_y: 39, track_y: 24, bar_y: 20, end: [width, 22], cut: 24 };
}

function narrow_place({ peers }, width) {
	const column = Math.min(110, width / peers.length);
	return { row: 100, column, peers: peers.map((_, at) => column * (at + 0.5)), bar: [4, width - 4], label_y: 20, note_y: 36, track_y: 56, bar_y: 72, end: [width, 20], cut: 24, narrow: true };
}

function peer_box(peer, x, { metadata, peer: answering }, { column, narrow }, height) {
	const half = Math.min(column - 10, 132) / 2, tone = peer.up ? "up" : "down";
	const note = !peer.up ? "down" : metadata.coordinator === peer.number ? "metadata" : peer.voter ? "voter" : "learner";
	return s("g", { class: `peer ${tone}`, "data-key": `peer ${peer.number}` },
		line(x, 52, x, narrow ? 66 : height - 6, "thread"),
		box(x - half, 4, half * 2, 48, 8),
		dot(x - half + 13, 21, 4.5, "lamp"),
		words(x - half + 23, 25, `peer ${peer.number}`, "strong"),
		words(x, 43, narrow || column < 120 ? note : `${note} · ${host(peer.api).replace(/^.*(?=:\d+$)/, "")}`, "small", "middle"),
		s("title", `peer ${peer.number}, ${peer.api}, ${note}${peer.number === answering ? ", answers this page" : ""}`));
}

function lane_row(lane, y, data, place) {
	const leading = lead(lane), members = [...lane.voters, ...lane.learners];
	const columns = data.peers.map((peer, at) => ({ peer, x: place.peers[at] })).filter(({ peer }) => members.includes(peer.number));
	const xs = columns.map(({ x }) => x), track = y + place.track_y;
	const name = lane.queue.length > place.cut ? `${lane.queue.slice(0, place.cut - 1)}…` : lane.queue;
	return s("g", { "data-key": `lane ${lane.number}` },
		line(0, y, place.end[0], y, "rule"),
		words(4, y + place.label_y, name, "strong"),
		words(4, y + place.note_y, `lane ${lane.lane} · ${lane.strategy}`, "small"),
		xs.length > 1 && line(Math.min(...xs), track, Math.max(...xs), track, "track"),
		columns.map(({ peer, x }) => copy(peer, x, track, lane, leading === peer.number)),
		bar(lane, y, place));
}

function copy(peer, x, y, lane, leads) {
	const what = leads ? (lane.strategy === "pub-sub" ? "owner" : "coordinator") : "copy";
	return s("g", { class: `${leads ? "lead" : "copy"} ${peer.up ? "up" : "down"}` },
		dot(x, y, leads ? 9 : 6),
		leads && words(x, y + 4, what[0].toUpperCase(), "", "middle"),
		s("title", `peer ${peer.number}: ${what}`));
}

function bar(lane, y, { bar: [from, to], bar_y, end: [end_x, end_y] }) {
	const size = lane.end - lane.trimmed_to, top = y + bar_y;
	const x_of = (version) => from + (size > 0 ? Math.min(1, Math.max(0, (version - lane.trimmed_to) / size)) : 1) * (to - from);
	const worst = lane.cursors[0];
	const note = !worst ? "no subscribers" : worst.lag ? `${worst.name} ${count(worst.lag)} behind` : `${plural(lane.cursors.length, "subscriber")}, up to date`;
	return s("g.extent", 
		box(from, top, to - from, 8, 4, "kept"),
		worst && box(from, top, Math.max(0, x_of(worst.at) - from), 8, 4, "passed"),
		lane.cursors.slice(0, 12).map((cursor) => s("path", { d: `M${x_of(cursor.at)} ${top + 9}l5 8h-10z`, class: cursor.lag ? "cursor late" : "cursor" },
			s("title", `${cursor.name}: cursor ${count(cursor.at)}, ${plural(cursor.lag, "message")} behind`))),
		words(end_x, y + end_y, plural(lane.end - lane.trimmed_to, "message"), "strong", "end"),
		words(end_x, y + end_y + 16, note, "small", "end"));
}
