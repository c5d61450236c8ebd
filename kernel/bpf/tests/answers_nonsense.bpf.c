/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* Returns results that do not exist, or requests reads it may not, as its argument says. */
#include "../walk.bpf.h"

static __always_inline u32 fbw_step(const u8 *page, u64 at, u8 *scratch, u64 *next, u32 *count)
{
	u64 what = *(u64 *)scratch;

	next[0] = at;
	if (what == 1)
		return FBW_WAIT;
	if (what == 2)
		return 77;
	*count = what == 3 ? 0 : 17;
	return FBW_READ;
}
