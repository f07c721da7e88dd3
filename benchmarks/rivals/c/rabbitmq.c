/* RabbitMQ: AMQP 0-9-1 with publisher confirms on a quorum queue, declared by the first connection (the leader of a
 * quorum queue lives where it is declared). The three frames that publish a message are the same bytes each time.
 * Confirms name a delivery tag, counted from 1, and may stand for all up to it. */
#include "load.h"

#include <endian.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { METHOD = 1, HEADER = 2, BODY = 3, HEARTBEAT = 8, FRAME_END = 0xCE };

struct confirms {
    uint64_t low;          /* every tag below is confirmed */
    unsigned char *known;  /* tag % (RING * 8) */
};
#define TAGS (RING * 8u)

static char publish[1 << 21];
static size_t publish_size;

struct frame { unsigned char bytes[4096]; size_t size; };

static void number(struct frame *f, uint64_t value, int bytes) {
    while (bytes--) f->bytes[f->size++] = (unsigned char)(value >> (8 * bytes));
}

static void text(struct frame *f, const char *data, size_t size, int length_bytes) {
    number(f, size, length_bytes);
    memcpy(f->bytes + f->size, data, size);
    f->size += size;
}

static void begin(struct frame *f, int type, int channel) {
    f->size = 0;
    number(f, (uint64_t)type, 1);
    number(f, (uint64_t)channel, 2);
    number(f, 0, 4);
}

static void begin_method(struct frame *f, int channel, int class, int method) {
    begin(f, METHOD, channel);
    number(f, (uint64_t)class, 2);
    number(f, (uint64_t)method, 2);
}

static void end(struct frame *f) {
    uint32_t size = htobe32((uint32_t)(f->size - 7));
    memcpy(f->bytes + 3, &size, 4);
    number(f, FRAME_END, 1);
}

static uint64_t read_number(const char *at, int bytes) {
    uint64_t value = 0;
    while (bytes--) value = value << 8 | (unsigned char)*at++;
    return value;
}

/* Send, then wait for the method that answers; its arguments are left at c->in + 11 until the next call. */
static void ask(struct connection *c, struct frame *f, int class, int method) {
    if (f) {
        end(f);
        put(c, f->bytes, f->size);
        send_now(c);
    }
    for (c->in_size = 0; c->in_size < 7 || c->in_size < read_number(c->in + 3, 4) + 8;) receive_some(c);
    int found_class = (int)read_number(c->in + 7, 2), found = (int)read_number(c->in + 9, 2);
    if (c->in[0] != METHOD || found_class != class || found != method)
        die("RabbitMQ answered %d.%d, not %d.%d: %.*s", found_class, found, class, method, (int)c->in_size - 12, c->in + 14);
}

static void log_in(struct connection *c) {
    struct frame f;
    put(c, "AMQP\0\0\x09\x01", 8);
    send_now(c);
    ask(c, NULL, 10, 10);
    begin_method(&f, 0, 10, 11);
    number(&f, 0, 4);
    text(&f, "PLAIN", 5, 1);
    text(&f, "\0guest\0guest", 12, 4);
    text(&f, "en_US", 5, 1);
    ask(c, &f, 10, 30);
    uint64_t channels = read_number(c->in + 11, 2), frame_bytes = read_number(c->in + 13, 4);
    begin_method(&f, 0, 10, 31);
    number(&f, channels, 2);
    number(&f, frame_bytes, 4);
    number(&f, 0, 2);
    end(&f);
    put(c, f.bytes, f.size);
    begin_method(&f, 0, 10, 40);
    text(&f, "/", 1, 1);
    number(&f, 0, 2);
    ask(c, &f, 10, 41);
}

static void declare(struct connection *c) {
    struct frame f;
    begin_method(&f, 1, 50, 10);
    number(&f, 0, 2);
    text(&f, options.target, strlen(options.target), 1);
    number(&f, 2, 1); /* durable */
    number(&f, 13 + 1 + 4 + 6, 4);
    text(&f, "x-queue-type", 12, 1);
    text(&f, "S", 1, 0);
    text(&f, "quorum", 6, 4);
    ask(c, &f, 50, 11);
}

static void append(const struct frame *f) {
    memcpy(publish + publish_size, f->bytes, f->size);
    publish_size += f->size;
}

static void build_publish(void) {
    struct frame f;
    begin_method(&f, 1, 60, 40);
    number(&f, 0, 2);
    number(&f, 0, 1);
    text(&f, options.target, strlen(options.target), 1);
    number(&f, 0, 1);
    end(&f);
    append(&f);
    begin(&f, HEADER, 1);
    number(&f, 60, 2);
    number(&f, 0, 2);
    number(&f, (uint64_t)options.size, 8);
    number(&f, 1 << 12, 2);
    number(&f, 2, 1); /* persistent */
    end(&f);
    append(&f);
    begin(&f, BODY, 1);
    text(&f, payload, (size_t)options.size, 0);
    end(&f);
    append(&f);
}

void greet(struct connection *c) {
    struct frame f;
    if (options.size > 4000) die("RabbitMQ: messages of at most 4,000 bytes here, not %d", options.size);
    log_in(c);
    begin_method(&f, 1, 20, 10);
    number(&f, 0, 1);
    ask(c, &f, 20, 11);
    if (!c->number) {
        declare(c);
        build_publish();
    }
    begin_method(&f, 1, 85, 10);
    number(&f, 0, 1);
    ask(c, &f, 85, 11);
    c->in_size = 0;
    struct confirms *confirms = c->extra = calloc(1, sizeof *confirms);
    confirms->low = 1;
    confirms->known = calloc(TAGS, 1);
}

void put_request(struct connection *c, uint64_t n) {
    (void)n;
    for (int i = 0; i < options.batch; i++) put(c, publish, publish_size);
}

static void confirm(struct connection *c, struct confirms *confirms, uint64_t tag) {
    if (confirms->known[tag % TAGS]) return;
    confirms->known[tag % TAGS] = 1;
    messages_done(c, (tag - 1) / (uint64_t)options.batch, 1);
}

static void acknowledged(struct connection *c, uint64_t tag, int all_up_to) {
    struct confirms *confirms = c->extra;
    if (tag < confirms->low || tag >= confirms->low + TAGS) die("RabbitMQ confirmed tag %lu", (unsigned long)tag);
    for (uint64_t each = all_up_to ? confirms->low : tag; each <= tag; each++) confirm(c, confirms, each);
    while (confirms->known[confirms->low % TAGS]) confirms->known[confirms->low++ % TAGS] = 0;
}

size_t take(struct connection *c, const char *data, size_t size) {
    size_t at = 0;
    while (size - at >= 7) {
        size_t length = read_number(data + at + 3, 4);
        if (size - at < length + 8) break;
        const char *arguments = data + at + 11;
        int method = (int)read_number(data + at + 7, 4);
        if (data[at] == METHOD && method == (60 << 16 | 80)) acknowledged(c, read_number(arguments, 8), arguments[8] & 1);
        else if (data[at] != HEARTBEAT) die("RabbitMQ sent %d.%d: %.*s", method >> 16, method & 0xffff, (int)length, arguments);
        at += length + 8;
    }
    return at;
}

void farewell(struct connection *first) {
    struct frame f;
    begin_method(&f, 1, 50, 40);
    number(&f, 0, 2);
    text(&f, options.target, strlen(options.target), 1);
    number(&f, 0, 1);
    ask(first, &f, 50, 41);
}
