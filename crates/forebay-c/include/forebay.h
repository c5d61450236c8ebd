/*
 * libforebay: storage I/O at the speed of the device, for C. docs/c.md is the guide.
 *
 * Results     A function that can fail returns FB_OK (0) or a negative code. fb_error_text() is then the sentence of the
 *             failure, of the calling thread's last one; it lives until another call of the thread fails. An operation keeps
 *             its own.
 * Structs     start with their size: `fb_open open = { .size = sizeof open };`, then the fields that differ. 0 is each
 *             field's default. So a program that was compiled with an older header still works; a field that the library
 *             does not know is refused.
 * Handles     belong to the process that made them. In a forked child each function returns FB_FORKED and does nothing; a
 *             child may start its own engine. Any thread may use a handle, but not while another thread closes or frees
 *             it.
 * Memory      that an operation reads into or writes from must stay valid, and be touched by no one else, until the operation
 *             has ended: also after fb_op_cancel, and while fb_engine_close runs. A blocking call has the memory until it
 *             returns. The one exception is FB_MEMORY_LOST: that memory must be kept until the process ends.
 *             Memory that starts at a multiple of fb_file_alignment is read and written in place from 16 KiB on; else the
 *             bytes are copied through the engine's memory, which is registered with the kernel as far as RLIMIT_MEMLOCK allows.
 * Callbacks   run on one thread of the engine, one after the other. They may submit and cancel, and must not wait or destroy:
 *             these functions return FB_IN_CALLBACK there. They must not throw or longjmp.
 */
#ifndef FOREBAY_H
#define FOREBAY_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The outcome of a call or an operation. A number is never used again for another meaning. */
enum fb_code {
    FB_OK = 0,
    FB_IO = -1,                    /* the operating system refused; the system's number says why */
    FB_NOT_FOUND = -2,             /* the file, or a directory above it, does not exist */
    FB_PERMISSION_DENIED = -3,
    FB_ALREADY_EXISTS = -4,
    FB_NO_SPACE = -5,              /* device, file system or quota are full */
    FB_READ_ONLY_FILESYSTEM = -6,
    FB_IS_A_DIRECTORY = -7,
    FB_NOT_A_DIRECTORY = -8,
    FB_DIRECTORY_NOT_EMPTY = -9,
    FB_UNEXPECTED_EOF = -10,       /* the file ends inside of a range that was requested exactly */
    FB_MISALIGNED = -11,           /* offset or length of a direct write are not multiples of the device's block */
    FB_MEMORY_EXHAUSTED = -12,     /* the engine's own memory is used up; try again when operations have ended */
    FB_TOO_LARGE = -13,
    FB_ENGINE_CLOSED = -14,
    FB_FILE_CLOSED = -15,
    FB_SHARD_LOST = -16,           /* a thread of the engine died */
    FB_FORKED = -17,               /* the handle is the parent's */
    FB_INVALID_INPUT = -18,
    FB_CANCELLED = -19,            /* a write may have been applied in whole, in part or not at all */
    FB_UNSUPPORTED = -20,          /* file system, kernel or this version of the library cannot do this */
    FB_LOCKED = -21,
    FB_OTHER = -22,
    FB_PENDING = -23,              /* the operation has not ended yet */
    FB_IN_CALLBACK = -24,          /* the call waits or destroys, which a callback must not */
    FB_MEMORY_LOST = -25,          /* the device may still write to the memory: keep it until the process ends */
    FB_PANICKED = -26              /* the library caught an internal panic */
};

enum { FB_DRIVER_AUTO = 0, FB_DRIVER_URING = 1, FB_DRIVER_THREADS = 2 };
/* Access: an existing file to read; to read and write; created where it does not exist; a new one. */
enum { FB_READ_ONLY = 0, FB_READ_WRITE = 1, FB_CREATE = 2, FB_CREATE_NEW = 3 };
/* Mode: past the page cache; through it; through it without leaving pages there; from it what is there, the rest past it. */
enum { FB_DIRECT = 0, FB_BUFFERED = 1, FB_UNCACHED = 2, FB_ADAPTIVE = 3 };
/* Durability: the device has the bytes, perhaps in a volatile cache; they survive a power cut; all metadata does, too. */
enum { FB_DURABLE_NONE = 0, FB_DURABLE_DATA = 1, FB_DURABLE_ALL = 2 };
enum { FB_OP_READ = 0, FB_OP_WRITE = 1, FB_OP_SYNC = 2 };
/* Classes that each engine has; fb_engine_class makes others. */
enum { FB_CLASS_DEFAULT = 0, FB_CLASS_LOG = 1, FB_CLASS_BACKGROUND = 2 };

typedef struct fb_engine fb_engine; /* storage threads, their memory, and a thread for callbacks */
typedef struct fb_file fb_file;     /* an open file */
typedef struct fb_op fb_op;         /* an operation that was submitted */

typedef struct fb_config {
    size_t size;
    uint32_t shards;             /* storage threads, 1 to 64; by default one up to four processors, then one per four */
    uint32_t queue_depth;        /* requests of one storage thread in flight, 1 to 4,096; by default 256 */
    uint32_t driver;             /* FB_DRIVER_... */
    uint32_t reserved;           /* 0 */
    uint64_t arena_bytes_max;    /* the most I/O memory; by default a quarter of the memory, at most 1 GiB */
    uint64_t overflow_bytes_max; /* the most ordinary memory in addition; by default 64 MiB */
    uint64_t shutdown_ms;        /* how long a close waits for the device; by default 5,000 */
} fb_config;

typedef struct fb_open {
    size_t size;
    uint32_t access;      /* FB_READ_ONLY ... */
    uint32_t mode;        /* FB_DIRECT ... */
    uint32_t permissions; /* of a file that is created; by default 0666, less the umask */
    uint32_t truncate;    /* not 0: an existing file is emptied */
} fb_open;

typedef struct fb_class {
    size_t size;
    const char *name;                   /* UTF-8; copied */
    uint32_t shares;                    /* the weight relative to other classes, 1 to 10,000; by default 400 */
    uint32_t reserved;                  /* 0 */
    uint64_t read_bytes_per_second_max; /* caps, for each device; by default unlimited */
    uint64_t write_bytes_per_second_max;
    uint64_t reads_per_second_max;
    uint64_t writes_per_second_max;
} fb_class;

typedef struct fb_request {
    size_t size;
    fb_file *file;
    void *data; /* the memory; of a write it is only read */
    size_t len;
    uint64_t offset;
    uint32_t op;         /* FB_OP_READ ...; a sync has neither memory nor offset */
    uint32_t class_id;   /* FB_CLASS_DEFAULT ..., or of fb_engine_class */
    uint32_t durability; /* FB_DURABLE_NONE ..., of a write and a sync */
    uint32_t reserved;   /* 0 */
} fb_request;

typedef struct fb_outcome {
    size_t size;
    int code;
    int os_error;     /* the system's number (errno), or 0 */
    uint64_t bytes;   /* read: fewer than requested where the file ends; written: all */
    const char *text; /* the sentence of a failure, which lives as long as the operation; NULL for FB_OK */
} fb_outcome;

/* Called when an operation has ended. `op` may be given to fb_op_part and fb_op_cancel; it lives until the callback returns,
 * and beyond that only if fb_submit has returned it to the program. `outcome` lives until the callback returns. */
typedef void (*fb_callback)(void *user, fb_op *op, const fb_outcome *outcome);

typedef struct fb_notice {
    size_t size;
    fb_callback callback; /* or NULL */
    void *user;           /* the callback's first argument */
    int eventfd;          /* 1 is written to it, after the callback; the program's, open until then. 0: no eventfd */
    uint32_t reserved;    /* 0 */
} fb_notice;

typedef struct fb_close_report {
    size_t size;
    uint64_t leaked_operations; /* the device did not return them in time */
    uint64_t lost_shards;       /* threads of the engine that had died */
    uint64_t lost_memory;       /* operations that ended with FB_MEMORY_LOST */
} fb_close_report;

typedef struct fb_stats {
    size_t size;
    uint64_t reads; /* ended operations, including failures */
    uint64_t writes;
    uint64_t syncs;
    uint64_t failures;
    uint64_t read_bytes;
    uint64_t write_bytes;
    uint64_t page_cache_reads; /* served by the page cache on the calling thread; not among `reads` */
    uint64_t in_flight;        /* now */
    uint64_t arena_bytes;      /* I/O memory that is mapped */
    uint64_t held_bytes;       /* I/O memory in use */
} fb_stats;

/* "0.1.0" */
const char *fb_version(void);
/* The name of a code, such as "not_found"; static. */
const char *fb_code_name(int code);
/* The sentence of the calling thread's last failure, which names operation, file, cause and remedy; "" before the first one. */
const char *fb_error_text(void);
/* The system's number of that failure, or 0. */
int fb_error_os(void);

/* Starts an engine. config: NULL for the default settings. */
int fb_engine_start(const fb_config *config, fb_engine **engine);
/* Ends the engine, for all its files and operations, waits until each operation has ended and its callback has returned, and
 * gives up the handle, whatever it returns except FB_FORKED, FB_IN_CALLBACK and FB_INVALID_INPUT. Handles of files and
 * operations stay, to be closed and freed. A blocking call of another thread returns FB_ENGINE_CLOSED. report: or NULL. */
int fb_engine_close(fb_engine *engine, fb_close_report *report);
/* Makes the class of that name, or changes it, and sets class_id to its number. An engine has 16 classes at most. */
int fb_engine_class(fb_engine *engine, const fb_class *class_spec, uint32_t *class_id);
/* Sums over all classes and devices since the start. */
int fb_engine_stats(fb_engine *engine, fb_stats *stats);
/* All figures, as text in the format OpenMetrics. text: room for len bytes, or NULL; needed (or NULL) is set to the bytes that
* the whole text needs, with its NUL. A longer text is cut. */
int fb_engine_metrics(fb_engine *engine, char *text, size_t len, size_t *needed);
/* One line for people: driver, threads, and what works worse than it could. Arguments as of fb_engine_metrics. */
int fb_engine_health(fb_engine *engine, char *text, size_t len, size_t *needed);

/* Opens a file, on the calling thread. open_spec: NULL to read past the page cache. */
int fb_file_open(fb_engine *engine, const char *path, const fb_open *open_spec, fb_file **file);
/* Waits until no operation of the file is in flight, and gives up the handle, whatever it returns except FB_FORKED,
 * FB_IN_CALLBACK and FB_INVALID_INPUT. */
int fb_file_close(fb_file *file);
int fb_file_len(fb_file *file, uint64_t *len);
int fb_file_set_len(fb_file *file, uint64_t len);
/* Allocates space for a range of the file, and extends the file to the end of the range. */
int fb_file_allocate(fb_file *file, uint64_t offset, uint64_t len);
/* The multiples at which memory is used in place, and that offset and length of a direct write must have. Either may be NULL. */
int fb_file_alignment(fb_file *file, uint32_t *memory, uint32_t *offset);
/* The file's descriptor, for calls that this library does not have, such as posix_fadvise. It is open until fb_file_close, and must
 * not be closed, and its flags not changed. */
int fb_file_descriptor(fb_file *file, int *descriptor);

/* Blocking calls. As a rule the calling thread makes the system call itself. bytes (or NULL) is set to the bytes moved. */
int fb_read(fb_file *file, void *data, size_t len, uint64_t offset, uint64_t *bytes);
int fb_write(fb_file *file, const void *data, size_t len, uint64_t offset, uint32_t durability);
/* What was written before survives a power cut afterwards. */
int fb_sync(fb_file *file, uint32_t durability);
/* The same for a request, with its class. */
int fb_run(const fb_request *request, uint64_t *bytes);

/* Starts an operation: one request, or a batch of count reads or of count writes, in files of one engine, of one class and
 * durability. A batch is one message to the engine, its neighbours are merged, and its bytes are copied through the engine's
 * memory: for many short ranges. The operation fails if writes of a batch overlap, and none of them is made.
 * After a failure of this call nothing has started, and the memory is the program's.
 * notice: NULL for an operation that is only waited for. An operation of several parts, of more than 1 MiB, and a batch of
 * writes then continue beyond the first parts only while a thread waits.
 * op: set to a handle, to be freed by fb_op_free; NULL with a notice, for an operation that frees itself. */
int fb_submit(const fb_request *requests, size_t count, const fb_notice *notice, fb_op **op);
/* Waits until the operation has ended, for timeout_ns nanoseconds, or without a limit (-1), and returns its code, with
 * its sentence as fb_error_text; FB_PENDING if it has not ended. 0 only looks. outcome: or NULL. Of a batch: all bytes, and the
 * first failure. It may return before the callback of the notice is called and its eventfd is written: user and the eventfd must
 * live until then. */
int fb_op_wait(fb_op *op, int64_t timeout_ns, fb_outcome *outcome);
/* The outcome of one request of a batch that has ended. */
int fb_op_part(fb_op *op, size_t index, fb_outcome *outcome);
/* Gives the operation up, if it has no result yet. It ends, with FB_CANCELLED, when the kernel is done with its memory. */
int fb_op_cancel(fb_op *op);
/* Frees the handle of an operation that has ended; FB_PENDING if it has not. Sentences of its outcomes are freed with it. */
int fb_op_free(fb_op *op);

#ifdef __cplusplus
}
#endif

#endif
