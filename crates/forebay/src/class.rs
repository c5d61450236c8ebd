//! Who is asking: the class an operation or a task belongs to.

/// Who is asking: operations and tasks carry a class, and a shard divides its turns between classes by their shares.
///
/// A task's operations inherit the task's class; every operation can name another with `.class(...)`. Classes beyond
/// the three constants are made by [`Engine::class`](crate::Engine::class). A class is one byte wide and `Copy`.
///
/// ```
/// use forebay::{Class, Config, Engine};
/// # fn main() -> forebay::Result<()> {
/// let engine = Engine::start(Config::default())?;
/// let reports = engine.class("reports", 50)?;
/// assert_ne!(reports, Class::DEFAULT);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Class(pub(crate) u8);

impl Class {
    /// Logs and whatever a program waits for before it may answer: 1,000 shares.
    pub const LOG: Class = Class(0);
    /// Everything that says nothing: 400 shares.
    pub const DEFAULT: Class = Class(1);
    /// Compaction, back-ups, scans nobody waits for: 100 shares.
    pub const BACKGROUND: Class = Class(2);
}

impl Default for Class {
    fn default() -> Class {
        Class::DEFAULT
    }
}

/// The most classes an engine may have, the three constants included.
pub(crate) const CLASSES_MAX: usize = 16;

/// Names and shares of an engine's classes; grows only, so a class once given stays valid.
#[derive(Debug)]
pub(crate) struct ClassTable {
    entries: std::sync::Mutex<Vec<(String, u32)>>,
    /// The shares again, readable by shards without the lock; 0 means that the class does not exist.
    shares: [std::sync::atomic::AtomicU32; CLASSES_MAX],
}

impl ClassTable {
    pub(crate) fn new() -> ClassTable {
        let table = ClassTable {
            entries: std::sync::Mutex::new(Vec::new()),
            shares: [const { std::sync::atomic::AtomicU32::new(0) }; CLASSES_MAX],
        };
        for (name, shares) in [("log", 1000), ("default", 400), ("background", 100)] {
            let added = table.add(name, shares);
            debug_assert!(added.is_ok());
        }
        table
    }

    /// Adds a class, or finds the one of that name and gives it these shares.
    pub(crate) fn add(&self, name: &str, shares: u32) -> Result<Class, &'static str> {
        if shares == 0 || shares > 10_000 {
            return Err("shares must be between 1 and 10,000");
        }
        if name.is_empty() {
            return Err("a class needs a name");
        }
        let mut entries = self.entries.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let index = match entries.iter().position(|(known, _)| known == name) {
            Some(index) => {
                entries[index].1 = shares;
                index
            }
            None if entries.len() == CLASSES_MAX => return Err("an engine has at most 16 classes"),
            None => {
                entries.push((name.to_string(), shares));
                entries.len() - 1
            }
        };
        self.shares[index].store(shares, std::sync::atomic::Ordering::Relaxed);
        Ok(Class(index as u8))
    }

    pub(crate) fn name(&self, class: Class) -> String {
        let entries = self.entries.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        entries.get(class.0 as usize).map_or_else(|| format!("class {}", class.0), |(name, _)| name.clone())
    }

    /// The class's shares; a class of another engine that this one does not have counts as the default class.
    pub(crate) fn shares(&self, class: Class) -> u32 {
        match self.shares[class.0 as usize % CLASSES_MAX].load(std::sync::atomic::Ordering::Relaxed) {
            0 => self.shares[Class::DEFAULT.0 as usize].load(std::sync::atomic::Ordering::Relaxed),
            shares => shares,
        }
    }
}
