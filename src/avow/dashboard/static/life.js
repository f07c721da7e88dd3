// The page of a message: which peers stored it, whether it is committed and visible, which subscribers read it.

import { badge, facts, h, link, panel, room } from "./dom.js";
import { ago, count, exact } from "./format.js";
import { get, path_of } from "./api.js";
import { sequence } from "./sequence.js";

export const life = { title: ({ queue, lane, version }) => `Message ${version} of ${queue}, lane ${lane}`, every_ms: 1000, load, draw };

// Asks the lane's coordinator first, since it knows most about the message.
async function load({ queue, lane, version }, signal) {
	const found = await get(path_of("queues", queue), { signal });
	const known = found.lanes.find((one) => one.lane === Number(lane));
	const answer = await get(`${path_of("queues", queue, "messages", lane, version)}/life`, { peer: known?.coordinator || known?.owner || 0, signal });
	return { ...answer, lead: answer.coordinator ?? answer.owner, end: known?.end ?? 0, strategy: found.strategy };
}

function draw(data, { queue, lane, version }) {
	const { message } = data, headers = Object.entries(message.headers ?? {}), gid = message.headers?.["avow-gid"];
	const at = Number(version);
	return [
		h("p.row", link("‹ the queue", "queues", queue),
			at > 1 && link(`‹ ${count(at - 1)}`, "queues", queue, lane, at - 1), at < data.end && link(`${count(at + 1)} ›`, "queues", queue, lane, at + 1)),
		panel("History", h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Sequence" }, sequence(data, room())), h("ol.steps", steps(data).map((step) => h("li", step)))),
		panel("The message",
			facts(["Written", [ago(data.created_ms), " ", h("span.hint", exact(data.created_ms))]], ["Key", message.key ?? message.key_base64 ?? "none"],
				["Committed", badge(data.committed ? "yes" : "not yet", data.committed ? "good" : "warn")], ["Visible", badge(data.visible ? "yes" : "not yet", data.visible ? "good" : "warn")],
				gid && ["Pledge", link(gid, "pledges", gid)]),
			headers.length > 0 && facts(...headers),
			h("pre", { class: "value", tabindex: 0, "aria-label": "value" }, message.value ?? `base64 ${message.value_base64}`)),
	];
}

// The content of the drawing as text.
function steps({ committed, created_ms, lead, stored, strategy, subscribers, visible }) {
	const have = stored.filter((one) => one.stored).length;
	const state = { true: "has stored it", false: "has not stored it yet", null: "has an unknown state" };
	return [
		`Written at ${exact(created_ms)}.${lead ? ` Peer ${lead} ${strategy === "pub-sub" ? "owns" : "coordinates"} the lane.` : " The lane has no known coordinator now."}`,
		...stored.map((one) => `Peer ${one.peer} ${state[one.stored]}.`),
		committed ? `Committed: a quorum has stored it, ${have} of ${stored.length} peers are known.` : "Not committed yet: no quorum is known to have stored it.",
		visible ? "Visible to readers." : "Not visible yet: its transaction is not published, or it is not committed.",
		...(subscribers.length ? subscribers.map((one) => (one.read ? `Read by ${one.name}, whose cursor is at ${count(one.cursor)}.` : `Not read by ${one.name} yet: its cursor is at ${count(one.cursor)}.`)) : ["The queue has no subscribers."]),
	];
}
