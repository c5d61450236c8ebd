//! The devices that an engine's files are on.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::device::Device;

/// Devices that files were opened on, numbered for the statistics; number 0 means none.
#[derive(Default)]
pub(super) struct Devices {
    numbers: BTreeMap<u64, u16>,
    list: Vec<Arc<Device>>,
}

impl Devices {
    pub(super) fn find(&self, number: u64) -> Option<(u16, Arc<Device>)> {
        let index = *self.numbers.get(&number)?;
        Some((index, self.list.get(index as usize - 1)?.clone()))
    }

    pub(super) fn add(&mut self, number: u64, device: Arc<Device>) -> (u16, Arc<Device>) {
        if let Some(known) = self.find(number) {
            return known;
        }
        // More devices than numbers: the rest share the last one.
        if self.list.len() == usize::from(u16::MAX) {
            return (u16::MAX, device);
        }
        self.list.push(device.clone());
        let index = self.list.len() as u16;
        self.numbers.insert(number, index);
        (index, device)
    }

    pub(super) fn name(&self, index: u16) -> String {
        match (index as usize).checked_sub(1).and_then(|at| self.list.get(at)) {
            Some(device) => device.name().to_string(),
            None => "-".to_string(),
        }
    }
}
