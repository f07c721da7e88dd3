// Applications for both ends of a test, in a page and in Node. Each gets `connect` and what is wanted, and returns what it saw.

const text = (bytes) => new TextDecoder().decode(bytes);
const shown = (pending) => pending.map(({ number, value, fate, commit }) => ({ number, value: text(value), fate, commit }));
const failed = (error) => error && { reason: error.reason, name: error.name_, text: error.message, pending: shown(error.pending) };
const ended = (channel) => new Promise((resolve) => (channel.on_end = (error) => resolve(failed(error))));

export async function until(true_, what = `${true_}`) {
	for (let left = 1500; !true_(); ) {
		if (!left--) throw Error(`it did not come true: ${what}`);
		await new Promise((resolve) => setTimeout(resolve, 20));
	}
}

/** `count` numbered messages each way, commits among them, and everything acknowledged at the end. */
async function exchange({ connect, url, count, every, bounds, token }) {
	const report = { received: 0, wrong: [], callbacks: 0, resumes: 0 };
	const channel = connect(url, { bounds, token });
	const over = ended(channel);
	channel.on_resume = () => report.resumes++;
	channel.on_message = (bytes) => {
		if (text(bytes) !== `${report.received + 1}`) report.wrong.push(`${text(bytes)} came after ${report.received}`);
		report.received++;
	};
	for (let number = 1; number <= count; number++) {
		await channel.writable();
		channel.send(number % 2 ? `${number}` : new TextEncoder().encode(`${number}`));
		if (number % every === 0) channel.commit(() => report.callbacks++);
		if (number % 20 === 0) await new Promise((resolve) => setTimeout(resolve)); // more than one packet
	}
	await channel.commit();
	report.pending = channel.non_acked_message_count;
	await until(() => report.received >= count);
	channel.close();
	report.end = await over;
	report.generation = channel.statistics().generation;
	return report;
}

/** The other end withholds its acks until `release` is said on the control channel, a second one. */
async function suspension({ connect, url, limit }) {
	const report = { codes: [] }, channel = connect(url, { bounds: { pending_count: limit } });
	channel.on_resume = () => (report.resumed = true);
	for (let number = 1; number <= limit; number++) channel.send(`${number}`);
	report.suspended = channel.suspended;
	report.pending = channel.getNonAckedMessageCount();
	try {
		channel.send("one too many");
	} catch (error) {
		report.codes.push(error.code);
	}
	let acked = false;
	const committed = channel.commit(() => (acked = true));
	const control = connect(`${url}?control`);
	control.send("release");
	await control.commit();
	await channel.writable();
	await committed;
	await until(() => report.resumed && acked);
	report.suspended_after = channel.suspended;
	report.pending_after = channel.non_acked_message_count;
	channel.send("again");
	await channel.commit();
	channel.close();
	control.close();
	return report;
}

/** Some messages stay pending; the other end forgets the channel; what was handed back is sent on a new one. */
async function forgotten({ connect, url }) {
	const channel = connect(url), over = ended(channel), link = () => channel.statistics().link, rejected = [];
	for (const word of ["1", "2", "3"]) channel.send(word);
	await channel.commit();
	for (const word of ["4", "5", "cut"]) channel.send(word);
	channel.commit().catch((error) => rejected.push(error.reason));
	await until(() => channel.statistics().generation === 2 && link() === "up");
	for (const word of ["6", "7", "forget"]) channel.send(word);
	await until(() => link() === "down");
	channel.send("8");
	const end = await over;
	await channel.writable().catch((error) => rejected.push(error.reason));
	try {
		channel.commit();
	} catch (error) {
		rejected.push(error.reason);
	}
	const words = end.pending.filter((one) => one.value !== "cut" && one.value !== "forget");
	const resend = words.map((one) => ({ ...one, value: new TextEncoder().encode(one.value) }));
	const second = connect(url, { resend });
	await second.commit();
	second.close();
	return { end, rejected };
}

/** Nobody listens at `url`. */
async function impatient({ connect, url, patience_s }) {
	const channel = connect(url, { patience_s }), over = ended(channel);
	channel.send("kept");
	const waited = channel.commit().catch((error) => error.reason);
	channel.commit(); // nobody waits for it, and nobody has to catch
	const writable = await channel.writable();
	return { end: await over, waited: await waited, writable };
}

/** Hooks that take their time, fail, or are missing. */
async function hooks({ connect, url }) {
	const report = { order: [] };
	const slow = connect(url);
	slow.on_message = async (bytes) => {
		await new Promise((resolve) => setTimeout(resolve, 20));
		report.order.push(text(bytes));
	};
	slow.onCommit = (id) => {
		report.order.push(`commit ${id}`);
		slow.ackCommit(id);
	};
	slow.send("say a, b, commit");
	await until(() => report.order.length === 3);
	slow.close();
	const broken = connect(url), over = ended(broken);
	broken.on_message = () => {
		throw Error("no");
	};
	broken.send("say a, b, commit");
	report.broken = await over;
	const missing = connect(url), gone = ended(missing);
	missing.send("say a, b, commit");
	report.missing = (await gone).reason;
	const closing = connect(url), closed = ended(closing);
	const got = [];
	closing.on_message = (bytes) => {
		got.push(text(bytes));
		closing.close();
	};
	closing.send("say a, b, commit");
	report.closing = [await closed, got];
	return report;
}

/** What the sockets are asked for, and what they are given while their buffers are full. */
async function sockets({ connect, url }) {
	const opened = [];
	let full = true, sent = 0;
	const socket = (to, protocols) => {
		opened.push(protocols);
		const real = new WebSocket(to, "avow.channel.v1");
		Object.defineProperty(real, "bufferedAmount", { get: () => (full && sent > 0 ? 256 * 1024 + 1 : 0) });
		const send = real.send.bind(real);
		real.send = (packet) => send(packet, sent++);
		return real;
	};
	const channel = connect(url, { socket, token: "a?b>c~" });
	channel.send("waits");
	let acked = false;
	const committed = channel.commit(() => (acked = true));
	await until(() => channel.statistics().link === "up");
	await new Promise((resolve) => setTimeout(resolve, 100));
	const report = { protocols: opened[0], held: [sent, acked] };
	full = false;
	await committed;
	report.sent = sent;
	channel.close();
	return report;
}

/** The page's own signs that a connection may be had again. */
async function signs({ connect, url, dead }) {
	let attempts = 0;
	const socket = (to, protocols) => {
		attempts++;
		return new WebSocket(to, protocols);
	};
	const channel = connect(url, { socket }), report = {};
	await channel.commit();
	globalThis.dispatchEvent(new Event("online"));
	report.online_while_up = attempts;
	await until(() => channel.statistics().link === "up");
	document.dispatchEvent(new Event("visibilitychange"));
	report.visible_while_up = attempts;
	channel.close();
	await until(() => channel.statistics().link === "ended");
	globalThis.dispatchEvent(new Event("online"));
	report.after_the_end = attempts;
	attempts = 0;
	const down = connect(dead, { socket });
	await until(() => attempts > 2);
	const before = attempts;
	document.dispatchEvent(new Event("visibilitychange"));
	report.visible_while_down = attempts - before;
	down.abort();
	return report;
}

/** A peer that refuses the channel says why. */
async function refused({ connect, url }) {
	return await ended(connect(url));
}

export const APPLICATIONS = { refused, exchange, suspension, forgotten, impatient, hooks, sockets, signs };
