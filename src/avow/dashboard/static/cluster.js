// The cluster page: peers, lanes, their coordinators, and the lag of subscribers, as a drawing and as tables.

import { badge, facts, h, link, panel, room, table } from "./dom.js";
import { bytes, count, duration, host, plural } from "./format.js";
import { get, learn, path_of } from "./api.js";
import { lane_map } from "./map.js";

const QUEUES_EACH_TIME = 8; // queues whose subscribers are loaded per poll; the others follow in the next ones
const VERSIONS_EVERY_MS = 60000;
const subscribers = new Map(), versions = new Map();
let turn = 0, versions_ms = 0;

export const cluster = { title: () => "Cluster", every_ms: 1000, load, draw };

async function load(_, signal) {
	const status = await get("/v1/cluster", { signal });
	learn(status);
	const { peers } = await get("/v1/peers", { signal });
	const names = [...new Set(status.lanes.map((lane) => lane.queue))];
	for (const name of subscribers.keys()) if (!names.includes(name)) subscribers.delete(name);
	for (let asked = 0; asked < Math.min(QUEUES_EACH_TIME, names.length); asked++) {
		const name = names[turn++ % names.length];
		subscribers.set(name, (await get(path_of("queues", name, "subscribers"), { signal })).subscribers);
	}
	await learn_versions(status, signal);
	const up = new Map(peers.map((peer) => [peer.number, peer.connected]));
	const there = status.peers.filter((peer) => peer.state !== "gone").sort((a, b) => a.number - b.number);
	const lanes = status.lanes.map(with_cursors).sort((a, b) => a.own - b.own || a.queue.localeCompare(b.queue) || a.lane - b.lane);
	return { ...status, peers: there.map((peer) => ({ ...peer, up: up.get(peer.number) ?? false, version: versions.get(peer.number) })), lanes };
}

// Each peer knows only its own version.
async function learn_versions({ peer, peers, version }, signal) {
	versions.set(peer, version);
	if (Date.now() - versions_ms < VERSIONS_EVERY_MS) return;
	versions_ms = Date.now();
	for (const other of peers.filter((one) => one.number !== peer && one.state !== "gone")) {
		const answer = await get("/v1/cluster", { peer: other.number, signal });
		versions.set(answer.peer, answer.version);
	}
}

function with_cursors(lane) {
	const readers = subscribers.get(lane.queue) ?? [];
	const cursors = readers.map(({ name, versions }) => ({ name, at: versions[lane.lane] ?? 0 }));
	return { ...lane, own: lane.queue.startsWith("avow."), cursors: cursors.map((one) => ({ ...one, lag: Math.max(0, lane.end - Math.max(one.at, lane.trimmed_to)) })).sort((a, b) => b.lag - a.lag) };
}

function draw(data) {
	const up = data.peers.filter((peer) => peer.up).length, quorum = data.metadata.online;
	return [
		facts(
			["Peers", [badge(`${up} of ${data.peers.length} up`, up === data.peers.length ? "good" : "bad")]],
			["Quorum", [badge(quorum ? "yes" : "no", quorum ? "good" : "bad")]],
			["Lanes", count(data.lanes.length)],
			["Stored by this peer", bytes(data.storage.size_bytes)],
			["Cluster", h("code", { title: data.cluster }, data.cluster.slice(0, 8))],
		),
		data.disk_full && h("p.problem", h("strong", "DISK_FULL"), " The disk of the peer that answers is full, so it refuses writes. Free space on it, or trim queues."),
		panel("Map", lane_map(data, room()), h("p.legend", h("i.key.lead"), "coordinator, or the owner of a pub-sub lane ",
			h("i.key.copy"), "a copy ", h("i.key.cursor"), "a subscriber's cursor. The bar spans from the first stored message to the last; brown: unread messages")),
		panel("Peers", peer_table(data)),
		panel("Lanes", lane_table(data)),
	];
}

function peer_table({ peers, peer: answering, metadata }) {
	const rows = peers.map((peer) => ({
		key: peer.number,
		cells: [
			`peer ${peer.number}`,
			badge(peer.up ? "up" : "down", peer.up ? "good" : "bad"),
			role_of(peer, metadata),
			peer.version || "–",
			peer.number === answering ? "answers this page" : peer.heard_ms === null ? "–" : `${duration(peer.heard_ms)} ago`,
			peer.api ? h("a", { href: `${peer.api}/dashboard/` }, host(peer.api)) : "–",
			peer.state,
		],
	}));
	return table("Peers of the cluster", ["Peer", "Link", "Role", "~Version", "~Last contact", "Address", "~State"], rows, "No peers.");
}

const role_of = (peer, metadata) => (metadata.coordinator === peer.number ? "metadata coordinator" : peer.voter ? "voter" : "learner");

function lane_table({ lanes }) {
	const rows = lanes.map((lane) => ({
		key: lane.number,
		cells: [
			[link(lane.queue, "queues", lane.queue), ` · ${lane.lane}`],
			lead_of(lane),
			lane.voters.join(", "),
			count(lane.trimmed_to),
			count(lane.end),
			lane.strategy,
			lane.cursors.length ? h("ul.bare", lane.cursors.slice(0, 5).map((one) => h("li", `${one.name} at ${count(one.at)}: `, lag_badge(one.lag)))) : "none",
		],
	}));
	const columns = ["Queue · lane", "Coordinator", "~Voters", "#~Trimmed to", "#End (version)", "~Strategy", "Subscribers"];
	return table("Lanes of the cluster", columns, rows, ["No queues yet. ", h("code", "avow queue create orders"), " creates one, ", h("code", "avow enqueue orders hello"), " writes to it."]);
}

export function lead_of(lane) {
	if (lane.ended) return "ended";
	if (lane.owner) return `owner: peer ${lane.owner}`;
	return lane.coordinator ? `peer ${lane.coordinator}` : badge("none", "bad");
}

export const lag_badge = (lag) => (lag ? badge(`${plural(lag, "message")} behind`, lag > 10000 ? "bad" : "warn") : badge("up to date", "good"));
