// SPDX-License-Identifier: (MIT OR GPL-2.0-only)
/* The BPF side: a program's step as a struct_ops, and what it may see. The verifier has proved that a page is only read,
 * that scratch and frame are written inside of their bounds, and that the step returns. */
#include <linux/bpf.h>
#include <linux/bpf_verifier.h>
#include <linux/btf.h>
#include <linux/btf_ids.h>
#include <linux/file.h>
#include <linux/module.h>
#include <linux/rcupdate.h>
#include "walk.h"

__bpf_kfunc_start_defs();

/* The page, to read, and FBW_PAGES_PAD bytes behind it that mean nothing. */
__bpf_kfunc const u8 *fbw_page(struct fbw_step *step, const size_t rdonly_buf_size)
{
	return rdonly_buf_size <= (size_t)step->page_bytes + FBW_PAGES_PAD ? step->page : NULL;
}

/* The walk's scratch, to read and write. User space sees it, too. */
__bpf_kfunc u8 *fbw_scratch(struct fbw_step *step, const size_t rdwr_buf_size)
{
	return rdwr_buf_size <= FBW_SCRATCH_BYTES ? step->scratch : NULL;
}

/* Where the page lies, and where the step says what is next. */
__bpf_kfunc u8 *fbw_frame(struct fbw_step *step, const size_t rdwr_buf_size)
{
	return rdwr_buf_size <= sizeof(struct fbw_frame) ? (u8 *)step->frame : NULL;
}

__bpf_kfunc_end_defs();

BTF_KFUNCS_START(fbw_kfuncs)
BTF_ID_FLAGS(func, fbw_page, KF_RET_NULL)
BTF_ID_FLAGS(func, fbw_scratch, KF_RET_NULL)
BTF_ID_FLAGS(func, fbw_frame, KF_RET_NULL)
BTF_KFUNCS_END(fbw_kfuncs)

static const struct btf_kfunc_id_set fbw_kfunc_set = {
	.owner = THIS_MODULE,
	.set = &fbw_kfuncs,
};

static bool fbw_is_valid_access(int off, int size, enum bpf_access_type type, const struct bpf_prog *prog,
				struct bpf_insn_access_aux *info)
{
	return bpf_tracing_btf_ctx_access(off, size, type, prog, info);
}

static const struct bpf_verifier_ops fbw_verifier_ops = {
	.get_func_proto = bpf_base_func_proto,
	.is_valid_access = fbw_is_valid_access,
};

static int fbw_init(struct btf *btf)
{
	return 0;
}

/* The step runs under rcu_read_lock(). */
static int fbw_check_member(const struct btf_type *type, const struct btf_member *member, const struct bpf_prog *prog)
{
	return prog->sleepable ? -EINVAL : 0;
}

static int fbw_init_member(const struct btf_type *type, const struct btf_member *member, void *kdata, const void *udata)
{
	if (__btf_member_bit_offset(type, member) / 8 != offsetof(struct fbw_ops, session_fd))
		return 0;
	((struct fbw_ops *)kdata)->session_fd = ((const struct fbw_ops *)udata)->session_fd;
	return 1;
}

/* Gives the step to the session that its loader names. One that has a step keeps it. */
static int fbw_reg(void *kdata, struct bpf_link *link)
{
	struct fbw_ops *ops = kdata;
	struct fbw_session *session;
	struct file *file;
	int error = 0;

	/* The kernel leaves a member without a program as it is. */
	if (!ops->step)
		return -EINVAL;
	file = fget(ops->session_fd);
	if (!file)
		return -EBADF;
	session = fbw_session_of(file);
	if (!session) {
		error = -EINVAL;
	} else {
		mutex_lock(&fbw_sessions_lock);
		if (rcu_access_pointer(session->ops))
			error = -EBUSY;
		else
			rcu_assign_pointer(session->ops, ops);
		mutex_unlock(&fbw_sessions_lock);
	}
	fput(file);
	return error;
}

/* Walks that are under way end where they would run their next step. */
static void fbw_unreg(void *kdata, struct bpf_link *link)
{
	struct fbw_session *session;

	mutex_lock(&fbw_sessions_lock);
	list_for_each_entry(session, &fbw_sessions, all) {
		if (rcu_access_pointer(session->ops) == kdata)
			RCU_INIT_POINTER(session->ops, NULL);
	}
	mutex_unlock(&fbw_sessions_lock);
	synchronize_rcu();
}

static int fbw_step_stub(struct fbw_step *step)
{
	return FBW_FAIL;
}

static struct fbw_ops fbw_stubs = {
	.step = fbw_step_stub,
};

static struct bpf_struct_ops fbw_struct_ops = {
	.verifier_ops = &fbw_verifier_ops,
	.init = fbw_init,
	.check_member = fbw_check_member,
	.init_member = fbw_init_member,
	.reg = fbw_reg,
	.unreg = fbw_unreg,
	.cfi_stubs = &fbw_stubs,
	.owner = THIS_MODULE,
	.name = "fbw_ops",
};

int fbw_register_steps(void)
{
	int error = register_btf_kfunc_id_set(BPF_PROG_TYPE_STRUCT_OPS, &fbw_kfunc_set);

	return error ?: register_bpf_struct_ops(&fbw_struct_ops, fbw_ops);
}
