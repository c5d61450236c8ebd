/* Databases on Forebay compared with a model: also read by WiredTiger's own file system, copied by a backup, locked, closed in
 * exit(), and on a full disk. Arguments: a folder, and a small file system. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

#define LOG "log=(enabled,file_max=256KB),transaction_sync=(enabled,method=none)"

static const char own[] = "create,cache_size=8MB,config_base=false";

static WT_CONNECTION *open_database(const char *path, const char *config, WT_SESSION **session) {
    WT_CONNECTION *connection;
    OK(wiredtiger_open(path, NULL, config, &connection));
    OK(connection->open_session(connection, NULL, NULL, session));
    return connection;
}

/* Returns a new folder. */
static const char *folder(const char *parent, const char *name) {
    static char paths[8][4096];
    static unsigned last;
    char *path = paths[last++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", parent, name);
    CHECK(mkdir(path, 0777) == 0);
    return path;
}

static void change(WT_CURSOR *cursor, uint64_t *versions, uint64_t version) {
    for (int i = 0; i < KEYS / 2; i++) {
        uint64_t n = (uint64_t)random() % KEYS;
        if (random() % 4 == 0 && versions[n] != 0) {
            cursor->set_key(cursor, n);
            OK(cursor->remove(cursor));
            versions[n] = 0;
        } else {
            put(cursor, n, version);
            versions[n] = version;
        }
    }
    OK(cursor->reset(cursor));
}

/* Both file systems in turn: 8 MB of cache hold half of the table. */
static void follows_the_model(const char *parent, const char *name, const char *options) {
    const char *path = folder(parent, name);
    static uint64_t versions[KEYS], before[KEYS];
    WT_SESSION *session;
    WT_CURSOR *cursor, *old;
    memset(versions, 0, sizeof versions);
    for (uint64_t round = 1; round <= 6; round++) {
        WT_CONNECTION *connection = open_database(path, round % 3 == 0 ? own : settings(options), &session);
        cursor = open_table(session);
        check_all(cursor, versions);
        change(cursor, versions, round);
        OK(session->checkpoint(session, "name=before"));
        memcpy(before, versions, sizeof before);
        change(cursor, versions, round + 100);
        OK(session->checkpoint(session, NULL));
        check_all(cursor, versions);
        OK(session->open_cursor(session, "table:values", NULL, "checkpoint=before", &old));
        check_all(old, before);
        OK(old->close(old));
        if (round % 2 == 0) OK(session->compact(session, "table:values", NULL));
        OK(connection->close(connection, NULL));
    }
    WT_CONNECTION *connection = open_database(path, settings(options), &session);
    OK(session->verify(session, "table:values", NULL));
    OK(session->rename(session, "table:values", "table:others", NULL));
    OK(session->rename(session, "table:others", "table:values", NULL));
    OK(session->drop(session, "table:values", NULL));
    RETURNS(ENOENT, session->open_cursor(session, "table:values", NULL, NULL, &cursor));
    OK(connection->close(connection, NULL));
}

typedef struct {
    WT_CONNECTION *connection;
    uint64_t first;
} worker;

static void *work(void *argument) {
    const worker *it = argument;
    WT_SESSION *session;
    WT_CURSOR *cursor;
    OK(it->connection->open_session(it->connection, NULL, NULL, &session));
    cursor = open_table(session);
    for (uint64_t n = 0; n < 1500; n++) put(cursor, it->first + n, 1);
    for (uint64_t n = 0; n < 1500; n++) check_value(cursor, it->first + n, 1);
    OK(session->close(session, NULL));
    return NULL;
}

static void serves_several_threads(const char *parent) {
    WT_SESSION *session;
    WT_CONNECTION *connection = open_database(folder(parent, "threads"), settings("direct_io=[data]," LOG), &session);
    pthread_t threads[4];
    worker workers[4];
    WT_CURSOR *cursor = open_table(session);
    for (uint64_t n = 0; n < 4; n++) {
        workers[n] = (worker){connection, n * 100000};
        CHECK(pthread_create(&threads[n], NULL, work, &workers[n]) == 0);
    }
    for (int n = 0; n < 20; n++) OK(session->checkpoint(session, NULL));
    for (int n = 0; n < 4; n++) CHECK(pthread_join(threads[n], NULL) == 0);
    for (uint64_t n = 0; n < 6000; n++) check_value(cursor, n / 1500 * 100000 + n % 1500, 1);
    OK(connection->close(connection, NULL));
}

static void copy_file(const char *from, const char *to, const char *name) {
    char path[8192], bytes[65536];
    int source, target;
    ssize_t len;
    snprintf(path, sizeof path, "%s/%s", from, name);
    CHECK((source = open(path, O_RDONLY)) >= 0);
    snprintf(path, sizeof path, "%s/%s", to, name);
    CHECK((target = open(path, O_WRONLY | O_CREAT | O_EXCL, 0666)) >= 0);
    while ((len = read(source, bytes, sizeof bytes)) > 0) CHECK(write(target, bytes, (size_t)len) == len);
    CHECK(len == 0 && close(source) == 0 && close(target) == 0);
}

static void a_backup_has_the_table(const char *parent) {
    const char *path = folder(parent, "source"), *copy = folder(parent, "copy"), *name;
    WT_SESSION *session;
    WT_CONNECTION *connection = open_database(path, settings("direct_io=[data]," LOG), &session);
    WT_CURSOR *cursor = open_table(session), *backup;
    int result;
    for (uint64_t n = 0; n < 500; n++) put(cursor, n, 1);
    OK(session->checkpoint(session, NULL));
    for (uint64_t n = 500; n < 600; n++) put(cursor, n, 1);
    OK(session->open_cursor(session, "backup:", NULL, NULL, &backup));
    while ((result = backup->next(backup)) == 0) {
        OK(backup->get_key(backup, &name));
        copy_file(path, copy, name);
    }
    CHECK(result == WT_NOTFOUND);
    OK(connection->close(connection, NULL));
    connection = open_database(copy, settings("direct_io=[data]," LOG), &session);
    cursor = open_table(session);
    for (uint64_t n = 0; n < 600; n++) check_value(cursor, n, 1);
    OK(connection->close(connection, NULL));
}

static int exit_of(pid_t child) {
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* Children are started before this process has threads: each opens the database when the pipe ends, while it is open here. */
static void the_lock_conflicts(const char *parent) {
    const char *path = folder(parent, "locked");
    WT_SESSION *session;
    WT_CONNECTION *connection, *second;
    pid_t children[2];
    int ends[2];
    char byte;
    CHECK(pipe(ends) == 0);
    for (int n = 0; n < 2; n++) {
        if ((children[n] = fork()) != 0) continue;
        close(ends[1]);
        CHECK(read(ends[0], &byte, 1) == 0);
        exit(wiredtiger_open(path, NULL, n == 0 ? own : settings(LOG), &second) == EBUSY ? 0 : 1);
    }
    connection = open_database(path, settings(LOG), &session);
    RETURNS(EBUSY, wiredtiger_open(path, NULL, own, &second));
    close(ends[0]);
    close(ends[1]);
    CHECK(exit_of(children[0]) == 0 && exit_of(children[1]) == 0);
    OK(connection->close(connection, NULL));
}

/* A program forked a worker while its database was open, and closed the database. The worker had the lock's open file too, so the database
 * could not be opened again before the worker ended. */
static void a_forked_child_does_not_keep_the_lock(const char *parent) {
    const char *path = folder(parent, "forked");
    WT_SESSION *session;
    WT_CONNECTION *connection = open_database(path, settings(LOG), &session);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        alarm(60);
        pause();
        _exit(0);
    }
    OK(connection->close(connection, NULL));
    connection = open_database(path, own, &session);
    OK(connection->close(connection, NULL));
    CHECK(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
}

static WT_CONNECTION *left_open;

static void close_late(void) { OK(left_open->close(left_open, NULL)); }

/* Threads have lost their local values by then. Without a log the values are in the checkpoint of the close. */
static void a_close_in_exit_keeps_the_values(const char *parent) {
    const char *path = folder(parent, "late");
    WT_SESSION *session;
    WT_CURSOR *cursor;
    pid_t child = fork();
    if (child == 0) {
        atexit(close_late);
        left_open = open_database(path, settings("direct_io=[data]"), &session);
        cursor = open_table(session);
        for (uint64_t n = 0; n < 1000; n++) put(cursor, n, 1);
        exit(0);
    }
    CHECK(exit_of(child) == 0);
    WT_CONNECTION *connection = open_database(path, own, &session);
    cursor = open_table(session);
    for (uint64_t n = 0; n < 1000; n++) check_value(cursor, n, 1);
    OK(connection->close(connection, NULL));
}

static atomic_bool is_flush_refused;

/* The extension flushes directories by this function. */
int fsync(int descriptor) {
    if (!atomic_load(&is_flush_refused)) return (int)syscall(SYS_fsync, descriptor);
    errno = EIO;
    return -1;
}

/* The kernel reports a failed flush once, and has dropped the pages: a checkpoint after it would name blocks that are not there. */
static void a_failed_flush_is_final(const char *parent) {
    const char *path = folder(parent, "flush");
    WT_SESSION *session;
    WT_CURSOR *cursor;
    pid_t child = fork();
    if (child == 0) {
        open_database(path, settings("direct_io=[data]"), &session);
        cursor = open_table(session);
        for (uint64_t n = 0; n < 100; n++) put(cursor, n, 1);
        OK(session->checkpoint(session, NULL));
        put(cursor, 0, 2);
        atomic_store(&is_flush_refused, true);
        CHECK(session->checkpoint(session, NULL) == WT_PANIC);
        atomic_store(&is_flush_refused, false);
        CHECK(session->checkpoint(session, NULL) == WT_PANIC);
        _exit(0);
    }
    CHECK(exit_of(child) == 0);
    WT_CONNECTION *connection = open_database(path, settings("direct_io=[data]"), &session);
    cursor = open_table(session);
    for (uint64_t n = 1; n < 100; n++) check_value(cursor, n, 1);
    OK(connection->close(connection, NULL));
}

static void a_late_load_is_refused(const char *parent) {
    const char *path = folder(parent, "refused");
    char config[1024];
    WT_CONNECTION *connection;
    snprintf(config, sizeof config, "%s,extensions=[%s]", own, getenv("FOREBAY_WIREDTIGER"));
    CHECK(wiredtiger_open(path, NULL, config, &connection) != 0);
}

static void an_unknown_setting_is_refused(const char *parent) {
    const char *path = folder(parent, "unknown");
    char config[1024];
    WT_CONNECTION *connection;
    snprintf(config, sizeof config, "%s,extensions=[%s={early_load=true,config={log_dsnc=true}}]", own, getenv("FOREBAY_WIREDTIGER"));
    RETURNS(EINVAL, wiredtiger_open(path, NULL, config, &connection));
}

/* Puts that a log or a checkpoint had before the disk was full are there when it has space again. */
static void a_full_disk_loses_nothing(const char *small, const char *name, const char *config) {
    const char *path = folder(small, name);
    const bool has_log = strcmp(config, LOG) == 0;
    char ballast[4096];
    struct statvfs space;
    uint64_t reported = 0;
    pid_t child;
    int ends[2], file;

    /* A quarter stays. */
    snprintf(ballast, sizeof ballast, "%s/ballast", small);
    CHECK(statvfs(small, &space) == 0 && (file = open(ballast, O_WRONLY | O_CREAT, 0666)) >= 0);
    CHECK(posix_fallocate(file, 0, (off_t)(space.f_bavail * space.f_bsize / 4 * 3)) == 0 && close(file) == 0);
    CHECK(pipe(ends) == 0);
    if ((child = fork()) == 0) {
        WT_SESSION *session;
        open_database(path, settings(config), &session);
        WT_CURSOR *cursor = open_table(session);
        char value[VALUE_MAX];
        for (uint64_t n = 0;; n++) {
            make_value(n, 1, value);
            cursor->set_key(cursor, n);
            cursor->set_value(cursor, value);
            if (cursor->insert(cursor) != 0) break;
            if (n % 512 == 511 && session->checkpoint(session, NULL) != 0) break;
            if (has_log || n % 512 == 511) CHECK(write(ends[1], &n, sizeof n) == sizeof n);
        }
        /* WiredTiger panics where it cannot write its log, and a close may then wait forever. */
        _exit(0);
    }
    close(ends[1]);
    for (uint64_t n; read(ends[0], &n, sizeof n) == sizeof n;) reported = n + 1;
    close(ends[0]);
    CHECK(waitpid(child, &file, 0) == child);
    CHECK(statvfs(small, &space) == 0 && reported > 0);
    CHECK(unlink(ballast) == 0);

    WT_SESSION *session;
    WT_CONNECTION *connection = open_database(path, settings(config), &session);
    WT_CURSOR *cursor = open_table(session);
    for (uint64_t n = 0; n < reported; n++) check_value(cursor, n, 1);
    put(cursor, reported, 1);
    OK(session->checkpoint(session, NULL));
    OK(connection->close(connection, NULL));
}

int main(int count, char **arguments) {
    CHECK(count == 2 || count == 3);
    const char *parent = arguments[1];
    srandom(5);
    /* Tests that fork run first. */
    if (count == 3) {
        a_full_disk_loses_nothing(arguments[2], "log", LOG);
        a_full_disk_loses_nothing(arguments[2], "checkpoints", "log=(enabled=false)");
    }
    a_failed_flush_is_final(parent);
    a_close_in_exit_keeps_the_values(parent);
    the_lock_conflicts(parent);
    a_forked_child_does_not_keep_the_lock(parent);
    a_late_load_is_refused(parent);
    an_unknown_setting_is_refused(parent);
    follows_the_model(parent, "buffered", LOG);
    follows_the_model(parent, "direct", "direct_io=[data,checkpoint]");
    serves_several_threads(parent);
    a_backup_has_the_table(parent);
    printf("ok\n");
    return 0;
}
