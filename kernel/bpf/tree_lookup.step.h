/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* The step of a lookup in the tree of `forebay measure walk`. */
#include "tree.h"

static __always_inline u32 tree_lookup(const u8 *page, u64 at, u8 *scratch, u64 *next, u32 *count, u32 page_bytes)
{
	u64 *level = (u64 *)(scratch + FBW_LOOKUP_LEVEL), word;
	u32 records = records_of(page, at, *level, page_bytes), record;

	if (!records) {
		*count = FBW_TREE_DAMAGED;
		return FBW_FAIL;
	}
	record = record_for(page, records, *(u64 *)(scratch + FBW_LOOKUP_KEY));
	word = leads_to(page, record);
	if (!level_of(page)) {
		*(u64 *)(scratch + FBW_LOOKUP_VALUE) = word;
		return FBW_OVER;
	}
	*level -= 1;
	next[0] = word;
	*count = 1;
	return FBW_READ;
}
