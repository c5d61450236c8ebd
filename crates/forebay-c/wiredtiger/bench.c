/* Random gets of a table in WiredTiger, by its own file system or Forebay's. Prints gets a second, microseconds of the processors for
 * a get, the 99th percentile of a get in microseconds, and blocks that WiredTiger has read from its file for a get.
 *   bench load FOLDER KEYS CONFIG
 *   bench get FOLDER KEYS CONFIG THREADS SECONDS */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <wiredtiger.h>

enum { VALUE = 1000, MICROS = 1 << 15, THREADS_MAX = 16 };

#define OK(call) check(call, #call)

static void check(int result, const char *call) {
    if (result == 0) return;
    fprintf(stderr, "%s: %s\n", call, wiredtiger_strerror(result));
    exit(1);
}

static WT_CONNECTION *connection;
static uint64_t keys;
static double seconds;
static struct { uint64_t seed, gets; uint32_t micros[MICROS]; } workers[THREADS_MAX];

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static double processor_seconds(void) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) + (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
}

static WT_CURSOR *open_cursor(WT_SESSION **session, const char *name, const char *config) {
    WT_CURSOR *cursor;
    OK(connection->open_session(connection, NULL, NULL, session));
    OK((*session)->open_cursor(*session, name, NULL, config, &cursor));
    return cursor;
}

static uint64_t blocks_read(void) {
    WT_SESSION *session;
    WT_CURSOR *cursor = open_cursor(&session, "statistics:", NULL);
    const char *text, *value;
    uint64_t count;
    cursor->set_key(cursor, WT_STAT_CONN_BLOCK_READ);
    OK(cursor->search(cursor));
    OK(cursor->get_value(cursor, &text, &value, &count));
    OK(session->close(session, NULL));
    return count;
}

static void *get(void *argument) {
    size_t n = (size_t)argument;
    WT_SESSION *session;
    WT_CURSOR *cursor = open_cursor(&session, "table:bench", NULL);
    double end = now() + seconds;
    for (double begin = now(), then; begin < end; begin = then) {
        workers[n].seed = workers[n].seed * 6364136223846793005u + 1442695040888963407u;
        cursor->set_key(cursor, (workers[n].seed >> 20) % keys);
        OK(cursor->search(cursor));
        OK(cursor->reset(cursor));
        then = now();
        uint64_t micros = (uint64_t)((then - begin) * 1e6);
        workers[n].micros[micros < MICROS ? micros : MICROS - 1]++;
        workers[n].gets++;
    }
    OK(session->close(session, NULL));
    return NULL;
}

int main(int count, char **arguments) {
    if (count != 5 && count != 7) return fprintf(stderr, "usage: bench load|get FOLDER KEYS CONFIG [THREADS SECONDS]\n"), 2;
    keys = strtoull(arguments[3], NULL, 10);
    OK(wiredtiger_open(arguments[2], NULL, arguments[4], &connection));
    if (strcmp(arguments[1], "load") == 0) {
        WT_SESSION *session;
        char value[VALUE];
        OK(connection->open_session(connection, NULL, NULL, &session));
        OK(session->create(session, "table:bench", "key_format=Q,value_format=S"));
        WT_CURSOR *cursor = open_cursor(&session, "table:bench", "bulk");
        memset(value, 'v', sizeof value);
        value[VALUE - 1] = '\0';
        for (uint64_t key = 0; key < keys; key++) {
            cursor->set_key(cursor, key);
            cursor->set_value(cursor, value);
            OK(cursor->insert(cursor));
        }
        OK(connection->close(connection, NULL));
        return 0;
    }
    size_t threads = strtoul(arguments[5], NULL, 10);
    if (threads > THREADS_MAX) threads = THREADS_MAX;
    pthread_t started[THREADS_MAX];
    /* The first third of the time brings the inner pages into the cache. */
    for (int part = 1; part <= 2; part++) {
        seconds = strtod(arguments[6], NULL) * part / 3;
        memset(workers, 0, sizeof workers[0] * threads);
        uint64_t blocks = blocks_read(), gets = 0, seen = 0, p99 = 0;
        double begin = now(), processor = processor_seconds();
        for (size_t n = 0; n < threads; n++) {
            workers[n].seed = (n + 1) * 97 + (uint64_t)part;
            if (pthread_create(&started[n], NULL, get, (void *)n) != 0) return fprintf(stderr, "no thread\n"), 1;
        }
        for (size_t n = 0; n < threads; n++) pthread_join(started[n], NULL), gets += workers[n].gets;
        double took = now() - begin;
        processor = processor_seconds() - processor;
        for (; p99 < MICROS && seen * 100 < gets * 99; p99++) for (size_t n = 0; n < threads; n++) seen += workers[n].micros[p99];
        if (part == 2) printf("%.0f %.2f %ju %.3f\n", (double)gets / took, processor * 1e6 / (double)gets, (uintmax_t)p99,
                              (double)(blocks_read() - blocks) / (double)gets);
    }
    OK(connection->close(connection, NULL));
    return 0;
}
