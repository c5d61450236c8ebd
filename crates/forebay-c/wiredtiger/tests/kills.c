/* A process that writes a database is killed, over and over: each put that it had reported is there afterwards. Some kills happen
 * in a checkpoint. Arguments: a folder, and the number of rounds, which alternate between direct and buffered I/O. */
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

static const char *const options[] = {
    "log=(enabled,file_max=256KB),transaction_sync=(enabled,method=none)",
    "log=(enabled,file_max=256KB),transaction_sync=(enabled,method=none),direct_io=[data,checkpoint]",
};

static WT_CONNECTION *open_database(const char *path, int round, WT_SESSION **session) {
    WT_CONNECTION *connection;
    OK(wiredtiger_open(path, NULL, settings(options[round % 2]), &connection));
    OK(connection->open_session(connection, NULL, NULL, session));
    return connection;
}

static void write_until_killed(const char *path, int round, uint64_t from, int reports) {
    WT_SESSION *session;
    WT_CURSOR *cursor;
    open_database(path, round, &session);
    cursor = open_table(session);
    for (uint64_t n = from;; n++) {
        OK(session->begin_transaction(session, NULL));
        put(cursor, n, 0);
        OK(session->commit_transaction(session, n % 16 == 0 ? "sync=on" : NULL));
        CHECK(write(reports, &n, sizeof n) == sizeof n);
        if (n % 128 == 0) OK(session->checkpoint(session, NULL));
    }
}

static void verify(const char *path, int round, uint64_t count) {
    WT_SESSION *session;
    WT_CONNECTION *connection = open_database(path, round, &session);
    WT_CURSOR *cursor = open_table(session);
    for (uint64_t n = 0; n < count; n++) check_value(cursor, n, 0);
    OK(cursor->close(cursor));
    OK(session->verify(session, "table:values", NULL));
    OK(connection->close(connection, NULL));
}

int main(int count, char **arguments) {
    uint64_t reported[2] = {0, 0};
    CHECK(count == 3);
    srandom(7);
    for (int round = 0; round < atoi(arguments[2]); round++) {
        char path[4096];
        uint64_t *known = &reported[round % 2], n = 0, wanted = *known + 1 + (uint64_t)random() % 700;
        int ends[2], status;
        pid_t writer, verifier;

        snprintf(path, sizeof path, "%s/%s", arguments[1], round % 2 ? "direct" : "buffered");
        mkdir(path, 0777);
        CHECK(pipe(ends) == 0);
        CHECK((writer = fork()) >= 0);
        if (writer == 0) write_until_killed(path, round, *known, ends[1]);
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
            verify(path, round, *known);
            exit(0);
        }
        CHECK(waitpid(verifier, &status, 0) == verifier && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    printf("%ju and %ju puts, none lost\nok\n", (uintmax_t)reported[0], (uintmax_t)reported[1]);
    return 0;
}
