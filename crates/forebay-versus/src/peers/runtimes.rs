//! Runtimes of one thread on io_uring: compio, monoio, tokio-uring and glommio.

use std::rc::Rc;

use crate::prelude::*;

/// Defines the samples of a runtime whose reads consume a buffer and return it. Its module has `run`, `open`, `buffers` and
/// `spawn`, whose future is the task's result; a read of a piece gives its result and the piece.
macro_rules! samples {
    (|$file:ident, $buffer:ident, $offset:ident| $read:expr) => {
        /// Measures random reads: `depth` local tasks over one file opened with O_DIRECT, into page-aligned hugepage
        /// memory.
        pub(crate) fn random(reads: &Work) -> Result<Outcome> {
            run(async {
                let $file = open(reads).await?;
                let buffers = buffers::<BLOCK_BYTES>(reads.depth)?.into_iter().enumerate();
                let lanes = buffers.map(|(i, buffer)| ($file.clone(), buffer, reads.offsets(i)));
                let window = reads.window();
                let meter = local_tasks!(window, spawn, lanes, |($file, mut $buffer, mut offsets)| {
                    let $offset = offsets.next();
                    let (result, back) = $read;
                    $buffer = back;
                    let got = result?;
                    ensure!(got == BLOCK_BYTES, "a read gave {got} bytes");
                    offsets.check(&$buffer[..], $offset)?;
                });
                Ok(window.outcome([meter]))
            })
        }

        /// Measures the scan. The runtime has no read-ahead, so five tasks each read the next 512 KiB that no other task has
        /// claimed.
        pub(crate) fn scan(scan: &Work) -> Result<Outcome> {
            run(async {
                let pass = scan.begin();
                let $file = open(scan).await?;
                let parts = scan.parts();
                let buffers = buffers::<BLOCK_LARGE_BYTES>(DEPTH_LARGE)?.into_iter();
                let tasks = buffers.map(|mut $buffer| {
                    let ($file, parts) = ($file.clone(), parts.clone());
                    spawn(async move {
                        let mut checksum = Checksum::default();
                        while let Some(($offset, length)) = parts.take() {
                            let (result, back) = $read;
                            $buffer = back;
                            let got = result?;
                            ensure!(got == length, "a read gave {got} bytes");
                            checksum.add($offset, &$buffer[..got]);
                        }
                        anyhow::Ok(checksum)
                    })
                });
                pass.finish(&Checksum::of_parts(all(tasks).await?))
            })
        }
    };
}

/// compio: `read_at`.
pub(crate) mod compio {
    use ::compio::BufResult;
    use ::compio::driver::ProactorBuilder;
    use ::compio::fs::{File, OpenOptions};
    use ::compio::io::AsyncReadAt as _;
    use ::compio::runtime::RuntimeBuilder;

    use super::*;

    samples!(|file, buffer, offset| {
        let BufResult(result, back) = file.read_at(buffer, offset).await;
        (result, back)
    });

    fn run<T>(future: impl Future<Output = Result<T>>) -> Result<T> {
        let mut proactor = ProactorBuilder::new();
        proactor.capacity(1024);
        RuntimeBuilder::new().with_proactor(proactor).build()?.block_on(future)
    }

    async fn open(work: &Work) -> Result<File> {
        Ok(OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&work.path).await?)
    }

    fn buffers<const BYTES: usize>(count: usize) -> Result<Vec<Piece>> {
        Ok(pieces(count, BYTES, PageKind::Huge)?)
    }

    fn spawn<T: 'static>(task: impl Future<Output = Result<T>> + 'static) -> impl Future<Output = Result<T>> {
        let task = ::compio::runtime::spawn(task);
        async { task.await.map_err(|_| anyhow!("a task panicked"))? }
    }
}

/// monoio: `read_at`.
pub(crate) mod monoio {
    use ::monoio::fs::File;
    use ::monoio::{IoUringDriver, RuntimeBuilder, spawn};

    use super::*;

    samples!(|file, buffer, offset| file.read_at(buffer, offset).await);

    fn run<T>(future: impl Future<Output = Result<T>>) -> Result<T> {
        RuntimeBuilder::<IoUringDriver>::new().with_entries(1024).build()?.block_on(future)
    }

    async fn open(work: &Work) -> Result<Rc<File>> {
        Ok(Rc::new(File::from_std(open_direct(&work.path)?)?))
    }

    fn buffers<const BYTES: usize>(count: usize) -> Result<Vec<&'static mut [u8; BYTES]>> {
        let pieces = pieces(count, BYTES, PageKind::Huge)?;
        pieces.into_iter().map(|piece| Ok(piece.try_into()?)).collect()
    }
}

/// tokio-uring: `read_fixed_at` with registered buffers, its fastest way.
pub(crate) mod tokio_uring {
    use ::tokio_uring::buf::fixed::{FixedBuf, FixedBufRegistry};
    use ::tokio_uring::buf::{IoBuf, IoBufMut};
    use ::tokio_uring::fs::File;

    use super::*;

    samples!(|file, buffer, offset| file.read_fixed_at(buffer, offset).await);

    fn run<T>(future: impl Future<Output = Result<T>>) -> Result<T> {
        ::tokio_uring::builder().entries(1024).start(future)
    }

    async fn open(work: &Work) -> Result<Rc<File>> {
        Ok(Rc::new(File::from_std(open_direct(&work.path)?)))
    }

    fn buffers<const BYTES: usize>(count: usize) -> Result<Vec<FixedBuf>> {
        let pieces = pieces(count, BYTES, PageKind::Huge)?;
        let registry = FixedBufRegistry::new(pieces.into_iter().map(Buffer));
        registry.register().context("registering the buffers; raise the limit on locked memory")?;
        (0..count)
            .map(|i| registry.check_out(i).context("the registry has a buffer for every task"))
            .collect()
    }

    fn spawn<T: 'static>(task: impl Future<Output = Result<T>> + 'static) -> impl Future<Output = Result<T>> {
        let task = ::tokio_uring::spawn(task);
        async { task.await? }
    }

    /// A piece as tokio-uring's buffer.
    struct Buffer(Piece);

    // SAFETY: the bytes do not move when the piece does, and all of them are initialised.
    unsafe impl IoBuf for Buffer {
        fn stable_ptr(&self) -> *const u8 {
            self.0.as_ptr()
        }

        fn bytes_init(&self) -> usize {
            self.0.len()
        }

        fn bytes_total(&self) -> usize {
            self.0.len()
        }
    }

    // SAFETY: as above; the length never changes.
    unsafe impl IoBufMut for Buffer {
        fn stable_mut_ptr(&mut self) -> *mut u8 {
            self.0.as_mut_ptr()
        }

        unsafe fn set_init(&mut self, _pos: usize) {}
    }
}

/// glommio: its own registered memory, and a read-ahead.
pub(crate) mod glommio {
    use ::glommio::io::{DmaFile, DmaStreamReaderBuilder};
    use ::glommio::{GlommioError, LocalExecutorBuilder, Placement, spawn_local};

    use super::*;

    /// Measures random reads: `depth` local tasks over one `DmaFile` with `read_at_aligned`.
    pub(crate) fn random(reads: &Work) -> Result<Outcome> {
        run(async {
            let file = Rc::new(DmaFile::open(&reads.path).await.map_err(in_words)?);
            let lanes = (0..reads.depth).map(|i| (Rc::clone(&file), reads.offsets(i)));
            let window = reads.window();
            let meter = local_tasks!(window, spawn_local, lanes, |(file, mut offsets)| {
                let offset = offsets.next();
                let read = file.read_at_aligned(offset, BLOCK_BYTES).await.map_err(in_words)?;
                ensure!(read.len() == BLOCK_BYTES, "a read gave {} bytes", read.len());
                offsets.check(&read, offset)?;
            });
            Ok(window.outcome([meter]))
        })
    }

    /// Measures the scan: `DmaStreamReader`, 512 KiB buffers, five read ahead, no copy.
    pub(crate) fn scan(scan: &Work) -> Result<Outcome> {
        run(async {
            let pass = scan.begin();
            let file = DmaFile::open(&scan.path).await.map_err(in_words)?;
            let builder = DmaStreamReaderBuilder::new(file).with_buffer_size(BLOCK_LARGE_BYTES);
            let mut reader = builder.with_read_ahead(DEPTH_LARGE).build();
            let (mut checksum, mut offset) = (Checksum::default(), 0);
            while offset < scan.file_bytes {
                let piece = reader.get_buffer_aligned(BLOCK_LARGE_BYTES as u64).await.map_err(in_words)?;
                ensure!(!piece.is_empty(), "the reader ended at {offset} of {} bytes", scan.file_bytes);
                checksum.add(offset, &piece);
                offset += piece.len() as u64;
            }
            let outcome = pass.finish(&checksum)?;
            reader.close().await.map_err(in_words)?;
            Ok(outcome)
        })
    }

    fn run<T>(future: impl Future<Output = Result<T>>) -> Result<T> {
        LocalExecutorBuilder::new(Placement::Unbound).make().map_err(in_words)?.run(future)
    }

    /// Its errors cannot be sent between threads, as those of this program can.
    fn in_words(error: GlommioError<()>) -> anyhow::Error {
        anyhow!("{error}")
    }
}
