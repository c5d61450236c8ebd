//! [`Auth`]: users, roles and their permissions. It is a part of the state, as a value: entries change it alike on all members, and both
//! the checks before a service and those of entries ask it.

mod name_map;
mod needs;
mod spans;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use prost::Message;

use self::name_map::NameMap;
pub(crate) use self::needs::{Check, Need, delete_needs, put_needs, range_needs, txn_needs};
use self::spans::Spans;
use crate::proto::authpb::permission::Type;
use crate::proto::authpb::{Permission, Role, User, UserAddOptions};
use crate::proto::etcdserverpb::{AuthRoleGrantPermissionRequest, AuthRoleRevokePermissionRequest};
use crate::proto::peer::auth_change::Change;
use crate::proto::peer::{Author, TokenRequest};
use crate::refusal::Refusal;

/// The user that authentication needs to be turned on, and the role that permits everything.
const ROOT: &str = "root";

/// Users and roles.
#[derive(Clone, PartialEq)]
pub(crate) struct Auth {
    is_enabled: bool,
    /// Counts the changes.
    revision: u64,
    users: NameMap<Account>,
    roles: NameMap<Role>,
}

/// A user, with the keys of all its roles.
#[derive(Clone, Default, PartialEq)]
struct Account {
    user: User,
    keys: Arc<RoleKeys>,
}

/// The keys of some roles together. Users with the same roles share them: a role may have thousands of permissions, and thousands of users.
#[derive(Default, PartialEq)]
struct RoleKeys {
    reads: Spans,
    writes: Spans,
}

/// The keys of users and roles touched by a change: their records have changed or are deleted.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct RecordNames {
    pub(crate) users: Vec<String>,
    pub(crate) roles: Vec<String>,
    /// Whether the change continues in the next entry that asks for it.
    pub(crate) is_partial: bool,
}

/// A token that a member gives out for a password: an entry makes it known to all members.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Token {
    pub(crate) user: String,
    pub(crate) text: String,
}

impl fmt::Debug for Token {
    /// Without the token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token").field("user", &self.user).finish_non_exhaustive()
    }
}

impl fmt::Debug for Auth {
    /// Without hashes of passwords.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Auth")
            .field("is_enabled", &self.is_enabled)
            .field("revision", &self.revision)
            .field("users", &self.users.len())
            .field("roles", &self.roles.len())
            .finish()
    }
}

impl Default for Auth {
    fn default() -> Auth {
        Auth { is_enabled: false, revision: 1, users: NameMap::default(), roles: NameMap::default() }
    }
}

impl RoleKeys {
    fn of(names: &[String], roles: &NameMap<Role>) -> Arc<RoleKeys> {
        let of_roles = names.iter().filter_map(|role| roles.get(role));
        let permissions: Vec<&Permission> = of_roles.flat_map(|role| &role.key_permission).collect();
        let spans =
            |kind: Type| Spans::of(permissions.iter().filter(|it| is_of(it, kind)).filter_map(|it| span(it)));
        Arc::new(RoleKeys { reads: spans(Type::Read), writes: spans(Type::Write) })
    }
}

/// Keys by the names of their roles.
type KeysByRoles = BTreeMap<Vec<String>, Arc<RoleKeys>>;

impl Account {
    fn is_root(&self) -> bool {
        self.user.roles.iter().any(|role| role == ROOT)
    }
}

fn is_of(permission: &Permission, kind: Type) -> bool {
    Type::try_from(permission.perm_type).is_ok_and(|of| of == kind || of == Type::Readwrite)
}

/// Returns the keys of a permission, as start and end; `None` without a key.
fn span(permission: &Permission) -> Option<(Vec<u8>, Option<Vec<u8>>)> {
    let (from, until) = spans::bounds(&permission.key, &permission.range_end);
    let is_some = until.as_ref().is_none_or(|until| from < &until[..]);
    is_some.then(|| (from.to_vec(), until.map(|until| until.into_owned())))
}

/// The keys that a user may read and write.
#[derive(Clone, Copy)]
pub(crate) enum Permit<'a> {
    All,
    Of(PermitKeys<'a>),
}

/// Those of a user without the role root.
#[derive(Clone, Copy)]
pub(crate) struct PermitKeys<'a>(&'a Account);

impl Permit<'_> {
    /// Refuses a need that is not permitted. Leases are the caller's to look at: each of their keys must be [written](Need::Write).
    pub(crate) fn check(&self, need: Need<'_>) -> Result<(), Refusal> {
        let Permit::Of(PermitKeys(account)) = self else { return Ok(()) };
        let (spans, key, range_end) = match need {
            Need::Read(key, range_end) => (&account.keys.reads, key, range_end),
            Need::Write(key, range_end) => (&account.keys.writes, key, range_end),
            Need::Lease(_) => return Ok(()),
        };
        let (from, until) = spans::bounds(key, range_end);
        if spans.has(from, until.as_deref()) { Ok(()) } else { Err(Refusal::PermissionDenied) }
    }

    /// Returns the key until which all may be written from one on; `None` if that has no end. Refuses a key that may not be written.
    pub(crate) fn written_until(&self, key: &[u8]) -> Result<Option<&[u8]>, Refusal> {
        match self {
            Permit::All => Ok(None),
            Permit::Of(PermitKeys(account)) => {
                account.keys.writes.end_of(key).ok_or(Refusal::PermissionDenied)
            }
        }
    }

    /// Returns whether everything is permitted.
    pub(crate) fn is_all(&self) -> bool {
        matches!(self, Permit::All)
    }
}

impl Auth {
    /// Returns users and roles as they were saved.
    pub(crate) fn of(
        is_enabled: bool,
        revision: u64,
        users: Vec<User>,
        roles: Vec<Role>,
    ) -> Result<Auth, String> {
        let mut auth = Auth { is_enabled, revision: revision.max(1), ..Auth::default() };
        let text =
            |name: &[u8]| String::from_utf8(name.to_vec()).map_err(|_| format!("{name:02x?} is not a name"));
        for role in roles {
            auth.roles.insert(&text(&role.name)?, role);
        }
        let mut all = KeysByRoles::new();
        for mut user in users {
            user.roles.sort_unstable();
            let keys = all.entry(user.roles.clone());
            let keys = keys.or_insert_with_key(|names| RoleKeys::of(names, &auth.roles));
            auth.users.insert(&text(&user.name)?, Account { keys: keys.clone(), user });
        }
        Ok(auth)
    }

    pub(crate) fn is_enabled(&self) -> bool {
        self.is_enabled
    }

    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    /// Returns whether nothing was ever changed.
    pub(crate) fn is_untouched(&self) -> bool {
        self.revision == 1 && !self.is_enabled && self.users.is_empty() && self.roles.is_empty()
    }

    /// Returns the users, in the order of their names.
    pub(crate) fn users(&self) -> impl Iterator<Item = (&str, &User)> {
        self.users.iter().map(|(name, account)| (name, &account.user))
    }

    /// Returns the roles, in the order of their names.
    pub(crate) fn roles(&self) -> impl Iterator<Item = (&str, &Role)> {
        self.roles.iter()
    }

    pub(crate) fn names(&self) -> RecordNames {
        let users = self.users().map(|(name, _)| name.to_owned()).collect();
        let roles = self.roles().map(|(name, _)| name.to_owned()).collect();
        RecordNames { users, roles, is_partial: false }
    }

    pub(crate) fn user(&self, name: &str) -> Option<&User> {
        self.users.get(name).map(|account| &account.user)
    }

    pub(crate) fn role(&self, name: &str) -> Option<&Role> {
        self.roles.get(name)
    }

    /// Returns the permissions that `role get` shows.
    pub(crate) fn permissions(&self, name: &str) -> Result<Vec<Permission>, Refusal> {
        let role = self.role(name).ok_or(Refusal::RoleNotFound)?;
        if name == ROOT {
            let all = Permission { perm_type: Type::Readwrite.into(), key: Vec::new(), range_end: vec![0] };
            return Ok(vec![all]);
        }
        Ok(role.key_permission.clone())
    }

    /// Returns the keys of the author of a request. Ask only while authentication is on.
    pub(crate) fn permit(&self, author: Option<&Author>) -> Result<Permit<'_>, Refusal> {
        let author = author.ok_or(Refusal::UserEmpty)?;
        if author.is_server {
            return Ok(Permit::All);
        }
        if author.user.is_empty() {
            return Err(Refusal::UserEmpty);
        }
        if author.revision < self.revision {
            return Err(Refusal::AuthOldRevision);
        }
        let account = self.users.get(&author.user).ok_or(Refusal::PermissionDenied)?;
        Ok(if account.is_root() { Permit::All } else { Permit::Of(PermitKeys(account)) })
    }

    /// Refuses everybody without the role root. As in etcd, an old revision does not matter here. Ask only while authentication is on.
    pub(crate) fn check_root(&self, author: Option<&Author>) -> Result<(), Refusal> {
        let author = author.ok_or(Refusal::UserEmpty)?;
        if author.is_server {
            return Ok(());
        }
        if author.user.is_empty() {
            return Err(Refusal::UserEmpty);
        }
        let account = self.users.get(&author.user).ok_or(Refusal::UserNotFound)?;
        if account.is_root() { Ok(()) } else { Err(Refusal::PermissionDenied) }
    }

    pub(crate) fn has_role(&self, author: &Author, role: &str) -> bool {
        self.user(&author.user).is_some_and(|user| user.roles.iter().any(|of| of == role))
    }

    /// Makes a change, or refuses it with everything as it was. One that touches users whose records have more than about `room_bytes` is
    /// made in part, for one user at least.
    pub(crate) fn change(&mut self, change: Change, room_bytes: u64) -> Result<RecordNames, Refusal> {
        let mut touched = RecordNames::default();
        match change {
            Change::Enable(_) => {
                self.enable()?;
                return Ok(touched);
            }
            Change::Disable(_) if !self.is_enabled => return Ok(touched),
            Change::Disable(_) => self.is_enabled = false,
            Change::AddUser(user) => touched.users.push(self.add_user(user)?),
            Change::DeleteUser(request) => {
                if self.is_enabled && request.name == ROOT {
                    return Err(Refusal::InvalidAuthMgmt);
                }
                if !self.users.remove(&request.name) {
                    return Err(Refusal::UserNotFound);
                }
                touched.users.push(request.name);
            }
            Change::ChangePassword(request) => {
                let name = String::from_utf8(request.name).map_err(|_| Refusal::UserNotFound)?;
                let account = self.users.get_mut(&name).ok_or(Refusal::UserNotFound)?;
                // Without effect on a user without a password, and yet a change, as in etcd.
                if !has_no_password(&account.user) {
                    account.user.password = request.password;
                }
                touched.users.push(name);
            }
            Change::GrantRole(request) => {
                let is_known = request.role == ROOT || self.roles.has(&request.role);
                let account = self.users.get(&request.user).ok_or(Refusal::UserNotFound)?;
                if !is_known {
                    return Err(Refusal::RoleNotFound);
                }
                let mut user = account.user.clone();
                let Err(at) = user.roles.binary_search(&request.role) else { return Ok(touched) };
                user.roles.insert(at, request.role);
                self.set_user(&request.user, user);
                touched.users.push(request.user);
            }
            Change::RevokeRole(request) => {
                if self.is_enabled && request.name == ROOT && request.role == ROOT {
                    return Err(Refusal::InvalidAuthMgmt);
                }
                let mut user = self.user(&request.name).ok_or(Refusal::UserNotFound)?.clone();
                let at = user.roles.binary_search(&request.role).map_err(|_| Refusal::RoleNotGranted)?;
                user.roles.remove(at);
                self.set_user(&request.name, user);
                touched.users.push(request.name);
            }
            Change::AddRole(request) => {
                if request.name.is_empty() {
                    return Err(Refusal::RoleEmpty);
                }
                if self.roles.has(&request.name) {
                    return Err(Refusal::RoleExists);
                }
                let role = Role { name: request.name.clone().into_bytes(), key_permission: Vec::new() };
                self.roles.insert(&request.name, role);
                touched.roles.push(request.name);
            }
            Change::DeleteRole(request) => {
                if self.is_enabled && request.role == ROOT {
                    return Err(Refusal::InvalidAuthMgmt);
                }
                if !self.roles.has(&request.role) {
                    return Err(Refusal::RoleNotFound);
                }
                let mut bytes = 0;
                for name in self.users_of(&request.role) {
                    let Some(mut user) = self.user(&name).cloned() else { continue };
                    bytes += (name.len() + user.encoded_len()) as u64;
                    if bytes > room_bytes && !touched.users.is_empty() {
                        touched.is_partial = true;
                        break;
                    }
                    user.roles.retain(|role| *role != request.role);
                    self.set_user(&name, user);
                    touched.users.push(name);
                }
                if !touched.is_partial {
                    self.roles.remove(&request.role);
                    touched.roles.push(request.role);
                }
            }
            Change::GrantPermission(request) => touched.roles.push(self.grant_permission(request)?),
            Change::RevokePermission(request) => touched.roles.push(self.revoke_permission(request)?),
            Change::AssignToken(_) => return Ok(touched),
        }
        self.revision += 1;
        Ok(touched)
    }

    fn enable(&mut self) -> Result<(), Refusal> {
        if self.is_enabled {
            return Ok(());
        }
        let root = self.users.get(ROOT).ok_or(Refusal::RootUserNotExist)?;
        if !root.is_root() {
            return Err(Refusal::RootRoleNotExist);
        }
        self.is_enabled = true;
        Ok(())
    }

    fn add_user(&mut self, user: User) -> Result<String, Refusal> {
        let name = String::from_utf8(user.name.clone()).unwrap_or_default();
        if name.is_empty() {
            return Err(Refusal::UserEmpty);
        }
        if self.users.has(&name) {
            return Err(Refusal::UserExists);
        }
        let no_password = has_no_password(&user);
        let password = if no_password { Vec::new() } else { user.password };
        let options = Some(UserAddOptions { no_password });
        self.set_user(&name, User { name: user.name, password, roles: Vec::new(), options });
        Ok(name)
    }

    fn grant_permission(&mut self, request: AuthRoleGrantPermissionRequest) -> Result<String, Refusal> {
        let permission = request.perm.ok_or(Refusal::PermissionNotGiven)?;
        let (key, end) = (&permission.key[..], &permission.range_end[..]);
        if key.is_empty() || !(end.is_empty() || end == [0] || key < end) {
            return Err(Refusal::InvalidAuthMgmt);
        }
        let role = self.roles.get_mut(&request.name).ok_or(Refusal::RoleNotFound)?;
        let all = &mut role.key_permission;
        match all.iter_mut().find(|of| of.key == permission.key && of.range_end == permission.range_end) {
            Some(before) => before.perm_type = permission.perm_type,
            None => {
                let at = all.partition_point(|of| of.key <= permission.key);
                all.insert(at, permission);
            }
        }
        self.role_changed(&request.name);
        Ok(request.name)
    }

    fn revoke_permission(&mut self, request: AuthRoleRevokePermissionRequest) -> Result<String, Refusal> {
        let role = self.roles.get_mut(&request.role).ok_or(Refusal::RoleNotFound)?;
        let before = role.key_permission.len();
        role.key_permission.retain(|of| of.key != request.key || of.range_end != request.range_end);
        if role.key_permission.len() == before {
            return Err(Refusal::PermissionNotGranted);
        }
        self.role_changed(&request.role);
        Ok(request.role)
    }

    /// Checks that a token may be given out: nothing has changed since the password was right.
    pub(crate) fn check_token(&self, request: &TokenRequest) -> Result<(), Refusal> {
        if !self.is_enabled {
            return Err(Refusal::AuthNotEnabled);
        }
        if request.revision != self.revision {
            return Err(Refusal::AuthOldRevision);
        }
        if self.users.has(&request.user) { Ok(()) } else { Err(Refusal::AuthFailed) }
    }

    fn set_user(&mut self, name: &str, user: User) {
        let same = self.users.iter().find(|(_, account)| account.user.roles == user.roles);
        let keys = same.map(|(_, account)| account.keys.clone());
        let keys = keys.unwrap_or_else(|| RoleKeys::of(&user.roles, &self.roles));
        self.users.insert(name, Account { user, keys });
    }

    fn users_of(&self, role: &str) -> Vec<String> {
        let has = |account: &Account| account.user.roles.iter().any(|of| of == role);
        self.users.iter().filter(|(_, account)| has(account)).map(|(name, _)| name.to_owned()).collect()
    }

    /// Gives the users of a role its keys.
    fn role_changed(&mut self, role: &str) {
        let mut all = KeysByRoles::new();
        for name in self.users_of(role) {
            let Some(account) = self.users.get_mut(&name) else { continue };
            let names = account.user.roles.clone();
            let keys = all.entry(names).or_insert_with_key(|names| RoleKeys::of(names, &self.roles));
            account.keys = keys.clone();
        }
    }
}

/// Returns whether a user has no password by its own wish.
pub(crate) fn has_no_password(user: &User) -> bool {
    user.options.as_ref().is_some_and(|options| options.no_password)
}
