// A pledge's attempts over time: one line for the checkback and one per branch, with a mark per attempt.

import { box, drawing, line, s, words } from "./dom.js";
import { duration } from "./format.js";
import { line_of } from "./pledge.js";
import { ticks } from "./plot.js";

const LABEL = 92, ROW = 34, TOP = 26, RIGHT = 16, ROWS_MAX = 16;
const TONES = { SUCCESS: "good", FAILURE: "warn", ONGOING: "calm", ERROR: "bad" };

export function timeline(pledge, width) {
	const { attempts, branches, created_ms, finished_ms, next_at_ms } = pledge;
	const asked = attempts.some((one) => one.branch_id === "00") || pledge.checkback;
	const lines = [...(asked ? ["00"] : []), ...branches.map((one) => one.branch_id)].slice(0, ROWS_MAX);
	const last = Math.max(created_ms + 100, finished_ms ?? 0, ...attempts.map((one) => one.at_ms + one.took_ms), next_at_ms && next_at_ms - created_ms < 864e5 ? next_at_ms : 0);
	const x_of = (at_ms) => LABEL + Math.min(1, Math.max(0, (at_ms - created_ms) / (last - created_ms))) * (width - LABEL - RIGHT);
	const height = TOP + lines.length * ROW + 30, bottom = TOP + lines.length * ROW;
	const y_of = (branch_id) => TOP + (lines.indexOf(branch_id) + 0.5) * ROW;
	const marks = [[created_ms, "created", "start"], finished_ms && [finished_ms, pledge.status, "end"], next_at_ms && next_at_ms <= last && [next_at_ms, "next attempt", "end"]].filter(Boolean);
	return drawing({ title: "Timeline of the pledge", detail: "The table below has the same data", width, height, key: "timeline" },
		ticks((last - created_ms) / 1000, Math.max(2, Math.floor(width / 140))).map((at_s) => tick(x_of(created_ms + at_s * 1000), bottom, at_s)),
		lines.map((id) => s("g", words(4, y_of(id) + 4, line_of(id), "small ink"), line(LABEL, y_of(id), width - RIGHT, y_of(id), "track"))),
		marks.map(([at_ms, text, anchor]) => s("g.moment", line(x_of(at_ms), TOP - 6, x_of(at_ms), bottom), words(x_of(at_ms), TOP - 11, text, "small", anchor))),
		attempts.filter((one) => lines.includes(one.branch_id)).map((one) => attempt(one, x_of, y_of(one.branch_id), created_ms)));
}

function tick(x, bottom, at_s) {
	return s("g.tick", line(x, TOP, x, bottom + 4), words(x, bottom + 18, at_s ? `+${duration(at_s * 1000)}` : "0", "small", "middle"));
}

function attempt(one, x_of, y, created_ms) {
	const from = x_of(one.at_ms), wide = Math.max(10, x_of(one.at_ms + one.took_ms) - from);
	return s("g", { class: `attempt ${TONES[one.verdict] ?? ""}` }, box(from - 5, y - 9, wide, 18, 5),
		s("title", `${line_of(one.branch_id)}, +${duration(one.at_ms - created_ms)}: ${one.verdict} after ${duration(one.took_ms)}. ${one.text}`));
}
