/* json.h - a reader for the JSON of wire/testdata. It trusts its input. */
#ifndef JSON_H
#define JSON_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct json {
    char type;          /* { [ " 0 t f n */
    char *key, *text;   /* of a member; of a string or number */
    struct json *first, *next;
};

static const char *json_at;

static void json_space(void) { json_at += strspn(json_at, " \t\r\n,:"); }

static char *json_string(void)
{
    char *out = malloc(strlen(json_at) < 1 << 20 ? strlen(json_at) + 1 : 1 << 20), *to = out;
    for (json_at++; *json_at != '"'; json_at++) {
        if (*json_at != '\\') {
            *to++ = *json_at;
            continue;
        }
        json_at++;
        if (*json_at == 'u') { /* a character of two bytes at most */
            unsigned long c = strtoul((char[]){ json_at[1], json_at[2], json_at[3], json_at[4], 0 }, NULL, 16);
            if (c >= 0x80) {
                *to++ = (char)(0xC0 | c >> 6);
                c = 0x80 | (c & 0x3F);
            }
            *to++ = (char)c;
            json_at += 4;
        } else {
            *to++ = *json_at == 'n' ? '\n' : *json_at;
        }
    }
    json_at++;
    *to = 0;
    return realloc(out, (size_t)(to - out) + 1);
}

static struct json *json_value(void)
{
    json_space();
    struct json *v = calloc(1, sizeof *v), **last = &v->first;
    v->type = *json_at;
    if (*json_at == '{' || *json_at == '[') {
        char end = *json_at++ == '{' ? '}' : ']';
        for (json_space(); *json_at != end; json_space()) {
            char *key = end == '}' ? json_string() : NULL;
            *last = json_value();
            (*last)->key = key;
            last = &(*last)->next;
        }
        json_at++;
    } else if (*json_at == '"') {
        v->text = json_string();
    } else {
        size_t n = strcspn(json_at, ",]} \n");
        v->text = strndup(json_at, n);
        if (v->type == '-' || (v->type >= '0' && v->type <= '9'))
            v->type = '0';
        json_at += n;
    }
    return v;
}

static inline void json_free(struct json *v)
{
    while (v != NULL) {
        struct json *next = v->next;
        json_free(v->first);
        free(v->key);
        free(v->text);
        free(v);
        v = next;
    }
}

/* json_read reads a file of a directory. */
static inline struct json *json_read(const char *directory, const char *name)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    FILE *f = fopen(path, "rb");
    if (f == NULL) {
        perror(path);
        exit(1);
    }
    char *all = calloc(1, 1 << 20);
    size_t n = fread(all, 1, (1 << 20) - 1, f);
    fclose(f);
    all[n] = 0;
    json_at = all;
    struct json *v = json_value();
    free(all);
    return v;
}

static inline const struct json *json_get(const struct json *v, const char *key)
{
    static const struct json missing = { .type = 'n', .text = (char *)"" };
    for (const struct json *m = v->first; m != NULL; m = m->next)
        if (m->key != NULL && strcmp(m->key, key) == 0)
            return m;
    return &missing;
}

static inline const char *json_text(const struct json *v, const char *key) { return json_get(v, key)->text; }
static inline uint64_t json_number(const struct json *v, const char *key)
{
    const char *text = json_text(v, key);
    return text[0] == '-' ? (uint64_t)strtoll(text, NULL, 10) : strtoull(text, NULL, 10);
}
static inline bool json_flag(const struct json *v, const char *key) { return json_get(v, key)->type == 't'; }

/* json_hex decodes hex into memory of exactly its size, so that sanitizers see every
 * byte beyond it. */
static inline unsigned char *json_hex(const char *text, size_t *n)
{
    *n = strlen(text) / 2;
    unsigned char *out = malloc(*n > 0 ? *n : 1);
    for (size_t i = 0; i < *n; i++) {
        char digits[3] = { text[2 * i], text[2 * i + 1], 0 };
        out[i] = (unsigned char)strtoul(digits, NULL, 16);
    }
    return out;
}

#endif
