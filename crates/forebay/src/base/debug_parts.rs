//! The `Debug` of types that show a few of their parts, or no parts.

/// Implements `Debug` for a type by some of its parts: `_debug_parts!([T] Sender<T>, |sender| operation: sender.operation)`. The
/// brackets have the parameters of a generic type; without parts it shows its name. For all crates of the workspace.
#[doc(hidden)]
#[macro_export]
macro_rules! _debug_parts {
    (
        $([$($parameter:tt)+])? $name:ident $(<$($argument:tt),+>)?
        $(, |$value:ident| $($part:ident: $shown:expr),+)?
    ) => {
        impl $(<$($parameter)+>)? ::std::fmt::Debug for $name $(<$($argument),+>)? {
            fn fmt(&self, formatter: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                $(let $value = self;)?
                formatter
                    .debug_struct(stringify!($name))
                    $($(.field(stringify!($part), &$shown))+)?
                    .finish_non_exhaustive()
            }
        }
    };
}
