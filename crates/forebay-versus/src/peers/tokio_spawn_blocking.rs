//! The usual program with Tokio today: pread in `spawn_blocking`, one call per read.

use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use anyhow::Result;

use crate::content;
use crate::memory::{PageKind, pieces};
use crate::meter::Window;
use crate::random::{BLOCK_BYTES, RandomJob, open_direct};
use crate::rng::Rng;
use crate::sample::Sample;

/// Measures random reads: `depth` tasks on the multi-threaded runtime with one worker per core, each with one
/// read in flight.
pub(crate) fn random(job: &RandomJob) -> Result<Sample> {
    let file = Arc::new(open_direct(&job.path)?);
    let buffers = pieces(job.depth, BLOCK_BYTES, PageKind::Huge)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().build()?;
    let window = Window::start(job.warm_up, job.measure);
    let meters = runtime.block_on(async {
        let mut tasks = tokio::task::JoinSet::new();
        for (i, mut buffer) in buffers.into_iter().enumerate() {
            let (file, mut meter, mut rng) = (Arc::clone(&file), window.meter(), Rng::new(job.seed, i));
            let file_bytes = job.file_bytes;
            tasks.spawn(async move {
                let mut first = true;
                let mut began = meter.begin();
                loop {
                    let offset = rng.page_offset(file_bytes);
                    let file = Arc::clone(&file);
                    let read = tokio::task::spawn_blocking(move || {
                        file.read_exact_at(&mut buffer, offset)?;
                        std::io::Result::Ok(buffer)
                    });
                    buffer = read.await??;
                    if std::mem::take(&mut first) {
                        content::check_start(&buffer, offset)?;
                    }
                    match meter.finish(began) {
                        Some(now) => began = now,
                        None => return anyhow::Ok(meter),
                    }
                }
            });
        }
        tasks.join_all().await.into_iter().collect::<Result<Vec<_>>>()
    })?;
    Ok(window.sample(meters))
}
