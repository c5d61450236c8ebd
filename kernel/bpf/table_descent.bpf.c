/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* The descent in a table of forebay-kv. */
#include "walk.bpf.h"
#include "table_descent.step.h"

static __always_inline u32 fbw_step(const u8 *page, u64 at, u8 *scratch, u64 *next, u32 *count)
{
	return table_descent(page, at, scratch, next, count);
}
