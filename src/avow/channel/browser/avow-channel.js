// A channel to Avow, the same protocol as avow.channel in Python. Usage: avow-channel.d.ts
const HELLO = 1, DATA = 2, COMMIT = 3, ACK = 4, END = 5, MAGIC = 0x68437641
const CODES = "CLOSED ABORTED UNKNOWN_CHANNEL EXPIRED IMPOSSIBLE PROTOCOL CAP_EXCEEDED FENCED REFUSED MOVED GOING".split(" ")
const VALUE_MAX = 9 << 20, COST = 64, CAP_COUNT_MIN = 4096, CAP_BYTES_MIN = 20 << 20
const ATTEMPT_MS = 10000, PAUSE_MS = 50, PAUSE_MS_MAX = 2000, POLL_MS = 20, BUFFERED_MAX = 256 << 10
const { max, min, random } = Math

export class ChannelFailed extends Error {
	constructor(text, reason = "ENDED", name_ = "", pending = []) {
		super(text || reason)
		Object.assign(this, { reason, name_, pending })
	}
}

const fail = (code, text) => {
	throw Object.assign(Error(text), { code })
}
const must = (rule) => rule || fail("PROTOCOL", "protocol violation")
const encode = (text) => new TextEncoder().encode(text)
const integer = (bytes) => bytes.reduceRight((high, byte) => high * 256 + byte, 0)
// Little-endian integers of these widths in bytes.
const pack = (widths, ...numbers) =>
	numbers.flatMap((number, i) => Array.from({ length: widths[i] }, (_, at) => number / 256 ** at))

function join(parts) {
	const bytes = new Uint8Array(parts.reduce((size, part) => size + part.length, 0))
	parts.reduce((at, part) => (bytes.set(part, at), at + part.length), 0)
	return bytes
}

// Commits at the same place share a run.
function extend(runs, id, upto, bytes) {
	const run = runs.at(-1)
	if (run?.upto === upto) run.last = id
	else runs.push({ first: id, last: id, upto, bytes })
}

function settle(runs, id) {
	let run
	while (runs[0]?.first <= id) {
		run = runs[0]
		if (run.last > id) run.first = id + 1
		else runs.shift()
	}
	return run
}

export function Core({ channel, token, initiator = true, bounds = {}, window_s = 0, last_commit = 0 }) {
	const { pending_count = 4096, pending_bytes = 8 << 20, cap_count = 1 << 16, cap_bytes = 32 << 20 } = bounds
	if (min(pending_count, pending_bytes) < 1 || cap_count < CAP_COUNT_MIN || cap_bytes < CAP_BYTES_MIN)
		fail("INVALID_REQUEST", "bounds are too low")
	let link = "down", generation = 0, fresh = initiator, suspended = false, hello_due, farewell
	let count_max = CAP_COUNT_MIN, bytes_max = CAP_BYTES_MIN
	// What a socket must still carry follows from these numbers.
	let released_to = 0, delivered_to = 0, given_to = 0, ever_given_to = 0, sent_to = 0, size = 0
	let commits = last_commit, acked = commits, commits_given_to = commits, commits_ever_given_to = commits
	let received_to = 0, commits_received_to = 0, acknowledged = 0, ack_due, came = 0, covered_to = 0, covered = 0
	const values = [], runs = [], delivered = [], events = []

	const attached = (from = generation) => from === generation && link !== "down" && link !== "ended"
	const load = () => max(values.length / min(pending_count, count_max), size / min(pending_bytes, bytes_max - VALUE_MAX - COST))
	const at_limit = () => !suspended && load() >= 1
	const knows = (bytes) => `${bytes}` === `${[channel, token]}`
	const tell = (...event) => events.push(event)

	function alive() {
		if (link === "ended") throw new ChannelFailed("this channel has ended")
	}

	function send(value) {
		alive()
		if (suspended) fail("BUSY", "not sent: suspended")
		if (value.length > VALUE_MAX) fail("TOO_LARGE", "not sent")
		values.push(value)
		size += value.length + COST
		sent_to++
		if (at_limit()) commit()
		return sent_to
	}

	function commit() {
		alive()
		extend(runs, ++commits, sent_to)
		if (at_limit()) {
			suspended = true
			tell("Suspended")
		}
		return commits
	}

	function resend(pending) {
		pending.forEach(({ value, commit: id }, i) => {
			commits = max(commits, id - 1)
			send(value)
			if (id && id !== pending[i + 1]?.commit && runs.at(-1)?.upto !== sent_to) commit()
		})
	}

	function ack_commit(id) {
		if (link === "ended" || (id > 0 && id <= acknowledged)) return
		if (!delivered.some((run) => run.first <= id && id <= run.last)) fail("INVALID_REQUEST", `commit ${id} was never delivered`)
		acknowledged = id
		ack_due = true
		const run = settle(delivered, id)
		covered_to = run.upto
		covered = run.bytes
	}

	function end(code, text = "", name = "", remote = false) {
		if (link === "ended") return
		if (!remote && attached()) {
			const texts = [name, text].map((one) => encode(one).subarray(0, 4096)), sizes = texts.map((one) => one.length)
			farewell = join([pack("118822", END, CODES.indexOf(code), acknowledged, received_to, ...sizes), ...texts])
		}
		link = "ended"
		const pending = values.map((value, i) => {
			const number = released_to + i + 1
			const fate = number <= delivered_to ? "delivered" : number <= ever_given_to ? "unknown" : "unsent"
			return { number, value, fate, commit: runs.find((run) => run.upto >= number)?.first ?? 0 }
		})
		tell("Ended", new ChannelFailed(text, code, name, pending), remote)
	}

	function attach(next) {
		link = "greeting"
		hello_due = true
		return (generation = next)
	}

	function received(from, packet) {
		try {
			if (attached(from)) hear(packet)
		} catch (error) {
			end("PROTOCOL", error.message)
		}
	}

	function hear(packet) {
		let at = 0
		const slice = (size) => must(at + size <= packet.length) && packet.subarray(at, (at += size))
		const number = (width = 8) => {
			const value = integer(slice(width))
			return must(Number.isSafeInteger(value)) && value
		}
		while (at < packet.length && attached()) {
			const kind = number(1)
			must(kind === END || (kind === HELLO) === (link === "greeting"))
			if (kind === HELLO) {
				must(number(4) === MAGIC && number(2) % 256 === 1 && knows(slice(32)) && number(4) === generation)
				hear_hello(number(), number() || last_commit, number(), number(4), number(4), number(4))
			} else if (kind === DATA) {
				const first = number(), count = number(4), sizes = []
				while (sizes.length < count) sizes.push(number(4))
				must(count && sizes.every((size) => size <= VALUE_MAX))
				const values = sizes.map(slice), bytes = sizes.reduce((sum, size) => sum + size + COST, came)
				if (received_to + count - covered_to > cap_count || bytes - covered > cap_bytes) return end("CAP_EXCEEDED")
				must(first === received_to + 1)
				received_to += count
				came = bytes
				tell("Messages", first, values)
			} else if (kind === COMMIT) {
				const id = number(), upto = number()
				must(upto === received_to && id > commits_received_to)
				commits_received_to = id
				extend(delivered, id, upto, came)
				tell("CommitDelivered", id, upto)
			} else if (kind === ACK) hear_ack(number())
			else {
				must(kind === END)
				const code = CODES[number(1)] ?? "ABORTED", id = number(), to = number(), sizes = [number(2), number(2)]
				const [name, text] = sizes.map((size) => new TextDecoder().decode(slice(size)))
				if (code === "FENCED") return (link = "down")
				if (id <= commits_given_to) hear_ack(id)
				if (code !== "UNKNOWN_CHANNEL" && (to || link === "up") && to >= released_to && to <= ever_given_to) ever_given_to = delivered_to = max(delivered_to, to)
				end(code, text, name, true)
			}
		}
	}

	function hear_hello(to, has, has_acked, count, bytes, window) {
		const has_ack = has_acked || last_commit
		if (
			to < released_to || to > ever_given_to || has_ack < acked || has_ack > has || has > commits_ever_given_to ||
			runs.some((run) => (run.first > has ? run.upto < to : run.upto > to))
		) return end("IMPOSSIBLE")
		must(count >= CAP_COUNT_MIN && bytes >= CAP_BYTES_MIN)
		link = "up"
		fresh = false
		given_to = to
		commits_given_to = has
		delivered_to = max(delivered_to, to)
		count_max = count
		bytes_max = bytes
		if (initiator) window_s = window || window_s
		tell("Connected", generation)
		hear_ack(has_acked)
		if (at_limit()) commit()
	}

	function hear_ack(id) {
		must(id <= commits_given_to)
		if (id <= acked) return
		acked = id
		const upto = settle(runs, id)?.upto ?? released_to
		for (const value of values.splice(0, upto - released_to)) size -= value.length + COST
		released_to = upto
		tell("CommitAcked", id)
		if (suspended && load() <= 0.5) {
			suspended = false
			tell("Resumed")
		}
	}

	function packet(size_bytes = 64 << 10) {
		const parts = farewell ? [farewell] : []
		farewell = null
		if (hello_due && attached()) {
			hello_due = ack_due = false
			const numbers = [generation, received_to, commits_received_to, acknowledged, cap_count, cap_bytes, window_s]
			parts.push(pack("1411", HELLO, MAGIC, 1, fresh), channel, token, pack("4888444", ...numbers))
		}
		if (link !== "up") return join(parts)
		if (ack_due) parts.push(pack("18", ACK, acknowledged))
		ack_due = false
		for (let left = size_bytes; left > 0 && (given_to < sent_to || commits_given_to < commits); ) {
			const run = runs.find((run) => run.last > commits_given_to), upto = run ? run.upto : sent_to
			if (given_to < upto) {
				const rest = values.slice(given_to - released_to, upto - released_to), before = left
				const chosen = rest.filter((value, i) => (left -= value.length + 4) >= 0 || (!i && before === size_bytes)), count = chosen.length
				if (count) parts.push(pack("184", DATA, given_to + 1, count), ...chosen.map((value) => pack("4", value.length)), ...chosen)
				given_to += count
				ever_given_to = max(ever_given_to, given_to)
			} else {
				commits_given_to = commits_given_to < run.first ? run.first : run.last
				commits_ever_given_to = max(commits_ever_given_to, commits_given_to)
				parts.push(pack("188", COMMIT, commits_given_to, upto))
				left -= 17
			}
		}
		return join(parts)
	}

	return {
		send, commit, resend, ack_commit, end, packet, received,
		socket: () => attach(generation + 1),
		greeted(packet) {
			const next = integer(packet.subarray(39, 43))
			if (link === "ended" || next <= generation || !knows(packet.subarray(7, 39))) return 0
			received(attach(next), packet)
			return next
		},
		lost(from) {
			if (attached(from)) link = "down"
		},
		take_events: () => events.splice(0),
		statistics: () => ({
			link, generation, sent_to, released_to, pending: values.length, pending_bytes: size, commits, acked,
			received_to, commits_received_to, acknowledged,
			sender: link === "ended" ? link : suspended ? "suspended" : "flowing",
			receiver: link === "ended" ? link : delivered.length ? "owing" : "clear",
		}),
	}
}

export function connect(url, { token, protocols = ["avow.channel.v1"], socket: open, patience_s = 30, resend = [], ...options } = {}) {
	const id = () => crypto.getRandomValues(new Uint8Array(16))
	const core = Core({ channel: id(), token: id(), ...options }), { statistics } = core, gone = new AbortController()
	let socket, timer, patience, poll, tries = 0, failure, gave_up, work = Promise.resolve(), waits = []
	core.resend(resend)
	if (token) protocols = protocols.concat("avow.bearer." + btoa(token).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", ""))

	function dial() {
		drop()
		const mine = (socket = open?.(url, protocols) ?? new WebSocket(url, protocols))
		const guard = (act) => (event) => mine === socket && soon(act(event))
		patience ??= setTimeout(end, patience_s * 1000, "EXPIRED")
		timer = setTimeout(again, ATTEMPT_MS)
		mine.binaryType = "arraybuffer"
		mine.onopen = guard(core.socket)
		mine.onmessage = guard(({ data }) => core.received(statistics().generation, new Uint8Array(data)))
		mine.onclose = mine.onerror = guard(again)
	}

	function drop() {
		const old = socket
		socket = null
		clearTimeout(timer)
		core.lost()
		old?.close()
	}

	function again() {
		drop()
		timer = setTimeout(dial, tries++ && random() * min(PAUSE_MS_MAX, PAUSE_MS * 2 ** tries))
	}

	function wake({ type }) {
		if (type === "online" || (statistics().link !== "up" && !document.hidden)) dial()
	}

	const full = () => socket?.bufferedAmount > BUFFERED_MAX
	// Messages of one turn are sent together.
	const soon = () => queueMicrotask(turn)

	function turn() {
		let bytes
		for (const [type, ...fields] of core.take_events()) on[type]?.(...fields)
		waits = waits.filter(({ done, resolve, reject }) => (done() ? resolve() : failure ? reject(failure) : true))
		clearTimeout(poll)
		while (socket && (failure || !full()) && (bytes = core.packet()).length) socket.send(bytes)
		if (failure) drop()
		else if (full()) poll = setTimeout(turn, POLL_MS)
	}

	const end = (...how) => soon((gave_up = true), core.end(...how))
	const ack_commit = (id) => soon(core.ack_commit(id))

	function until(done) {
		soon()
		return new Promise((resolve, reject) => waits.push({ done, resolve, reject }))
	}

	function then(step) {
		tries = 0
		work = work.then(step)
		work.catch((error) => end("ABORTED", `${error}`))
	}

	const on = {
		Messages: (first, values) => then(async () => {
			for (const value of values) if (!gave_up) await channel.on_message(value)
		}),
		CommitDelivered: (id) => then(() => gave_up || (channel.on_commit ?? channel.onCommit ?? ack_commit)(id)),
		CommitAcked: () => (tries = 0),
		Resumed: () => queueMicrotask(() => channel.suspended || channel.on_resume?.()),
		Connected() {
			clearTimeout(timer)
			patience = clearTimeout(patience)
			tries = min(tries, 1)
		},
		Ended(error) {
			clearTimeout(patience)
			gone.abort()
			failure = error
			const last = () => channel.on_end?.(error.reason === "CLOSED" && !error.pending.length ? null : error)
			work.then(last, last)
		},
	}

	const channel = {
		statistics,
		get suspended() { return statistics().sender === "suspended" },
		get non_acked_message_count() { return statistics().pending },
		send: (value) => soon(core.send(typeof value === "string" ? encode(value) : new Uint8Array(value))),
		commit(callback) {
			const id = core.commit(), acked = until(() => statistics().acked >= id)
			acked.then(callback, () => {}) // on_end reports the failure
			return acked
		},
		ack_commit,
		writable: () => until(() => statistics().sender === "flowing"),
		abort: (text) => end("ABORTED", text),
		close: () => end("CLOSED"),
		ackCommit: ack_commit,
		getNonAckedMessageCount: () => statistics().pending,
	}
	dial()
	globalThis.addEventListener?.("online", wake, gone)
	globalThis.document?.addEventListener("visibilitychange", wake, gone)
	return channel
}
