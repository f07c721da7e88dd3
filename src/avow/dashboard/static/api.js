// Requests to the cluster. One peer is used as long as it answers, then the next one.
//
// A page may call the peer that served it. Another peer allows it if the page's address belongs to its cluster. The
// token is sent in a header. Requests that change something carry a write id or are idempotent, so repeating one at a
// second peer does not execute it twice.

const TOKEN = "avow.token";
const PATIENCE_MS = 3000, PATIENCE_WRITE_MS = 15000;
const AWAY = new Set(["NO_ANSWER", "OFFLINE", "BUSY"]); // this peer cannot answer: use another one from now on
const ELSEWHERE = new Set([...AWAY, "UNKNOWN", "NOT_COORDINATOR"]); // another peer may be able to answer

export class ApiError extends Error {
	constructor(status, { code = "ERROR", message = `the peer answered ${status}`, ...details }) {
		super(message);
		Object.assign(this, details, { status, code });
	}
}

class Unreached extends ApiError {
	constructor(address, cause) {
		const why = cause.name === "TimeoutError" ? "no answer in time" : "this page cannot reach it";
		super(0, { code: "NO_ANSWER", message: `${address.api}: ${why}.`, definite: false });
	}
}

const home = { api: location.origin, peer: 0 };
const listeners = new Set();
let addresses = [home], current = home, token = sessionStorage.getItem(TOKEN) ?? "", me = null, answered_ms = 0;

export const talking = () => ({ ...current, answered_ms, others: addresses.filter((one) => one !== current) });
export const who = () => me;
export const on_change = (listener) => (listeners.add(listener), () => listeners.delete(listener));
const changed = (what) => listeners.forEach((listener) => listener(what));

export function set_token(text) {
	token = text;
	me = null;
	if (text) sessionStorage.setItem(TOKEN, text);
	else sessionStorage.removeItem(TOKEN);
	changed("token");
}

// Learns the peers' addresses from an answer about the cluster. The page's address may differ from its peer's.
export function learn({ peer, peers }) {
	current.peer = peer;
	const others = peers.filter((one) => one.api && one.state !== "gone" && one.number !== home.peer);
	const known = new Map(addresses.map((one) => [one.api, one]));
	addresses = [home, ...others.map((one) => known.get(one.api) ?? { api: one.api, peer: one.number })];
	for (const one of others) (known.get(one.api) ?? {}).peer = one.number;
	if (!addresses.includes(current)) current = home;
}

export const get = (path, options) => call("GET", path, options);
export const post = (path, body, options) => call("POST", path, { ...options, body: body ?? {} });

// `peer`: the number of the peer to ask first, because it knows most.
export async function call(method, path, { body, peer, signal } = {}) {
	const first = addresses.find((one) => peer && one.peer === peer);
	const order = [...new Set([first ?? current, current, ...addresses])];
	let failure, leave = false;
	for (const address of order) {
		try {
			const answer = await ask(address, method, path, body, signal);
			answered(address, leave);
			return answer;
		} catch (error) {
			if (signal?.aborted) throw error;
			if (!ELSEWHERE.has(error.code)) {
				answered(address, leave);
				throw error;
			}
			leave ||= address === current && AWAY.has(error.code);
			failure = !failure || failure instanceof Unreached ? error : failure;
		}
	}
	throw failure;
}

function answered(address, leave) {
	answered_ms = Date.now();
	if (!leave || address === current) return;
	current = address;
	changed("peer");
}

async function ask(address, method, path, body, signal) {
	const patience = AbortSignal.timeout(method === "GET" ? PATIENCE_MS : PATIENCE_WRITE_MS);
	const headers = { accept: "application/json" };
	if (token) headers.authorization = `Bearer ${token}`;
	if (body !== undefined) headers["content-type"] = "application/json";
	let response, text;
	try {
		response = await fetch(address.api + path, {
			method, headers, body: body === undefined ? undefined : JSON.stringify(body), credentials: "omit", cache: "no-store", redirect: "manual",
			signal: signal ? AbortSignal.any([signal, patience]) : patience,
		});
		text = await response.text();
	} catch (cause) {
		if (signal?.aborted) throw cause;
		throw new Unreached(address, cause);
	}
	// The browser would follow the redirect without the token.
	if (response.type === "opaqueredirect") throw new ApiError(307, { code: "NOT_COORDINATOR", message: `${address.api}: another peer stores this.` });
	const answer = decoded(text);
	if (!response.ok) throw new ApiError(response.status, answer?.error ?? {});
	return answer;
}

function decoded(text) {
	try {
		return JSON.parse(text);
	} catch {
		return null;
	}
}

// A channel's URL and options, at the peer in use.
export function channel_at(query) {
	const url = `${current.api.replace(/^http/, "ws")}/v1/channel?${new URLSearchParams(query)}`;
	return { url, options: token ? { token } : {} };
}

// Switches to the next peer, because the present one accepted a request but did not answer it.
export function pass_over() {
	const at = addresses.indexOf(current);
	current = addresses[(at + 1) % addresses.length];
	changed("peer");
}

export const write_id = () => [...crypto.getRandomValues(new Uint8Array(16))].map((one) => one.toString(16).padStart(2, "0")).join("");
export const path_of = (...parts) => "/v1/" + parts.map(encodeURIComponent).join("/");

// ---------------------------------------------------------------------- rights of the token

export async function meet(signal) {
	me = await get("/v1/me", { signal });
	changed("me");
	return me;
}

// The names are shell patterns; every pattern that matches adds its rights.
export function may(right, queue) {
	if (!me || me.admin) return true;
	return Object.entries(me.rights).some(([pattern, rights]) => rights.includes(right) && fits(pattern, queue));
}

function fits(pattern, name) {
	const parts = pattern.match(/\[!?\]?[^\]]*\]|[^]/gu) ?? [];
	const text = parts.map((part) => {
		if (part === "*") return "[^]*";
		if (part === "?") return "[^]";
		if (part.length > 2 && part[0] === "[") return "[" + part.slice(1, -1).replace(/^!/, "^").replace(/[\\\]]/g, "\\$&") + "]";
		return part.replace(/[.*+?^${}()|[\]\\/]/g, "\\$&");
	});
	return new RegExp(`^${text.join("")}$`, "u").test(name);
}
