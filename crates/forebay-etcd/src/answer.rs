//! [`Answer`]: the boxed result of a service's method, and [`forward`], which implements a service's trait by such methods.
//!
//! `async_trait` gives each method lifetimes with bounds. The compiler then proves anew for each that its future is `Send`, with
//! all that it awaits, which was most of this crate's compile time. A method without such bounds shares these proofs.

use std::pin::Pin;

use tonic::Status;

/// The future of a call's result.
pub(crate) type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, Status>> + Send + 'a>>;

/// Writes methods of a service's trait, as `async_trait` has them. Each calls the type's own method of the same name.
macro_rules! forward {
    ($($call:ident($request:ty) -> $response:ty;)*) => {
        $(fn $call<'life0, 'async_trait>(
            &'life0 self,
            request: tonic::Request<$request>,
        ) -> $crate::answer::Answer<'async_trait, tonic::Response<$response>>
        where
            'life0: 'async_trait,
            Self: 'async_trait,
        {
            Self::$call(self, request)
        })*
    };
}

pub(crate) use forward;
