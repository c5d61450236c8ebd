/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* Writes to the page that it is to look at. The module's pages are for reading; the loop's are the caller's own memory. */
#include "../walk.bpf.h"

static __always_inline u32 fbw_step(const u8 *page, u64 at, u8 *scratch, u64 *next, u32 *count)
{
	*(u64 *)page = at;
	return FBW_OVER;
}
