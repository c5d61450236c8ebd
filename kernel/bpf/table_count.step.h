/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* The step that counts the records of a table of forebay-kv whose keys lie in a range, up to 16 leaves read at once. It goes down to
 * where the range begins; leaves under another node of level 1 are not looked at. */
#include "table.h"

static __always_inline u32 table_count(const u8 *page, u64 at, u8 *scratch, u64 *next, u32 *count)
{
	const struct fbw_sight *sight = (const struct fbw_sight *)page;
	struct fbw_knowledge *known = (struct fbw_knowledge *)scratch;
	u64 *level = (u64 *)(scratch + FBW_RANGE_LEVEL), *coming = (u64 *)(scratch + FBW_RANGE_COMING);
	u64 *more = (u64 *)(scratch + FBW_RANGE_MORE), child;
	u64 low_len = *(u64 *)(scratch + FBW_RANGE_LOW_LEN), high_len = *(u64 *)(scratch + FBW_RANGE_HIGH_LEN);
	u32 records, first, last, i;

	*count = FBW_TABLE_DAMAGED;
	if (!belongs(page, at, *(u64 *)(scratch + FBW_RANGE_TABLE), *level) || low_len > FBW_RANGE_KEY_MAX || high_len > FBW_RANGE_KEY_MAX)
		return FBW_FAIL;
	records = records_of(page);
	if (!records)
		return FBW_FAIL;
	/* In an inner node from the last separator that is not above the beginning on: what is below the first is in no leaf. */
	first = records_below(sight, known, FBW_KEY(FBW_RANGE_LOW, FBW_RANGE_LOW + (u32)low_len), *level ? 1 : 0);
	last = records_below(sight, known, FBW_KEY(FBW_RANGE_HIGH, FBW_RANGE_HIGH + (u32)high_len), 0);
	if (!*level) {
		*(u64 *)(scratch + FBW_RANGE_FOUND) += last > first ? last - first : 0;
		*(u64 *)(scratch + FBW_RANGE_LEAVES) += 1;
		if (*coming <= 1)
			return FBW_OVER;
		*coming -= 1;
		return FBW_WAIT;
	}
	first = first ? first - 1 : 0;
	if (last <= first)
		return FBW_OVER;
	if (last - first > (*level == 1 ? FBW_READS_MAX : 1))
		*more = 1;
	for (i = 0; i < FBW_READS_MAX; i++) {
		if (first + i >= last || (i && *level > 1))
			break;
		child = child_of(page, first + i, records);
		if (!child)
			return FBW_FAIL;
		if (child >> 56 != 1) {
			*count = FBW_TABLE_LARGER;
			return FBW_FAIL;
		}
		next[i] = (u64)(u32)child * FBW_TABLE_UNIT;
	}
	*level -= 1;
	*coming = i;
	*count = i;
	return FBW_READ;
}
