// Formats numbers with units, and times.

import { h } from "./dom.js";

export const count = (number) => (number === null || number === undefined ? "–" : number.toLocaleString("en"));
export const plural = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;

export function rate(number) {
	if (number === null || number === undefined) return "–";
	return number >= 10 || number === 0 ? count(Math.round(number)) : number.toFixed(1);
}

export function bytes(number) {
	const units = ["B", "KiB", "MiB", "GiB", "TiB"];
	let at = 0;
	for (; number >= 1024 && at < units.length - 1; at++) number /= 1024;
	return `${at && number < 10 ? number.toFixed(1) : Math.round(number)} ${units[at]}`;
}

export function duration(ms) {
	const seconds = Math.abs(ms) / 1000;
	if (seconds < 0.9995) return `${Math.round(seconds * 1000)} ms`;
	if (seconds < 10) return `${Number(seconds.toFixed(1))} s`;
	if (seconds < 90) return `${Math.round(seconds)} s`;
	if (seconds < 90 * 60) return `${Math.round(seconds / 60)} min`;
	if (seconds < 36 * 3600) return `${Math.round(seconds / 3600)} h`;
	return `${Math.round(seconds / 86400)} d`;
}

const pad = (number, width = 2) => String(number).padStart(width, "0");

export function clock(at_ms) {
	const at = new Date(at_ms);
	return `${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}`;
}

export function exact(at_ms) {
	const at = new Date(at_ms);
	return `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())} ${clock(at_ms)}.${pad(at.getMilliseconds(), 3)}`;
}

// "3 s ago", with the exact time as the title. If this machine's clock differs from the peer's, so does the text.
export function ago(at_ms) {
	if (!at_ms) return "–";
	const passed = Date.now() - at_ms;
	const text = passed < -1000 ? `in ${duration(passed)}` : passed < 1000 ? "just now" : `${duration(passed)} ago`;
	return h("time", { datetime: new Date(at_ms).toISOString(), title: exact(at_ms) }, text);
}

export function retention({ age_s, size_bytes, passed }) {
	const rules = [
		age_s && `after ${duration(age_s * 1000)}`,
		size_bytes && `beyond ${bytes(size_bytes)}`,
		passed && "once all subscribers have read them",
	].filter(Boolean);
	return rules.length ? `removed ${rules.join(", or ")}` : "kept until trimmed";
}

export const host = (address) => address.replace(/^https?:\/\//, "");
