/* append STREAM TEXT: appends one record and tells where it stands, once it is durable.
 *
 *     cc append.c $(pkg-config --cflags --libs walsidecar) && ./a.out greetings hello
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <walsidecar.h>

int main(int argc, char **argv)
{
    const char *path = getenv("WALSIDECAR_SOCKET");
    char why[512] = "";
    wal_opts o = { 0 };
    o.size = sizeof o;
    o.error_text = why;
    o.error_text_bytes = sizeof why;
    if (argc != 3) {
        fprintf(stderr, "usage: %s STREAM TEXT\n", argv[0]);
        return 2;
    }
    wal *w;
    int rc = wal_open(&w, path != NULL ? path : "walsidecar-data/wal.sock", &o);
    if (rc < 0) {
        fprintf(stderr, "%s: %s\n", why, wal_strerror(rc));
        return 1;
    }
    wal_result r;
    rc = wal_append(w, argv[1], argv[2], strlen(argv[2]), NULL, 5000, &r);
    if (rc < 0)
        fprintf(stderr, "%s: %s\n", wal_last_error(w)->message, wal_strerror(rc));
    else
        printf("offset %llu, position %llu\n", (unsigned long long)r.offset, (unsigned long long)r.position);
    wal_close(w);
    return rc < 0;
}
