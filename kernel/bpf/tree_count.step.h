/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* The step that counts the separators of leaves in a range, up to 16 leaves read at once. */
#include "tree.h"

static __always_inline u32 tree_count(const u8 *page, u64 at, u8 *scratch, u64 *next, u32 *count, u32 page_bytes)
{
	u64 low = *(u64 *)(scratch + FBW_COUNT_LOW), high = *(u64 *)(scratch + FBW_COUNT_HIGH);
	u64 *coming = (u64 *)(scratch + FBW_COUNT_COMING), *level = (u64 *)(scratch + FBW_COUNT_LEVEL);
	u32 records = records_of(page, at, *level, page_bytes), first, last, i;

	if (!records) {
		*count = FBW_TREE_DAMAGED;
		return FBW_FAIL;
	}
	if (level_of(page) > 1) {
		first = record_for(page, records, *(u64 *)(scratch + FBW_COUNT_KEY));
		*level -= 1;
		next[0] = leads_to(page, first);
		*count = 1;
		return FBW_READ;
	}
	/* Those from the last separator that is not above the range's beginning to the last one not above its end. */
	last = not_above(page, records, high);
	if (level_of(page)) {
		first = not_above(page, records, low);
		first = first ? first - 1 : 0;
		for (i = 0; i < FBW_READS_MAX; i++) {
			if (first + i >= last)
				break;
			next[i] = leads_to(page, first + i);
		}
		if (!i) {
			*(u64 *)(scratch + FBW_COUNT_FOUND) = 0;
			return FBW_OVER;
		}
		*level = 0;
		*coming = i;
		*count = i;
		return FBW_READ;
	}
	first = low ? not_above(page, records, low - 1) : 0;
	*(u64 *)(scratch + FBW_COUNT_FOUND) += last > first ? last - first : 0;
	*(u64 *)(scratch + FBW_COUNT_LEAVES) += 1;
	if (*coming <= 1)
		return FBW_OVER;
	*coming -= 1;
	return FBW_WAIT;
}
