/* Redis Streams: a request is `batch` XADD commands and one WAIT 1, written together. WAIT holds its connection until
 * one replica has the data, so requests that are to be under way at the same time need connections of their own.
 * Answers: a bulk string for each XADD, then the number of replicas. */
#include "load.h"

#include <stdio.h>
#include <string.h>

static char command[1 << 21];
static size_t command_size;
static const char wait_one[] = "*3\r\n$4\r\nWAIT\r\n$1\r\n1\r\n$5\r\n10000\r\n";

void greet(struct connection *c) {
    if (c->number) return;
    command_size = (size_t)snprintf(command, sizeof command, "*5\r\n$4\r\nXADD\r\n$%zu\r\n%s\r\n$1\r\n*\r\n$1\r\nv\r\n$%d\r\n",
                                    strlen(options.target), options.target, options.size);
    memcpy(command + command_size, payload, (size_t)options.size);
    memcpy(command + command_size + options.size, "\r\n", 2);
    command_size += (size_t)options.size + 2;
}

void put_request(struct connection *c, uint64_t n) {
    (void)n;
    for (int i = 0; i < options.batch; i++) put(c, command, command_size);
    put(c, wait_one, sizeof wait_one - 1);
}

size_t take(struct connection *c, const char *data, size_t size) {
    const char *at = data, *end = data + size, *line;
    while ((line = memchr(at, '\n', (size_t)(end - at)))) {
        if (*at == '-') die("Redis refused: %.*s", (int)(line - at), at);
        if (*at == ':') {
            if (at[1] == '0') die("no replica acknowledged within 10 s");
            messages_done(c, c->answered++, (uint32_t)options.batch);
        }
        at = line + 1;
    }
    return (size_t)(at - data);
}

void farewell(struct connection *first) { (void)first; }
