/* A process that writes a database is killed, over and over: each operation that it had reported is there afterwards, and none in part.
 * Some kills happen in a checkpoint. Arguments: a folder, and the number of rounds, which alternate between direct and buffered I/O.
 * For vm/power-cut, with `--serve` instead: a folder, and the number of the machine's life. */
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

#define DIRECT ",direct_io=[data,checkpoint]"

/* A database with the number of its operations in a table for itself. */
typedef struct {
    WT_CONNECTION *connection;
    WT_SESSION *session;
    WT_CURSOR *values, *count;
} database;

static database open_database(const char *path, const char *method, bool is_direct) {
    database it;
    char options[256];
    snprintf(options, sizeof options, "log=(enabled,file_max=256KB),transaction_sync=(enabled,method=%s)%s", method,
             is_direct ? DIRECT : "");
    mkdir(path, 0777);
    OK(wiredtiger_open(path, NULL, settings(options), &it.connection));
    OK(it.connection->open_session(it.connection, NULL, NULL, &it.session));
    it.values = open_table(it.session);
    OK(it.session->create(it.session, "table:count", "key_format=Q,value_format=Q"));
    OK(it.session->open_cursor(it.session, "table:count", NULL, "overwrite", &it.count));
    return it;
}

static uint64_t mixed(uint64_t n) { return n * 0x9e3779b97f4a7c15u >> 20; }

/* Returns how many keys operation `n` changes. The third is removed, the others get the version n + 1. */
static uint64_t parts(uint64_t n) { return mixed(n) % 3 + 1; }

static uint64_t changed_key(uint64_t n, uint64_t part) { return mixed(n * 4 + part) % KEYS; }

static void run(database *it, uint64_t n, const char *sync) {
    OK(it->session->begin_transaction(it->session, NULL));
    for (uint64_t part = 0; part < parts(n); part++) {
        if (part < 2) {
            put(it->values, changed_key(n, part), n + 1);
        } else {
            it->values->set_key(it->values, changed_key(n, part));
            OK(it->values->remove(it->values));
        }
    }
    it->count->set_key(it->count, (uint64_t)0);
    it->count->set_value(it->count, n + 1);
    OK(it->count->insert(it->count));
    OK(it->session->commit_transaction(it->session, sync));
    if (n % 128 == 0) OK(it->session->checkpoint(it->session, NULL));
}

/* Returns the number of operations, whose results are all that is there. */
static uint64_t verify(database *it) {
    static uint64_t versions[KEYS];
    uint64_t count = 0;
    memset(versions, 0, sizeof versions);
    it->count->set_key(it->count, (uint64_t)0);
    int result = it->count->search(it->count);
    CHECK(result == 0 || result == WT_NOTFOUND);
    if (result == 0) OK(it->count->get_value(it->count, &count));
    OK(it->count->reset(it->count));
    for (uint64_t n = 0; n < count; n++) {
        for (uint64_t part = 0; part < parts(n); part++) versions[changed_key(n, part)] = part < 2 ? n + 1 : 0;
    }
    check_all(it->values, versions);
    return count;
}

static void write_until_killed(const char *path, bool is_direct, uint64_t from, int reports) {
    database it = open_database(path, "none", is_direct);
    for (uint64_t n = from;; n++) {
        run(&it, n, n % 16 == 0 ? "sync=on" : NULL);
        CHECK(write(reports, &n, sizeof n) == sizeof n);
    }
}

/* Says a number of operations, and goes on when it reads a line. */
static void say(const char *word, uint64_t count) {
    printf("%s %ju\n", word, (uintmax_t)count);
    fflush(stdout);
    if (getchar() != '\n') _exit(0);
}

static void serve(const char *path, uint64_t life) {
    database it = open_database(path, life / 2 % 2 == 0 ? "fsync" : "dsync", life % 2 == 1);
    uint64_t n = verify(&it);
    say("has", n);
    for (;; n++) {
        bool is_synced = mixed(n + life) % 4 == 0;
        run(&it, n, is_synced ? NULL : "sync=off");
        if (is_synced) say("ack", n + 1);
    }
}

int main(int count, char **arguments) {
    uint64_t reported[2] = {0, 0};
    CHECK(count >= 3);
    if (count == 4 && strcmp(arguments[1], "--serve") == 0) serve(arguments[2], strtoull(arguments[3], NULL, 10));
    srandom(7);
    for (int round = 0; round < atoi(arguments[2]); round++) {
        char path[4096];
        bool is_direct = round % 2 == 1;
        uint64_t *known = &reported[is_direct], n = 0, wanted = *known + 1 + (uint64_t)random() % 700;
        int ends[2], status;
        pid_t writer, verifier;

        snprintf(path, sizeof path, "%s/%s", arguments[1], is_direct ? "direct" : "buffered");
        CHECK(pipe(ends) == 0);
        CHECK((writer = fork()) >= 0);
        if (writer == 0) write_until_killed(path, is_direct, *known, ends[1]);
        close(ends[1]);
        for (; *known < wanted; *known = n + 1) CHECK(read(ends[0], &n, sizeof n) == sizeof n);
        kill(writer, SIGKILL);
        /* Puts that it had reported by the time of the signal. */
        while (read(ends[0], &n, sizeof n) == sizeof n) *known = n + 1;
        close(ends[0]);
        CHECK(waitpid(writer, &status, 0) == writer && WIFSIGNALED(status));
        /* In a separate process: this process never has threads, so that it can fork. */
        CHECK((verifier = fork()) >= 0);
        if (verifier == 0) {
            database it = open_database(path, "none", is_direct);
            uint64_t found = verify(&it);
            /* The last one may not have been reported. It is written again. */
            CHECK(found == *known || found == *known + 1);
            OK(it.values->close(it.values));
            OK(it.session->verify(it.session, "table:values", NULL));
            OK(it.connection->close(it.connection, NULL));
            exit(0);
        }
        CHECK(waitpid(verifier, &status, 0) == verifier && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    printf("%ju and %ju operations, none lost\nok\n", (uintmax_t)reported[0], (uintmax_t)reported[1]);
    return 0;
}
