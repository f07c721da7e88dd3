// The same applications over WebChannel, with a package as it is published: firebase or closure.
// node webchannel.mjs firebase '{"application": "exchange", ...}'
import { createRequire } from "node:module";
import { connect } from "../../src/avow/channel/browser/avow-channel.js";
import { webChannelSocket } from "../../src/avow/channel/browser/webchannel-socket.js";
import { APPLICATIONS } from "./app.mjs";

const [name, asked] = process.argv.slice(2);
const require = createRequire(new URL("../webclients/package.json", import.meta.url));

function closure() {
	require("google-closure-library");
	for (const need of ["createWebChannelTransport", "WebChannel", "FetchXmlHttpFactory"]) goog.require(`goog.net.${need}`);
	return goog.net;
}

const library = name === "closure" ? closure() : require("@firebase/webchannel-wrapper/webchannel-blob");
const quick = { baseRetryDelayMs: 20, retryDelaySeedMs: 20, forwardChannelRequestTimeoutMs: 600 };
const socket = webChannelSocket(library.createWebChannelTransport, {
	events: library.WebChannel.EventType,
	xmlHttpFactory: new library.FetchXmlHttpFactory({}),
	internalChannelParams: quick,
});
const { application, ...wanted } = JSON.parse(asked);
const over_webchannel = (url, options) => connect(url, { ...options, socket });
console.log(JSON.stringify(await APPLICATIONS[application]({ connect: over_webchannel, ...wanted })));
// The process stays, since the library may still have something to send; whoever started it ends it.
setInterval(() => {}, 1000);
