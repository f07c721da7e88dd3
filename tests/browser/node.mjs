// node node.mjs '{"application": "exchange", ...}': runs it and writes what it returned as one line.
import { connect } from "../../src/avow/channel/browser/avow-channel.js";
import { APPLICATIONS } from "./app.mjs";

const { application, ...wanted } = JSON.parse(process.argv[2]);
console.log(JSON.stringify(await APPLICATIONS[application]({ connect, ...wanted })));
