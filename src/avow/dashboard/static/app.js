// The frame around the pages: routing, freshness of the data, the peer in use, and the token.
//
// A page is {title, every_ms, load, draw} and may have `enter` and `leave`. `load` calls the API; `draw` turns the
// result into nodes, which are patched into the document. Only the address bar holds state across pages.

import { h, patch, problem } from "./dom.js";
import { clock, duration, host } from "./format.js";
import { learn, get, meet, on_change, talking, who } from "./api.js";
import { rights_panel, token_form } from "./dialog.js";
import { poll } from "./poll.js";
import { cluster } from "./cluster.js";
import { queues } from "./queues.js";
import { queue } from "./queue.js";
import { life } from "./life.js";
import { pledges } from "./pledges.js";
import { pledge } from "./pledge.js";
import { pipeline, pipelines } from "./pipelines.js";

const ROUTES = [
	[/^\/$/, cluster, []],
	[/^\/queues$/, queues, []],
	[/^\/queues\/([^/]+)$/, queue, ["queue"]],
	[/^\/queues\/([^/]+)\/(\d+)\/(\d+)$/, life, ["queue", "lane", "version"]],
	[/^\/pledges$/, pledges, []],
	[/^\/pledges\/([^/]+)$/, pledge, ["gid"]],
	[/^\/pipelines$/, pipelines, []],
	[/^\/pipelines\/([^/]+)$/, pipeline, ["name"]],
];
const LOST = { title: () => "Page not found", every_ms: 60000, load: async () => ({}), draw: () => h("p", h("a", { href: "#/" }, "To the cluster")) };
const PEERS_EVERY_MS = 10000, FRESH_MS = 20000;
const by_id = (id) => document.getElementById(id);
let shown = null, peers_known_ms = 0;

// ---------------------------------------------------------------------- routing

function found() {
	const [path, query = ""] = (location.hash.slice(1) || "/").split("?");
	for (const [pattern, page, names] of ROUTES) {
		const match = path.match(pattern);
		if (match) return { page, params: { ...Object.fromEntries(new URLSearchParams(query)), ...Object.fromEntries(names.map((name, at) => [name, decodeURIComponent(match[at + 1])])) }, path };
	}
	return { page: LOST, params: {}, path };
}

function show() {
	shown?.polling.stop();
	shown?.page.leave?.(shown.params);
	const { page, params, path } = found(), view = { page, params, data: null, error: null };
	const moved = shown !== null && shown.path !== path;
	shown = Object.assign(view, { path, since_ms: 0, focus: moved });
	const title = page.title(params);
	document.title = `${title} · Avow`;
	for (const one of document.querySelectorAll("nav a")) {
		const here = one.hash === "#/" ? path === "/" : `#${path}`.startsWith(one.hash);
		if (here) one.setAttribute("aria-current", "page");
		else one.removeAttribute("aria-current");
	}
	if (moved) scrollTo(0, 0);
	const work = async (signal) => {
		await prepare(signal);
		return page.load(params, signal);
	};
	view.polling = poll(work, { every_ms: page.every_ms, on_data: (data) => came(view, data), on_error: (error) => failed(view, error) });
	page.enter?.(params, tools(view));
	draw();
}

const tools = (view) => ({ redraw: () => shown === view && draw(), refresh: () => view.polling.wake(), say, data: () => view.data });

// Loads the token's rights before the first page, and the list of peers at intervals.
async function prepare(signal) {
	if (!who()) await meet(signal);
	if (Date.now() - peers_known_ms < PEERS_EVERY_MS) return;
	learn(await get("/v1/cluster", { signal }));
	peers_known_ms = Date.now();
}

function came(view, data) {
	Object.assign(view, { data, error: null, since_ms: Date.now() });
	draw();
}

function failed(view, error) {
	view.error = error;
	draw();
	if (error.status) return error.code === "NOT_AUTHENTICATED" ? "stop" : "";
	return "";
}

// ---------------------------------------------------------------------- drawing

function draw() {
	const { page, params, data, error } = shown, main = by_id("main");
	if (error?.code === "NOT_AUTHENTICATED") patch(main, [token_form(error)]);
	else patch(main, [h("h1", { tabindex: -1, "data-key": `title ${shown.path}` }, page.title(params)), error && problem(error), content()]);
	if (shown.focus && (data || error)) {
		shown.focus = false;
		main.querySelector("h1")?.focus();
	}
	frame();
}

function content() {
	const { page, params, data, error } = shown;
	if (data) return h("div", { class: "page", "data-key": shown.path }, page.draw(data, params, tools(shown)));
	return error ? null : h("p", { class: "empty", "data-key": "waiting" }, "Loading …");
}

// The status line with the freshness of the data. Screen readers announce only a change of state.
function frame() {
	const { error, since_ms } = shown, { api, peer, others, answered_ms } = talking();
	const lost = error !== null && error.status === 0, live = !lost && Date.now() - answered_ms < FRESH_MS;
	const state = lost ? (since_ms ? `stale since ${clock(since_ms)}` : "no answer") : live ? "live" : "connecting";
	patch(by_id("fresh"), [h("span", { class: `dot ${lost ? "bad" : live ? "good" : ""}`, "aria-hidden": "true" }), h("b", state), " ", lost ? "no peer answers" : [peer ? `peer ${peer}` : "", h("span.wide", peer ? ", " : "", host(api))]]);
	patch(by_id("elsewhere"), lost && others.length ? [`No peer has answered${since_ms ? ` for ${duration(Date.now() - since_ms)}` : ""}. Open the dashboard at `,
		others.map((one, at) => [at ? ", " : "", h("a", { href: `${one.api}/dashboard/` }, `peer ${one.peer}`)]), "."] : []);
	patch(by_id("who"), [h("summary", who() ? (who().token ? who().name : "no token needed") : "token"), rights_panel() ?? h("p", "No token is set.")]);
}

let silence;
function say(text) {
	by_id("said").textContent = text;
	clearTimeout(silence);
	silence = setTimeout(() => (by_id("said").textContent = ""), 8000);
}

// ---------------------------------------------------------------------- light and dark

function theme(wanted) {
	const root = document.documentElement, button = by_id("theme");
	if (wanted === "auto") root.removeAttribute("data-theme");
	else root.setAttribute("data-theme", wanted);
	button.textContent = { auto: "◐", light: "☀", dark: "☾" }[wanted];
	button.setAttribute("aria-label", `Colours: ${wanted === "auto" ? "system setting" : wanted}. Change`);
	button.onclick = () => {
		const next = { auto: "dark", dark: "light", light: "auto" }[wanted];
		localStorage.setItem("avow.theme", next);
		theme(next);
	};
}

on_change((what) => {
	if (what === "token") return (peers_known_ms = 0), show();
	if (what === "peer") {
		peers_known_ms = 0;
		say(`Switched to another peer: ${host(talking().api)}`);
	}
	if (shown) frame();
});
document.querySelector(".skip").onclick = (event) => {
	event.preventDefault(); // the fragment after # selects the page, so it cannot be #main
	by_id("main").focus();
};
addEventListener("hashchange", show);
addEventListener("resize", () => shown?.data && draw());
addEventListener("online", () => shown?.polling.wake());
setInterval(() => shown?.error && frame(), 1000);
theme(localStorage.getItem("avow.theme") ?? "auto");
show();
