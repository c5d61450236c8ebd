//! The class that an operation or a task belongs to, and the limits of a class on a device.

mod class_table;

use std::time::Duration;

pub(crate) use class_table::{CLASSES_MAX, ClassTable, NO_TENANT, Spec, Specs, TENANTS_MAX};

/// The owner of an operation or a task, for scheduling. Scarce resources are divided between classes by their
/// shares: the turns of a shard, and the time of each device (see [`ClassSpec`]).
///
/// A task's operations inherit the task's class. Every operation can name another one with `.class(...)`, and
/// [`Class::scope`] sets it for a future on any executor. Classes beyond the three constants are made by
/// [`Engine::class`](crate::Engine::class) and [`Engine::set_class`](crate::Engine::set_class). A class is
/// one byte wide and `Copy`.
///
/// ```
/// use forebay::{Class, Config, Engine};
/// # fn main() -> forebay::Result<()> {
/// let engine = Engine::start(Config::new())?;
/// let reports = engine.class("reports", 50)?;
/// assert_ne!(reports, Class::DEFAULT);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[doc(alias = "QoS")]
#[doc(alias = "ionice")]
pub struct Class(pub(crate) u8);

impl Class {
    /// Stands for the class of the task that polls an operation first. No class has this number.
    pub(crate) const OF_TASK: Class = Class(u8::MAX);

    /// Logs, and other work that a program needs before it can reply to its clients: 1,000 shares.
    pub const LOG: Class = Class(0);
    /// The class of operations without another one: 400 shares.
    pub const DEFAULT: Class = Class(1);
    /// Compaction, back-ups, and scans with no waiting caller: 100 shares.
    pub const BACKGROUND: Class = Class(2);

    #[inline]
    pub(crate) fn index(self) -> usize {
        self.0 as usize % CLASSES_MAX
    }
}

impl Default for Class {
    fn default() -> Class {
        Class::DEFAULT
    }
}

/// A group of classes that share one part of a device; made by [`Engine::tenant`](crate::Engine::tenant).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tenant(pub(crate) u8);

/// The shares and limits of a class on each device. [`Engine::set_class`](crate::Engine::set_class)
/// sets them, and may be called again at any time.
///
/// Shares count only while classes compete for a device, and a part that one class does not use is immediately available to the
/// others. Caps always hold, for the operations of all shards together.
///
/// ```
/// use forebay::{ClassSpec, Config, Engine};
/// # fn main() -> forebay::Result<()> {
/// let engine = Engine::start(Config::new())?;
/// let acme = engine.tenant("acme", 300)?;
/// let backup = engine.set_class(
///     ClassSpec::new("backup").shares(50).read_bytes_per_second_max(200 << 20).tenant(acme),
/// )?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "give it to Engine::set_class"]
pub struct ClassSpec {
    pub(crate) name: String,
    pub(crate) spec: Spec,
}

impl ClassSpec {
    /// Returns a class of that name with 400 shares, no caps and no tenant.
    pub fn new(name: impl Into<String>) -> ClassSpec {
        ClassSpec { name: name.into(), spec: Spec::default() }
    }

    /// Sets the weight of the class when classes compete, 1 to 10,000. Default: 400, as [`Class::DEFAULT`].
    pub fn shares(mut self, shares: u32) -> ClassSpec {
        self.spec.shares = shares;
        self
    }

    /// Sets the most bytes that the class reads in a second from one device; 0, the default, for no limit.
    pub fn read_bytes_per_second_max(mut self, bytes: u64) -> ClassSpec {
        self.spec.caps[0] = bytes;
        self
    }

    /// Sets the most bytes that the class writes in a second to one device; 0, the default, for no limit.
    pub fn write_bytes_per_second_max(mut self, bytes: u64) -> ClassSpec {
        self.spec.caps[1] = bytes;
        self
    }

    /// Sets the most reads in a second from one device; 0, the default, for no limit. A read in several pieces counts once for each
    /// piece.
    pub fn reads_per_second_max(mut self, operations: u64) -> ClassSpec {
        self.spec.caps[2] = operations;
        self
    }

    /// Sets the most writes and syncs in a second to one device; 0, the default, for no limit. Each piece
    /// counts.
    pub fn writes_per_second_max(mut self, operations: u64) -> ClassSpec {
        self.spec.caps[3] = operations;
        self
    }

    /// Sets a goal for the device's time for most operations of the class. Where the device is slower while classes compete, fewer
    /// requests are dispatched to it, at the cost of bandwidth. Zero, the default, is not a goal. Used by tests alone.
    #[doc(hidden)]
    pub fn latency_goal(mut self, goal: Duration) -> ClassSpec {
        self.spec.goal_ns = u64::try_from(goal.as_nanos()).unwrap_or(u64::MAX);
        self
    }

    /// Makes the class one of a tenant's. Its shares then divide the tenant's part. Default: none.
    pub fn tenant(mut self, tenant: Tenant) -> ClassSpec {
        self.spec.tenant = tenant.0;
        self
    }
}
