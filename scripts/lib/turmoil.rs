//! The names of turmoil that its tests of files use, over a world of forebay-sim: scripts/checks/turmoil-fs makes a package of
//! them. All hosts and clients are on the world's first node, so a crash is a power cut of all.

use std::error::Error;
use std::future::Future;
use std::io::{self, IoSliceMut};
use std::pin::Pin;
use std::time::Duration;

use forebay_sim::{Fault, MetadataOrder, Profile, Rule, World};

pub type Result<T = ()> = std::result::Result<T, Box<dyn Error>>;
type Program = Pin<Box<dyn Future<Output = Result>>>;

pub mod fs {
    pub mod shim {
        pub mod std {
            pub mod fs {
                pub use forebay_fs::*;

                pub async fn sync_dir(path: impl AsRef<::std::path::Path>) -> ::std::io::Result<()> {
                    File::open(path).await?.sync_all().await
                }
            }
        }
        pub mod tokio {
            pub use forebay_fs as fs;
        }
    }
}

/// Turmoil's methods that files of forebay-fs have under no name.
pub trait FileExt {
    async fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;
    async fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize>;
}

impl FileExt for forebay_fs::File {
    async fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.read_vectored_at(&mut [IoSliceMut::new(buf)], offset).await
    }

    async fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        self.write_all_at(buf, offset).await?;
        Ok(buf.len())
    }
}

/// The world's clock.
pub struct Instant(Duration);

impl Instant {
    pub fn now() -> Instant {
        Instant(forebay_sim::now())
    }

    pub fn elapsed(&self) -> Duration {
        forebay_sim::now() - self.0
    }
}

#[derive(Default)]
pub struct Builder {
    seed: u64,
    files: Files,
}

/// The properties of the disk.
#[derive(Default)]
pub struct Files {
    syncs: f64,
    tears: bool,
    capacity: Option<u64>,
    corruption: f64,
    errors: f64,
    latency: Latency,
}

#[derive(Default)]
pub struct Latency(Option<Duration>);

impl Builder {
    pub fn new() -> Builder {
        Builder::default()
    }

    pub fn rng_seed(&mut self, seed: u64) -> &mut Builder {
        self.seed = seed;
        self
    }

    pub fn fs(&mut self) -> &mut Files {
        &mut self.files
    }

    pub fn build(&self) -> Sim {
        // Only what was synced counts, names as well; turmoil has no other order.
        let mut profile = Profile::ideal().metadata_order(MetadataOrder::Posix);
        if !self.files.tears {
            // Nothing is left of a write that was not synced.
            profile = profile.fault(Rule::new(Fault::LostWrite).chance_ppm(ppm(1.0 - self.files.syncs)));
        }
        if let Some(bytes) = self.files.capacity {
            profile = profile.capacity(bytes);
        }
        if let Some(latency) = self.files.latency.0 {
            profile = profile.latency(latency, latency, latency).call_latency(latency);
        }
        if self.files.corruption > 0.0 {
            // The write and the read of a test may both be struck, which together have the chance of turmoil's read.
            let each = 1.0 - (1.0 - self.files.corruption).sqrt();
            profile = profile.fault(Rule::new(Fault::BitRot).chance_ppm(ppm(each)).times(1));
        }
        if self.files.errors > 0.0 {
            for fault in [Fault::ReadError, Fault::WriteError, Fault::FlushError] {
                profile = profile.fault(Rule::new(fault).chance_ppm(ppm(self.files.errors)));
            }
        }
        let world = std::env::var("TURMOIL_WORLD").ok();
        let world: u64 = world.and_then(|text| text.parse().ok()).unwrap_or(0);
        let world = World::new(1_000 * world + self.seed).stalls_ppm(0).disk(profile);
        Sim { world, hosts: Vec::new(), clients: Vec::new() }
    }
}

fn ppm(chance: f64) -> u32 {
    (chance * 1e6) as u32
}

impl Files {
    pub fn capacity(&mut self, bytes: u64) -> &mut Files {
        self.capacity = Some(bytes);
        self
    }

    pub fn corruption_probability(&mut self, chance: f64) -> &mut Files {
        self.corruption = chance;
        self
    }

    pub fn io_error_probability(&mut self, chance: f64) -> &mut Files {
        self.errors = chance;
        self
    }

    /// A world's kernel syncs nothing by itself; the power cut may leave these writes.
    pub fn sync_probability(&mut self, chance: f64) -> &mut Files {
        self.syncs = chance;
        self
    }

    /// A world's disks have sectors of 512 bytes.
    pub fn block_size(&mut self, _bytes: u64) -> &mut Files {
        self.tears = true;
        self
    }

    pub fn io_latency(&mut self) -> &mut Latency {
        &mut self.latency
    }
}

impl Latency {
    pub fn min_latency(&mut self, latency: Duration) -> &mut Latency {
        self.0 = Some(latency);
        self
    }

    /// The tests have one latency, and ask for no less.
    pub fn max_latency(&mut self, _latency: Duration) -> &mut Latency {
        self
    }
}

pub struct Sim {
    world: World,
    hosts: Vec<Host>,
    clients: Vec<Program>,
}

struct Host {
    program: Box<dyn Fn() -> Program>,
    begins: bool,
}

impl Sim {
    pub fn client<F: Future<Output = Result> + 'static>(&mut self, _name: &str, program: F) {
        self.clients.push(Box::pin(program));
    }

    pub fn host<F: Future<Output = Result> + 'static>(
        &mut self,
        _name: &str,
        program: impl Fn() -> F + 'static,
    ) {
        let program = Box::new(move || -> Program { Box::pin(program()) });
        self.hosts.push(Host { program, begins: true });
    }

    pub fn crash(&mut self, _name: &str) {
        self.world.power_cut();
    }

    pub fn bounce(&mut self, _name: &str) {
        self.world.reboot();
        self.hosts.iter_mut().for_each(|host| host.begins = true);
    }

    /// Runs all clients to their ends, beside the hosts that begin.
    pub fn run(&mut self) -> Result {
        let begins = |host: &mut Host| std::mem::take(&mut host.begins).then(|| (host.program)());
        let hosts: Vec<Program> = self.hosts.iter_mut().filter_map(begins).collect();
        let clients = std::mem::take(&mut self.clients);
        self.world.run(async move |engine| {
            let _world = forebay_fs::enter(&engine);
            for host in hosts {
                drop(forebay_sim::spawn_local(async move {
                    if let Err(error) = host.await {
                        panic!("a host failed: {error}");
                    }
                }));
            }
            for client in clients {
                client.await?;
            }
            Result::Ok(())
        })?
    }
}
