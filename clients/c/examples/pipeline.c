/* pipeline STREAM: appends each line of standard input, with many records in flight, in an
 * event loop. Prints how many are durable.
 *
 *     seq 1 100000 | ./a.out numbers
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <walsidecar.h>

struct counts {
    unsigned long long durable, failed;
};

/* Runs inside wal_poll(), once for each record. */
static void answered(wal *w, wal_ticket ticket, const wal_result *r, void *opaque)
{
    struct counts *n = opaque;
    (void)ticket;
    if (r->error == 0)
        n->durable++;
    else if (n->failed++ == 0)
        fprintf(stderr, "%s\n", wal_last_error(w)->message);
}

/* submit_lines puts the whole lines of buf in flight until one would have to wait, and
 * returns how many bytes it took. */
static size_t submit_lines(wal *w, const char *stream, const char *buf, size_t n, const wal_append_opts *o)
{
    size_t at = 0;
    const char *end;
    while (at < n && (end = memchr(buf + at, '\n', n - at)) != NULL) {
        int rc = wal_try_append(w, stream, buf + at, (size_t)(end - buf) - at, o, NULL);
        if (rc < 0 && rc != -EAGAIN) {
            fprintf(stderr, "%s\n", wal_last_error(w)->message);
            exit(1);
        }
        if (rc < 0)
            break;
        at = (size_t)(end - buf) + 1;
    }
    return at;
}

int main(int argc, char **argv)
{
    static char buf[1 << 16];
    const char *path = getenv("WALSIDECAR_SOCKET");
    struct counts n = { 0, 0 };
    wal_append_opts o = { 0 };
    o.size = sizeof o;
    o.done = answered;
    o.opaque = &n;
    wal *w;
    int rc = wal_open(&w, path != NULL ? path : "walsidecar-data/wal.sock", NULL);
    if (rc < 0 || argc != 2) {
        fprintf(stderr, "%s\n", rc < 0 ? wal_strerror(rc) : "usage: pipeline STREAM");
        return 1;
    }
    struct pollfd fds[2] = { { STDIN_FILENO, POLLIN, 0 }, { wal_event_fd(w), POLLIN, 0 } };
    size_t held = 0;
    int more = 1; /* standard input has not ended */
    while (more || held > 0 || wal_in_flight(w) > 0) {
        fds[0].fd = more && held < sizeof buf ? STDIN_FILENO : -1;
        poll(fds, 2, -1);
        if (fds[0].fd >= 0 && fds[0].revents != 0) {
            ssize_t got = read(STDIN_FILENO, buf + held, sizeof buf - held);
            more = got > 0;
            held += more ? (size_t)got : 0;
        }
        if (fds[1].revents != 0 && (rc = wal_poll(w, 0)) < 0) {
            fprintf(stderr, "%s\n", wal_strerror(rc));
            return 1;
        }
        size_t taken = submit_lines(w, argv[1], buf, held, &o);
        memmove(buf, buf + taken, held -= taken);
        if (!more && memchr(buf, '\n', held) == NULL)
            held = 0; /* a last line without end is none */
    }
    while (wal_poll(w, 0) > 0)
        continue;
    printf("%llu durable, %llu failed\n", n.durable, n.failed);
    wal_close(w);
    return n.failed > 0;
}
