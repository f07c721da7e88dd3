/* NATS JetStream, in its text protocol. Each message has a reply subject that ends in the number of its request, and the
 * stream's acknowledgement comes back on it. A request of several messages can be, by `extra`,
 *     singly   so many messages, each acknowledged
 *     atomic   an atomic batch (server 2.12 and later): headers name it, its last message is acknowledged
 *     fast     a fast-ingest batch (2.14 and later): the reply subject names it and tells the server how often to report
 *              (here: not before the end); the message that commits it is acknowledged */
#include "load.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void put_text(struct connection *c, const char *text) { put(c, text, strlen(text)); }

void greet(struct connection *c) {
    char subscribe[64];
    snprintf(subscribe, sizeof subscribe, "SUB _I.%d.%d.> 1\r\nPING\r\n", (int)getpid(), c->number);
    put_text(c, "CONNECT {\"verbose\":false,\"pedantic\":false,\"headers\":true,\"no_responders\":true,\"protocol\":1}\r\n");
    put_text(c, subscribe);
    send_now(c);
    while (receive_some(c), !memmem(c->in, c->in_size, "PONG\r\n", 6))
        if (memmem(c->in, c->in_size, "-ERR", 4)) die("NATS refused: %.*s", (int)c->in_size, c->in);
    c->in_size = 0;
}

static void put_plain(struct connection *c, uint64_t n) {
    char head[256];
    int size = snprintf(head, sizeof head, "PUB %s _I.%d.%d.%lu %d\r\n", options.target, (int)getpid(), c->number,
                        (unsigned long)n, options.size);
    for (int i = 0; i < options.batch; i++) {
        put(c, head, (size_t)size);
        put(c, payload, (size_t)options.size);
        put(c, "\r\n", 2);
    }
}

static void put_atomic(struct connection *c, uint64_t n) {
    char head[256], headers[256], reply[64];
    for (int i = 1; i <= options.batch; i++) {
        int last = i == options.batch;
        snprintf(reply, sizeof reply, last ? "_I.%d.%d.%lu " : "", (int)getpid(), c->number, (unsigned long)n);
        int length = snprintf(headers, sizeof headers, "NATS/1.0\r\nNats-Batch-Id: %d-%d-%lu\r\nNats-Batch-Sequence: %d\r\n%s\r\n",
                              (int)getpid(), c->number, (unsigned long)n, i, last ? "Nats-Batch-Commit: 1\r\n" : "");
        int size = snprintf(head, sizeof head, "HPUB %s %s%d %d\r\n", options.target, reply, length, length + options.size);
        put(c, head, (size_t)size);
        put(c, headers, (size_t)length);
        put(c, payload, (size_t)options.size);
        put(c, "\r\n", 2);
    }
}

enum { START, APPEND, COMMIT };

static void put_fast(struct connection *c, uint64_t n) {
    char head[256];
    for (int i = 1; i <= options.batch; i++) {
        int operation = i == options.batch ? COMMIT : i == 1 ? START : APPEND;
        int size = snprintf(head, sizeof head, "PUB %s _I.%d.%d.%d-%d-%lu.%d.fail.%d.%d.$FI %d\r\n", options.target,
                            (int)getpid(), c->number, (int)getpid(), c->number, (unsigned long)n, options.batch, i,
                            operation, options.size);
        put(c, head, (size_t)size);
        put(c, payload, (size_t)options.size);
        put(c, "\r\n", 2);
    }
}

static int goes(const char *way) { return options.batch > 1 && !strcmp(options.extra, way); }

void put_request(struct connection *c, uint64_t n) {
    if (goes("atomic")) put_atomic(c, n);
    else if (goes("fast")) put_fast(c, n);
    else put_plain(c, n);
}

/* The request that a reply subject belongs to: the last number of "_I.pid.connection.n" or of "...pid-connection-n..." */
static uint64_t request_of(char *subject) {
    if (!goes("fast")) return strtoull(strrchr(subject, '.') + 1, NULL, 10);
    char *dash = strchr(subject, '-');
    return strtoull(strchr(dash + 1, '-') + 1, NULL, 10);
}

/* "MSG <subject> <subscription> <size>" or "HMSG <subject> <subscription> <size of headers> <size>" */
static size_t take_message(struct connection *c, const char *at, const char *line, const char *end) {
    char head[256];
    size_t length = (size_t)(line - at);
    if (length >= sizeof head) die("NATS: a line of %zu bytes", length);
    memcpy(head, at, length);
    head[length] = 0;
    size_t size = strtoul(strrchr(head, ' ') + 1, NULL, 10);
    const char *body = line + 1;
    if ((size_t)(end - body) < size + 2) return 0;
    if (*at == 'H' || memmem(body, size, "\"error\"", 7)) die("NATS refused: %.*s", (int)size, body);
    char *subject = strchr(head, ' ') + 1;
    *strchr(subject, ' ') = 0;
    if (!memmem(body, size, "\"type\"", 6)) /* else a report on the way of a fast batch */
        messages_done(c, request_of(subject), goes("atomic") || goes("fast") ? (uint32_t)options.batch : 1);
    return length + 1 + size + 2;
}

size_t take(struct connection *c, const char *data, size_t size) {
    const char *at = data, *end = data + size, *line;
    while ((line = memchr(at, '\n', (size_t)(end - at)))) {
        if (*at == 'M' || *at == 'H') {
            size_t used = take_message(c, at, line, end);
            if (!used) break;
            at += used;
            continue;
        }
        if (*at == 'P' && at[1] == 'I') put_text(c, "PONG\r\n");
        if (*at == '-') die("NATS refused: %.*s", (int)(line - at), at);
        at = line + 1;
    }
    return (size_t)(at - data);
}

void farewell(struct connection *first) { (void)first; }
