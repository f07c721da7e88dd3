// node node.mjs firebase|closure '{"url": ..., ...}': runs the application, writes its report as one line. It stays, since
// the library may still have something to send; whoever started it ends it.

import { createRequire } from 'node:module';
import { CLOSURE_NEEDS, fromClosure, fromFirebase, run } from './app.mjs';

const [name, text] = process.argv.slice(2);
const wanted = JSON.parse(text);

async function load() {
  if (name === 'firebase') return fromFirebase(await import('@firebase/webchannel-wrapper/webchannel-blob'));
  createRequire(import.meta.url)('google-closure-library');
  for (const need of CLOSURE_NEEDS) goog.require(need);
  return fromClosure(goog);
}

const library = await load();
const options = { xmlHttpFactory: library.fetchFactory(), ...wanted.options };
console.log(JSON.stringify(await run(library, { ...wanted, options })));
