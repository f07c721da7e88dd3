// Forms to write to a queue and to trim it.

import { field, h } from "./dom.js";
import { count, plural } from "./format.js";
import { may, path_of, post, write_id } from "./api.js";
import { action, confirm_that } from "./dialog.js";

const done = { text: "", error: null, queue: "" };

function outcome(queue) {
	if (done.queue !== queue) return null;
	return done.error ? h("p", { class: "problem", role: "alert" }, h("strong", done.error.code), " ", done.error.message) : h("p.hint", done.text);
}

async function attempt(queue, tools, work) {
	try {
		Object.assign(done, { text: await work(), error: null, queue });
		tools.say(done.text);
	} catch (error) {
		Object.assign(done, { error, queue });
	}
	tools.redraw();
	tools.refresh();
}

export function write_form(queue, tools) {
	const own = queue.startsWith("avow.") ? "internal queues cannot be written to" : "";
	const usable = may("write", queue) && !own;
	const submit = (event) => {
		event.preventDefault();
		const { key, value } = event.target.elements, id = write_id();
		const message = { value: value.value, ...(key.value && { key: key.value }) };
		attempt(queue, tools, async () => {
			const { written } = await post(`${path_of("queues", queue, "messages")}?write_id=${id}`, { messages: [message] });
			value.value = "";
			value.focus();
			return written.map((one) => `Stored by a quorum as version ${count(one.first_version)} of lane ${one.lane}.`).join(" ");
		});
	};
	return [
		h("form", { onsubmit: submit, class: "row", "data-key": "write" },
			field("Key", h("input", { name: "key", size: 12, disabled: !usable, placeholder: "optional" })),
			field("Value", h("input.grow", { name: "value", required: true, disabled: !usable }), "grow"),
			action("Write", { right: "write", queue, look: "main", disabled: own })),
		outcome(queue),
	];
}

export function trim_form({ name, lanes }, tools) {
	const own = name.startsWith("avow.") ? "internal queues cannot be trimmed" : "";
	const usable = may("manage", name) && lanes.length > 0 && !own;
	const submit = async (event) => {
		event.preventDefault();
		const { lane, upto } = event.target.elements, number = Number(lane.value), version = Number(upto.value);
		const known = lanes.find((one) => one.lane === number), gone = Math.max(0, Math.min(version, known.end) - known.trimmed_to);
		const sure = await confirm_that({
			title: `Trim lane ${number} of ${name}?`,
			text: `${plural(gone, "message")}, up to version ${count(version)}, will be permanently removed from every peer. Messages that a subscriber holds are kept.`,
			action: "Trim",
		});
		if (!sure) return;
		attempt(`${name} trim`, tools, async () => {
			const { trimmed_to } = await post(path_of("queues", name, "trim"), { lane: number, upto_version: version });
			return `Lane ${number} is trimmed to version ${count(trimmed_to)}.`;
		});
	};
	return [
		h("p.hint", "Removes the oldest messages of a lane, up to those that a subscriber holds."),
		h("form", { onsubmit: submit, class: "row", "data-key": "trim" },
			field("Lane", h("select", { name: "lane", disabled: !usable }, lanes.map((lane) => h("option", { value: lane.lane }, lane.lane)))),
			field("Up to version", h("input", { name: "upto", type: "number", min: 1, required: true, disabled: !usable })),
			action("Trim …", { right: "manage", queue: name, look: "danger", disabled: own })),
		outcome(`${name} trim`),
	];
}
