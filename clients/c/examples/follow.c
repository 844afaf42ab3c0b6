/* follow STREAM: prints the records of a stream as they become durable, for ever.
 *
 *     ./a.out greetings
 */
#include <stdio.h>
#include <stdlib.h>
#include <walsidecar.h>

int main(int argc, char **argv)
{
    const char *path = getenv("WALSIDECAR_SOCKET");
    wal *w;
    wal_read *r = NULL;
    wal_item item;
    wal_read_opts o = { 0 };
    o.size = sizeof o;
    o.follow = 1;
    if (argc != 2) {
        fprintf(stderr, "usage: %s STREAM\n", argv[0]);
        return 2;
    }
    int rc = wal_open(&w, path != NULL ? path : "walsidecar-data/wal.sock", NULL);
    if (rc == 0)
        rc = wal_read_open(w, argv[1], &o, 5000, &r);
    while (rc == 0 && (rc = wal_next(r, -1, &item)) > 0) {
        if (rc == WAL_RECORD) {
            printf("%llu ", (unsigned long long)item.offset);
            fwrite(item.data, 1, item.data_bytes, stdout);
            putchar('\n');
            fflush(stdout);
        } else {
            fprintf(stderr, "[%llu, %llu) will not come\n", (unsigned long long)item.from,
                    (unsigned long long)item.to);
        }
        rc = 0;
    }
    if (rc < 0)
        fprintf(stderr, "%s\n", wal_strerror(rc));
    wal_close(w);
    return rc < 0;
}
