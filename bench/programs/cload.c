/* cload SOCKET shm|uds adaptive|spin|block STREAM BYTES IN_FLIGHT: keeps IN_FLIGHT records
 * in flight with the C client, in one thread: each is a producer that sends the next record
 * when its last one is answered. See bench/drive.Program for what it reads and prints. */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <walsidecar.h>

#include "count.h"

enum { PAYLOAD_BYTES = 64 << 20, IN_FLIGHT_BYTES = 24 << 20, POLL_MS = 100 };

static _Atomic int phase;

typedef struct load {
    wal *w;
    const char *stream;
    unsigned char *payload;
    size_t bytes, at, in_flight;
    uint64_t *due, now;  /* due: of each record in flight, by its number */
    uint64_t sent, answered;
    histogram counted;
} load;

static void fail(wal *w, int rc, const char *what)
{
    if (rc >= 0)
        return;
    fprintf(stderr, "%s: %s\n", what, w != NULL ? wal_last_error(w)->message : wal_strerror(rc));
    exit(1);
}

static const unsigned char *next_record(load *l)
{
    if (l->at + l->bytes > PAYLOAD_BYTES)
        l->at = (l->at + 37) % 4096;
    const unsigned char *r = l->payload + l->at;
    l->at += l->bytes;
    return r;
}

/* done counts an answer. The answers of one poll come at the same time. */
static void done(wal *w, wal_ticket ticket, const wal_result *r, void *opaque)
{
    (void)ticket;
    load *l = opaque;
    fail(w, r->error, "append");
    if (l->now == 0)
        l->now = now_ns();
    if (phase == MEASURING)
        record(&l->counted, l->now - l->due[l->answered % l->in_flight]);
    l->answered++;
}

/* alone appends one record after the other. */
static void alone(load *l)
{
    uint64_t due = now_ns();
    while (phase != STOPPED) {
        fail(l->w, wal_append(l->w, l->stream, next_record(l), l->bytes, NULL, -1, NULL), "append");
        uint64_t now = now_ns();
        if (phase == MEASURING)
            record(&l->counted, now - due);
        due = now;
    }
}

static void many(load *l)
{
    wal_append_opts o = { .size = sizeof o, .done = done, .opaque = l };
    uint64_t due = now_ns();
    while (l->answered < l->sent || phase != STOPPED) {
        while (l->sent - l->answered < l->in_flight && phase != STOPPED) {
            int rc = wal_try_append(l->w, l->stream, next_record(l), l->bytes, &o, NULL);
            if (rc == -EAGAIN)
                break;
            fail(l->w, rc, "append");
            l->due[l->sent++ % l->in_flight] = due;
        }
        l->now = 0;
        fail(l->w, wal_poll(l->w, POLL_MS), "poll");
        if (l->now != 0)
            due = l->now;
    }
}

static void *listen_to_driver(void *unused)
{
    (void)unused;
    do
        phase = next_phase();
    while (phase != STOPPED);
    return NULL;
}

int main(int argc, char **argv)
{
    if (argc != 7) {
        fprintf(stderr, "usage: cload SOCKET shm|uds adaptive|spin|block STREAM BYTES IN_FLIGHT\n");
        return 2;
    }
    load l = { .stream = argv[4], .bytes = (size_t)atol(argv[5]), .in_flight = (size_t)atol(argv[6]) };
    l.payload = malloc(PAYLOAD_BYTES);
    l.due = calloc(l.in_flight, sizeof *l.due);
    if (l.payload == NULL || l.due == NULL)
        fail(NULL, -ENOMEM, "memory");
    random_bytes(l.payload, PAYLOAD_BYTES);
    wal_opts o = { .size = sizeof o, .in_flight = (uint32_t)l.in_flight, .in_flight_bytes = IN_FLIGHT_BYTES, .wait_while_full = 1 };
    o.door = strcmp(argv[2], "shm") == 0 ? WAL_DOOR_SHM : WAL_DOOR_SOCKET;
    o.waiting = strcmp(argv[3], "spin") == 0 ? WAL_WAIT_SPIN : strcmp(argv[3], "block") == 0 ? WAL_WAIT_BLOCK : WAL_WAIT_ADAPTIVE;
    fail(NULL, wal_open(&l.w, argv[1], &o), "open");
    fail(l.w, wal_append(l.w, l.stream, next_record(&l), l.bytes, NULL, -1, NULL), "append");
    pthread_t listener;
    if (pthread_create(&listener, NULL, listen_to_driver, NULL) != 0)
        fail(NULL, -EAGAIN, "thread");
    puts("ready");
    fflush(stdout);
    if (l.in_flight == 1)
        alone(&l);
    else
        many(&l);
    print_counted(&l.counted);
    wal_close(l.w);
    return 0;
}
