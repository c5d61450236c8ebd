/* What the programs share: checks that name their line, a connection on Forebay, keys and values. */
#ifndef CHECK_H
#define CHECK_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <wiredtiger.h>

#define CHECK(condition)                                                             \
    do {                                                                             \
        if (!(condition)) {                                                          \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);  \
            exit(1);                                                                 \
        }                                                                            \
    } while (0)

#define RETURNS(wanted, call) check_result(wanted, call, __FILE__, __LINE__, #call)
#define OK(call) RETURNS(0, call)

static inline void check_result(int wanted, int found, const char *file, int line, const char *call) {
    if (found != wanted) {
        fprintf(stderr, "%s:%d: %s: %s instead of %d\n", file, line, call, wiredtiger_strerror(found), wanted);
        exit(1);
    }
}

/* Returns the settings of a database on Forebay. */
static inline const char *settings(const char *more) {
    static char text[2048];
    const char *driver = getenv("FOREBAY_TEST_DRIVER");
    const char *library = getenv("FOREBAY_WIREDTIGER");
    CHECK(library != NULL);
    snprintf(text, sizeof text,
             "create,cache_size=8MB,config_base=false,%s,extensions=[%s={early_load=true,config={threads=%s,log_dsync=%s}}]", more, library,
             driver != NULL && strcmp(driver, "threads") == 0 ? "true" : "false", strstr(more, "method=dsync") != NULL ? "true" : "false");
    return text;
}

enum { VALUE_MAX = 3000, KEYS = 6000 };

static inline void make_value(uint64_t n, uint64_t version, char *value) {
    size_t len = 50 + (size_t)(n * 2654435761u + version * 40503u) % (VALUE_MAX - 60);
    int at = snprintf(value, VALUE_MAX, "%ju.%ju ", (uintmax_t)n, (uintmax_t)version);
    memset(value + at, 'a' + (int)((n + version) % 26), len - (size_t)at);
    value[len] = '\0';
}

static inline void put(WT_CURSOR *cursor, uint64_t n, uint64_t version) {
    char value[VALUE_MAX];
    make_value(n, version, value);
    cursor->set_key(cursor, n);
    cursor->set_value(cursor, value);
    OK(cursor->insert(cursor));
}

static inline void check_value(WT_CURSOR *cursor, uint64_t n, uint64_t version) {
    char wanted[VALUE_MAX];
    const char *found;
    make_value(n, version, wanted);
    cursor->set_key(cursor, n);
    OK(cursor->search(cursor));
    OK(cursor->get_value(cursor, &found));
    CHECK(strcmp(found, wanted) == 0);
}

static inline WT_CURSOR *open_table(WT_SESSION *session) {
    WT_CURSOR *cursor;
    OK(session->create(session, "table:values", "key_format=Q,value_format=S,leaf_page_max=32KB,allocation_size=4KB"));
    OK(session->open_cursor(session, "table:values", NULL, NULL, &cursor));
    return cursor;
}

/* The version of each key, 0 for one that is not there. */
static inline void check_all(WT_CURSOR *cursor, const uint64_t *versions) {
    uint64_t key, seen = 0, wanted = 0;
    int result;
    for (uint64_t n = 0; n < KEYS; n++) {
        if (versions[n] == 0) continue;
        check_value(cursor, n, versions[n]);
        wanted++;
    }
    OK(cursor->reset(cursor));
    while ((result = cursor->next(cursor)) == 0) {
        OK(cursor->get_key(cursor, &key));
        CHECK(key < KEYS && versions[key] != 0);
        seen++;
    }
    CHECK(result == WT_NOTFOUND && seen == wanted);
    OK(cursor->reset(cursor));
}

#endif
