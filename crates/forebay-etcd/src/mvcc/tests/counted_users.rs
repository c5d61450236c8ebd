//! Users and roles in the space, the sums and the audits of a state, from the format on that counts them.

use forebay_kv::Batch;

use super::harness::{Node, grant, put};
use crate::accounts::Auth;
use crate::mvcc::codec::{self, State};
use crate::mvcc::reader::{Part, Reader};
use crate::mvcc::{Audit, Failure, count};
use crate::proto::authpb::permission::Type;
use crate::proto::authpb::{Permission, Role, User};
use crate::proto::etcdserverpb::*;
use crate::proto::peer::auth_change::Change as Command;
use crate::proto::peer::command::Change;
use crate::proto::peer::outcome::Result as Response;
use crate::proto::peer::{AuthChange, Author, Done, Format};
use crate::refusal::Refusal;
use crate::version::Formats;

fn auth(change: Command) -> Change {
    Change::Auth(AuthChange { change: Some(change) })
}

fn add_user(name: &str) -> Change {
    auth(Command::AddUser(User { name: name.into(), password: b"hash".to_vec(), ..User::default() }))
}

fn add_role(name: &str) -> Change {
    auth(Command::AddRole(AuthRoleAddRequest { name: name.into() }))
}

fn grant_role(user: &str, role: &str) -> Change {
    auth(Command::GrantRole(AuthUserGrantRoleRequest { user: user.into(), role: role.into() }))
}

fn delete_role(role: &str) -> Change {
    auth(Command::DeleteRole(AuthRoleDeleteRequest { role: role.into() }))
}

fn raise() -> Change {
    Change::Format(Format { format: Formats::WITH_ACCOUNTS })
}

/// Returns the state's numbers, and asserts that they are those of its entries.
async fn counted(node: &Node, format: u64) -> State {
    let keyspaces = node.store.keyspaces();
    let reader = Reader::new(&keyspaces, None).unwrap();
    assert_eq!(reader.format().await.unwrap(), Some(format));
    let state = reader.state().await.unwrap();
    let (used_bytes, sums) = count::count(&reader, state.cleaned, format).await.unwrap();
    assert_eq!((state.used_bytes, state.sums), (used_bytes, Some(sums)));
    state
}

async fn audit(node: &Node) -> Option<&'static str> {
    let mut audit = Audit::new(node.view().await);
    while audit.step(100).await.unwrap().is_some() {}
    audit.difference()
}

/// Neither the limit of space nor the comparison of members knew of them.
#[tokio::test]
async fn users_and_roles_count_from_their_format_on() {
    let mut node = Node::new().await;
    node.put("key", "value").await;
    let permission = Permission { perm_type: Type::Read.into(), key: "a".into(), range_end: "b".into() };
    let permit = AuthRoleGrantPermissionRequest { name: "r".into(), perm: Some(permission) };
    let before = counted(&node, Formats::FIRST).await;
    for change in [add_user("root"), add_user("u"), add_role("r"), grant_role("u", "r")] {
        node.done(change).await;
        assert_eq!(counted(&node, Formats::FIRST).await, before, "an earlier version counts none");
        assert_eq!(audit(&node).await, None);
    }
    node.done(raise()).await;
    let raised = counted(&node, Formats::WITH_ACCOUNTS).await;
    assert!(raised.used_bytes > before.used_bytes && raised.sums != before.sums);
    node.done(raise()).await;
    assert_eq!(counted(&node, Formats::WITH_ACCOUNTS).await, raised, "they count once");
    let changes = [
        add_user("v"),
        auth(Command::GrantPermission(permit)),
        grant_role("root", "root"),
        auth(Command::ChangePassword(User { name: "v".into(), password: vec![7; 60], ..User::default() })),
        delete_role("r"),
        auth(Command::DeleteUser(AuthUserDeleteRequest { name: "v".into() })),
        auth(Command::Enable(AuthEnableRequest {})),
    ];
    let mut last = raised;
    for change in changes {
        node.done(change.clone()).await;
        let state = counted(&node, Formats::WITH_ACCOUNTS).await;
        assert!(state.sums != last.sums, "{change:?}");
        assert_eq!(audit(&node).await, None);
        last = state;
    }
    node.reopen().await;
    assert_eq!(counted(&node, Formats::WITH_ACCOUNTS).await, last);
    // A record that is another one, or is not there.
    let keyspace = node.store.keyspaces()[Part::Meta as usize].clone();
    for key in [codec::named_key(codec::USER, "u"), codec::AUTH.to_vec()] {
        let record = keyspace.get(&key).await.unwrap().unwrap().to_vec();
        let mut batch = Batch::new();
        node.store.store().write(batch.delete(&keyspace, &key)).await.unwrap();
        assert!(audit(&node).await.is_some(), "{key:02x?}");
        batch.clear();
        node.store.store().write(batch.put(&keyspace, &key, &record)).await.unwrap();
        assert_eq!(audit(&node).await, None);
    }
}

/// A role could not be deleted once the records of its users were more than an entry of the log may change.
#[tokio::test]
async fn a_role_of_many_users_is_deleted_in_several_entries() {
    let mut node = Node::new().await;
    node.done(add_role("r")).await;
    for number in 0..60 {
        let name = format!("{number:02000}");
        node.done(add_user(&name)).await;
        node.done(grant_role(&name, "r")).await;
    }
    // Members of an earlier version refuse it.
    let refused = Response::Refusal(Refusal::RequestTooLarge.into());
    assert_eq!(node.apply(delete_role("r")).await.result, Some(refused));
    node.done(raise()).await;
    let mut steps = 1;
    while node.apply(delete_role("r")).await.result == Some(Response::Done(Done { is_partial: true })) {
        steps += 1;
        counted(&node, Formats::WITH_ACCOUNTS).await;
    }
    assert!(steps > 2, "{steps} steps");
    let missing = Response::Refusal(Refusal::RoleNotFound.into());
    assert_eq!(node.apply(delete_role("r")).await.result, Some(missing));
    counted(&node, Formats::WITH_ACCOUNTS).await;
    let auth = node.view().await.auth().await.unwrap();
    assert!(auth.users().all(|(_, user)| user.roles.is_empty()) && auth.users().count() == 60);
}

/// Story: a role grew with each permission, until its record was longer than the values of a store with little memory. Its members ended
/// as they applied the last permission, and at each start.
#[tokio::test]
async fn a_role_is_no_longer_than_a_value_of_any_store() {
    let mut node = Node::new().await;
    node.done(add_role("r")).await;
    let permit = |key: &str| {
        let permission = Permission { key: key.repeat(40_000).into(), ..Permission::default() };
        auth(Command::GrantPermission(AuthRoleGrantPermissionRequest {
            name: "r".into(),
            perm: Some(permission),
        }))
    };
    node.done(permit("a")).await;
    assert_eq!(node.refused(permit("b")).await, Refusal::RequestTooLarge.text());
    node.done(delete_role("r")).await;
}

/// Each put with a lease walked over all of its keys.
#[tokio::test]
async fn a_lease_belongs_to_those_whose_spans_have_all_of_its_keys() {
    let mut node = Node::new().await;
    let leases: [(i64, &[&str]); 3] = [(7, &["a", "ab", "b", "c\0", "m"]), (8, &["z"]), (9, &[])];
    for (lease, keys) in leases {
        node.done(grant(lease, 60)).await;
        for key in keys {
            node.put_with(PutRequest { lease, ..put(key, "") }).await;
        }
    }
    let cases: [(&[(&str, &str)], bool); 8] = [
        (&[("a", "n")], true),
        (&[("a", "b"), ("b", ""), ("c\0", ""), ("m", "")], true),
        (&[("a", "\0")], true),
        (&[("a", "b"), ("c", "n")], false),
        (&[("a", "m")], false),
        (&[("ab", "\0")], false),
        (&[("n", "\0")], false),
        (&[], false),
    ];
    for (spans, is_permitted) in cases {
        let permission = |(key, end): &(&str, &str)| Permission {
            perm_type: Type::Write.into(),
            key: (*key).into(),
            range_end: (*end).into(),
        };
        let role = Role { name: "r".into(), key_permission: spans.iter().map(permission).collect() };
        let user = User { name: "u".into(), roles: vec!["r".to_owned()], ..User::default() };
        let auth = Auth::of(true, 1, vec![user], vec![role]).unwrap();
        let author = Author { user: "u".into(), revision: 1, is_server: false };
        let permit = auth.permit(Some(&author)).unwrap();
        let checked = node.view().await.check_leases(permit, &[9, 7]).await;
        match checked {
            Ok(()) => assert!(is_permitted, "{spans:?}"),
            Err(Failure::Refused(Refusal::PermissionDenied)) => assert!(!is_permitted, "{spans:?}"),
            Err(failure) => panic!("{spans:?}: {failure:?}"),
        }
    }
}
