// The page of a pledge: its branches, its attempts over time, and the possible actions.

import { badge, facts, h, panel, problem, room, table } from "./dom.js";
import { ago, clock, count, duration, exact } from "./format.js";
import { get, path_of, post } from "./api.js";
import { action, confirm_that } from "./dialog.js";
import { PLEDGES, status_badge } from "./pledges.js";
import { timeline } from "./timeline.js";

const CHECKBACK = "00", OVER = ["succeeded", "failed"];
const VERDICTS = { SUCCESS: "good", FAILURE: "warn", ONGOING: "", ERROR: "bad" };
let failure = null;

export const pledge = { title: ({ gid }) => `Pledge ${gid}`, every_ms: 1000, load: ({ gid }, signal) => get(path_of("pledges", gid), { signal }), draw, enter: () => (failure = null) };

export const line_of = (branch_id) => (branch_id === CHECKBACK ? "checkback" : `branch ${branch_id}`);

function draw(found, _, tools) {
	return [
		facts(["Status", status_badge(found)], ["Created", ago(found.created_ms)], found.finished_ms && ["Finished", ago(found.finished_ms)],
			found.next_at_ms && ["Next attempt", ago(found.next_at_ms)], ["Failures in a row", count(found.failures)], found.checkback && ["Checkback", h("code", found.checkback)],
			Object.keys(found.options).length > 0 && ["Options", Object.entries(found.options).map(([name, value]) => `${name} ${JSON.stringify(value)}`).join(", ")]),
		(found.reason || found.last_error) && h("p.problem", found.reason || found.last_error),
		actions(found, tools),
		failure && problem(failure),
		panel("Timeline", h("div.canvas", timeline(found, room())), attempt_table(found)),
		panel("Branches", branch_table(found)),
	].flat();
}

function actions(found, tools) {
	const over = OVER.includes(found.status) ? `it has ${found.status}` : "", dead = found.status === "dead";
	const act = (what, body) => async () => {
		try {
			const { status } = await post(path_of("pledges", found.gid, what), body);
			failure = null;
			tools.say(`${found.gid} is ${status}`);
		} catch (error) {
			failure = error;
		}
		tools.refresh();
		tools.redraw();
	};
	const stop = async () => {
		const text = "Its remaining branches will not be delivered, whether or not its transaction committed. Branches that were delivered are not undone.";
		if (await confirm_that({ title: "Stop this pledge?", text, action: "Stop it" })) act("stop", { reason: "stopped from the dashboard" })();
	};
	return h("div", { class: "row", "data-key": "actions" },
		action("Retry now", { right: "write", queue: PLEDGES, onclick: act("retry"), disabled: over || (dead ? "it is dead; redrive it instead" : "") }),
		action("Redrive", { right: "write", queue: PLEDGES, onclick: act("redrive"), disabled: dead ? "" : "only a dead pledge can be redriven" }),
		action("Stop …", { right: "write", queue: PLEDGES, look: "danger", onclick: stop, disabled: over || (dead ? "it is already dead" : "") }));
}

function attempt_table({ attempts, created_ms }) {
	const rows = attempts.map((one, at) => ({
		key: `${one.at_ms} ${at}`,
		cells: [h("time", { datetime: new Date(one.at_ms).toISOString(), title: exact(one.at_ms) }, clock(one.at_ms)), `+${duration(one.at_ms - created_ms)}`, line_of(one.branch_id), badge(one.verdict, VERDICTS[one.verdict] ?? ""), duration(one.took_ms), h("span.error", one.text)],
	}));
	return table("Last attempts", ["Time", "#After", "Call", "Verdict", "#~Duration", "~Answer"], rows, "No attempts yet.");
}

function branch_table({ branches }) {
	const rows = branches.map((one) => ({
		key: one.branch_id,
		cells: [one.branch_id, badge(one.status === "succeeded" ? "delivered" : "not delivered yet", one.status === "succeeded" ? "good" : ""), h("code", one.url || "(nothing to call)"), count(one.attempts), h("code.value", one.payload ?? one.payload_base64 ?? ""), h("span.error", one.last_error)],
	}));
	return table("Branches", ["Branch", "State", "Calls", "#Attempts", "~Payload", "~Last error"], rows, "The pledge has no branches.");
}
