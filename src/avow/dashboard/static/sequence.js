// The history of a message as a sequence diagram: a line per participant, time downwards, an arrow per step.

import { box, dot, drawing, line, s, words } from "./dom.js";
import { clock, count } from "./format.js";

const COLUMN_MIN = 92, HEAD = 46, STEP = 44, SUBSCRIBERS_MAX = 8;
const STORED = { true: ["stored", "done"], false: ["not yet", "open"], null: ["unknown", "open"] };

export function sequence(data, room) {
	const readers = data.subscribers.slice(0, SUBSCRIBERS_MAX);
	const actors = [{ name: "writer", kind: "outside" }, ...data.stored.map((one) => ({ name: `peer ${one.peer}`, kind: "peer", peer: one.peer })), ...readers.map((one) => ({ name: one.name, kind: "outside" }))];
	const column = Math.max(COLUMN_MIN, room / actors.length), width = column * actors.length;
	const x_of = (at) => column * (at + 0.5);
	const lead = Math.max(1, actors.findIndex((actor) => actor.peer === data.lead));
	let y = HEAD + 34;
	const parts = [], step = (make) => (parts.push(make(y)), (y += STEP));

	step((at) => arrow(x_of(0), x_of(lead), at, `enqueue ${clock(data.created_ms)}`, "done"));
	data.stored.forEach((one, place) => {
		const [text, tone] = STORED[one.stored];
		const mine = place + 1;
		step((at) => (mine === lead ? own(x_of(lead), at, text, tone) : [arrow(x_of(lead), x_of(mine), at, "", tone), mark(x_of(mine), at, text, tone)]));
	});
	const first = x_of(1) - 40, last = x_of(data.stored.length) + 40, have = data.stored.filter((one) => one.stored).length;
	step((at) => band(first, last, at, data.committed ? `committed · ${have} of ${data.stored.length} known` : "not committed yet", data.committed));
	step((at) => band(first, last, at, data.visible ? "visible" : "not visible yet", data.visible));
	readers.forEach((one, place) =>
		step((at) => arrow(x_of(lead), x_of(data.stored.length + 1 + place), at, one.read ? `read · cursor ${count(one.cursor)}` : `not yet · cursor ${count(one.cursor)}`, one.read ? "done" : "open")));
	const height = y + 4;
	return drawing({ title: "Sequence diagram of the message", detail: "The steps below have the same content", width, height, key: "sequence" },
		arrowheads(),
		actors.map((actor, at) => head(actor, x_of(at), column, height, actor.peer === data.lead)), parts);
}

function arrowheads() {
	return s("defs", ["done", "open"].map((tone) =>
		s("marker", { id: `head-${tone}`, viewBox: "0 0 10 10", refX: 9, refY: 5, markerWidth: 7, markerHeight: 7, orient: "auto-start-reverse" }, s("path", { d: "M0 0 10 5 0 10z", class: `arrowhead ${tone}` }))));
}

function head(actor, x, column, height, leads) {
	const half = Math.min(column - 8, 130) / 2, chars = Math.floor((half * 2 - 8) / 7.5);
	const name = actor.name.length > chars ? `${actor.name.slice(0, chars - 1)}…` : actor.name;
	return s("g", { class: `actor ${actor.kind} ${leads ? "leads" : ""}` },
		line(x, HEAD - 8, x, height, "thread"),
		box(x - half, 4, half * 2, 34, actor.kind === "peer" ? 8 : 17),
		words(x, 26, name, "strong", "middle"), s("title", leads ? `${actor.name}, leads the lane` : actor.name));
}

function arrow(from, to, y, text, tone) {
	const way = to > from ? 1 : -1, open = to - way * 2;
	return s("g", { class: `step ${tone}` },
		s("line", { x1: from + way * 5, x2: open, y1: y, y2: y, "marker-end": `url(#head-${tone})` }),
		text && label((from + to) / 2, y - 7, text));
}

// Text on a background, so that lines do not cross it.
function label(x, y, text) {
	const half = text.length * 3.4 + 5;
	return s("g", box(x - half, y - 12, half * 2, 16, 3, "paper"), words(x, y, text, "small ink", "middle"));
}

function mark(x, y, text, tone) {
	return s("g", { class: `step ${tone}` }, dot(x, y, 5, "mark"), label(x, y + 20, text));
}

const own = (x, y, text, tone) =>
	s("g", { class: `step ${tone}` }, s("path", { d: `M${x} ${y - 8}h22v16h-20`, fill: "none", "marker-end": `url(#head-${tone})` }), dot(x, y + 8, 5, "mark"), label(x, y + 28, text));

const band = (from, to, y, text, done) =>
	s("g", { class: `band ${done ? "done" : "open"}` }, box(from, y - 13, to - from, 26, 13), words((from + to) / 2, y + 4, text, "", "middle"));
