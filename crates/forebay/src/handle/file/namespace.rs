//! The calls of a file on an NVMe namespace.

use std::ops::Range;

use super::File;
use crate::base::error::{Error, ErrorKind};
use crate::base::pending::Pending;
use crate::driver::meta::{MetaReply, MetaRequest};

impl File {
    /// Executes a request on a namespace. Metadata and locks work; all else fails, as its size is fixed and
    /// there is no page cache.
    #[cold]
    pub(super) fn ask_namespace<T: Send + 'static>(
        &self,
        bytes: u64,
        request: MetaRequest,
        answer: impl FnOnce(MetaReply) -> Option<T> + Send + 'static,
    ) -> Pending<T> {
        let operation = request.operation();
        match request {
            MetaRequest::FileMetadata { .. } => {
                self.core.engine().ask_of(&self.core, request, move |reply| {
                    let MetaReply::Metadata(mut metadata) = reply else { return None };
                    metadata.set_len(bytes);
                    answer(MetaReply::Metadata(metadata))
                })
            }
            MetaRequest::TryLock { .. } | MetaRequest::Unlock { .. } => {
                self.core.engine().ask_of(&self.core, request, answer)
            }
            _ => {
                if let Err(error) = self.core.engine().check(operation) {
                    return Pending::ready(Err(self.core.describe(error)));
                }
                let note = format!("an NVMe namespace has {bytes} bytes here, always, and no page cache");
                let error = Error::new(ErrorKind::Unsupported, operation).with_note(note);
                Pending::ready(Err(self.core.describe(error)))
            }
        }
    }

    /// Fails [`File::punch_hole`] of a namespace, which exists on Linux only.
    #[cfg(not(target_os = "linux"))]
    pub(super) fn punch_namespace(&self, _: Range<u64>) -> Pending<()> {
        Pending::ready(Err(self.core.describe(Error::new(ErrorKind::Unsupported, "punch_hole"))))
    }

    /// Executes [`File::punch_hole`] of a namespace.
    #[cfg(target_os = "linux")]
    pub(super) fn punch_namespace(&self, range: Range<u64>) -> Pending<()> {
        let core = self.core.clone();
        let failed = |error| Pending::ready(Err(core.describe(error)));
        if let Err(error) = core.engine().check("punch_hole") {
            return failed(error);
        }
        let (Some(namespace), Some(len)) = (core.namespace().cloned(), range.end.checked_sub(range.start))
        else {
            return self.backwards("punch_hole", &range);
        };
        if !core.is_writable() {
            return failed(Error::os("punch_hole", libc::EBADF));
        }
        let owner = core.clone();
        core.engine().pool.run("punch_hole", move || {
            namespace.punch(owner.fd(), range.start, len).map_err(|error| owner.describe(error))
        })
    }
}
