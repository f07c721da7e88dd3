/**
 * Sockets for connect() over WebChannel, for networks that let no WebSocket through. The library is the caller's:
 *
 *     import { createWebChannelTransport, WebChannel } from "@firebase/webchannel-wrapper/webchannel-blob";
 *     const socket = webChannelSocket(createWebChannelTransport, { events: WebChannel.EventType });
 *     const channel = connect("/v1/webchannel?role=reader&queue=orders", { socket });
 *
 * With the closure library these are goog.net.createWebChannelTransport and goog.net.WebChannel.EventType. All other
 * options are handed to createWebChannel. A packet, either way, is a message {"f": base64}. What waits to go up does so
 * in one request, which a peer takes up to a bound: keep bounds.pending_bytes and single messages below 4 MiB.
 */
const BEARER = "avow.bearer."
const CLOSE_MS = 1000 // what was said last must leave before: closing drops what waits

export function webChannelSocket(createWebChannelTransport, { events, ...options }) {
	return (url, protocols = []) => {
		const { origin, pathname, searchParams } = new URL(url, globalThis.location?.href)
		const bearer = protocols.find((one) => one.startsWith(BEARER))?.slice(BEARER.length)
		const token = bearer && atob(bearer.replaceAll("-", "+").replaceAll("_", "/"))
		const channel = createWebChannelTransport().createWebChannel(origin + pathname, {
			messageUrlParams: Object.fromEntries(searchParams),
			...(token && { initMessageHeaders: { Authorization: `Bearer ${token}` }, encodeInitMessageHeaders: true }),
			...options,
		})
		const close = () => setTimeout(() => channel.close(), CLOSE_MS)
		const socket = { send: (bytes) => channel.send({ f: base64(bytes) }), close }
		channel.listen(events.OPEN, () => socket.onopen?.())
		channel.listen(events.MESSAGE, ({ data }) => socket.onmessage?.({ data: bytes_of(data[0].f) }))
		for (const over of [events.CLOSE, events.ERROR]) channel.listen(over, () => socket.onclose?.())
		channel.open()
		return socket
	}
}

/** In pieces: a function takes only so many arguments. */
function base64(bytes) {
	let text = ""
	for (let at = 0; at < bytes.length; at += 8192) text += String.fromCharCode(...bytes.subarray(at, at + 8192))
	return btoa(text)
}

const bytes_of = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)).buffer
