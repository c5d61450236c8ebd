//! The devices that an engine's files are on.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::device::Device;
use crate::io::config::Config;
use crate::reactor::scheduler::DeviceScheduler;

/// Devices of opened files, numbered for the statistics; number 0 is a placeholder.
#[derive(Default)]
pub(crate) struct Devices {
    numbers: BTreeMap<u64, u16>,
    list: Vec<(Arc<Device>, Arc<DeviceScheduler>)>,
    /// Schedulers by physical device: partitions of one disk share one, as their operations compete.
    physical: BTreeMap<(u32, u32), Arc<DeviceScheduler>>,
    /// Those on which a direct read worked although no alignment was reported.
    take_direct: BTreeSet<u16>,
}

impl Devices {
    pub(crate) fn find(&self, number: u64) -> Option<(u16, Arc<Device>)> {
        let index = *self.numbers.get(&number)?;
        Some((index, self.list.get(index as usize - 1)?.0.clone()))
    }

    pub(crate) fn add(
        &mut self,
        number: u64,
        device: Arc<Device>,
        config: &Config,
        accounts: usize,
    ) -> (u16, Arc<Device>) {
        if let Some(known) = self.find(number) {
            return known;
        }
        // More devices than numbers: the rest share the last one.
        if self.list.len() == usize::from(u16::MAX) {
            return (u16::MAX, device);
        }
        let scheduler = self.scheduler_for(&device, config, accounts);
        self.list.push((device.clone(), scheduler));
        let index = self.list.len() as u16;
        self.numbers.insert(number, index);
        (index, device)
    }

    /// Returns whether a direct read worked on a device.
    pub(crate) fn takes_direct(&self, index: u16) -> bool {
        self.take_direct.contains(&index)
    }

    /// Notes that a direct read worked.
    pub(crate) fn note_direct(&mut self, index: u16) {
        self.take_direct.insert(index);
    }

    fn scheduler_for(&mut self, device: &Device, config: &Config, accounts: usize) -> Arc<DeviceScheduler> {
        let name = device.scheduled().0;
        let calibration = config.calibrations.iter().find(|calibration| calibration.fits(device));
        let make = || Arc::new(DeviceScheduler::new(name, accounts, calibration));
        let mut disks = device.physical();
        match (disks.next(), disks.next()) {
            (Some(disk), None) => {
                self.physical.entry((disk.major(), disk.minor())).or_insert_with(make).clone()
            }
            // A device on several disks, or without a visible disk, has its own scheduler.
            _ => make(),
        }
    }

    pub(crate) fn scheduler(&self, index: u16) -> Option<Arc<DeviceScheduler>> {
        Some(self.list.get(usize::from(index).checked_sub(1)?)?.1.clone())
    }

    /// Returns all schedulers, each once.
    pub(crate) fn schedulers(&self) -> Vec<Arc<DeviceScheduler>> {
        let mut all: Vec<Arc<DeviceScheduler>> = Vec::new();
        for (_, scheduler) in &self.list {
            if !all.iter().any(|known| Arc::ptr_eq(known, scheduler)) {
                all.push(scheduler.clone());
            }
        }
        all
    }

    pub(crate) fn name(&self, index: u16) -> String {
        match (index as usize).checked_sub(1).and_then(|at| self.list.get(at)) {
            Some((device, _)) => device.name().to_string(),
            None => "-".to_string(),
        }
    }
}
