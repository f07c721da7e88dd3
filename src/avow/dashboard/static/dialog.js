// Confirmation of actions that cannot be undone, the form for the token, and the token's rights.

import { h, problem } from "./dom.js";
import { may, set_token, who } from "./api.js";

// True if the action was confirmed, false if the dialog was closed in any other way.
export function confirm_that({ title, text, action }) {
	return new Promise((resolve) => {
		const dialog = h("dialog", { "aria-labelledby": "dialog-title", class: "ask" },
			h("form", { method: "dialog" },
				h("h2", { id: "dialog-title" }, title), h("p", text),
				h("div.row", h("button", { value: "" }, "Cancel"), h("button", { value: "yes", class: "danger" }, action))));
		dialog.addEventListener("close", () => {
			resolve(dialog.returnValue === "yes");
			dialog.remove();
		});
		document.body.append(dialog);
		dialog.showModal();
	});
}

export function token_form(error) {
	const given = (event) => {
		event.preventDefault();
		const { value } = event.target.elements.token;
		if (value.trim()) set_token(value.trim());
	};
	return h("section", { class: "narrow", "aria-label": "A token is needed", "data-key": "token form" },
		h("h1", { tabindex: -1 }, "A token is needed"),
		h("p", "Access to this cluster needs a token. Its administrator issues tokens."), problem(error),
		h("form", { onsubmit: given, class: "stack" }, h("label", { for: "token" }, "Token"),
			h("input", { id: "token", name: "token", type: "password", autocomplete: "off", required: true, spellcheck: "false" }),
			h("p.hint", "The token is stored in this tab until you close it, and sent only to peers of this cluster."),
			h("button.main", "Use this token")));
}

// The rights of the token as text.
export function rights_panel() {
	const me = who();
	if (!me) return null;
	const patterns = Object.entries(me.rights);
	const lines = me.admin ? ["do everything, including changing the cluster's peers"]
		: patterns.length ? patterns.map(([pattern, rights]) => `${rights.join(", ")} on queues ${pattern}`) : ["nothing"];
	return h("div.rights", h("p", me.token ? `Token “${me.name}” may:` : "This peer needs no token. You may:"),
		h("ul", lines.map((line) => h("li", line))),
		me.token && h("button", { onclick: () => set_token("") }, "Forget this token"));
}

// A button that needs a right. Without the right it is disabled and shows the reason.
export function action(text, { right, queue, onclick, look = "", disabled = "" }) {
	const reason = may(right, queue) ? disabled : `your token has no right to ${right} on ${queue}`;
	const type = onclick ? "button" : "submit";
	return [h("button", { type, class: look, disabled: reason !== "", title: reason || null, onclick }, text),
		reason && h("small.hint", reason)];
}
