//! The usual program with Tokio today: pread in `spawn_blocking`, one call per read.

use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use crate::prelude::*;

/// Measures random reads: `depth` tasks on the multi-threaded runtime with one worker per core, each with one
/// read in flight.
pub(crate) fn random(reads: &Reads) -> Result<Outcome> {
    let file = Arc::new(open_direct(&reads.path)?);
    let buffers = pieces(reads.depth, BLOCK_BYTES, PageKind::Huge)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().build()?;
    let window = reads.window();
    let tasks = buffers.into_iter().enumerate().map(|(i, mut buffer)| {
        let (file, mut meter, mut offsets) = (Arc::clone(&file), window.meter(), reads.offsets(i));
        async move {
            while_open!(meter, {
                let offset = offsets.next();
                let file = Arc::clone(&file);
                let read = tokio::task::spawn_blocking(move || {
                    file.read_exact_at(&mut buffer, offset)?;
                    std::io::Result::Ok(buffer)
                });
                buffer = read.await??;
                offsets.check(&buffer, offset)?;
            });
            Ok(meter)
        }
    });
    let meters = on_tokio(&runtime, tasks)?;
    Ok(window.outcome(meters))
}
