// What is wrong with options is said before anything is opened. Prints the codes.
import { connect, Core } from "../../src/avow/channel/browser/avow-channel.js";

const id = new Uint8Array(16);
const code_of = (act) => {
	try {
		act();
		return "";
	} catch (error) {
		return error.code ?? error.name;
	}
};
const bounds = [{ pending_count: 0 }, { pending_bytes: 0 }, { cap_count: 4095 }, { cap_bytes: 20 * 2 ** 20 - 1 }, {}];
const resend = Array(4097).fill({ value: id, commit: 0 });
console.log(JSON.stringify({
	bounds: bounds.map((one) => code_of(() => Core({ channel: id, token: id, bounds: one }))),
	resend: code_of(() => connect("ws://127.0.0.1:1/", { resend })),
	url: code_of(() => connect("no address", { socket: () => null.open() })),
}));
