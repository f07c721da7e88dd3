/* What a protocol sees of the load generator, and what the load generator needs of a protocol. See load.c. */
#ifndef LOAD_H
#define LOAD_H

#include <stddef.h>
#include <stdint.h>

struct connection {
    int fd;
    int number;            /* from 0 */
    char *out, *in;
    size_t out_size, out_sent, out_room;
    size_t in_size, in_room;
    uint64_t requests;     /* put so far; a request's number is its place among them, from 0 */
    uint64_t answered;     /* for protocols that answer in order: the number of the next request to be answered */
    uint64_t *began_us;    /* of the request with number n, at n % RING */
    uint32_t *missing;     /* of its messages, those that are not acknowledged yet */
    int waits_to_write;
    void *extra;           /* the protocol's own */
};

struct options {
    const char *host, *target, *extra, *pids;
    int port, connections, window, batch, size;
    double seconds, warmup_s;
};

#define RING (1u << 17)

extern struct options options;
extern char payload[];     /* options.size bytes, printable */

/* The protocol: one of nats.c, redis.c, rabbitmq.c, avow.c. */
void greet(struct connection *c);                                    /* blocking; leaves the connection ready to write */
void put_request(struct connection *c, uint64_t n);                  /* append `options.batch` messages with put() */
size_t take(struct connection *c, const char *data, size_t size);    /* whole answers only; how many bytes were used */

void farewell(struct connection *first);                             /* blocking, when all is done; may remove the target */

/* The load generator, for protocols. */
void put(struct connection *c, const void *data, size_t size);
void messages_done(struct connection *c, uint64_t n, uint32_t count);
void send_now(struct connection *c);                                 /* blocking: everything that was put */
size_t receive_some(struct connection *c);                           /* blocking: appends to c->in */
_Noreturn void die(const char *format, ...);

#endif
