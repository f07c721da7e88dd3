/**
 * Sockets for connect() over WebChannel, for networks that block WebSockets. The caller provides the library:
 *
 *     import { createWebChannelTransport, WebChannel } from "@firebase/webchannel-wrapper/webchannel-blob";
 *     const socket = webChannelSocket(createWebChannelTransport, { events: WebChannel.EventType });
 *     const channel = connect("/v1/webchannel?role=reader&queue=orders", { socket });
 *
 * With the closure library these are goog.net.createWebChannelTransport and goog.net.WebChannel.EventType. All other
 * options are passed to createWebChannel. A packet, in either direction, is a message {"f": base64}. All waiting packets
 * are sent in one request, whose size a peer limits: keep bounds.pending_bytes and single messages below 4 MiB.
 */
const BEARER = "avow.bearer."
const CLOSE_MS = 1000 // time for the last packets to leave: close() drops what still waits

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

/** In pieces: the number of arguments of a call is limited. */
function base64(bytes) {
	let text = ""
	for (let at = 0; at < bytes.length; at += 8192) text += String.fromCharCode(...bytes.subarray(at, at + 8192))
	return btoa(text)
}

const bytes_of = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)).buffer
