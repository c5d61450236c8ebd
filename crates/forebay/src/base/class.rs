//! Who is asking: the class an operation or a task belongs to, and what a class may have of a device.

mod table;

use std::time::Duration;

pub(crate) use table::{CLASSES_MAX, ClassTable, NO_TENANT, Spec, Specs, TENANTS_MAX};

/// The class of an operation or a task. Whatever is short is divided between classes by their shares: a
/// shard's turns, and each device's time (see [`ClassSpec`]).
///
/// A task's operations inherit the task's class; every operation can name another with `.class(...)`, and
/// [`Class::scope`] sets it for a future on any executor. Classes beyond the three constants are made by
/// [`Engine::class`](crate::Engine::class) and [`Engine::set_class`](crate::Engine::set_class). A class is one byte wide
/// and `Copy`.
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
    /// Stands for the class of the task that polls an operation first; no class has this number.
    pub(crate) const OF_TASK: Class = Class(u8::MAX);

    /// Logs and whatever a program waits for before it may answer: 1,000 shares.
    pub const LOG: Class = Class(0);
    /// Everything that says nothing: 400 shares.
    pub const DEFAULT: Class = Class(1);
    /// Compaction, back-ups, scans nobody waits for: 100 shares.
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

/// A group of classes that have one part of a device together; made by [`Engine::tenant`](crate::Engine::tenant).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tenant(pub(crate) u8);

/// What a class may have of each device; given to [`Engine::set_class`](crate::Engine::set_class), at any time again.
///
/// Shares count only while classes compete for a device, and what one does not use is the others' at once. Caps hold
/// always, for the operations of all shards together.
///
/// ```
/// use forebay::{ClassSpec, Config, Engine};
/// # fn main() -> forebay::Result<()> {
/// let engine = Engine::start(Config::default())?;
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
    /// Returns a class of that name with 400 shares, no caps, no goal, and no tenant.
    pub fn new(name: impl Into<String>) -> ClassSpec {
        ClassSpec { name: name.into(), spec: Spec::default() }
    }

    /// Sets its part of the resources that classes compete for, 1 to 10,000. Default: 400, as
    /// [`Class::DEFAULT`].
    pub fn shares(mut self, shares: u32) -> ClassSpec {
        self.spec.shares = shares;
        self
    }

    /// Sets the most bytes that it reads in a second from one device; 0, the default, for no limit.
    pub fn read_bytes_per_second_max(mut self, bytes: u64) -> ClassSpec {
        self.spec.caps[0] = bytes;
        self
    }

    /// Sets the most bytes that it writes in a second to one device; 0, the default, for no limit.
    pub fn write_bytes_per_second_max(mut self, bytes: u64) -> ClassSpec {
        self.spec.caps[1] = bytes;
        self
    }

    /// Sets the most reads in a second from one device; 0, the default, for no limit. A read that goes to the
    /// device in pieces counts each of them.
    pub fn reads_per_second_max(mut self, operations: u64) -> ClassSpec {
        self.spec.caps[2] = operations;
        self
    }

    /// Sets the most writes and syncs in a second to one device; 0, the default, for no limit. Pieces count
    /// each.
    pub fn writes_per_second_max(mut self, operations: u64) -> ClassSpec {
        self.spec.caps[3] = operations;
        self
    }

    /// Sets the time that the device may take for most of its operations. Where it takes longer while classes
    /// compete, less is let into the device, at the cost of bandwidth. Zero, the default, is no goal.
    pub fn latency_goal(mut self, goal: Duration) -> ClassSpec {
        self.spec.goal_ns = u64::try_from(goal.as_nanos()).unwrap_or(u64::MAX);
        self
    }

    /// Puts it among a tenant's classes: its shares then divide the part that the tenant's shares bring.
    /// Default: none.
    pub fn tenant(mut self, tenant: Tenant) -> ClassSpec {
        self.spec.tenant = tenant.0;
        self
    }
}
