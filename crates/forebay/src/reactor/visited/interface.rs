//! The kernel's interface that the rings of a runtime's workers are made of.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::base::health::Degradation;
use crate::driver::Driver;
use crate::driver::aio::{self, AioDriver};
use crate::driver::uring::{Keeper, UringDriver};

pub(crate) enum Interface {
    /// io_uring; new rings clone their memory from the keeper.
    Uring(Arc<Keeper>),
    /// Native AIO: the shards have no rings either.
    Aio,
}

impl Interface {
    /// Makes a driver for visitors, and returns the descriptor to watch.
    ///
    /// # Errors
    /// The reason for a failure with the remedy, and the system's error.
    pub(super) fn make(&self, depth: u32) -> Result<(Driver, OwnedFd), (Degradation, io::Error)> {
        let remedy = "raise RLIMIT_MEMLOCK and the limit of open files";
        let refused = |error: io::Error| {
            let why = format!("the kernel refused one: {error}");
            (Degradation::new("worker rings", why, remedy), error)
        };
        match self {
            Interface::Uring(keeper) => {
                let driver = UringDriver::for_visitors(depth, keeper.clone()).map_err(refused)?;
                let descriptor = driver.descriptor().map_err(refused)?;
                Ok((Driver::Uring(driver), descriptor))
            }
            Interface::Aio => {
                let driver = AioDriver::for_visitors(depth)
                    .map_err(|refusal| (aio::refused(&refusal), refusal.error))?;
                let descriptor = driver.descriptor().map_err(refused)?;
                Ok((Driver::Aio(driver), descriptor))
            }
        }
    }
}
