// The list of pledges, newest first, filtered by status and age. The address bar holds the filters.

import { badge, field, h, link, problem, table } from "./dom.js";
import { ago, count, plural } from "./format.js";
import { get, post } from "./api.js";
import { action, confirm_that } from "./dialog.js";

export const PLEDGES = "avow.pledges"; // rights to this queue apply to pledges
const STATUSES = ["prepared", "submitted", "succeeded", "failed", "dead"];
const AGES = { "": "at any time", "5m": "in the last 5 minutes", "1h": "in the last hour", "1d": "in the last day", "7d": "in the last week" };
const AGE_MS = { "5m": 300e3, "1h": 3600e3, "1d": 86400e3, "7d": 604800e3 };
const TONES = { succeeded: "good", failed: "warn", dead: "bad" };
let failure = null;

export const pledges = { title: () => "Pledges", every_ms: 2000, load, draw, enter: () => (failure = null) };

export const status_badge = ({ status, delivery }) => [badge(status, TONES[status] ?? ""), delivery !== status && status === "submitted" && h("small.hint", ` ${delivery}`)];

function load({ status, since, position }, signal) {
	const query = new URLSearchParams({ limit: 50 });
	if (STATUSES.includes(status)) query.set("status", status);
	if (AGE_MS[since]) query.set("created_from_ms", Date.now() - AGE_MS[since]);
	if (position) query.set("position", position);
	return get(`/v1/pledges?${query}`, { signal });
}

const go = (query) => (location.hash = `#/pledges?${new URLSearchParams(Object.entries(query).filter(([, value]) => value))}`);

function choice(name, options, chosen, onchange) {
	return field(name, h("select", { onchange: (event) => onchange(event.target.value) }, options.map(([value, text]) => h("option", { value, selected: value === chosen }, text))));
}

function draw({ pledges, next_position }, params, tools) {
	const { status = "", since = "", position = "" } = params;
	const rows = pledges.map((pledge) => ({
		key: pledge.gid,
		cells: [
			link(pledge.gid, "pledges", pledge.gid),
			status_badge(pledge),
			`${pledge.branches.filter((branch) => branch.status === "succeeded").length} of ${pledge.branches.length}`,
			count(pledge.branches.reduce((sum, branch) => sum + branch.attempts, 0)),
			ago(pledge.created_ms),
			h("span.error", pledge.reason || pledge.last_error),
		],
	}));
	const filtered = status || since || position;
	return [
		h("div", { class: "row", "data-key": "choices" },
			choice("Status", [["", "any"], ...STATUSES.map((one) => [one, one])], status, (value) => go({ status: value, since })),
			choice("Created", Object.entries(AGES), since, (value) => go({ status, since: value })),
			action("Retry all waiting", { right: "write", queue: PLEDGES, onclick: () => many(tools, "retry", "Retry all waiting pledges?", "Every pledge that waits for its next attempt is tried now.") }),
			action("Redrive all dead", { right: "write", queue: PLEDGES, onclick: () => many(tools, "redrive", "Redrive all dead pledges?", "The delivery of every dead pledge is started again. Check that the receivers still want them.") })),
		failure && problem(failure),
		table("Pledges, newest first", ["Pledge", "Status", "Delivered", "#~Attempts", "Created", "~Last error"], rows,
			filtered ? "No pledge matches the filters." : ["No pledges yet. ", h("code", "client.pledge().publish(\"orders\", {…})"), " in a service creates one. A pledge is removed one day after it is finished."]),
		h("p.row", position && h("a", { href: `#/pledges?${new URLSearchParams({ status, since })}` }, "‹ newest"),
			next_position && h("a", { href: `#/pledges?${new URLSearchParams({ status, since, position: next_position })}` }, "older ›")),
	];
}

async function many(tools, what, title, text) {
	if (!(await confirm_that({ title, text, action: what === "retry" ? "Retry" : "Redrive" }))) return;
	try {
		const { changed, more } = await post(`/v1/pledges/${what}?limit=1000`);
		failure = null;
		tools.say(`${plural(changed, "pledge")} will be tried now${more ? "; there are more" : ""}`);
	} catch (error) {
		failure = error;
	}
	tools.refresh();
}
