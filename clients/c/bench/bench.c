/* bench SOCKET shm|socket [BYTES [IN_FLIGHT [SECONDS]]]: keeps records in flight through one
 * door for a while, as `walsidecar bench` does, and prints one JSON object. Run it against a
 * log of its own, or against `walsidecar bench-null adaptive SOCKET`, which keeps nothing. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <walsidecar.h>

static void fail(wal *w, int rc, const char *what)
{
    if (rc >= 0)
        return;
    fprintf(stderr, "%s: %s\n", what, w != NULL ? wal_last_error(w)->message : wal_strerror(rc));
    exit(1);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static double processor_time(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static void answered(wal *w, wal_ticket ticket, const wal_result *r, void *opaque)
{
    (void)ticket;
    fail(w, r->error, "append");
    ++*(unsigned long long *)opaque;
}

/* load appends until the time and returns how many were answered. */
static unsigned long long load(wal *w, const char *record, size_t bytes, size_t in_flight, double until)
{
    unsigned long long done = 0;
    wal_append_opts o = { 0 };
    o.size = sizeof o;
    o.done = answered;
    o.opaque = &done;
    for (unsigned long long sent = 0; wal_in_flight(w) > 0 || now() < until;) {
        int rc = 0;
        while (sent - done < in_flight && (sent % 64 != 0 || now() < until)) {
            if ((rc = wal_try_append(w, "bench", record, bytes, &o, NULL)) == -EAGAIN)
                break;
            fail(w, rc, "append");
            sent++;
        }
        fail(w, wal_poll(w, 1000), "poll");
        if (now() >= until)
            in_flight = 0;
    }
    while (wal_poll(w, 0) > 0)
        continue;
    return done;
}

int main(int argc, char **argv)
{
    if (argc < 3 || (strcmp(argv[2], "shm") != 0 && strcmp(argv[2], "socket") != 0)) {
        fprintf(stderr, "usage: bench SOCKET shm|socket [BYTES [IN_FLIGHT [SECONDS]]]\n");
        return 2;
    }
    size_t bytes = argc > 3 ? (size_t)atoi(argv[3]) : 128, in_flight = argc > 4 ? (size_t)atoi(argv[4]) : 512;
    double seconds = argc > 5 ? atof(argv[5]) : 3;
    wal_opts opts = { 0 };
    opts.size = sizeof opts;
    opts.door = strcmp(argv[2], "shm") == 0 ? WAL_DOOR_SHM : WAL_DOOR_SOCKET;
    opts.in_flight = (uint32_t)in_flight;
    wal *w;
    fail(NULL, wal_open(&w, argv[1], &opts), "open");
    wal_result first;
    char *record = calloc(1, bytes + 1);
    fail(w, wal_append(w, "bench", record, bytes, NULL, 10000, &first), "append");
    load(w, record, bytes, in_flight, now() + seconds / 5);
    double began = now(), cpu = processor_time();
    unsigned long long done = load(w, record, bytes, in_flight, began + seconds);
    double took = now() - began, used = processor_time() - cpu;
    printf("{\"door\":\"%s\",\"size\":%zu,\"inflight\":%zu,\"seconds\":%.2f,\"appends\":%llu,\"appends_per_s\":%.0f,"
           "\"client_cpu_us_per_append\":%.4f}\n",
           argv[2], bytes, in_flight, took, done, (double)done / took, used * 1e6 / (double)done);
    free(record);
    wal_close(w);
    return 0;
}
