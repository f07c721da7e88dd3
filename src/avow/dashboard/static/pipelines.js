// Pipelines: jobs between queues and tables. Each reports its status about once per second to the queue avow.pipelines.
// The page reads this queue like any other: first the last 15 minutes, then new reports.

import { badge, facts, h, link, panel, room, table } from "./dom.js";
import { ago, clock, count, duration, rate } from "./format.js";
import { get, path_of } from "./api.js";
import { follow } from "./live.js";
import { plot } from "./plot.js";

const QUEUE = "avow.pipelines", SPAN_MS = 15 * 60e3, BEFORE = 4000, POINTS_MAX = 1200, SILENT_MS = 10000, TABLE_MAX = 30;
const TONES = { running: "good", starting: "", done: "good", stopped: "warn", failed: "bad", crashed: "bad" };
const view = { reports: new Map(), live: null, tools: null, timer: 0 };

const page = { every_ms: 2000, load, enter, leave };
export const pipelines = { ...page, title: () => "Pipelines", draw: draw_all };
export const pipeline = { ...page, title: ({ name }) => `Pipeline ${name}`, draw: draw_one };

function enter(_, tools) {
	view.tools = tools;
}

function leave() {
	view.live?.stop();
	view.live = null;
	view.reports.clear();
}

async function load(_, signal) {
	try {
		const queue = await get(path_of("queues", QUEUE), { signal });
		if (!view.live) begin(queue);
		return { exists: true };
	} catch (error) {
		if (error.code !== "UNKNOWN_QUEUE") throw error;
		return { exists: false };
	}
}

function begin({ lanes }) {
	const after = Object.fromEntries(lanes.map((lane) => [lane.lane, Math.max(lane.trimmed_to, lane.end - BEFORE)]));
	view.live = follow(QUEUE, after, {
		on_state: () => {},
		on_messages(group) {
			for (const message of group) take(message);
			view.timer ||= setTimeout(() => ((view.timer = 0), view.tools.redraw()), 200);
		},
	});
}

function take({ value }) {
	const report = JSON.parse(value), known = view.reports.get(report.name) ?? [];
	known.push(report);
	view.reports.set(report.name, known.slice(-POINTS_MAX));
}

// A pipeline that was running and has not reported for SILENT_MS is shown as crashed.
function state_of(report) {
	const silent = Date.now() - report.at_s * 1000 > SILENT_MS;
	return silent && ["running", "starting"].includes(report.state) ? "crashed" : report.state;
}

const state_badge = (report) => badge(state_of(report), TONES[state_of(report)] ?? "");

const START = h("p.empty", "No pipeline has reported yet. Describe one in a file and start it with ", h("code", "avow pipeline run orders.toml"), ". It then reports here once per second.");

function draw_all({ exists }) {
	if (!exists || !view.reports.size) return START.cloneNode(true);
	const latest = [...view.reports.values()].map((known) => known.at(-1)).sort((a, b) => b.at_s - a.at_s);
	const rows = latest.map((report) => ({
		key: report.name,
		cells: [
			link(report.name, "pipelines", report.name), report.kind, state_badge(report), count(report.rows), `${rate(report.rows_per_s)}/s`, lag_of(report),
			`${count(report.batch_rows)} rows in ${duration(report.batch_s * 1000)}`, ago(report.at_s * 1000),
		],
	}));
	return table("Pipelines", ["Pipeline", "~Kind", "State", "#Rows", "#Rows/s", "#Lag (messages)", "~Last batch", "~Last report"], rows, "");
}

const lag_of = ({ lag }) => (lag === null ? "unknown" : count(lag));

function draw_one({ exists }, { name }) {
	const known = view.reports.get(name);
	if (!exists || !known) return [START.cloneNode(true), link("All pipelines", "pipelines")];
	const last = known.at(-1), to_ms = Math.max(Date.now(), last.at_s * 1000);
	const width = room(), oldest = known[0].at_s * 1000, from_ms = Math.max(to_ms - SPAN_MS, Math.min(oldest, to_ms - 120e3));
	const series = (pick) => known.map((report) => ({ at_ms: report.at_s * 1000, value: pick(report) }));
	return [
		facts(["State", state_badge(last)], ["Kind", last.kind], ["Rows", count(last.rows)], ["Batches", count(last.batches)], ["Last batch", `${count(last.batch_rows)} rows in ${duration(last.batch_s * 1000)}`],
			["Lag", last.lag === null ? "unknown" : `${count(last.lag)} messages`], ["Runs", [`process ${last.pid} on ${last.host}, started `, ago(last.started_s * 1000)]], ["Last report", ago(last.at_s * 1000)]),
		last.error && h("p.problem", last.error),
		panel("Throughput", plot({ title: "Rows per second", unit: "rows/s", points: series((report) => report.rows_per_s), from_ms, to_ms, width, format: rate, key: "throughput" })),
		panel("Lag", plot({ title: "Unprocessed messages", unit: "messages", points: series((report) => report.lag), from_ms, to_ms, width, format: (value) => count(Math.round(value)), key: "lag" })),
		panel("Reports", value_table(known)),
	];
}

function value_table(known) {
	const rows = known.slice(-TABLE_MAX).reverse().map((report, at) => ({ key: `${report.at_s} ${at}`, cells: [clock(report.at_s * 1000), report.state, count(report.rows), rate(report.rows_per_s), lag_of(report), count(report.batches)] }));
	return table(`The last ${rows.length} reports`, ["Time", "State", "#Rows", "#Rows/s", "#Lag (messages)", "#~Batches"], rows, "");
}
