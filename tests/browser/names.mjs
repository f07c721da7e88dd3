// What the modules really have, for a comparison with what the .d.ts promises.
import { readFileSync } from "node:fs";

const folder = new URL("../../src/avow/channel/browser/", import.meta.url);
const module = await import(new URL("avow-channel.js", folder));
const socket = () => ({ close() {} });
const channel = module.connect("ws://127.0.0.1:1/", { socket }), core = module.Core({ channel: new Uint8Array(16), token: new Uint8Array(16) });
const hooks = readFileSync(new URL("avow-channel.js", folder), "utf8").matchAll(/channel\.(on\w+)/g);
channel.on_end = (error) => {
	console.log(JSON.stringify({
		exports: Object.keys(module),
		Channel: [...Object.keys(channel), ...new Set([...hooks].map(([, name]) => name))].filter((name, i, all) => all.indexOf(name) === i),
		Core: Object.keys(core),
		Statistics: Object.keys(core.statistics()),
		ChannelFailed: Object.keys(error),
		Pending: Object.keys(error.pending[0]),
	}));
};
channel.send("x");
channel.abort();
