// A core at the other side of a pipe. Each line in is an end's options, then steps; each line out is what a step led to.
import { createInterface } from "node:readline";
import { core_of, hex, perform } from "./steps.mjs";

let core, before;

for await (const line of createInterface({ input: process.stdin })) {
	const asked = JSON.parse(line);
	if (asked.options) {
		[core, before] = [core_of(asked.options), {}];
		console.log("{}");
		continue;
	}
	const { outcome, packets, now } = perform(core, asked, before);
	before = now;
	console.log(JSON.stringify({ outcome, packets: packets.map(hex), now }));
}
