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
    pub fn class(&self, name: &str, shares: u32) -> Result<Class> {
        self.shared.classes.add(name, shares).map_err(|fault| Error::invalid("class", fault))
    }

    /// Returns a class as `spec` describes it; a name that exists already is changed, also while operations
    /// of the class wait or are in flight. Costs a lock, which shards take once for each change.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) as for [`class`](Engine::class), and for
    /// another engine's tenant.
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
    pub fn tenant(&self, name: &str, shares: u32) -> Result<Tenant> {
        self.shared.classes.set_tenant(name, shares).map_err(|fault| Error::invalid("tenant", fault))
    }
}
