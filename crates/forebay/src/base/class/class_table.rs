//! The classes and tenants of an engine, written under a lock and read by shards without one.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{Class, ClassSpec, Tenant};

/// The limit for classes of an engine, the three constants included.
pub(crate) const CLASSES_MAX: usize = 16;
/// The limit for tenants of an engine.
pub(crate) const TENANTS_MAX: usize = 8;
/// The tenant of a class without a tenant.
pub(crate) const NO_TENANT: u8 = u8::MAX;
/// The limit for shares of a class or tenant.
const SHARES_MAX: u32 = 10_000;

/// The shares and limits of a class, without its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spec {
    pub(crate) shares: u32,
    /// Limits a second for bytes read, bytes written, reads, and writes; 0 for no limit.
    pub(crate) caps: [u64; 4],
    /// The latency goal; 0 for none.
    pub(crate) goal_ns: u64,
    pub(crate) tenant: u8,
}

impl Default for Spec {
    fn default() -> Spec {
        Spec { shares: 400, caps: [0; 4], goal_ns: 0, tenant: NO_TENANT }
    }
}

impl Spec {
    #[inline]
    pub(crate) fn is_capped(&self) -> bool {
        self.caps != [0; 4]
    }
}

/// A copy of all classes and tenants, which a shard refreshes when they have changed. A class that does not
/// exist, such as one of another engine, is like the default one.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Specs {
    pub(crate) classes: [Spec; CLASSES_MAX],
    pub(crate) tenants: [u32; TENANTS_MAX],
}

/// Names, shares and limits of an engine's classes. It only grows, so a class once returned stays valid.
#[derive(Debug)]
pub(crate) struct ClassTable {
    entries: Mutex<Entries>,
    /// Counts changes, so that shards see them without the lock.
    version: AtomicU32,
    /// The shares again, for run queues; 0 means that the class does not exist.
    shares: [AtomicU32; CLASSES_MAX],
    /// One bit per class with caps.
    capped: AtomicU32,
}

#[derive(Debug, Default)]
struct Entries {
    classes: Vec<(String, Spec)>,
    tenants: Vec<(String, u32)>,
}

impl ClassTable {
    pub(crate) fn new() -> ClassTable {
        let table = ClassTable {
            entries: Mutex::default(),
            version: AtomicU32::new(1),
            shares: [const { AtomicU32::new(0) }; CLASSES_MAX],
            capped: AtomicU32::new(0),
        };
        for (name, shares) in [("log", 1000), ("default", 400), ("background", 100)] {
            let added = table.add(name, shares);
            debug_assert!(added.is_ok());
        }
        table
    }

    /// Adds a class, or finds the one of that name, and gives it these shares. Returns the class.
    pub(crate) fn add(&self, name: &str, shares: u32) -> Result<Class, &'static str> {
        let known = self.lock().classes.iter().find(|(known, _)| known == name).map(|(_, spec)| *spec);
        let spec = Spec { shares, ..known.unwrap_or_default() };
        self.set(ClassSpec { name: name.to_string(), spec })
    }

    /// Adds a class, or finds the one of that name, and sets its shares and limits. Returns the class.
    pub(crate) fn set(&self, class: ClassSpec) -> Result<Class, &'static str> {
        let ClassSpec { name, spec } = class;
        check(&name, spec.shares)?;
        let mut entries = self.lock();
        if spec.tenant != NO_TENANT && spec.tenant as usize >= entries.tenants.len() {
            return Err("the tenant is another engine's");
        }
        let index = match entries.classes.iter().position(|(known, _)| *known == name) {
            Some(index) => {
                entries.classes[index].1 = spec;
                index
            }
            None if entries.classes.len() == CLASSES_MAX => return Err("an engine has at most 16 classes"),
            None => {
                entries.classes.push((name, spec));
                entries.classes.len() - 1
            }
        };
        self.publish(&entries);
        Ok(Class(index as u8))
    }

    /// Adds a tenant, or finds the one of that name, and gives it these shares. Returns the tenant.
    pub(crate) fn set_tenant(&self, name: &str, shares: u32) -> Result<Tenant, &'static str> {
        check(name, shares)?;
        let mut entries = self.lock();
        let index = match entries.tenants.iter().position(|(known, _)| known == name) {
            Some(index) => {
                entries.tenants[index].1 = shares;
                index
            }
            None if entries.tenants.len() == TENANTS_MAX => return Err("an engine has at most 8 tenants"),
            None => {
                entries.tenants.push((name.to_string(), shares));
                entries.tenants.len() - 1
            }
        };
        self.publish(&entries);
        Ok(Tenant(index as u8))
    }

    /// Publishes the shares for run queues. A tenant's class has its part of the tenant's shares there, also
    /// while other classes of the tenant are idle.
    fn publish(&self, entries: &Entries) {
        let capped = entries.classes.iter().enumerate().filter(|(_, (_, spec))| spec.is_capped());
        self.capped.store(capped.fold(0, |mask, (class, _)| mask | 1 << class), Ordering::Relaxed);
        for (class, (_, spec)) in entries.classes.iter().enumerate() {
            let shares = match entries.tenants.get(spec.tenant as usize) {
                None => spec.shares,
                Some((_, tenant)) => {
                    let siblings = entries.classes.iter().filter(|(_, other)| other.tenant == spec.tenant);
                    let all: u64 = siblings.map(|(_, other)| u64::from(other.shares)).sum();
                    (u64::from(*tenant) * u64::from(spec.shares) / all.max(1)).max(1) as u32
                }
            };
            self.shares[class].store(shares, Ordering::Relaxed);
        }
        self.version.fetch_add(1, Ordering::Release);
    }

    /// Returns whether the class has caps.
    #[inline]
    pub(crate) fn is_capped(&self, class: Class) -> bool {
        self.capped.load(Ordering::Relaxed) & (1 << class.index()) != 0
    }

    #[inline]
    pub(crate) fn version(&self) -> u32 {
        self.version.load(Ordering::Acquire)
    }

    /// Returns a copy of all classes and tenants, and its version.
    #[cold]
    pub(crate) fn specs(&self) -> (Specs, u32) {
        let entries = self.lock();
        let mut specs = Specs::default();
        for (place, (_, spec)) in specs.classes.iter_mut().zip(&entries.classes) {
            *place = *spec;
        }
        for (place, (_, shares)) in specs.tenants.iter_mut().zip(&entries.tenants) {
            *place = *shares;
        }
        (specs, self.version())
    }

    pub(crate) fn name(&self, class: Class) -> String {
        let entries = self.lock();
        entries
            .classes
            .get(class.0 as usize)
            .map_or_else(|| format!("class {}", class.0), |(name, _)| name.clone())
    }

    /// Returns the class's shares. A class of another engine that this one does not have counts as the
    /// default class.
    pub(crate) fn shares(&self, class: Class) -> u32 {
        match self.shares[class.index()].load(Ordering::Relaxed) {
            0 => self.shares[Class::DEFAULT.index()].load(Ordering::Relaxed),
            shares => shares,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn check(name: &str, shares: u32) -> Result<(), &'static str> {
    match (name, shares) {
        (_, 0) => Err("shares must be between 1 and 10,000"),
        (_, shares) if shares > SHARES_MAX => Err("shares must be between 1 and 10,000"),
        ("", _) => Err("a class or tenant needs a name"),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenants_classes_divide_its_shares() {
        let table = ClassTable::new();
        let tenant = table.set_tenant("t", 300).unwrap();
        let a = table.set(ClassSpec::new("a").shares(100).tenant(tenant)).unwrap();
        let b = table.set(ClassSpec::new("b").shares(200).tenant(tenant)).unwrap();
        assert_eq!((table.shares(a), table.shares(b)), (100, 200));
        let before = table.version();
        table.set_tenant("t", 600).unwrap();
        assert_eq!((table.shares(a), table.shares(b)), (200, 400));
        assert_ne!(table.version(), before, "shards must see the change");
        assert!(table.set(ClassSpec::new("c").tenant(Tenant(5))).is_err());
    }

    #[test]
    fn asking_for_a_name_again_keeps_its_caps() {
        let table = ClassTable::new();
        let class = table.set(ClassSpec::new("a").reads_per_second_max(7)).unwrap();
        assert_eq!(table.add("a", 9).unwrap(), class);
        let spec = table.specs().0.classes[class.index()];
        assert_eq!((spec.shares, spec.caps), (9, [0, 0, 7, 0]));
    }
}
