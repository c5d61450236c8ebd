//! The methods of an engine that define classes and tenants.

use super::Engine;
use crate::base::class::{Class, ClassSpec, Tenant};
use crate::base::error::{Error, Result};

impl Engine {
    /// Returns the class with that name and number of shares (1 to 10,000), and creates it if needed. A
    /// further call with the same name changes its shares alone.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) for an empty name, shares out of range, or
    /// a seventeenth class.
    ///
    /// ```
    /// # use forebay::{Config, Engine, Open};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::default())?;
    /// # let file = engine.open(dir.path().join("data"), Open::create()).wait()?;
    /// # file.write(0, vec![7; 16_384]).wait()?;
    /// let queries = engine.class("queries", 800)?;
    /// let block = file.read(0..4096).class(queries).wait()?; // eight times the shares of Class::BACKGROUND
    /// # Ok(()) }
    /// ```
    pub fn class(&self, name: &str, shares: u32) -> Result<Class> {
        self.shared.classes.add(name, shares).map_err(|fault| Error::invalid("class", fault))
    }

    /// Returns a class as `spec` describes it; a name that exists already is changed, also while operations
    /// of the class wait or are in flight. Costs a lock, which shards take once for each change.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) as for [`class`](Engine::class), and for
    /// another engine's tenant.
    ///
    /// ```
    /// # use forebay::{ClassSpec, Config, Engine};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = Engine::start(Config::default())?;
    /// let backup = ClassSpec::new("backup").shares(50).read_bytes_per_second_max(100 << 20);
    /// let class = engine.set_class(backup.clone())?;
    /// // At night, for operations that are waiting as well:
    /// engine.set_class(backup.read_bytes_per_second_max(0))?;
    /// # Ok(()) }
    /// ```
    pub fn set_class(&self, spec: ClassSpec) -> Result<Class> {
        self.shared.classes.set(spec).map_err(|fault| Error::invalid("class", fault))
    }

    /// Returns the tenant with that name and number of shares (1 to 10,000), and creates it if needed. Its
    /// shares compete with those of classes without a tenant; see [`ClassSpec::tenant`]. A further call with
    /// the same name changes its shares.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) for an empty name, shares out of range, or
    /// a ninth tenant.
    ///
    /// ```
    /// # use forebay::{ClassSpec, Config, Engine};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = Engine::start(Config::default())?;
    /// let acme = engine.tenant("acme", 300)?; // its classes share what 300 shares bring
    /// let queries = engine.set_class(ClassSpec::new("acme queries").shares(900).tenant(acme))?;
    /// let reports = engine.set_class(ClassSpec::new("acme reports").shares(100).tenant(acme))?;
    /// # Ok(()) }
    /// ```
    pub fn tenant(&self, name: &str, shares: u32) -> Result<Tenant> {
        self.shared.classes.set_tenant(name, shares).map_err(|fault| Error::invalid("tenant", fault))
    }
}
