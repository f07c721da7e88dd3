// Runs vector files, named as arguments, against the JavaScript core. Prints one line of JSON: how many, and what differs.
import { readFileSync } from "node:fs";
import { isDeepStrictEqual } from "node:util";
import { core_of, perform } from "./steps.mjs";

let vectors = 0, steps = 0;
const differences = [];

/** A core that falls over differs, too. */
function attempt(core, step, before) {
	try {
		return perform(core, step, before);
	} catch (error) {
		return { outcome: { threw: error.stack } };
	}
}

for (const path of process.argv.slice(2)) {
	for (const vector of JSON.parse(readFileSync(path, "utf8"))) {
		vectors++;
		const cores = {}, before = {};
		for (const [name, options] of Object.entries(vector.ends)) [cores[name], before[name]] = [core_of(options), {}];
		for (const [index, { expect = {}, ...step }] of vector.steps.entries()) {
			steps++;
			const { outcome, now } = attempt(cores[step.end], step, before[step.end]);
			before[step.end] = now;
			if (isDeepStrictEqual(outcome, expect)) continue;
			differences.push({ vector: vector.name, step: index + 1, did: step.do, expected: expect, found: outcome });
			break; // what follows would differ too
		}
	}
}
console.log(JSON.stringify({ vectors, steps, differences }));
