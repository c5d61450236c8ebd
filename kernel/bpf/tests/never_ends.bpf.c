/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* A walk without an end: it asks for its page again and again, and the limit of hops must end it. */
#include "../walk.bpf.h"

static __always_inline u32 fbw_step(const u8 *page, u64 at, u8 *scratch, u64 *next, u32 *count)
{
	next[0] = at;
	*count = 1;
	return FBW_READ;
}
