// Creates elements from data and updates the document with minimal changes.
//
// Pages are drawn completely, about once per second, from the API's answers. Replacing the document would lose focus,
// selection and scroll positions, so `patch` changes only what differs. Text is only inserted as text nodes and
// attributes: the content of a queue is never parsed as HTML.

const SVG = "http://www.w3.org/2000/svg";
const HANDLERS = ["onclick", "onsubmit", "oninput", "onchange", "onkeydown", "onpointermove", "onpointerleave", "onblur"];

// h("p.hint", {title: "…"}, "text", …): the attributes are optional.
function make(element, classes, [first, ...rest]) {
	const given = first?.constructor === Object;
	if (classes.length) element.setAttribute("class", classes.join(" "));
	for (const [name, value] of Object.entries(given ? first : {})) {
		if (value === null || value === undefined || value === false) continue;
		if (name.startsWith("on")) element[name] = value;
		else element.setAttribute(name, value === true ? "" : value);
	}
	element.append(...nodes(given ? rest : [first, ...rest]));
	return element;
}

function nodes(children) {
	const shown = [children].flat(Infinity).filter((one) => one !== null && one !== undefined && one !== false);
	return shown.map((one) => (one instanceof Node ? one : document.createTextNode(String(one))));
}

export function h(name, ...given) {
	const [tag, ...classes] = name.split(".");
	return make(document.createElement(tag), classes, given);
}

export function s(name, ...given) {
	const [tag, ...classes] = name.split(".");
	return make(document.createElementNS(SVG, tag), classes, given);
}

// Children with a `data-key` are matched by key, the others by position.
export function patch(parent, wanted) {
	const fresh = nodes(wanted);
	const keyed = new Map([...parent.children].map((child) => [child.dataset.key, child]));
	fresh.forEach((node, place) => {
		const at = parent.childNodes[place] ?? null, key = node.dataset?.key;
		const old = key ? keyed.get(key) : at?.dataset?.key ? null : at;
		if (!old || !alike(old, node)) return parent.insertBefore(node, at);
		if (old !== at) parent.insertBefore(old, at);
		if (old !== node) update(old, node);
	});
	while (parent.childNodes.length > fresh.length) parent.lastChild.remove();
}

const alike = (old, node) => old.nodeType === node.nodeType && old.nodeName === node.nodeName;

function update(old, node) {
	if (old.nodeType !== Node.ELEMENT_NODE) {
		if (old.nodeValue !== node.nodeValue) old.nodeValue = node.nodeValue;
		return;
	}
	if (old.hasAttribute("selected") !== node.hasAttribute("selected")) old.selected = node.hasAttribute("selected");
	for (const { name } of [...old.attributes])
		if (!node.hasAttribute(name) && !(name === "open" && old.nodeName === "DETAILS")) old.removeAttribute(name);
	for (const { name, value } of node.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
	for (const name of HANDLERS) if (old[name] !== node[name]) old[name] = node[name];
	patch(old, [...node.childNodes]);
}

// ---------------------------------------------------------------------- shared elements

// A column is given by its name, prefixed with # for numbers and ~ to hide it on phones. The first cell is the row header.
export function table(caption, columns, rows, empty) {
	if (!rows.length) return h("p.empty", empty);
	const look = columns.map((column) => column.match(/^(#?)(~?)(.*)$/));
	const style = ([, numeric, wide]) => (numeric && "number ") + (wide && "wide") || null;
	const body = rows.map(({ key, cells }) =>
		h("tr", { "data-key": key }, cells.map((cell, at) => h(at ? "td" : "th", { class: style(look[at]), scope: at ? null : "row" }, cell))));
	return h("div.scroll", { role: "region", tabindex: 0, "aria-label": caption, "data-key": `table ${caption}` },
		h("table", h("caption.unseen", caption),
			h("thead", h("tr", look.map((column) => h("th", { scope: "col", class: style(column) }, column[3])))), h("tbody", body)));
}

export const field = (name, control, look = "") => h("label", { class: `inline ${look}` }, name, control);

// ---------------------------------------------------------------------- drawing

export const words = (x, y, said, look = null, anchor = null) => s("text", { x, y, class: look, "text-anchor": anchor }, said);
export const line = (x1, y1, x2, y2, look = null) => s("line", { x1, y1, x2, y2, class: look });
export const box = (x, y, width, height, rx, look = null) => s("rect", { x, y, width, height, rx, class: look });
export const dot = (cx, cy, r, look = null) => s("circle", { cx, cy, r, class: look });

// The width available for a drawing: that of the page without the margins of the page and the panel.
export const room = () => Math.max(280, document.getElementById("main").clientWidth - (innerWidth > 680 ? 82 : 50));

export function drawing({ title, detail = "", width, height, key }, ...parts) {
	return s("svg", { role: "img", viewBox: `0 0 ${width} ${height}`, width, height, "aria-label": detail ? `${title}. ${detail}` : title, "data-key": key },
		s("title", title), parts);
}

export const badge = (text, tone = "") => h("span", { class: `badge ${tone}` }, text);
export const panel = (title, ...parts) => h("section", { "aria-label": title, "data-key": `panel ${title}` }, h("h2", title), parts);
export const facts = (...pairs) => h("dl.facts", pairs.filter(Boolean).map(([name, value]) => h("div", h("dt", name), h("dd", value))));
export const link = (text, ...path) => h("a", { href: href(...path) }, text);
export const href = (...path) => "#/" + path.map(encodeURIComponent).join("/");

// An error of the API: its code and its message.
export function problem(error) {
	const effect = error.definite === false ? "It may or may not have happened." : "";
	return h("div", { class: "problem", "data-key": "problem" }, h("strong", error.code ?? "ERROR"), " ", error.message, " ", effect);
}
