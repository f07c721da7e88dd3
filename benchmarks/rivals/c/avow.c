/* Avow: raw batches over HTTP keep-alive. The record comes ready from Python (extra = its file: `batch` messages encoded
 * once); a request differs from it in the write id and in the checksum of the header, see src/avow/wire/record.py.
 * Answers come in the order of the requests on a connection. */
#include "load.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { HEADER_BYTES = 80, HEADER_CRC_AT = 4, CHECKED_FROM = 8, WRITE_ID_AT = 64 };

static char head[1024];
static size_t head_size;
static unsigned char *record;
static size_t record_size;
static uint32_t table[256];
static uint64_t run;

static uint32_t crc32c(const unsigned char *data, size_t size) {
    uint32_t crc = ~0u;
    while (size--) crc = table[(crc ^ *data++) & 255] ^ crc >> 8;
    return ~crc;
}

static void prepare(void) {
    for (uint32_t i = 0; i < 256; i++) {
        table[i] = i;
        for (int bit = 0; bit < 8; bit++) table[i] = table[i] >> 1 ^ (table[i] & 1 ? 0x82F63B78u : 0);
    }
    FILE *file = fopen(options.extra, "rb");
    record = malloc(9u << 20);
    record_size = file ? fread(record, 1, 9u << 20, file) : 0;
    if (record_size < HEADER_BYTES) die("no record in %s", options.extra);
    fclose(file);
    int random = open("/dev/urandom", O_RDONLY);
    if (read(random, &run, sizeof run) != sizeof run) die("no /dev/urandom");
    close(random);
    head_size = (size_t)snprintf(head, sizeof head,
                                 "POST /v1/queues/%s/messages?lane=0 HTTP/1.1\r\nHost: %s:%d\r\n"
                                 "Content-Type: application/vnd.avow.batch\r\nContent-Length: %zu\r\n\r\n",
                                 options.target, options.host, options.port, record_size);
}

void greet(struct connection *c) {
    if (!c->number) prepare();
}

void put_request(struct connection *c, uint64_t n) {
    uint64_t write_id[2] = {run, (uint64_t)c->number << 48 | n};
    memcpy(record + WRITE_ID_AT, write_id, sizeof write_id);
    uint32_t crc = crc32c(record + CHECKED_FROM, HEADER_BYTES - CHECKED_FROM);
    memcpy(record + HEADER_CRC_AT, &crc, sizeof crc);
    put(c, head, head_size);
    put(c, record, record_size);
}

size_t take(struct connection *c, const char *data, size_t size) {
    const char *at = data, *end = data + size, *blank;
    while ((blank = memmem(at, (size_t)(end - at), "\r\n\r\n", 4))) {
        const char *length = strcasestr(at, "content-length:");
        if (!length || length > blank) die("Avow: an answer without a length: %.*s", (int)(blank - at), at);
        const char *body = blank + 4;
        size_t body_size = strtoul(length + 15, NULL, 10);
        if ((size_t)(end - body) < body_size) break;
        if (memcmp(at + 9, "200", 3)) die("Avow refused: %.12s %.*s", at, (int)body_size, body);
        messages_done(c, c->answered++, (uint32_t)options.batch);
        at = body + body_size;
    }
    return (size_t)(at - data);
}

void farewell(struct connection *first) { (void)first; }
