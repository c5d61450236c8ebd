/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* The count over a range of a table of forebay-kv. */
#include "walk.bpf.h"
#include "table_count.step.h"

static __always_inline u32 fbw_step(const u8 *page, u64 at, u8 *scratch, u64 *next, u32 *count)
{
	return table_count(page, at, scratch, next, count);
}
