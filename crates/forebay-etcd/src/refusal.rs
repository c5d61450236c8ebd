//! Refusals of requests: codes and texts are etcd's, because clients compare them.

use tonic::{Code, Status};

use crate::proto::peer;

macro_rules! refusals {
    ($($(#[$doc:meta])* $name:ident = $code:ident, $text:literal;)*) => {
        /// A reason to refuse a request.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(dead_code, reason = "the list is etcd's")]
        pub(crate) enum Refusal {
            $($(#[$doc])* $name,)*
        }

        impl Refusal {
            /// Returns the code of the gRPC status.
            pub(crate) fn code(self) -> Code {
                match self { $(Refusal::$name => Code::$code,)* }
            }

            /// Returns the text of the gRPC status.
            pub(crate) fn text(self) -> &'static str {
                match self { $(Refusal::$name => $text,)* }
            }
        }
    };
}

refusals! {
    EmptyKey = InvalidArgument, "etcdserver: key is not provided";
    KeyNotFound = InvalidArgument, "etcdserver: key not found";
    ValueProvided = InvalidArgument, "etcdserver: value is provided";
    LeaseProvided = InvalidArgument, "etcdserver: lease is provided";
    TooManyOperations = InvalidArgument, "etcdserver: too many operations in txn request";
    DuplicateKey = InvalidArgument, "etcdserver: duplicate key given in txn request";
    InvalidClientApiVersion = InvalidArgument, "etcdserver: invalid client api version";
    InvalidSortOption = InvalidArgument, "etcdserver: invalid sort option";
    Compacted = OutOfRange, "etcdserver: mvcc: required revision has been compacted";
    FutureRevision = OutOfRange, "etcdserver: mvcc: required revision is a future revision";
    NoSpace = ResourceExhausted, "etcdserver: mvcc: database space exceeded";
    LeaseNotFound = NotFound, "etcdserver: requested lease not found";
    LeaseExists = FailedPrecondition, "etcdserver: lease already exists";
    LeaseTtlTooLarge = OutOfRange, "etcdserver: too large lease TTL";
    WatchCanceled = Cancelled, "etcdserver: watch canceled";
    MemberExists = FailedPrecondition, "etcdserver: member ID already exist";
    PeerUrlExists = FailedPrecondition, "etcdserver: Peer URLs already exists";
    MemberNotEnoughStarted = FailedPrecondition, "etcdserver: re-configuration failed due to not enough started members";
    MemberBadUrls = InvalidArgument, "etcdserver: given member URLs are invalid";
    MemberNotFound = NotFound, "etcdserver: member not found";
    MemberNotLearner = FailedPrecondition, "etcdserver: can only promote a learner member";
    LearnerNotReady = FailedPrecondition, "etcdserver: can only promote a learner member which is in sync with leader";
    TooManyLearners = FailedPrecondition, "etcdserver: too many learner members in cluster";
    RequestTooLarge = InvalidArgument, "etcdserver: request is too large";
    TooManyRequests = ResourceExhausted, "etcdserver: too many requests";
    AuthNotEnabled = FailedPrecondition, "etcdserver: authentication is not enabled";
    RootUserNotExist = FailedPrecondition, "etcdserver: root user does not exist";
    RootRoleNotExist = FailedPrecondition, "etcdserver: root user does not have root role";
    UserExists = FailedPrecondition, "etcdserver: user name already exists";
    UserEmpty = InvalidArgument, "etcdserver: user name is empty";
    UserNotFound = FailedPrecondition, "etcdserver: user name not found";
    RoleExists = FailedPrecondition, "etcdserver: role name already exists";
    RoleNotFound = FailedPrecondition, "etcdserver: role name not found";
    RoleEmpty = InvalidArgument, "etcdserver: role name is empty";
    AuthFailed = InvalidArgument, "etcdserver: authentication failed, invalid user ID or password";
    NoPasswordUser = Unknown, "auth: authentication failed, password was given for no password user";
    PasswordTooLong = Unknown, "bcrypt: password length exceeds 72 bytes";
    VerifyOnly = Unknown, "auth: token signing attempted with verify-only key";
    PermissionNotGiven = InvalidArgument, "etcdserver: permission not given";
    PermissionDenied = PermissionDenied, "etcdserver: permission denied";
    RoleNotGranted = FailedPrecondition, "etcdserver: role is not granted to the user";
    PermissionNotGranted = FailedPrecondition, "etcdserver: permission is not granted to the role";
    InvalidAuthToken = Unauthenticated, "etcdserver: invalid auth token";
    InvalidAuthMgmt = InvalidArgument, "etcdserver: invalid auth management";
    AuthOldRevision = InvalidArgument, "etcdserver: revision of auth store is old";
    NoLeader = Unavailable, "etcdserver: no leader";
    NotLeader = FailedPrecondition, "etcdserver: not leader";
    LeaderChanged = Unavailable, "etcdserver: leader changed";
    NotCapable = FailedPrecondition, "etcdserver: not capable";
    Stopped = Unavailable, "etcdserver: server stopped";
    Timeout = Unavailable, "etcdserver: request timed out";
    TimeoutLeaderFailure = Unavailable, "etcdserver: request timed out, possibly due to previous leader failure";
    Unhealthy = Unavailable, "etcdserver: unhealthy cluster";
    Corrupt = DataLoss, "etcdserver: corrupt cluster";
    BadLeaderTransferee = FailedPrecondition, "etcdserver: bad leader transferee";
    WrongDowngradeFormat = InvalidArgument, "etcdserver: wrong downgrade target version format";
    BadDowngradeTarget = InvalidArgument, "etcdserver: invalid downgrade target version";
    LearnerOnly = FailedPrecondition, "etcdserver: rpc not supported for learner";
}

impl From<Refusal> for peer::Refusal {
    fn from(refusal: Refusal) -> peer::Refusal {
        peer::Refusal { code: refusal.code() as i32, text: refusal.text().to_owned() }
    }
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Status {
        Status::new(refusal.code(), refusal.text())
    }
}

impl From<peer::Refusal> for Status {
    fn from(refusal: peer::Refusal) -> Status {
        Status::new(Code::from(refusal.code), refusal.text)
    }
}
