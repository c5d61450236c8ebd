/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* A program defines fbw_step() and includes this file. It is compiled once for each engine: in io_uring's own loop, and for
 * the module with FBW_MODULE defined. */
#ifdef FBW_MODULE
#include "module.bpf.h"
#else
#include "loop.bpf.h"
#endif
