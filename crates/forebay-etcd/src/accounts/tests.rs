use super::*;
use crate::proto::etcdserverpb::compare::CompareTarget;
use crate::proto::etcdserverpb::request_op::Request;
use crate::proto::etcdserverpb::*;

fn user(name: &str) -> Change {
    Change::AddUser(User { name: name.into(), password: b"hash".to_vec(), ..User::default() })
}

fn role(name: &str) -> Change {
    Change::AddRole(AuthRoleAddRequest { name: name.into() })
}

fn grant(user: &str, role: &str) -> Change {
    Change::GrantRole(AuthUserGrantRoleRequest { user: user.into(), role: role.into() })
}

fn permission(role: &str, kind: Type, key: &str, range_end: &[u8]) -> Change {
    let perm = Permission { perm_type: kind.into(), key: key.into(), range_end: range_end.to_vec() };
    Change::GrantPermission(AuthRoleGrantPermissionRequest { name: role.into(), perm: Some(perm) })
}

fn changed(changes: impl IntoIterator<Item = Change>) -> Auth {
    let mut auth = Auth::default();
    for change in changes {
        auth.change(change, u64::MAX).unwrap();
    }
    auth
}

fn author(auth: &Auth, user: &str) -> Author {
    Author { user: user.into(), revision: auth.revision(), is_server: false }
}

/// With the user root, and one who reads `a` to `c`, writes `b` to `d`, and both with `x`.
fn enabled() -> Auth {
    changed([
        user("root"),
        grant("root", "root"),
        user("u"),
        role("r"),
        role("s"),
        permission("r", Type::Read, "a", b"b"),
        permission("r", Type::Write, "b", b"d"),
        permission("s", Type::Read, "b", b"c"),
        permission("s", Type::Readwrite, "x", b""),
        grant("u", "r"),
        grant("u", "s"),
        Change::Enable(AuthEnableRequest {}),
    ])
}

fn refused(auth: &Auth, need: Need<'_>) -> Option<Refusal> {
    let author = author(auth, "u");
    auth.permit(Some(&author)).unwrap().check(need).err()
}

#[test]
fn keys_of_several_roles_are_one_span() {
    let auth = enabled();
    let denied = Some(Refusal::PermissionDenied);
    for (key, end) in [("a", "c"), ("a", ""), ("bzz", ""), ("ab", "bc"), ("x", "")] {
        assert_eq!(refused(&auth, Need::Read(key.as_bytes(), end.as_bytes())), None, "{key} {end}");
    }
    for (key, end) in
        [("a", "d"), ("c", ""), ("A", "b"), ("x", "y"), ("a", "\0"), ("x", "\0"), ("", "\0"), ("xa", "")]
    {
        assert_eq!(refused(&auth, Need::Read(key.as_bytes(), end.as_bytes())), denied, "{key} {end}");
    }
    assert_eq!(refused(&auth, Need::Write(b"b", b"d")), None);
    assert_eq!(refused(&auth, Need::Write(b"a", b"")), denied);
}

#[test]
fn an_open_end_is_permitted_by_an_open_end_alone() {
    let mut auth = enabled();
    auth.change(permission("r", Type::Read, "m", &[0]), u64::MAX).unwrap();
    assert_eq!(refused(&auth, Need::Read(b"m", &[0])), None);
    assert_eq!(refused(&auth, Need::Read(b"zz", &[0])), None);
    assert_eq!(refused(&auth, Need::Read(b"l", &[0])), Some(Refusal::PermissionDenied));
    assert_eq!(refused(&auth, Need::Write(b"m", &[0])), Some(Refusal::PermissionDenied));
}

/// Joined spans are compared with a plain look at each of them.
#[test]
fn spans_are_those_of_a_plain_list() {
    let ends: [&[u8]; 6] = [b"", b"\0", b"b", b"c", b"d", b"e"];
    let keys: [&[u8]; 5] = [b"a", b"b", b"bb", b"c", b"d"];
    let mut all = Vec::new();
    for key in keys {
        all.extend(
            ends.iter()
                .map(|end| (key, *end))
                .filter(|(key, end)| end.is_empty() || *end == [0] || key < end),
        );
    }
    for (at, one) in all.iter().enumerate() {
        for (beside, other) in all.iter().enumerate() {
            let third = &all[(at * 7 + beside * 3) % all.len()];
            let bounded = [one, other, third].map(|(key, end)| {
                let (from, until) = spans::bounds(key, end);
                (from.to_vec(), until.map(|until| until.into_owned()))
            });
            let spans = Spans::of(bounded.iter().cloned());
            for point in [&b"a"[..], b"a\0", b"b", b"bb", b"bc", b"c", b"cz", b"d", b"dd", b"e", b"z"] {
                let is_in = bounded.iter().any(|(from, until)| {
                    &from[..] <= point && until.as_ref().is_none_or(|until| point < &until[..])
                });
                let (from, until) = spans::bounds(point, b"");
                assert_eq!(spans.has(from, until.as_deref()), is_in, "{bounded:?} {point:?}");
                let end = spans.end_of(point);
                assert_eq!(end.is_some(), is_in, "{bounded:?} {point:?}");
                if let Some(end) = end {
                    assert!(spans.has(point, end) && end.is_none_or(|end| spans.end_of(end).is_none()));
                }
            }
        }
    }
}

#[test]
fn root_may_do_everything_and_users_without_roles_nothing() {
    let mut auth = enabled();
    auth.change(user("plain"), u64::MAX).unwrap();
    let root = author(&auth, "root");
    assert!(auth.permit(Some(&root)).unwrap().is_all());
    assert_eq!(auth.check_root(Some(&root)), Ok(()));
    let plain = author(&auth, "plain");
    let permit = auth.permit(Some(&plain)).unwrap();
    assert_eq!(permit.check(Need::Read(b"a", b"")), Err(Refusal::PermissionDenied));
    assert_eq!(auth.check_root(Some(&plain)), Err(Refusal::PermissionDenied));
    assert_eq!(auth.check_root(Some(&author(&auth, "nobody"))), Err(Refusal::UserNotFound));
    assert_eq!(auth.check_root(None), Err(Refusal::UserEmpty));
    assert_eq!(auth.permit(None).err(), Some(Refusal::UserEmpty));
    assert_eq!(auth.permit(Some(&author(&auth, "nobody"))).err(), Some(Refusal::PermissionDenied));
}

#[test]
fn an_author_of_an_older_revision_is_refused() {
    let mut auth = enabled();
    let before = author(&auth, "root");
    auth.change(role("another"), u64::MAX).unwrap();
    assert_eq!(auth.permit(Some(&before)).err(), Some(Refusal::AuthOldRevision));
}

/// Codes and texts were asked of etcd 3.7.3.
#[test]
fn changes_are_refused_as_etcd_refuses_them() {
    let mut auth = Auth::default();
    let enable = || Change::Enable(AuthEnableRequest {});
    let revoke = |user: &str, role: &str| {
        Change::RevokeRole(AuthUserRevokeRoleRequest { name: user.into(), role: role.into() })
    };
    let delete_user = |name: &str| Change::DeleteUser(AuthUserDeleteRequest { name: name.into() });
    let delete_role = |role: &str| Change::DeleteRole(AuthRoleDeleteRequest { role: role.into() });
    let password = |name: &str| Change::ChangePassword(User { name: name.into(), ..User::default() });
    let steps = [
        (enable(), Err(Refusal::RootUserNotExist)),
        (user(""), Err(Refusal::UserEmpty)),
        (user("root"), Ok(2)),
        (enable(), Err(Refusal::RootRoleNotExist)),
        (user("root"), Err(Refusal::UserExists)),
        (role(""), Err(Refusal::RoleEmpty)),
        (role("r"), Ok(3)),
        (role("r"), Err(Refusal::RoleExists)),
        (grant("nobody", "r"), Err(Refusal::UserNotFound)),
        (grant("root", "none"), Err(Refusal::RoleNotFound)),
        (permission("r", Type::Read, "", b""), Err(Refusal::InvalidAuthMgmt)),
        (permission("r", Type::Read, "b", b"a"), Err(Refusal::InvalidAuthMgmt)),
        (permission("none", Type::Read, "b", b"c"), Err(Refusal::RoleNotFound)),
        (permission("r", Type::Read, "b", b"c"), Ok(4)),
        (permission("r", Type::Write, "b", b"c"), Ok(5)),
        (grant("root", "root"), Ok(6)),
        // A repeated grant is not a change.
        (grant("root", "root"), Ok(6)),
        (password("nobody"), Err(Refusal::UserNotFound)),
        (password("root"), Ok(7)),
        (Change::Disable(AuthDisableRequest {}), Ok(7)),
        (enable(), Ok(7)),
        (enable(), Ok(7)),
        (delete_user("root"), Err(Refusal::InvalidAuthMgmt)),
        (delete_role("root"), Err(Refusal::InvalidAuthMgmt)),
        (revoke("root", "root"), Err(Refusal::InvalidAuthMgmt)),
        (revoke("root", "r"), Err(Refusal::RoleNotGranted)),
        (delete_role("none"), Err(Refusal::RoleNotFound)),
        (grant("root", "r"), Ok(8)),
        (delete_role("r"), Ok(9)),
        (revoke("root", "r"), Err(Refusal::RoleNotGranted)),
        (Change::Disable(AuthDisableRequest {}), Ok(10)),
        (delete_user("root"), Ok(11)),
    ];
    for (at, (change, expected)) in steps.into_iter().enumerate() {
        let before = auth.clone();
        let found = auth.change(change, u64::MAX).map(|_| auth.revision());
        assert_eq!(found, expected, "step {at}");
        if found.is_err() {
            assert!(auth == before, "step {at}");
        }
    }
}

#[test]
fn what_is_changed_is_what_is_read_again() {
    let auth = enabled();
    let users = auth.users().map(|(_, user)| user.clone()).collect();
    let roles = auth.roles().map(|(_, role)| role.clone()).collect();
    assert!(Auth::of(true, auth.revision(), users, roles).unwrap() == auth);
}

#[test]
fn no_password_shows_in_a_log() {
    let text = format!("{:?} {:?}", enabled(), Token { user: "u".into(), text: "secret".into() });
    assert!(!text.contains("hash") && !text.contains("secret") && !text.contains("104"), "{text}");
}

fn all_needs(walk: impl FnOnce(&mut Check<'_>) -> Result<(), Refusal>) -> Vec<String> {
    let mut all = Vec::new();
    walk(&mut |need| {
        all.push(match need {
            Need::Read(key, end) => format!("read {}..{}", key.escape_ascii(), end.escape_ascii()),
            Need::Write(key, end) => format!("write {}..{}", key.escape_ascii(), end.escape_ascii()),
            Need::Lease(id) => format!("lease {id}"),
        });
        Ok(())
    })
    .unwrap();
    all
}

/// Advisories GHSA-rfx7-8w68-q57q (transactions in transactions were not looked at) and GHSA-x35m-3gp4-4fh5 (nor were previous values
/// and leases of the puts in them).
#[test]
fn the_walk_sees_all_of_a_transaction() {
    let operation = |request| RequestOp { request: Some(request) };
    let put = PutRequest { key: "p".into(), lease: 7, prev_kv: true, ..Default::default() };
    let delete = DeleteRangeRequest { key: "d".into(), range_end: "e".into(), prev_kv: true };
    let compare = |key: &str| Compare {
        key: key.into(),
        range_end: "z".into(),
        target: CompareTarget::Version.into(),
        ..Default::default()
    };
    let inner = TxnRequest {
        compare: vec![compare("inner")],
        success: vec![operation(Request::RequestRange(RangeRequest {
            key: "s".into(),
            ..Default::default()
        }))],
        failure: vec![operation(Request::RequestPut(put.clone()))],
    };
    let middle = TxnRequest { failure: vec![operation(Request::RequestTxn(inner))], ..Default::default() };
    let outer = TxnRequest {
        compare: vec![compare("outer")],
        success: vec![operation(Request::RequestDeleteRange(delete))],
        failure: vec![operation(Request::RequestTxn(middle))],
    };
    let expected = [
        "read outer..z",
        "write d..e",
        "read d..e",
        "read inner..z",
        "read s..",
        "write p..",
        "lease 7",
        "read p..",
    ];
    assert_eq!(all_needs(|check| txn_needs(&outer, check)), expected);
    let plain = PutRequest { key: "p".into(), ..Default::default() };
    assert_eq!(all_needs(|check| put_needs(&plain, check)), ["write p.."]);
}

/// A plain map is the model.
#[test]
fn names_are_those_of_a_plain_map() {
    let (mut map, mut model) = (NameMap::default(), std::collections::BTreeMap::new());
    for step in 0..2_000_u32 {
        let drawn = step.wrapping_mul(2_654_435_761) >> 16;
        let name = format!("name {}", drawn % 50);
        match drawn / 50 % 4 {
            0 | 1 => {
                map.insert(&name, step);
                model.insert(name.clone(), step);
            }
            2 => assert_eq!(map.remove(&name), model.remove(&name).is_some(), "step {step}"),
            _ => {
                if let Some(value) = map.get_mut(&name) {
                    *value += 1;
                }
                model.entry(name.clone()).and_modify(|value| *value += 1);
            }
        }
        assert_eq!(map.get(&name), model.get(&name), "step {step}");
        assert!(map.iter().eq(model.iter().map(|(name, value)| (&name[..], value))), "step {step}");
        assert_eq!((map.len(), map.is_empty()), (model.len(), model.is_empty()), "step {step}");
    }
}

/// Each change of one user copied all of them.
#[test]
fn a_change_copies_what_is_beside_its_user() {
    let before = changed((0..100).map(|number| user(&format!("user {number}"))));
    for change in [user("user 50b"), Change::DeleteUser(AuthUserDeleteRequest { name: "user 50".into() })] {
        let mut after = before.clone();
        after.change(change, u64::MAX).unwrap();
        let apart = after.users.parts_apart(&before.users);
        assert!((1..=2).contains(&apart), "{apart} parts");
        assert!(before.user("user 50").is_some() && before.user("user 50b").is_none());
    }
}

/// Story: a thousand users had a role with a thousand permissions. Each had its own copy of the keys, together hundreds of megabytes, and
/// each further permission made all of these again while entries waited.
#[test]
fn users_with_the_same_roles_share_their_keys() {
    let users = || (0..10).map(|number| format!("user {number}"));
    let mut auth = changed([role("r"), role("s")]);
    let revoke = |role: &str, key: &str| {
        let (role, key, range_end) = (role.to_owned(), key.as_bytes().to_vec(), Vec::new());
        Change::RevokePermission(AuthRoleRevokePermissionRequest { role, key, range_end })
    };
    let mut steps: Vec<Change> = users().map(|name| user(&name)).collect();
    steps.extend(users().map(|name| grant(&name, "r")));
    steps.extend(["a", "b", "c"].map(|key| permission("r", Type::Readwrite, key, b"")));
    steps.extend(users().step_by(2).map(|name| grant(&name, "s")));
    steps.extend([permission("s", Type::Read, "x", b"z"), revoke("r", "b")]);
    steps.push(Change::RevokeRole(AuthUserRevokeRoleRequest { name: "user 0".into(), role: "r".into() }));
    steps.extend([user("late"), grant("late", "r"), grant("late", "s")]);
    steps.push(Change::DeleteRole(AuthRoleDeleteRequest { role: "s".into() }));
    for (at, step) in steps.into_iter().enumerate() {
        auth.change(step, u64::MAX).unwrap();
        let users = auth.users().map(|(_, user)| user.clone()).collect();
        let roles = auth.roles().map(|(_, role)| role.clone()).collect();
        let read = Auth::of(false, auth.revision(), users, roles).unwrap();
        assert!(read == auth, "step {at}");
        for auth in [&auth, &read] {
            let mut shared: BTreeMap<&[String], &Arc<RoleKeys>> = BTreeMap::new();
            for (name, account) in auth.users.iter() {
                let keys = *shared.entry(&account.user.roles).or_insert(&account.keys);
                assert!(Arc::ptr_eq(keys, &account.keys), "step {at}, {name}");
            }
        }
    }
}

/// A role could not be deleted once the records of its users were more than an entry of the log may change.
#[test]
fn a_role_of_many_users_is_deleted_in_steps() {
    let users = || (0..10).map(|number| format!("user {number}"));
    let mut auth = changed([role("r")]);
    for name in users() {
        auth.change(user(&name), u64::MAX).unwrap();
        auth.change(grant(&name, "r"), u64::MAX).unwrap();
    }
    let delete = || Change::DeleteRole(AuthRoleDeleteRequest { role: "r".into() });
    let mut left: std::collections::BTreeSet<String> = users().collect();
    loop {
        let revision = auth.revision();
        let touched = auth.change(delete(), 100).unwrap();
        assert!(!touched.users.is_empty() && touched.users.iter().all(|name| left.remove(name)));
        assert_eq!(auth.revision(), revision + 1);
        for name in users() {
            assert_eq!(auth.user(&name).unwrap().roles.is_empty(), !left.contains(&name), "{name}");
        }
        assert_eq!(auth.role("r").is_some(), touched.is_partial);
        if !touched.is_partial {
            break;
        }
    }
    assert!(left.is_empty());
    // A user is enough for a step, however long its record is.
    let mut auth = changed([role("r"), user("u"), grant("u", "r")]);
    assert!(!auth.change(delete(), 0).unwrap().is_partial);
}
