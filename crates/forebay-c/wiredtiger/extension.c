/* A file system for WiredTiger on libforebay, as an extension that is loaded early. docs/c.md is the guide. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <forebay.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <wiredtiger.h>
#include <wiredtiger_ext.h>

typedef struct {
    WT_FILE_SYSTEM methods;
    WT_EXTENSION_API *api;
    fb_engine *engine;
    bool is_log_dsync;
    /* The pages of a flush that failed are marked clean, so a later one would succeed without them. */
    atomic_bool is_flush_lost;
} file_system;

typedef struct {
    WT_FILE_HANDLE methods;
    fb_file *file;  /* NULL of a directory */
    int descriptor; /* of a directory, and for the lock; else -1 */
    uint32_t class_id;
    uint32_t durability; /* of writes */
} file_handle;

static file_system *system_of(const file_handle *handle) { return (file_system *)handle->methods.file_system; }

static int report(file_system *system, WT_SESSION *session, const char *what, const char *name, int error) {
    system->api->err_printf(system->api, session, "forebay: %s: %s: %s", name, what, strerror(error));
    return error;
}

/* Returns the result of a system call that returned `code`. */
static int system_result(file_system *system, WT_SESSION *session, const char *what, const char *name, int code) {
    return code < 0 ? report(system, session, what, name, errno) : 0;
}

/* A call of libforebay, and what it leaves to the thread. */
typedef struct {
    int (*function)(void *arguments);
    void *arguments;
    int code;
    int os_error;
    char text[512];
} call;

static void *make_call(void *made) {
    call *it = made;
    it->code = it->function(it->arguments);
    it->os_error = fb_error_os();
    if (it->code != FB_OK) snprintf(it->text, sizeof it->text, "%s", fb_error_text());
    return NULL;
}

static _Thread_local bool is_late;
static _Thread_local bool is_marked;

extern int __cxa_thread_atexit_impl(void (*function)(void *), void *argument, void *library);
extern void *__dso_handle;

static void set_late(void *unused) {
    (void)unused;
    is_late = true;
}

/* Calls a function of libforebay that may wait, and returns WiredTiger's result. A thread in exit(), where programs may close their
 * connection, has lost the thread-local values of the library: another thread makes its calls. */
static int run(file_system *system, WT_SESSION *session, int (*function)(void *), void *arguments) {
    call it = {.function = function, .arguments = arguments};
    pthread_t thread;

    if (!is_marked && !is_late) is_marked = __cxa_thread_atexit_impl(set_late, NULL, &__dso_handle) == 0;
    if (!is_late) {
        /* Most calls succeed, and need no copy of a sentence. */
        if ((it.code = function(arguments)) == FB_OK) return 0;
        it.os_error = fb_error_os();
        snprintf(it.text, sizeof it.text, "%s", fb_error_text());
    } else {
        if (pthread_create(&thread, NULL, make_call, &it) != 0) return EAGAIN;
        pthread_join(thread, NULL);
    }
    if (it.code == FB_OK) return 0;
    if (it.code == FB_MEMORY_LOST) {
        /* WiredTiger uses its memory again when the call returns, and the device may write to it then. */
        fprintf(stderr, "forebay: %s\n", it.text);
        abort();
    }
    /* WiredTiger asks so whether a file is there. */
    if (it.code != FB_NOT_FOUND) system->api->err_printf(system->api, session, "forebay: %s", it.text);
    if (it.os_error != 0) return it.os_error;
    switch (it.code) {
        case FB_NOT_FOUND: return ENOENT;
        case FB_PERMISSION_DENIED: return EACCES;
        case FB_ALREADY_EXISTS: return EEXIST;
        case FB_NO_SPACE: return ENOSPC;
        case FB_MEMORY_EXHAUSTED: return ENOMEM;
        case FB_MISALIGNED:
        case FB_INVALID_INPUT: return EINVAL;
        case FB_UNSUPPORTED: return ENOTSUP;
        default: return EIO;
    }
}

/* Returns the result of a flush. WiredTiger's own file system panics at a failed one; here no later one succeeds. */
static int flush_result(file_system *system, WT_SESSION *session, const char *name, int result) {
    if (result != 0) atomic_store(&system->is_flush_lost, true);
    if (!atomic_load(&system->is_flush_lost)) return 0;
    if (result == 0) system->api->err_printf(system->api, session, "forebay: %s: an earlier flush has failed", name);
    return WT_PANIC;
}

/* Files. */

typedef struct {
    file_handle *handle;
    fb_request request;
    uint64_t bytes;
    uint64_t len;
} transfer;

static int make_transfer(void *arguments) {
    transfer *it = arguments;
    return fb_run(&it->request, &it->bytes);
}

static transfer new_transfer(file_handle *handle, uint32_t op, void *data, size_t len, wt_off_t offset) {
    transfer it = {.handle = handle};
    it.request.size = sizeof it.request;
    it.request.file = handle->file;
    it.request.data = data;
    it.request.len = len;
    it.request.offset = (uint64_t)offset;
    it.request.op = op;
    it.request.class_id = handle->class_id;
    return it;
}

static int file_read(WT_FILE_HANDLE *methods, WT_SESSION *session, wt_off_t offset, size_t len, void *data) {
    file_handle *handle = (file_handle *)methods;
    transfer it = new_transfer(handle, FB_OP_READ, data, len, offset);
    int result;

    if (handle->file == NULL) return EISDIR;
    if ((result = run(system_of(handle), session, make_transfer, &it)) != 0) return result;
    if (it.bytes == len) return 0;
    system_of(handle)->api->err_printf(system_of(handle)->api, session,
        "forebay: %s: the file ends inside of %zu bytes at offset %jd", methods->name, len, (intmax_t)offset);
    return WT_ERROR;
}

static int file_write(WT_FILE_HANDLE *methods, WT_SESSION *session, wt_off_t offset, size_t len, const void *data) {
    file_handle *handle = (file_handle *)methods;
    transfer it = new_transfer(handle, FB_OP_WRITE, (void *)data, len, offset);
    file_system *system = system_of(handle);
    int result;

    if (handle->file == NULL) return EISDIR;
    it.request.durability = handle->durability;
    result = run(system, session, make_transfer, &it);
    return handle->durability == FB_DURABLE_NONE ? result : flush_result(system, session, methods->name, result);
}

static int file_sync(WT_FILE_HANDLE *methods, WT_SESSION *session) {
    file_handle *handle = (file_handle *)methods;
    file_system *system = system_of(handle);
    transfer it = new_transfer(handle, FB_OP_SYNC, NULL, 0, 0);
    int result;

    it.request.durability = FB_DURABLE_DATA;
    if (handle->file == NULL) result = system_result(system, session, "fsync", methods->name, fsync(handle->descriptor));
    else result = run(system, session, make_transfer, &it);
    return flush_result(system, session, methods->name, result);
}

static int ask_len(void *arguments) {
    transfer *it = arguments;
    return fb_file_len(it->handle->file, &it->len);
}

static int set_len(void *arguments) {
    transfer *it = arguments;
    return fb_file_set_len(it->handle->file, it->len);
}

/* Some file systems allocate nothing ahead. */
static int extend(void *arguments) {
    transfer *it = arguments;
    uint64_t len;
    int code = fb_file_len(it->handle->file, &len);
    if (code != FB_OK || len >= it->len) return code;
    code = fb_file_allocate(it->handle->file, len, it->len - len);
    return code == FB_UNSUPPORTED ? fb_file_set_len(it->handle->file, it->len) : code;
}

static int file_size(WT_FILE_HANDLE *methods, WT_SESSION *session, wt_off_t *len) {
    transfer it = {.handle = (file_handle *)methods};
    int result;
    if (it.handle->file == NULL) return EISDIR;
    result = run(system_of(it.handle), session, ask_len, &it);
    *len = (wt_off_t)it.len;
    return result;
}

static int file_truncate(WT_FILE_HANDLE *methods, WT_SESSION *session, wt_off_t len) {
    transfer it = {.handle = (file_handle *)methods, .len = (uint64_t)len};
    return it.handle->file == NULL ? EISDIR : run(system_of(it.handle), session, set_len, &it);
}

static int file_extend(WT_FILE_HANDLE *methods, WT_SESSION *session, wt_off_t len) {
    transfer it = {.handle = (file_handle *)methods, .len = (uint64_t)len};
    return it.handle->file == NULL ? EISDIR : run(system_of(it.handle), session, extend, &it);
}

/* The lock is one of its open file: a close of another descriptor does not release it. It conflicts with that of WiredTiger's own
 * file system. */
static int set_lock(int descriptor, bool lock) {
    struct flock range = {.l_type = lock ? F_WRLCK : F_UNLCK, .l_whence = SEEK_SET, .l_len = 1};
    return fcntl(descriptor, F_OFD_SETLK, &range);
}

static int file_lock(WT_FILE_HANDLE *methods, WT_SESSION *session, bool lock) {
    file_handle *handle = (file_handle *)methods;
    file_system *system = system_of(handle);
    if (handle->descriptor < 0 && (handle->descriptor = open(methods->name, O_RDWR | O_CLOEXEC)) < 0) {
        return report(system, session, "open for its lock", methods->name, errno);
    }
    return system_result(system, session, "lock", methods->name, set_lock(handle->descriptor, lock));
}

static int close_file(void *arguments) { return fb_file_close(arguments); }

static int file_close(WT_FILE_HANDLE *methods, WT_SESSION *session) {
    file_handle *handle = (file_handle *)methods;
    file_system *system = system_of(handle);
    int result = handle->file == NULL ? 0 : run(system, session, close_file, handle->file);
    /* WiredTiger unlocks by the close. A child that was forked meanwhile has the open file too, and would keep the lock. */
    if (handle->descriptor >= 0) set_lock(handle->descriptor, false);
    if (handle->descriptor >= 0 && close(handle->descriptor) != 0 && result == 0) {
        result = report(system, session, "close", methods->name, errno);
    }
    free(methods->name);
    free(handle);
    return result;
}

/* Names. */

static int sync_directory(file_system *system, WT_SESSION *session, const char *name) {
    const char *slash = strrchr(name, '/');
    char *path = slash == NULL ? strdup(".") : strndup(name, (size_t)(slash - name) + 1);
    int descriptor, result;
    if (path == NULL) return ENOMEM;
    descriptor = open(path, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) {
        result = report(system, session, "open of a directory", path, errno);
    } else {
        result = system_result(system, session, "flush of a directory", path, fsync(descriptor));
        close(descriptor);
        result = flush_result(system, session, path, result);
    }
    free(path);
    return result;
}

typedef struct {
    fb_engine *engine;
    const char *name;
    fb_open how;
    fb_file *file;
} opening;

static int open_file(void *arguments) {
    opening *it = arguments;
    return fb_file_open(it->engine, it->name, &it->how, &it->file);
}

static int fs_open_file(WT_FILE_SYSTEM *methods, WT_SESSION *session, const char *name, WT_FS_OPEN_FILE_TYPE type, uint32_t flags,
                        WT_FILE_HANDLE **opened) {
    file_system *system = (file_system *)methods;
    opening it = {.engine = system->engine, .name = name, .how = {.size = sizeof it.how, .permissions = 0644}};
    file_handle *handle = calloc(1, sizeof *handle);
    int result = 0;

    *opened = NULL;
    if (handle == NULL) return ENOMEM;
    handle->descriptor = -1;
    handle->methods = (WT_FILE_HANDLE){.file_system = methods, .name = strdup(name), .close = file_close, .fh_extend = file_extend,
        .fh_lock = file_lock, .fh_read = file_read, .fh_size = file_size, .fh_sync = file_sync, .fh_truncate = file_truncate,
        .fh_write = file_write};
    if (handle->methods.name == NULL) {
        free(handle);
        return ENOMEM;
    }
    if (type == WT_FS_OPEN_FILE_TYPE_LOG) {
        handle->class_id = FB_CLASS_LOG;
        handle->durability = system->is_log_dsync ? FB_DURABLE_DATA : FB_DURABLE_NONE;
    }
    if (type == WT_FS_OPEN_FILE_TYPE_DIRECTORY) {
        handle->descriptor = open(name, O_RDONLY | O_CLOEXEC);
        result = system_result(system, session, "open of a directory", name, handle->descriptor);
    } else {
        it.how.access = flags & WT_FS_OPEN_READONLY ? FB_READ_ONLY : FB_READ_WRITE;
        if (flags & WT_FS_OPEN_CREATE) it.how.access = flags & WT_FS_OPEN_EXCLUSIVE ? FB_CREATE_NEW : FB_CREATE;
        it.how.mode = flags & WT_FS_OPEN_DIRECTIO ? FB_DIRECT : FB_BUFFERED;
        result = run(system, session, open_file, &it);
        handle->file = it.file;
        if (result == 0 && flags & WT_FS_OPEN_DURABLE) result = sync_directory(system, session, name);
    }
    if (result == 0) *opened = &handle->methods;
    else file_close(&handle->methods, session);
    return result;
}

static int fs_exist(WT_FILE_SYSTEM *methods, WT_SESSION *session, const char *name, bool *is_there) {
    struct stat found;
    *is_there = stat(name, &found) == 0;
    return *is_there || errno == ENOENT ? 0 : report((file_system *)methods, session, "stat", name, errno);
}

static int fs_size(WT_FILE_SYSTEM *methods, WT_SESSION *session, const char *name, wt_off_t *len) {
    struct stat found;
    if (stat(name, &found) != 0) return report((file_system *)methods, session, "stat", name, errno);
    *len = found.st_size;
    return 0;
}

static int fs_remove(WT_FILE_SYSTEM *methods, WT_SESSION *session, const char *name, uint32_t flags) {
    file_system *system = (file_system *)methods;
    int result = system_result(system, session, "remove", name, unlink(name));
    return result == 0 && flags & WT_FS_DURABLE ? sync_directory(system, session, name) : result;
}

/* WiredTiger renames inside of a directory only; a flush of each is right for two, too. */
static int fs_rename(WT_FILE_SYSTEM *methods, WT_SESSION *session, const char *from, const char *to, uint32_t flags) {
    file_system *system = (file_system *)methods;
    int result = system_result(system, session, "rename", from, rename(from, to));
    if (result != 0 || !(flags & WT_FS_DURABLE)) return result;
    result = sync_directory(system, session, to);
    return result != 0 ? result : sync_directory(system, session, from);
}

static int fs_list_free(WT_FILE_SYSTEM *methods, WT_SESSION *session, char **names, uint32_t count) {
    (void)methods, (void)session;
    for (uint32_t n = 0; n < count; n++) free(names[n]);
    free(names);
    return 0;
}

static int list(file_system *system, WT_SESSION *session, const char *path, const char *prefix, uint32_t most, char ***found,
                uint32_t *count) {
    DIR *directory = opendir(path);
    char **names = NULL, **grown;
    uint32_t len = 0;
    int result = 0;

    *found = NULL;
    *count = 0;
    if (directory == NULL) return report(system, session, "opendir", path, errno);
    while (len < most) {
        const struct dirent *entry = (errno = 0, readdir(directory));
        if (entry == NULL) {
            if (errno != 0) result = report(system, session, "readdir", path, errno);
            break;
        }
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        if (prefix != NULL && strncmp(entry->d_name, prefix, strlen(prefix)) != 0) continue;
        grown = realloc(names, (len + 1) * sizeof *names);
        if (grown != NULL) names = grown;
        if (grown == NULL || (names[len] = strdup(entry->d_name)) == NULL) {
            result = ENOMEM;
            break;
        }
        len++;
    }
    closedir(directory);
    if (result != 0) {
        fs_list_free(&system->methods, session, names, len);
        return result;
    }
    *found = names;
    *count = len;
    return 0;
}

static int fs_list(WT_FILE_SYSTEM *methods, WT_SESSION *session, const char *path, const char *prefix, char ***names, uint32_t *count) {
    return list((file_system *)methods, session, path, prefix, UINT32_MAX, names, count);
}

static int fs_list_single(WT_FILE_SYSTEM *methods, WT_SESSION *session, const char *path, const char *prefix, char ***names,
                          uint32_t *count) {
    return list((file_system *)methods, session, path, prefix, 1, names, count);
}

static int close_engine(void *arguments) { return fb_engine_close(arguments, NULL); }

static int fs_terminate(WT_FILE_SYSTEM *methods, WT_SESSION *session) {
    file_system *system = (file_system *)methods;
    int result = run(system, session, close_engine, system->engine);
    free(system);
    return result;
}

typedef struct {
    fb_config config;
    fb_engine *engine;
} starting;

static int start_engine(void *arguments) {
    starting *it = arguments;
    return fb_engine_start(&it->config, &it->engine);
}

/* An unknown setting is refused: commits were less durable behind a misspelt log_dsync. */
static int read_config(file_system *system, WT_CONFIG_ARG *config, fb_config *of_engine) {
    WT_CONFIG_PARSER *parser;
    WT_CONFIG_ITEM key, value;
    int result = system->api->config_parser_open_arg(system->api, NULL, config, &parser);

    if (result != 0) return result;
    while ((result = parser->next(parser, &key, &value)) == 0) {
        if (key.len == strlen("log_dsync") && strncmp(key.str, "log_dsync", key.len) == 0) {
            system->is_log_dsync = value.val != 0;
        } else if (key.len == strlen("threads") && strncmp(key.str, "threads", key.len) == 0) {
            if (value.val != 0) of_engine->driver = FB_DRIVER_THREADS;
        } else {
            system->api->err_printf(system->api, NULL, "forebay: unknown setting %.*s", (int)key.len, key.str);
            result = EINVAL;
            break;
        }
    }
    parser->close(parser);
    return result == WT_NOTFOUND ? 0 : result;
}

__attribute__((visibility("default"))) int wiredtiger_extension_init(WT_CONNECTION *connection, WT_CONFIG_ARG *config) {
    file_system *system = calloc(1, sizeof *system);
    starting it = {.config = {.size = sizeof it.config}};
    int result;

    if (system == NULL) return ENOMEM;
    system->api = connection->get_extension_api(connection);
    system->methods = (WT_FILE_SYSTEM){.fs_directory_list = fs_list, .fs_directory_list_single = fs_list_single,
        .fs_directory_list_free = fs_list_free, .fs_exist = fs_exist, .fs_open_file = fs_open_file, .fs_remove = fs_remove,
        .fs_rename = fs_rename, .fs_size = fs_size, .terminate = fs_terminate};
    result = read_config(system, config, &it.config);
    if (result == 0 && (result = run(system, NULL, start_engine, &it)) == 0) {
        system->engine = it.engine;
        result = connection->set_file_system(connection, &system->methods, NULL);
        if (result == 0) return 0;
        run(system, NULL, close_engine, system->engine);
    }
    free(system);
    return result;
}
