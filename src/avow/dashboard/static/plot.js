// A line plot of the last minutes, with round numbers on the axes. The pointer or the arrow keys show single values.

import { dot, drawing, h, line, s, words } from "./dom.js";
import { clock } from "./format.js";

const LEFT = 58, RIGHT = 12, TOP = 14, BOTTOM = 24, HEIGHT = 190;

// Round numbers from 0 up to `most`, about `wanted` of them.
export function ticks(most, wanted) {
	if (!(most > 0)) return [0];
	const rough = most / Math.max(1, wanted), power = 10 ** Math.floor(Math.log10(rough));
	const step = [1, 2, 5, 10].map((factor) => factor * power).find((one) => one >= rough);
	return Array.from({ length: Math.floor(most / step + 1e-9) + 1 }, (_, at) => Number((at * step).toPrecision(12)));
}

// `points`: {at_ms, value}, in order; null values leave a gap. The width spans from `from_ms` to `to_ms`.
export function plot({ title, unit, points, from_ms, to_ms, width, format, key }) {
	const known = points.filter((point) => point.value !== null && point.at_ms >= from_ms);
	const most = Math.max(4, ...known.map((point) => point.value)) * 1.08;
	const x_of = (at_ms) => LEFT + ((at_ms - from_ms) / (to_ms - from_ms)) * (width - LEFT - RIGHT);
	const y_of = (value) => HEIGHT - BOTTOM - (value / most) * (HEIGHT - BOTTOM - TOP);
	const minutes = ticks((to_ms - from_ms) / 60000, Math.floor(width / 130));
	const last = known.at(-1), area = path_of(points.filter((point) => point.at_ms >= from_ms), x_of, y_of);
	const reading = h("output", { class: "reading", "aria-live": "off" }, last ? `${format(last.value)} ${unit} now` : "no value yet");
	const picture = drawing({ title, detail: last ? `now ${format(last.value)} ${unit}; the table has the values` : "no value yet", width, height: HEIGHT, key },
		ticks(most, 4).map((value) => s("g.tick", line(LEFT, y_of(value), width - RIGHT, y_of(value)), words(LEFT - 6, y_of(value) + 4, format(value), "small", "end"))),
		minutes.map((minute) => words(x_of(to_ms - minute * 60000), HEIGHT - 6, minute ? `−${minute} min` : "now", "small", minute ? "middle" : "end")),
		s("path", { d: area, class: "line" }),
		s("g.hover", line(-9, TOP, -9, HEIGHT - BOTTOM), dot(-9, -9, 4)));
	return h("figure", { class: "plot", "data-key": key }, h("figcaption", h("b", title), " ", h("span.hint", unit), " ", reading), hovering(picture, { known, x_of, y_of, format, unit, key }));
}

// A gap of more than 15 s without reports interrupts the line.
function path_of(points, x_of, y_of) {
	let path = "", before = null;
	for (const point of points) {
		if (point.value !== null) path += `${before?.value !== null && before && point.at_ms - before.at_ms < 15000 ? "L" : "M"}${x_of(point.at_ms).toFixed(1)} ${y_of(point.value).toFixed(1)}`;
		before = point;
	}
	return path || "M0 0";
}

function hovering(picture, { known, x_of, y_of, format, unit }) {
	let at = known.length - 1;
	const show = (target, point) => {
		const figure = target.closest("figure"), [line, dot] = figure.querySelector(".hover").children;
		line.setAttribute("x1", x_of(point.at_ms));
		line.setAttribute("x2", x_of(point.at_ms));
		dot.setAttribute("cx", x_of(point.at_ms));
		dot.setAttribute("cy", y_of(point.value));
		figure.querySelector("output").textContent = `${format(point.value)} ${unit} at ${clock(point.at_ms)}`;
	};
	picture.setAttribute("tabindex", "0");
	picture.onpointermove = (event) => {
		if (!known.length) return;
		const x = event.clientX - event.currentTarget.getBoundingClientRect().left;
		show(event.currentTarget, known.reduce((near, point) => (Math.abs(x_of(point.at_ms) - x) < Math.abs(x_of(near.at_ms) - x) ? point : near)));
	};
	picture.onkeydown = (event) => {
		const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
		if (!by || !known.length) return;
		event.preventDefault();
		at = Math.min(known.length - 1, Math.max(0, at + by));
		show(event.currentTarget, known[at]);
	};
	return picture;
}
