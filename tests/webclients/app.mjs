// One application for both packages, in Node and in a browser: it sends `count` numbered messages up and gets as many
// down, through however many sessions that takes. A session that fails for good is replaced by a new one; both ends then
// say what they have, and go on behind it. Within a session it trusts the library: what comes is the next one, or that
// is reported. With `spread` each message is sent in a turn of its own, else as many at once as `window` allows.

export const fromFirebase = (module) => ({
  events: module.WebChannel.EventType,
  create: (url, options) => module.createWebChannelTransport().createWebChannel(url, options),
  fetchFactory: () => new module.FetchXmlHttpFactory({}),
});

export const fromClosure = (goog) => ({
  events: goog.net.WebChannel.EventType,
  create: (url, options) => goog.net.createWebChannelTransport().createWebChannel(url, options),
  fetchFactory: () => new goog.net.FetchXmlHttpFactory({}),
});

export const CLOSURE_NEEDS = ['goog.net.createWebChannelTransport', 'goog.net.WebChannel', 'goog.net.FetchXmlHttpFactory'];

const packed = (message) => ({ f: btoa(JSON.stringify(message)) });
const unpacked = (data) => JSON.parse(atob(data[0].f));

// Retries as the libraries count them, but sooner: 2 going up, 3 going down, within tenths of a second.
const QUICK = { baseRetryDelayMs: 20, retryDelaySeedMs: 20, forwardChannelRequestTimeoutMs: 600 };

export function run(library, { url, count, window, sessionsMax, spread = false, options = {} }) {
  const report = { sessions: 0, received: 0, wrong: [] };
  return new Promise((resolve) => {
    const begin = () => {
      report.sessions += 1;
      if (report.sessions > sessionsMax) {
        report.wrong.push('too many sessions');
        resolve(report);
        return;
      }
      session();
    };

    const session = () => {
      const channel = library.create(url, { internalChannelParams: QUICK, ...options });
      let greeted = false;
      let over = false;
      let sent = 0;
      const again = () => {
        if (!over) setTimeout(begin, 20);
        over = true;
      };
      const room = () => greeted && !over && sent < count && sent < report.received + window;
      const send = () => {
        while (room() && !spread) channel.send(packed({ number: ++sent }));
      };
      const sendOne = () => {
        if (room()) channel.send(packed({ number: ++sent }));
        if (!over) setTimeout(sendOne, 1);
      };
      if (spread) sendOne();
      channel.listen(library.events.ERROR, again);
      channel.listen(library.events.CLOSE, again);
      channel.listen(library.events.MESSAGE, (event) => {
        const message = unpacked(event.data);
        if (over) {
          report.wrong.push('a message of a session that is over');
        } else if (!greeted) {
          greeted = 'hello' in message;
          sent = message.hello;
          if (!greeted) report.wrong.push(`${JSON.stringify(message)} came before hello`);
        } else if (message.number !== report.received + 1) {
          report.wrong.push(`${message.number} came after ${report.received}`);
        } else {
          report.received += 1;
        }
        if (report.received === count || report.wrong.length > 0) {
          over = true;
          channel.close();
          resolve(report);
        }
        send();
      });
      channel.open();
      channel.send(packed({ hello: report.received }));
    };

    begin();
  });
}
