/* A closed loop of writers, the same for every system: `connections` sockets, each with `window` requests of `batch`
 * messages under way; an acknowledged request is replaced by the next one at once. One thread, epoll, one read and one
 * write for everything that is ready, so that the client costs the machine as little as a client can.
 *
 * After `warmup_s` the clock starts and the processor time of the servers (`pids`, user + system from /proc) is read;
 * after `seconds` both are read again. Then requests under way are waited for, so that the next system starts in quiet.
 * One line of JSON is printed. Anything but an acknowledgement ends the program with a message: a figure with refused
 * writes in it would be no figure.
 *
 * Options are words of the form name=value: host port target connections window batch size seconds warmup_s pids extra.
 */
#include "load.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define READ_BYTES (256u << 10)
#define SIZE_MAX_BYTES (1u << 20)
#define DRAIN_S 10.0

struct options options = {"127.0.0.1", "", "", "", 0, 1, 1, 1, 100, 1.0, 0.2};
char payload[SIZE_MAX_BYTES];

static uint64_t messages, requests_done, under_way;
static uint32_t *latencies_us;
static size_t latencies, latencies_room;
static int measuring, stopping;

void die(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "load: ");
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n");
    va_end(arguments);
    exit(1);
}

static void *at_least(void *memory, size_t *room, size_t wanted) {
    if (wanted <= *room) return memory;
    while (*room < wanted) *room = *room ? *room * 2 : 4096;
    memory = realloc(memory, *room);
    if (!memory) die("out of memory");
    return memory;
}

static uint64_t now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000u;
}

static double servers_cpu_s(void) {
    double ticks = 0;
    char text[1024], path[64], *list = strdup(options.pids), *rest = list, *pid;
    while ((pid = strsep(&rest, ","))) {
        if (!*pid) continue;
        snprintf(path, sizeof path, "/proc/%s/stat", pid);
        int fd = open(path, O_RDONLY);
        ssize_t size = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
        if (size <= 0) die("server process %s is gone", pid);
        close(fd);
        text[size] = 0;
        unsigned long user, system;
        char *after_name = strrchr(text, ')');
        if (!after_name || sscanf(after_name + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &system) != 2)
            die("cannot read %s", path);
        ticks += (double)user + (double)system;
    }
    free(list);
    return ticks / (double)sysconf(_SC_CLK_TCK);
}

void put(struct connection *c, const void *data, size_t size) {
    c->out = at_least(c->out, &c->out_room, c->out_size + size);
    memcpy(c->out + c->out_size, data, size);
    c->out_size += size;
}

static void begin_request(struct connection *c) {
    uint64_t n = c->requests++;
    c->missing[n % RING] = (uint32_t)options.batch;
    c->began_us[n % RING] = now_us();
    under_way++;
    put_request(c, n);
}

void messages_done(struct connection *c, uint64_t n, uint32_t count) {
    uint32_t *missing = &c->missing[n % RING];
    if (n >= c->requests || *missing < count) die("an acknowledgement for nothing that was sent (request %lu)", (unsigned long)n);
    if ((*missing -= count)) return;
    under_way--;
    if (measuring) {
        messages += (uint64_t)options.batch;
        requests_done++;
        latencies_us = at_least(latencies_us, &latencies_room, (latencies + 1) * sizeof *latencies_us);
        latencies_us[latencies++] = (uint32_t)(now_us() - c->began_us[n % RING]);
    }
    if (!stopping) begin_request(c);
}

static int transmit(struct connection *c) {
    while (c->out_sent < c->out_size) {
        ssize_t sent = send(c->fd, c->out + c->out_sent, c->out_size - c->out_sent, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return 0;
        if (sent < 0) die("connection %d: %s", c->number, strerror(errno));
        c->out_sent += (size_t)sent;
    }
    c->out_sent = c->out_size = 0;
    return 1;
}

void send_now(struct connection *c) {
    if (!transmit(c)) die("connection %d: a greeting could not be sent", c->number);
}

size_t receive_some(struct connection *c) {
    c->in = at_least(c->in, &c->in_room, c->in_size + READ_BYTES + 1);
    ssize_t size;
    do size = recv(c->fd, c->in + c->in_size, READ_BYTES, 0);
    while (size < 0 && errno == EINTR);
    if (size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return 0;
    if (size < 0) die("connection %d: %s", c->number, strerror(errno));
    if (size == 0) die("connection %d: closed by the server", c->number);
    c->in_size += (size_t)size;
    c->in[c->in_size] = 0; /* text protocols may search in it */
    return (size_t)size;
}

static void connect_to(struct connection *c) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)options.port)};
    if (inet_pton(AF_INET, options.host, &address.sin_addr) != 1) die("%s is no IPv4 address", options.host);
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int one = 1, room = 4 << 20;
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(c->fd, SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
    if (connect(c->fd, (struct sockaddr *)&address, sizeof address)) die("port %d: %s", options.port, strerror(errno));
    c->began_us = calloc(RING, sizeof *c->began_us);
    c->missing = calloc(RING, sizeof *c->missing);
    if (!c->began_us || !c->missing) die("out of memory");
    greet(c);
    fcntl(c->fd, F_SETFL, fcntl(c->fd, F_GETFL) | O_NONBLOCK);
}

static void flush_and_watch(int poll, struct connection *c) {
    int waits = !transmit(c);
    if (waits == c->waits_to_write) return;
    struct epoll_event event = {.events = EPOLLIN | (waits ? EPOLLOUT : 0), .data.ptr = c};
    epoll_ctl(poll, EPOLL_CTL_MOD, c->fd, &event);
    c->waits_to_write = waits;
}

static void serve(int poll, struct connection *c, uint32_t events) {
    if (events & (EPOLLIN | EPOLLHUP | EPOLLERR) && receive_some(c)) {
        size_t used = take(c, c->in, c->in_size);
        memmove(c->in, c->in + used, c->in_size - used);
        c->in_size -= used;
    }
    flush_and_watch(poll, c);
}

static void turn(int poll, int wait_ms) {
    struct epoll_event events[256];
    int count = epoll_wait(poll, events, 256, wait_ms);
    if (count < 0 && errno != EINTR) die("epoll: %s", strerror(errno));
    for (int i = 0; i < count; i++) serve(poll, events[i].data.ptr, events[i].events);
}

static int by_size(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static double own_cpu_s(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) + 1e-6 * (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

static void measure(int poll) {
    uint64_t start = now_us() + (uint64_t)(options.warmup_s * 1e6);
    while (now_us() < start) turn(poll, 1);
    double servers = servers_cpu_s(), own = own_cpu_s();
    measuring = 1;
    start = now_us();
    uint64_t end = start + (uint64_t)(options.seconds * 1e6);
    while (now_us() < end) turn(poll, 1);
    double spent = (double)(now_us() - start) / 1e6;
    measuring = 0;
    servers = servers_cpu_s() - servers;
    own = own_cpu_s() - own;
    stopping = 1;
    end = now_us() + (uint64_t)(DRAIN_S * 1e6);
    while (under_way && now_us() < end) turn(poll, 10);
    if (under_way) die("%lu requests were not answered within %g s", (unsigned long)under_way, DRAIN_S);
    if (!latencies) die("nothing was acknowledged in %g s", options.seconds);
    qsort(latencies_us, latencies, sizeof *latencies_us, by_size);
    printf("{\"messages\":%lu,\"requests\":%lu,\"seconds\":%.6f,\"p50_us\":%u,\"server_cpu_s\":%.3f,\"client_cpu_s\":%.3f}\n",
           (unsigned long)messages, (unsigned long)requests_done, spent, latencies_us[latencies / 2], servers, own);
}

static void read_option(char *word) {
    char *value = strchr(word, '=');
    if (!value) die("options have the form name=value, not %s", word);
    *value++ = 0;
    if (!strcmp(word, "host")) options.host = value;
    else if (!strcmp(word, "target")) options.target = value;
    else if (!strcmp(word, "extra")) options.extra = value;
    else if (!strcmp(word, "pids")) options.pids = value;
    else if (!strcmp(word, "port")) options.port = atoi(value);
    else if (!strcmp(word, "connections")) options.connections = atoi(value);
    else if (!strcmp(word, "window")) options.window = atoi(value);
    else if (!strcmp(word, "batch")) options.batch = atoi(value);
    else if (!strcmp(word, "size")) options.size = atoi(value);
    else if (!strcmp(word, "seconds")) options.seconds = atof(value);
    else if (!strcmp(word, "warmup_s")) options.warmup_s = atof(value);
    else die("there is no option %s", word);
}

int main(int count, char **words) {
    for (int i = 1; i < count; i++) read_option(words[i]);
    if (options.connections < 1 || options.window < 1 || options.window > (int)RING / 2 || options.batch < 1 ||
        options.size < 1 || options.size > (int)SIZE_MAX_BYTES)
        die("connections, window, batch or size is out of range");
    memset(payload, 'm', (size_t)options.size);
    int poll = epoll_create1(EPOLL_CLOEXEC);
    struct connection *all = calloc((size_t)options.connections, sizeof *all);
    for (int i = 0; i < options.connections; i++) {
        all[i].number = i;
        connect_to(&all[i]);
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = &all[i]};
        epoll_ctl(poll, EPOLL_CTL_ADD, all[i].fd, &event);
    }
    for (int i = 0; i < options.connections; i++) {
        for (int j = 0; j < options.window; j++) begin_request(&all[i]);
        flush_and_watch(poll, &all[i]);
    }
    measure(poll);
    fcntl(all->fd, F_SETFL, fcntl(all->fd, F_GETFL) & ~O_NONBLOCK);
    farewell(all);
    return 0;
}
