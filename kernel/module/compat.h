/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* What differs from kernel to kernel, 6.12 to 7.2. */
#ifndef FOREBAY_COMPAT_H
#define FOREBAY_COMPAT_H

#include <linux/fileattr.h>
#include <linux/io_uring/cmd.h>
#include <linux/version.h>

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 12, 0)
#error "this module is for Linux 6.12 and later"
#endif

/* The command's own words in its submission. */
#if LINUX_VERSION_CODE < KERNEL_VERSION(7, 0, 0) && !defined(io_uring_sqe_cmd)
#define fbw_command_of(cmd) ((const u32 *)io_uring_sqe_cmd((cmd)->sqe))
#else
#define fbw_command_of(cmd) ((const u32 *)(cmd)->sqe->cmd)
#endif

/* Task work: its callback gets the command, or what the command is found by. */
#ifdef IO_URING_CMD_TASK_WORK_ISSUE_FLAGS
#define FBW_TASK_WORK(name, cmd, flags) static void name(struct io_tw_req tw_req, io_tw_token_t token)
#define FBW_TASK_WORK_BEGIN(cmd, flags)                          \
	struct io_uring_cmd *cmd = io_uring_cmd_from_tw(tw_req); \
	unsigned int flags = IO_URING_CMD_TASK_WORK_ISSUE_FLAGS
#else
#define FBW_TASK_WORK(name, cmd, flags) static void name(struct io_uring_cmd *cmd, unsigned int flags)
#define FBW_TASK_WORK_BEGIN(cmd, flags)
#endif

/* The second result of large completions has a function of its own from 6.18 on, and task work its other form after that. */
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 18, 0)
#define fbw_cmd_done(cmd, result, flags) io_uring_cmd_done(cmd, result, 0, flags)
#else
#define fbw_cmd_done(cmd, result, flags) io_uring_cmd_done(cmd, result, flags)
#endif

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 17, 0)
#define file_kattr fileattr
#endif

#endif
