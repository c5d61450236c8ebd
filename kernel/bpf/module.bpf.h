/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* A step for the module (kernel/module): the module passes it each page that arrives, and acts on its result. A program defines
 * fbw_step() and includes walk.bpf.h. */
#ifndef FOREBAY_MODULE_BPF_H
#define FOREBAY_MODULE_BPF_H

#include "common.bpf.h"

/* One call of the step; the module hands out the memory it may see. */
struct fbw_step {
} __attribute__((preserve_access_index));

/* Filled by user space, and found by name: the step, and the session's descriptor. */
struct fbw_ops {
	int (*step)(struct fbw_step *);
	u32 session_fd;
};

extern const u8 *fbw_page(struct fbw_step *step, const unsigned long rdonly_buf_size) __ksym;
extern u8 *fbw_scratch(struct fbw_step *step, const unsigned long rdwr_buf_size) __ksym;
extern u8 *fbw_frame(struct fbw_step *step, const unsigned long rdwr_buf_size) __ksym;

/* Set before the program is loaded; the verifier sees constants. */
struct module_settings {
	u32 memory_bytes; /* of what a step may look at: the page, and what it may look at behind it */
	u32 page_bytes;
};
const volatile struct module_settings settings SEC(".rodata.settings");

SEC("struct_ops/fbw_module_step")
int fbw_module_step(u64 *arguments)
{
	struct fbw_step *step = (struct fbw_step *)arguments[0];
	const u8 *page = fbw_page(step, settings.memory_bytes);
	u8 *scratch = fbw_scratch(step, FBW_SCRATCH_BYTES);
	u8 *frame = fbw_frame(step, FBW_FRAME_BYTES);

	if (!page || !scratch || !frame)
		return FBW_FAIL;
	return fbw_step(page, *(u64 *)(frame + FBW_FRAME_AT), scratch, (u64 *)(frame + FBW_FRAME_NEXT),
			(u32 *)(frame + FBW_FRAME_COUNT));
}

SEC(".struct_ops.link")
struct fbw_ops fbw_module = {
	.step = (void *)fbw_module_step,
};

#endif
